"""How a verdict comes about: a number of ours beside one of the paper, and all numbers of an entry together.

A number counts as reproduced if it is at most a tenth worse than the paper's, and as exceeded if it is more than a
tenth better. A condition holds or not. A number that is no part of an entry's criterion has no verdict. The verdict of
an entry follows from those of its numbers, by :func:`overall`, and from nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from paper.entry import Entry, Figure, Outcome, Plot, Series, Table, Verdict
from paper.results import Results, Run

MARGIN = 1.1
POSITIVE = ("seconds", "peak_bytes")
Better = Literal["lower", "higher"]
OF_RIVAL = "a rival, for comparison"


def beside(paper: float | None, ours: float | None, better: Better) -> Verdict:
    """The verdict on one number."""
    if paper is None or ours is None:
        return "not run"
    ahead = paper / ours if better == "lower" else ours / paper
    if ahead > MARGIN:
        return "exceeded"
    return "reproduced" if ahead >= 1 / MARGIN else "not reproduced"


def figure(label: str, paper: float | None, ours: float | None, unit: str, better: Better, note: str = "") -> Figure:
    """One number of the paper beside ours, judged by :func:`beside`."""
    return Figure(label, paper, ours, unit, better, beside(paper, ours, better), note)


def unjudged(label: str, paper: float | None, ours: float | None, unit: str, better: Better, note: str) -> Figure:
    """A number that is no part of the criterion; ``note`` says what it is."""
    return Figure(label, paper, ours, unit, better, None, note)


def condition(label: str, paper: float | None, ours: float | None, unit: str, better: Better, holds: bool) -> Figure:
    """A number that has to be on one side of a bound, however far; not measured where ``ours`` is None."""
    return Figure(label, paper, ours, unit, better, "not run" if ours is None else held(holds, False), condition=True)


def held(holds: bool, more: bool) -> Verdict:
    """The verdict on a claim that is no single number: it holds or not, and by more than in the paper or not."""
    if not holds:
        return "not reproduced"
    return "exceeded" if more else "reproduced"


def overall(figures: Iterable[Figure]) -> Verdict:
    """The verdict of an entry: the worst of its numbers; "not run" where one is missing and no other one is worse.

    Conditions that hold take nothing away: an entry is exceeded if all its other numbers are.
    """
    found = [one for one in figures if one.verdict is not None]
    verdicts = {one.verdict for one in found}
    if "not reproduced" in verdicts:
        return "not reproduced"
    if not found or "not run" in verdicts:
        return "not run"
    graded = {one.verdict for one in found if not one.condition}
    return "exceeded" if graded == {"exceeded"} else "reproduced"


def not_run(entry: Entry, missing: str) -> Outcome:
    """An entry without results."""
    return Outcome(entry, "not run", missing)


# --- Reading measurements --------------------------------------------------------------------------------------------


def value(run: Run | None, method: str, way: str, what: str) -> float | None:
    """A number that `_measure` wrote: of a method, forward or both ways; None where it was not measured.

    A number that is not finite counts as not measured, and so does a time or a size that is not positive.
    """
    found = None if run is None else run.result["measured"].get(method, {}).get(way, {}).get(what)
    if found is None:
        return None
    if not isinstance(found, int | float):
        raise TypeError(f"{what} of {method}, {way}, must be a number, got {found!r}")
    least = 0.0 if what in POSITIVE else -math.inf
    return float(found) if least < found < math.inf else None


def milliseconds(run: Run | None, method: str, way: str = "forward") -> float | None:
    """The median time."""
    found = value(run, method, way, "seconds")
    return None if found is None else 1e3 * found


def ratio(run: Run | None, method: str, rival: str, way: str = "forward", what: str = "seconds") -> float | None:
    """How many times more the rival takes."""
    ours, theirs = value(run, method, way, what), value(run, rival, way, what)
    return theirs / ours if ours and theirs else None


def series(runs: Sequence[Run], over: str, label: str, method: str, way: str, what: str, scale: float) -> Series | None:
    """A method's numbers over one of the settings; None where no run has any."""
    ordered = sorted(runs, key=lambda run: run.settings[over])
    found = [value(run, method, way, what) for run in ordered]
    if all(one is None for one in found):
        return None
    points = [None if one is None else scale * one for one in found]
    return Series(label, [float(run.settings[over]) for run in ordered], points)


def of_paper(label: str, points: Mapping[int, float], scale: float = 1.0) -> Series:
    """The points that the paper names."""
    ordered = sorted(points)
    return Series(f"{label}, paper", [float(x) for x in ordered], [scale * points[x] for x in ordered], of_paper=True)


def curves(found: Iterable[Series | None]) -> list[Series]:
    """Those that have points."""
    return [one for one in found if one is not None]


def place(results: Results) -> str:
    """Where results come from, for titles: the GPU, or the CPU with its threads."""
    machine = results.machines[-1] if results.machines else {}
    return str(machine.get("gpu") or f"{machine.get('cpu')}, {machine.get('torch_threads')} threads")


def judged(
    entry: Entry,
    reason: str,
    sources: Sequence[Results],
    *,
    figures: Sequence[Figure] = (),
    plots: Sequence[Plot] = (),
    tables: Sequence[Table] = (),
) -> Outcome:
    """An outcome with the verdict of its figures, and the machines and files of its sources."""
    machines = [machine for source in sources for machine in source.machines]
    unique = list({str(machine): machine for machine in machines}.values())
    files = list(dict.fromkeys(source.shown for source in sources))
    return Outcome(
        entry, overall(figures), reason, list(figures), list(plots), list(tables), machines=unique, files=files
    )


def power(n: int) -> str:
    """2^20 for 1048576; other numbers as they are."""
    return f"2^{n.bit_length() - 1}" if n & (n - 1) == 0 else str(n)

"""How a verdict comes about: from a number of ours and one of the paper, and from all numbers of an entry together.

A number counts as reproduced if it is at most a tenth worse than the paper's, and as exceeded if it is more than a
tenth better. A condition holds or not. A number that is not part of an entry's criterion has no verdict. The verdict of
an entry follows from those of its numbers, by :func:`overall`, and from nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from paper.entry import Entry, Figure, Outcome, Picture, Plot, Series, TextTable, Verdict
from paper.results import Archive, Results, Run, shown_path

MARGIN = 1.1
POSITIVE = ("seconds", "peak_bytes")
Better = Literal["lower", "higher"]
RIVAL = "a rival, for comparison"


def compare(paper: float | None, ours: float | None, better: Better) -> Verdict:
    """The verdict on one number."""
    if paper is None or ours is None:
        return "not run"
    lead = paper / ours if better == "lower" else ours / paper
    if lead > MARGIN:
        return "exceeded"
    return "reproduced" if lead >= 1 / MARGIN else "not reproduced"


def figure(label: str, paper: float | None, ours: float | None, unit: str, better: Better, note: str = "") -> Figure:
    """A number of the paper and ours, judged by :func:`compare`."""
    return Figure(label, paper, ours, unit, better, compare(paper, ours, better), note)


def unjudged(label: str, paper: float | None, ours: float | None, unit: str, better: Better, note: str) -> Figure:
    """A number that is not part of the criterion; ``note`` says what it is."""
    return Figure(label, paper, ours, unit, better, None, note)


def condition(label: str, paper: float | None, ours: float | None, unit: str, better: Better, holds: bool) -> Figure:
    """A number that has to be on one side of a bound, however far; not measured where ``ours`` is None."""
    verdict = "not run" if ours is None else claim_verdict(holds, False)
    return Figure(label, paper, ours, unit, better, verdict, condition=True)


def claim_verdict(holds: bool, more: bool) -> Verdict:
    """The verdict on a claim that is not a single number: it holds or not, and by more than in the paper or not."""
    if not holds:
        return "not reproduced"
    return "exceeded" if more else "reproduced"


def overall(figures: Iterable[Figure]) -> Verdict:
    """The verdict of an entry: the worst of its numbers; "not run" where one is missing and no other one is worse.

    Conditions that hold take nothing away: an entry is exceeded if all its other numbers are.
    """
    judged = [row for row in figures if row.verdict is not None]
    verdicts = {row.verdict for row in judged}
    if "not reproduced" in verdicts:
        return "not reproduced"
    if not judged or "not run" in verdicts:
        return "not run"
    graded = {row.verdict for row in judged if not row.condition}
    return "exceeded" if graded == {"exceeded"} else "reproduced"


def outcome(
    entry: Entry,
    reason: str,
    sources: Sequence[Results],
    *,
    figures: Sequence[Figure] = (),
    plots: Sequence[Plot] = (),
    tables: Sequence[TextTable] = (),
    pictures: Sequence[Picture] = (),
) -> Outcome:
    """An outcome with the verdict of its figures, and the machines and files of its sources."""
    machines = {str(machine): machine for source in sources for machine in source.machines}
    files = list(dict.fromkeys(shown_path(source.path) for source in sources))
    shown = list(figures), list(plots), list(tables), list(pictures)
    return Outcome(entry, overall(figures), reason, *shown, machines=list(machines.values()), files=files)


def evaluate(entry: Entry, archive: Archive) -> Outcome:
    """What came of an entry. One without results, or whose results cannot be read, is "not run", and says why."""
    try:
        result = entry.judge(entry, archive) or _without_results(entry)
        _refuse_damage(result)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        files = list(dict.fromkeys(map(shown_path, archive.opened)))
        damage = f"{type(error).__name__}: {error}"
        reason = f"Its results cannot be read ({damage}), from {', '.join(files)}; move the damaged file away."
        return Outcome(entry, "not run", reason, files=files, damage=damage)
    return result


def _without_results(entry: Entry) -> Outcome:
    data = f"; it needs {entry.data}, in the folder of --data" if entry.data else ""
    return Outcome(entry, "not run", f"No results: `python -m paper run {entry.name}` makes them{data}.")


def _refuse_damage(result: Outcome) -> None:
    """Raise where a figure is not a finite number, or a cell of a table is not text: no verdict can rest on it."""
    for row in result.figures:
        if row.ours is not None and not math.isfinite(row.ours):
            raise ValueError(f"{row.label}: {row.ours}")
    for table in result.tables:
        for cell in (cell for row in table.rows for cell in row):
            if not isinstance(cell, str):
                raise TypeError(f"{table.title}: a cell must be text, got {cell!r}")


# --- Reading measurements --------------------------------------------------------------------------------------------


def value(run: Run | None, method: str, way: str, quantity: str) -> float | None:
    """A number of ``paper.measuring``: of a method, forward or both ways; None where it was not measured.

    A number that is not finite counts as not measured, and so does a time or a size that is not positive.
    """
    number = None if run is None else run.result["measured"].get(method, {}).get(way, {}).get(quantity)
    if number is None:
        return None
    if not isinstance(number, int | float):
        raise TypeError(f"{quantity} of {method}, {way}, must be a number, got {number!r}")
    least = 0.0 if quantity in POSITIVE else -math.inf
    return float(number) if least < number < math.inf else None


def milliseconds(run: Run | None, method: str, way: str = "forward") -> float | None:
    """The median time."""
    seconds = value(run, method, way, "seconds")
    return None if seconds is None else 1e3 * seconds


def ratio(run: Run | None, method: str, rival: str, way: str = "forward", quantity: str = "seconds") -> float | None:
    """How many times more the rival takes."""
    ours, theirs = value(run, method, way, quantity), value(run, rival, way, quantity)
    return theirs / ours if ours and theirs else None


def method_series(
    runs: Sequence[Run], over: str, labels: Mapping[str, str], way: str, quantity: str, scale: float = 1.0
) -> list[Series]:
    """A line over one of the settings for each method that has numbers; ``labels`` are by method."""
    ordered = sorted(runs, key=lambda run: run.settings[over])
    x, lines = [float(run.settings[over]) for run in ordered], []
    for method, label in labels.items():
        numbers = [value(run, method, way, quantity) for run in ordered]
        if any(number is not None for number in numbers):
            lines.append(Series(label, x, [None if number is None else scale * number for number in numbers]))
    return lines


def paper_series(label: str, points: Mapping[int, float]) -> Series:
    """The points that the paper names."""
    ordered = sorted(points)
    return Series(f"{label}, paper", [float(x) for x in ordered], [points[x] for x in ordered], from_paper=True)


def machine_name(results: Results) -> str:
    """Where results come from, for titles: the GPU, or the CPU with its threads."""
    machine = results.machines[-1] if results.machines else {}
    return str(machine.get("gpu") or f"{machine.get('cpu')}, {machine.get('torch_threads')} threads")


def power(n: int) -> str:
    """2^20 for 1048576; other numbers as they are."""
    return f"2^{n.bit_length() - 1}" if n & (n - 1) == 0 else str(n)

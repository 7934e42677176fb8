"""Tables of attention by distances beside dot products, and of digits sorted, from the committed JSON."""

import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.committed import content, source, table
from benchmarks.report import COMMITTED

DIGITS = "digits-sorted.json"
TASKS = ("regression", "recall", "pixels")
FILES = {"attention-cpu.json": "CPU", "attention-cpu-long.json": "CPU", "attention-cuda.json": "H200"}
KINDS = {"dot products": "scaled dot products", "distances": "`LaplaceAttention`"}
FORMS = {"laplex.soft": "`laplex.soft.cross_entropy`", "SoftSort, dense": "SoftSort, matrix formed"}


def measured() -> list[tuple[str, dict[str, Any]]]:
    """The device and the parts of every file: ("CPU", {"regression": ...})."""
    return [(device, content(file)["parts"]) for file, device in FILES.items() if (COMMITTED / file).exists()]


def attention_tasks() -> str:
    """Scores of both kinds on every task."""
    rows = []
    for device, task, part in _tasks():
        scores = _scores(part)
        count = next(one["parameters"] for one in part["runs"])
        best = _verdict(part)
        cells = [f"**{_range(scores[kind])}**" if best == kind else _range(scores[kind]) for kind in KINDS]
        rows.append((f"{task}, {part['measure']}", device, str(part["n"]), str(part["steps"]), f"{count:,}", *cells))
    header = "task", "on", "n", "steps", "parameters", *KINDS.values()
    seeds = len(next(part for *_, part in _tasks())["runs"]) // len(KINDS)
    note = (
        f"Mean of {seeds} seeds, and their lowest and highest. Bold: all seeds of this one are better than all of the "
        "other. Learning rates and numbers of heads were chosen alike for both, on other data."
    )
    return table(header, rows, note, _sources(*TASKS))


def attention_verdict() -> str:
    """One sentence on what was learned, and one on time."""
    lengths: dict[str, dict[tuple[str, str], list[str]]] = {"distances": {}, "dot products": {}, "alike": {}}
    for device, task, part in _tasks():
        lengths[_verdict(part)].setdefault((task, device), []).append(str(part["n"]))
    words = {"distances": "better on", "dot products": "worse on", "alike": "within the seeds' spread on"}
    present = [
        f"{words[kind]} {_list([f'{task} (n = {_list(sizes)}, {device})' for (task, device), sizes in tasks.items()])}"
        for kind, tasks in lengths.items()
        if tasks
    ]
    sentences = [f"At equal parameters attention by distances is {', and '.join(present)}."]
    for device, times in _times():
        sentences += [_crossing(device, dtype, times) for dtype in ("float32", "bfloat16")]
    return " ".join(sentences)


def attention_times() -> str:
    """Forward and backward of a layer over the length of the sequence."""
    if not _times():
        return "Not measured yet."
    rows = []
    for device, times in _times():
        for dtype in ("float32", "bfloat16"):
            for n in sorted({one["n"] for one in times}):
                dot, ours = (_milliseconds(times, kind, n, dtype) for kind in KINDS)
                rows.append((device, dtype, str(n), f"{dot:.3g} ms", f"{ours:.3g} ms", f"{ours / dot:.2g}"))
    header = "on", "precision", "n", *KINDS.values(), "ratio"
    return table(header, rows, "One sequence, 64 features, 4 heads.", _sources("times"))


def attention_starts() -> str:
    """Regression with keys that start like the queries, and apart."""
    rows = []
    for device, parts in measured():
        if "start" in parts:
            part = parts["start"]
            starts = list(dict.fromkeys(one["start"] for one in part["runs"]))
            errors = [[one["score"] for one in part["runs"] if one["start"] == start] for start in starts]
            rows.append((device, str(part["n"]), str(part["steps"]), *map(_range, errors)))
    return table(("on", "n", "steps", "`k_proj` started as `q_proj`", "started apart"), rows, _sources("start"))


def digits_sorted() -> str:
    """Accuracies of both forms of the loss."""
    report = content(DIGITS)
    rows = []
    for n in sorted({one["n"] for one in report["runs"]}):
        for measure, words in (("all_right", "lists in order"), ("each_right", "numbers in their place")):
            ranges = {
                form: [one[measure] for one in report["runs"] if (one["form"], one["n"]) == (form, n)] for form in FORMS
            }
            within = "yes" if _overlap(*ranges.values()) else "**no**"
            rows.append((str(n), words, *map(_range, ranges.values()), within))
    header = "n", "share of", *FORMS.values(), "within the spread"
    seeds = len({one["seed"] for one in report["runs"]})
    training = f"{report['steps']} steps of {report['lists']} lists"
    note = f"Mean of {seeds} seeds, and their lowest and highest, after {training}."
    return table(header, rows, note, source(DIGITS))


def _tasks() -> list[tuple[str, str, dict[str, Any]]]:
    return [(device, task, part) for device, parts in measured() for task, part in parts.items() if task in TASKS]


def _times() -> list[tuple[str, list[dict[str, Any]]]]:
    return [(device, parts["times"]["results"]) for device, parts in measured() if "times" in parts]


def _scores(part: dict[str, Any]) -> dict[str, list[float]]:
    return {kind: [one["score"] for one in part["runs"] if one["kind"] == kind] for kind in KINDS}


def _verdict(part: dict[str, Any]) -> str:
    """The kind all of whose seeds are better than all of the other's, or "alike"."""
    dot, ours = (_scores(part)[kind] for kind in KINDS)
    if _overlap(dot, ours):
        return "alike"
    return "distances" if (min(ours) > max(dot)) == part["larger_is_better"] else "dot products"


def _overlap(one: list[float], other: list[float]) -> bool:
    return max(min(one), min(other)) <= min(max(one), max(other))


def _crossing(device: str, dtype: str, times: list[dict[str, Any]]) -> str:
    """From which length on our layer is the faster one, and stays so."""
    lengths = sorted({one["n"] for one in times})
    ratios = [
        _milliseconds(times, "distances", n, dtype) / _milliseconds(times, "dot products", n, dtype) for n in lengths
    ]
    slower = [n for n, ratio in zip(lengths, ratios, strict=True) if ratio >= 1]
    where = f"On the {device}, in {dtype}, a layer"
    if slower and slower[-1] == lengths[-1]:
        return f"{where} is slower up to n = {lengths[-1]}, the longest sequence measured."
    first = next(n for n in lengths if not slower or n > slower[-1])
    return f"{where} is faster from n = {first} on ({1 / ratios[-1]:.2g} times at {lengths[-1]})."


def _milliseconds(times: list[dict[str, Any]], kind: str, n: int, dtype: str) -> float:
    return next(float(one["ms"]) for one in times if (one["kind"], one["n"], one["dtype"]) == (kind, n, dtype))


def _range(values: list[float]) -> str:
    return f"{statistics.mean(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def _list(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def _sources(*names: str) -> str:
    """The files that have any of these parts."""
    present = [file for file in FILES if (COMMITTED / file).exists()]
    return source(*(file for file in present if any(name in content(file)["parts"] for name in names)))


CONTENT: dict[str, Callable[[], str]] = {
    "attention tasks": attention_tasks,
    "attention verdict": attention_verdict,
    "attention starts": attention_starts,
    "attention times": attention_times,
    "digits sorted": digits_sorted,
}

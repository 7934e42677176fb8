"""What a row measures: an error, a ratio of times behind a correctness gate, or the cost of an import."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from benchmarks import traffic
from benchmarks.imports import measure_import
from benchmarks.inputs import draw
from benchmarks.problems import OURS, Row, Side, Size, Suite
from benchmarks.result import Measured, Result, judge, without_value
from benchmarks.sides import build, why_not
from laplex.testing import interleave, peak_bytes

ALL_ROWS_UP_TO = 1 << 14  # an error is over every row up to this many,
SAMPLED_ROWS = 512  # and over this many random rows beyond
GATE_ROWS = 256  # rows looked at before a time is believed
GATE = {torch.float32: 1e-6, torch.float64: 1e-13}  # laplex must be this close to be timed
HUGE, HUGE_ROWS = 1 << 46, 8  # entries of K from which on fewer rows are looked at
SAME_THING = 1e-2  # a baseline farther off computes another product; how close it really is, is recorded


def measure(suite: Suite, row: Row, size: Size | None) -> Result:
    """Run one row at one size (an import has none)."""
    for side in _sides(row):
        if reason := why_not(side):
            return without_value(row, size, "skipped", f"{side.label}: {reason}")
    try:
        if size is None:
            return measure_import(row)
        with _threads(row.threads):
            return _error(suite, row, size) if row.measure == "error" else _cost(suite, row, size)
    except RuntimeError as error:  # out of memory, a kernel that failed: the rows after it still count
        return without_value(row, size, "failed", str(error).splitlines()[0])


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """torch's threads set to `count`, where the row asks for that, and set back."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _sides(row: Row) -> list[Side]:
    return [row.ours, *([] if row.against is None else [row.against]), *row.also]


def _error(suite: Suite, row: Row, size: Size) -> Result:
    """Our error; where the row names a baseline, ours must also be smaller than its."""
    problem = draw(row, size, suite.device)
    sample = ALL_ROWS_UP_TO if size.n <= ALL_ROWS_UP_TO else SAMPLED_ROWS
    runnables = {side.label: build(side, problem) for side in _sides(row)}
    errors = {label: runnable.error(sample) for label, runnable in runnables.items()}
    sides = {label: Measured(error=error, backend=runnables[label].backend) for label, error in errors.items()}
    ours, theirs = errors[row.ours.label], errors.get(row.against.label) if row.against else None
    if ours is None or math.isnan(ours):
        return without_value(row, size, "wrong", f"{row.ours.label}: error {ours}", sides)
    below = theirs is None or ours < theirs
    return judge(row, size, ours, sides, "" if below else f"not below the baseline's {theirs:.1e}", met=below)


def _cost(suite: Suite, row: Row, size: Size) -> Result:
    """Our time or memory, or its ratio to the baseline's, after both have shown that they compute what they claim."""
    problem = draw(row, size, suite.device)
    runnables = {side.label: build(side, problem) for side in _sides(row)}
    sample = GATE_ROWS if size.n * size.k < HUGE else HUGE_ROWS
    errors = {label: runnable.error(sample) for label, runnable in runnables.items()}
    sides = {label: Measured(error=error) for label, error in errors.items()}
    for side in _sides(row):
        bound = GATE[row.dtype] if side.method in OURS else SAME_THING
        error = errors[side.label]
        if error is not None and not error <= bound:
            return without_value(row, size, "wrong", f"{side.label}: error {error:.1e} exceeds {bound:.0e}", sides)
    calls = {label: runnable.call for label, runnable in runnables.items()}
    watched = suite.device == "cuda" or row.measure.startswith("memory")
    peaks = {label: peak_bytes(call, suite.device) if watched else None for label, call in calls.items()}
    times = interleave(calls, suite.device, suite.budget, cold=True)
    sides = {
        label: Measured(errors[label], times[label], peaks[label], runnable.backend)
        for label, runnable in runnables.items()
    }
    ours, against = sides[row.ours.label], sides[(row.against or row.ours).label]
    note = traffic.note(row, size, times[row.ours.label].median) if suite.device == "cuda" else ""
    return judge(row, size, _value(row.measure, ours, against), sides, note)


def _value(measure: str, ours: Measured, against: Measured) -> float:
    """What is held against the bar."""
    if measure.startswith("memory"):
        held, other = float(ours.peak_bytes or 0), float(against.peak_bytes or 0)
    else:
        held, other = (side.time.median if side.time else math.nan for side in (ours, against))
    if not measure.endswith("ratio"):
        return held
    return held / other if other > 0 else math.nan  # a host's peak may be too small to see

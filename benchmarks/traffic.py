"""Bytes a product must move on the GPU, counted by hand, and what share of the copy bandwidth that makes."""

import functools

import torch

from benchmarks.problems import Row, Size
from laplex.testing import Budget, interleave

COPIED = 1 << 30  # bytes, far more than any cache
FLOAT = 4  # bytes of a float32, and of an entry of the order
# With n at least SHORT_AXIS_RATIO * k and batch * n at least SPREAD_FROM, laplex reads each row anchor once.
SHORT_AXIS_RATIO, SPREAD_FROM = 16, 1 << 23


def moved(row: Row, size: Size) -> int | None:
    """The fewest: x and y once, and what tells their order in every pass; None where it is not counted: planning,
    derivatives, baselines."""
    if row.ours.method != "laplex" or row.ours.mode not in ("kept", "graph") or row.dtype != torch.float32:
        return None
    points = size.n + size.k
    operands = size.batch * (size.k + size.n) * FLOAT  # x read, y written
    if row.anchors == "in order":  # positions and words in both passes, x in the second too
        return 2 * points * FLOAT + 2 * points // 4 + operands + size.batch * size.k * FLOAT
    if size.n >= SHORT_AXIS_RATIO * size.k and size.batch * size.n >= SPREAD_FROM:  # every target once
        return size.n * FLOAT + operands
    return 4 * points * FLOAT + operands  # positions and entries, twice


@functools.cache
def copy_bandwidth() -> float:
    """Bytes read and written a second by a large copy on the device."""
    source = torch.empty(COPIED, dtype=torch.int8, device="cuda").fill_(1)
    target = torch.empty_like(source)
    budget = Budget(min_s=0.05, min_samples=10, max_s=0.5, turn_s=0.02)
    times = interleave({"copy": lambda: target.copy_(source)}, "cuda", budget, cold=True)
    return 2 * COPIED / times["copy"].median


def note(row: Row, size: Size, seconds: float) -> str:
    """In words, for the results."""
    count = moved(row, size)
    if count is None:
        return ""
    share = count / seconds / copy_bandwidth()
    return f"{count / 1e9:.3g} GB counted, {share:.0%} of the copy bandwidth ({copy_bandwidth() / 1e12:.2f} TB/s)"

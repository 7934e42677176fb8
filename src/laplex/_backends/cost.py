"""What a product costs on each way, in microseconds, so that a call can take the cheapest.

The costs are linear in a few counts, with coefficients fitted to sweeps of sizes (``python -m benchmarks.ways``; the
JSON is in benchmarks/results). They need not be right, only in the right order: where two ways cost about the same,
either will do.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Work(NamedTuple):
    """A product as ``laplex.linear`` is asked for it."""

    results: int  # h: matrices W, after sums
    summed: int  # r: matrices in each sum
    rows: int  # m: rows of x for each W
    n: int
    k: int
    dtype: torch.dtype  # of x
    gradients: bool
    planned: bool = False

    @classmethod
    def of(
        cls,
        operands: tuple[Tensor, Tensor, Tensor],
        batch: tuple[int, ...],
        summed: bool,
        planned: bool,
        others: tuple[Any, ...],
    ) -> Work:
        """Of x, a and b, for a batch of matrices, summed or not; ``others`` are what else may be differentiated."""
        x, a, b = operands
        matrices, rows = math.prod(batch), math.prod(x.shape[:-1])
        gradients = torch.is_grad_enabled() and any(
            isinstance(given, Tensor) and given.requires_grad for given in (x, a, b, *others)
        )
        results, r = (1, matrices) if summed else (matrices, 1)
        return cls(results, r, -(-rows // max(results, 1)), a.shape[-1], b.shape[-1], x.dtype, gradients, planned)


MOST_FORMED = 1 << 28  # numbers of W; with gradients there are two such arrays


class Coefficients(NamedTuple):
    """Microseconds: for a call, for a million exponentials, for a million numbers of W, for a billion multiplications;
    for a call of the scan, for a million points sorted, for a million points scanned."""

    formed: float
    entry: float
    written: float
    multiplied: float
    scan: float
    sorted: float
    scanned: float
    pairs: float
    pair: float


CUDA = {
    False: Coefficients(40.0, 0.4, 2.0, 45.0, 60.0, 300.0, 3.0, 25.0, 2.0),
    True: Coefficients(300.0, 1.5, 6.0, 135.0, 500.0, 300.0, 10.0, 400.0, 6.0),
}
CPU = {
    False: Coefficients(40.0, 300.0, 500.0, 10000.0, 40.0, 15000.0, 1500.0, 0.0, 0.0),
    True: Coefficients(100.0, 800.0, 1000.0, 30000.0, 100.0, 15000.0, 5000.0, 0.0, 0.0),
}


def formed(work: Work, given: Coefficients) -> float:
    numbers = work.results * work.n * work.k
    return (
        given.formed
        + given.entry * numbers * work.summed * 1e-6
        + given.written * numbers * 1e-6
        + given.multiplied * numbers * work.rows * 1e-9
    )


def scanned(work: Work, given: Coefficients) -> float:
    points = work.results * work.summed * (work.n + work.k)
    sort = 0.0 if work.planned else given.sorted * points * 1e-6
    return given.scan + sort + given.scanned * points * work.rows * 1e-6


def pairs(work: Work, given: Coefficients) -> float:
    return given.pairs + given.pair * work.results * work.summed * work.n * work.k * -(-work.rows // 4) * 1e-6


def cheapest(work: Work, device: str) -> str:
    """ "formed", "pairs" or "scan". Spelled out, because torch.compile follows no ``min`` with a key."""
    given = (CUDA if device == "cuda" else CPU)[work.gradients]
    way, cost = "scan", scanned(work, given)
    if work.results * work.n * work.k <= MOST_FORMED and formed(work, given) < cost:
        way, cost = "formed", formed(work, given)
    if given.pairs > 0 and pairs(work, given) < cost:
        way = "pairs"
    return way

"""What a product costs each way, in microseconds, so that a call can take the cheapest.

The costs are linear in a few counts, with coefficients fitted to sweeps of sizes (the JSON of
``python -m benchmarks.studies.ways`` is in benchmarks/results). They need not be right, only in the right order.
(Summing pair by pair, as backend "dense" does, was never the fastest way in the sweep.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from laplex._scan.order import SHORT_AXIS_RATIO


class Work(NamedTuple):
    """A product that ``laplex.linear`` has to compute."""

    results: int  # h: matrices W, after sums
    summed: int  # r: matrices in each sum
    rows: int  # m: rows of x for each W
    n: int
    k: int
    gradients: bool
    planned: bool = False

    @classmethod
    def from_operands(
        cls,
        operands: tuple[Tensor, Tensor, Tensor],
        batch: tuple[int, ...],
        *,
        summed: bool,
        gradients: bool,
        planned: bool,
    ) -> Work:
        """The work for x, a and b, with a batch of matrices, summed or not."""
        x, a, b = operands
        sizes = a.shape[-1], b.shape[-1]
        if summed or not batch:
            return cls(1, math.prod(batch), math.prod(x.shape[:-1]), *sizes, gradients, planned)
        results = math.prod(batch)
        rows = x.shape[-2] * math.prod(torch.broadcast_shapes(x.shape[:-2], batch)) // max(results, 1)
        return cls(results, 1, rows, *sizes, gradients, planned)


MOST_FORMED = 1 << 28  # numbers of W, h n k: a gigabyte in float32; with gradients three such arrays

# The counts that make up each way's time, to be multiplied by its coefficients.
#
#     formed   a call; a sum; entries formed; numbers of W written; multiplications of W with rows of x
#     scan     a call; a sum; an order to find; matrices; points sorted; points scanned, by the two kinds of layout
#
# A scan of a matrix with a short side reads the long side once, in order. Other scans gather and scatter.
COUNTS: dict[str, Callable[[Work], tuple[float, ...]]] = {
    "formed": lambda w: (
        1.0,
        1.0 if w.summed > 1 else 0.0,
        w.results * w.summed * w.n * w.k,
        w.results * w.n * w.k,
        w.results * w.rows * w.n * w.k,
    ),
    "scan": lambda w: (
        1.0,
        1.0 if w.summed > 1 else 0.0,
        0.0 if w.planned else 1.0,
        w.results * w.summed,
        0.0 if w.planned else w.results * w.summed * (w.n + w.k),
        0.0 if _has_short_side(w) else _points(w),
        _points(w) if _has_short_side(w) else 0.0,
    ),
}


def _points(w: Work) -> int:
    return w.results * w.summed * w.rows * (w.n + w.k)


def _has_short_side(w: Work) -> bool:
    return max(w.n, w.k) >= SHORT_AXIS_RATIO * min(w.n, w.k)


# Microseconds, by device, way and whether gradients are needed.
COEFFICIENTS: dict[str, dict[tuple[str, bool], tuple[float, ...]]] = {
    "cuda": {  # an H200
        ("formed", False): (57.9, 0.456, 7.0e-7, 1.74e-6, 3.71e-8),
        ("formed", True): (481.0, 70.5, 1.93e-6, 3.9e-6, 9.51e-8),
        ("scan", False): (48.5, 264.0, 15.7, 1.63, 1.88e-4, 1.96e-5, 6.19e-6),
        ("scan", True): (565.0, 958.0, 72.7, 4.37, 1.44e-4, 6.56e-5, 1.64e-5),
    },
    "cpu": {  # two cores of an EPYC
        ("formed", False): (45.3, 28.1, 5.93e-5, 4.22e-4, 1.38e-5),
        ("formed", True): (162.0, 77.3, 2.45e-4, 1.34e-3, 4.47e-5),
        ("scan", False): (36.4, 85.5, 30.3, 2.09, 1.04e-2, 9.67e-4, 9.41e-4),
        ("scan", True): (156.0, 344.0, 25.3, 2.82, 1.33e-2, 3.33e-3, 3.46e-3),
    },
}


def microseconds(way: str, work: Work, device: str) -> float:
    """What a product costs this way."""
    coefficients = COEFFICIENTS[device][way, work.gradients]
    return sum(count * each for count, each in zip(COUNTS[way](work), coefficients, strict=True))


def cheapest(work: Work, device: str) -> str:
    """ "formed" or "scan". Both are exact to a rounding or two (benchmarks/studies/errors.py), so time decides."""
    if work.results * work.n * work.k > MOST_FORMED:
        return "scan"
    return "formed" if microseconds("formed", work, device) < microseconds("scan", work, device) else "scan"

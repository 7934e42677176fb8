"""What a product costs on each way, in microseconds, so that a call can take the cheapest.

The costs are linear in a few counts, with coefficients fitted to sweeps of sizes (``python -m benchmarks.ways``; the
JSON is in benchmarks/results). They need not be right, only in the right order: where two ways cost about the same,
either will do. (To sum pair by pair, as backend "dense" does, was never the fastest way in the sweep.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Work(NamedTuple):
    """A product as ``laplex.linear`` is asked for it."""

    results: int  # h: matrices W, after sums
    summed: int  # r: matrices in each sum
    rows: int  # m: rows of x for each W
    n: int
    k: int
    gradients: bool
    planned: bool = False

    @classmethod
    def of(
        cls,
        operands: tuple[Tensor, Tensor, Tensor],
        batch: tuple[int, ...],
        *,
        summed: bool,
        gradients: bool,
        planned: bool,
    ) -> Work:
        """Of x, a and b, for a batch of matrices, summed or not."""
        x, a, b = operands
        sizes = a.shape[-1], b.shape[-1]
        if summed or not batch:
            return cls(1, math.prod(batch), math.prod(x.shape[:-1]), *sizes, gradients, planned)
        results = math.prod(batch)
        rows = x.shape[-2] * math.prod(torch.broadcast_shapes(x.shape[:-2], batch)) // max(results, 1)
        return cls(results, 1, rows, *sizes, gradients, planned)


MOST_FORMED = 1 << 28  # numbers of W, h n k: a gigabyte in float32; with gradients three such arrays

# What each way's time is made of, in counts that its coefficients multiply.
#
#     formed   a call; entries formed; numbers of W written; multiplications of W with rows of x; rows in and out
#     scan     a call; matrices; points sorted; points scanned; rows in and out
COUNTS: dict[str, Callable[[Work], tuple[float, ...]]] = {
    "formed": lambda w: (
        1.0,
        w.results * w.summed * w.n * w.k,
        w.results * w.n * w.k,
        w.results * w.rows * w.n * w.k,
        w.results * w.rows * (w.n + w.k),
    ),
    "scan": lambda w: (
        1.0,
        w.results * w.summed,
        0.0 if w.planned else w.results * w.summed * (w.n + w.k),
        w.results * w.summed * w.rows * (w.n + w.k),
        w.results * w.rows * (w.n + w.k),
    ),
}
# Microseconds, by device, way and whether gradients are wanted.
COEFFICIENTS: dict[str, dict[tuple[str, bool], tuple[float, ...]]] = {
    "cuda": {  # an H200
        ("formed", False): (60.1, 5.76e-7, 2.1e-6, 3.64e-8, 0.0),
        ("formed", True): (583.0, 9.85e-7, 6.06e-6, 7.97e-8, 0.0),
        ("scan", False): (237.0, 13.1, 1.28e-3, 4.93e-6, 2.56e-6),
        ("scan", True): (1280.0, 57.1, 9.8e-4, 2.12e-5, 6.21e-6),
    },
    "cpu": {  # two cores of an EPYC
        ("formed", False): (50.6, 5.2e-5, 3.17e-4, 1.45e-5, 0.0),
        ("formed", True): (189.0, 2.12e-4, 1.29e-3, 3.84e-5, 5.55e-4),
        ("scan", False): (114.0, 5.42, 9.54e-3, 7.6e-4, 3.26e-5),
        ("scan", True): (403.0, 6.61, 1.33e-2, 2.6e-3, 8.42e-5),
    },
}


def microseconds(way: str, work: Work, device: str) -> float:
    """What a product costs on a way."""
    coefficients = COEFFICIENTS[device][way, work.gradients]
    return sum(count * each for count, each in zip(COUNTS[way](work), coefficients, strict=True))


def cheapest(work: Work, device: str) -> str:
    """ "formed" or "scan"."""
    if work.results * work.n * work.k > MOST_FORMED:
        return "scan"
    return "formed" if microseconds("formed", work, device) < microseconds("scan", work, device) else "scan"

"""The tensors of a row at one size, and as a baseline can take them."""

from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.problems import Row, Size
from laplex import testing
from laplex.testing import Problem
from paper.methods.products import Baseline

NARROW = 0.01  # the span of narrow anchors
OFFSET = 1e4


def draw(row: Row, size: Size, device: str) -> Problem:
    """The problem of a row."""
    drawn = testing.draw(size.n, size.k, rows=size.batch, tau=row.tau, device=device, dtype=row.dtype)
    return replace(drawn, a=_anchors(row, drawn.a), b=_anchors(row, drawn.b))


def _anchors(row: Row, normal: Tensor) -> Tensor:
    """Anchors of the row's kind, made of standard normal numbers."""
    if row.anchors == "narrow":
        uniform: Tensor = torch.special.ndtr(normal)
        return NARROW * uniform
    if row.anchors == "offset":
        return normal + OFFSET
    return normal.sort().values if row.anchors == "in order" else normal


def symmetric(problem: Problem) -> Problem:
    """The same problem with b = a; n and k must be equal."""
    return replace(problem, b=problem.a)


def suited_to(problem: Problem, baseline: Baseline) -> Problem:
    """The same problem as the baseline can take it: its anchors, its dtype, and for a yardstick the longer side."""
    if baseline.anchors == "sorted":
        problem = replace(problem, a=problem.a.sort().values, b=problem.b.sort().values)
    if baseline.symmetric:
        problem = symmetric(problem)
    if baseline.anchors == "grid":
        n = problem.a.shape[0]
        grid = torch.arange(n, dtype=problem.a.dtype, device=problem.a.device) / n
        problem = replace(problem, a=grid, b=grid)
    if baseline.yardstick and problem.a.shape[0] > problem.b.shape[0]:
        problem = replace(problem, x=problem.cotangent)
    if baseline.dtype is None:
        return problem
    x = problem.x.to(baseline.dtype)
    if baseline.yardstick:
        return replace(problem, x=x)
    return replace(problem, x=x, a=problem.a.to(baseline.dtype), b=problem.b.to(baseline.dtype))

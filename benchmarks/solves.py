"""Sides that solve in place of multiplying: (K + DIAG)^-1 y for the symmetric K, and the same of a Gram matrix."""

from functools import partial

import torch
from torch import Tensor

from benchmarks.inputs import suited_to
from benchmarks.problems import Side
from benchmarks.runnable import Runnable
from laplex import GramOperator, LaplaceOperator
from laplex.testing import Problem
from paper.methods.products import BASELINES
from paper.methods.products.celerite import DIAG


def build(side: Side, problem: Problem) -> Runnable:
    """Set the side up, its order kept."""
    if side.method != "laplex":
        return _baseline(side, problem)
    if side.mode == "solve":
        kernel = LaplaceOperator(problem.a, tau=problem.tau)
        y = problem.cotangent.mT.contiguous()
        return Runnable(
            partial(kernel.solve, y, DIAG), judge=partial(_residual, kernel, y), backend=kernel.plan.backend
        )
    part = 10 if side.mode == "gram, a tenth" else 1
    a, b, weight, y = (tensor[..., : tensor.shape[-1] // part] for tensor in (*_sides(problem), problem.cotangent))
    gram = LaplaceOperator(a, b, problem.tau).gram(weight)
    columns = y.mT.contiguous()
    return Runnable(
        lambda: (gram.solve(columns, DIAG), gram.logdet(DIAG)),
        judge=partial(_residual, gram, columns),
        backend=gram.kernel.plan.backend,
    )


def _sides(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    return problem.a, problem.b, problem.x[0].abs()


def _baseline(side: Side, problem: Problem) -> Runnable:
    problem = suited_to(problem, BASELINES[side.method])
    y = problem.cotangent.to(problem.a.dtype)
    kernel = LaplaceOperator(problem.a, tau=problem.tau)
    apply = BASELINES[side.method].prepare(problem.a, problem.a, float(problem.tau))

    def residual(x: Tensor) -> float:
        return _residual(kernel, y.mT, x.mT)

    return Runnable(partial(apply, y), judge=residual)


def _residual(matrix: LaplaceOperator | GramOperator, y: Tensor, got: Tensor | tuple[Tensor, ...]) -> float:
    """|A x - y| over | |A| |x| + |y| |, by laplex's own product, which rows of its own hold against direct sums."""
    x = (got if isinstance(got, Tensor) else got[0]).double()
    wide = matrix @ torch.cat([x, x.abs()], -1)  # the matrices here have no negative entry
    product, most = wide.chunk(2, -1)
    left = product + DIAG * x - y
    return float(left.norm() / (most + DIAG * x.abs() + y.abs()).norm())

"""Sides that solve in place of multiplying: (K + DIAG)^-1 y for the symmetric K, and the same of a Gram matrix."""

from functools import partial

import torch
from torch import Tensor

from benchmarks.baselines import BASELINES
from benchmarks.baselines.celerite import DIAG
from benchmarks.inputs import Inputs, suited_to
from benchmarks.problems import Side
from benchmarks.runnable import Runnable
from laplex import GramOperator, LaplaceOperator


def build(side: Side, inputs: Inputs) -> Runnable:
    """Set the side up, its order kept."""
    if side.method != "laplex":
        return _baseline(side, inputs)
    if side.mode == "solve":
        kernel = LaplaceOperator(inputs.a, tau=inputs.tau)
        y = inputs.cotangent.mT.contiguous()
        return Runnable(
            partial(kernel.solve, y, DIAG), judge=partial(_residual, kernel, y), backend=kernel.plan.backend
        )
    part = 10 if side.mode == "gram, a tenth" else 1
    a, b, weight, y = (whole[..., : whole.shape[-1] // part] for whole in (*_sides(inputs), inputs.cotangent))
    gram = LaplaceOperator(a, b, inputs.tau).gram(weight)
    columns = y.mT.contiguous()
    return Runnable(
        lambda: (gram.solve(columns, DIAG), gram.logdet(DIAG)),
        judge=partial(_residual, gram, columns),
        backend=gram.kernel.plan.backend,
    )


def _sides(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    return inputs.a, inputs.b, inputs.x[0].abs()


def _baseline(side: Side, inputs: Inputs) -> Runnable:
    inputs = suited_to(inputs, BASELINES[side.method])
    y = inputs.cotangent.to(inputs.a.dtype)
    kernel = LaplaceOperator(inputs.a, tau=inputs.tau)
    apply = BASELINES[side.method].prepare(inputs.a, inputs.a, inputs.tau)

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

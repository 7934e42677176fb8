"""The tensors of a row at one size: seeded, so that every machine and every rerun sees the same numbers."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.baselines import Baseline
from benchmarks.problems import Row, Size

DRAWN_ON_CPU = 1 << 24  # numbers


@dataclass(frozen=True)
class Inputs:
    """One product y = K(a, b) x, and the cotangent its derivative is taken with."""

    x: Tensor  # (batch, k)
    a: Tensor  # (n,)
    b: Tensor  # (k,)
    tau: float
    cotangent: Tensor  # (batch, n)


def make(row: Row, size: Size, device: str) -> Inputs:
    """Draw on the CPU, then move, so that devices agree; what would take the CPU long is drawn where it is used."""
    drawn_on = device if size.batch * max(size.n, size.k) > DRAWN_ON_CPU else "cpu"
    generator = torch.Generator(drawn_on).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=row.dtype, device=drawn_on)

    def anchors(count: int) -> Tensor:
        if row.anchors == "narrow":
            return 0.01 * torch.rand(count, generator=generator, dtype=row.dtype, device=drawn_on)
        drawn = normal(count) + (1e4 if row.anchors == "offset" else 0.0)
        return drawn.sort().values if row.anchors == "in order" else drawn

    tensors = normal(size.batch, size.k), anchors(size.n), anchors(size.k), normal(size.batch, size.n)
    x, a, b, cotangent = (t.to(device) for t in tensors)
    return Inputs(x, a, b, row.tau, cotangent)


def symmetric(inputs: Inputs) -> Inputs:
    """The same problem with b = a; n and k must be equal."""
    return replace(inputs, b=inputs.a)


def suited_to(inputs: Inputs, baseline: Baseline) -> Inputs:
    """The same problem as the baseline can take it: its anchors, its dtype, and for a yardstick the longer side."""
    if baseline.anchors == "sorted":
        inputs = replace(inputs, a=inputs.a.sort().values, b=inputs.b.sort().values)
    if baseline.symmetric:
        inputs = symmetric(inputs)
    if baseline.anchors == "grid":
        n = inputs.a.shape[0]
        grid = torch.arange(n, dtype=inputs.a.dtype, device=inputs.a.device) / n
        inputs = replace(inputs, a=grid, b=grid)
    if baseline.yardstick and inputs.a.shape[0] > inputs.b.shape[0]:
        inputs = replace(inputs, x=inputs.cotangent)
    if baseline.dtype is None:
        return inputs
    x = inputs.x.to(baseline.dtype)
    if baseline.yardstick:
        return replace(inputs, x=x)
    return replace(inputs, x=x, a=inputs.a.to(baseline.dtype), b=inputs.b.to(baseline.dtype))

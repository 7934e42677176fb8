"""Linear layers with few parameters, for every place inside a network: LAPLEX, and what it is compared with.

Each maps x (..., in) to y (..., out), with a bias. ``size`` is the number that trades parameters for accuracy; without
the bias a layer has

    method          parameters                                size
    dense           out in                                    none
    laplex          r (out + in) + r                          r kernels
    laplex-phased   2 r (out + in) + r                        r kernels with phases
    low-rank        r (out + in)                              r, the rank
    monarch         r (out + in)                              r, the width of a block between the two factors
    btt             r (out + in)                              r, the blocks of a side times the rank of a block
    kronecker       t (p q + (out / p) (in / q))              t terms

Monarch and BTT exist at some sizes only, which :func:`exists` knows. :func:`count` evaluates the table, and
:func:`cost` says what a product takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from laplex.nn import LaplexLinear
from paper.methods import heads
from paper.methods.heads import KroneckerSum, LowRankLinear

STRUCTURED = ("laplex", "laplex-phased", "low-rank", "monarch", "btt", "kronecker")
METHODS = ("dense", *STRUCTURED)


def make_layer(method: str, in_features: int, out_features: int, size: int) -> nn.Module:
    """A layer of one of ``METHODS``; ``dense`` ignores the size."""
    if not exists(method, in_features, out_features, size):
        raise ValueError(
            f"paper.methods.layers.make_layer: `size` must be one at which a {method} layer from {in_features} to "
            f"{out_features} features exists, got {size}; ask `exists` for others"
        )
    makers: dict[str, Callable[[int, int, int], nn.Module]] = {
        "dense": lambda rows, cols, _: nn.Linear(rows, cols),
        "laplex": lambda rows, cols, kernels: LaplexLinear(rows, cols, kernels=kernels),
        "laplex-phased": lambda rows, cols, kernels: LaplexLinear(rows, cols, kernels=kernels, phase=True),
        "low-rank": LowRankLinear,
        "monarch": MonarchLinear,
        "btt": BlockTensorTrain,
        "kronecker": KroneckerSum,
    }
    return makers[method](in_features, out_features, size)


def exists(method: str, in_features: int, out_features: int, size: int) -> bool:
    """Whether there is a layer of this size."""
    if method == "dense":
        return True
    if size < 1:
        return False
    if method == "monarch":
        blocks, rest = divmod(min(in_features, out_features), size)
        return rest == 0 and in_features % blocks == 0 and out_features % blocks == 0
    return method != "btt" or _grid(in_features, out_features, size) > 0


def count(method: str, in_features: int, out_features: int, size: int) -> int:
    """The parameters of a layer, bias included."""
    if method in ("monarch", "btt"):  # as many as a low-rank layer has
        return heads.count("low-rank", in_features, out_features, size).trained
    return heads.count("full" if method == "dense" else method, in_features, out_features, size).trained


class Cost(NamedTuple):
    """Multiply-adds of a product: for each row of x, and once per call for forming the matrix."""

    per_row: int
    per_call: int


def cost(method: str, in_features: int, out_features: int, size: int) -> Cost:
    """What a product takes.

    LAPLEX saves parameters and not work: at the sizes of a network its matrix is formed, ``size`` exponentials for each
    entry, and multiplies x as a dense one does. A sum of Kronecker products is cheapest in the same way.
    """
    entries = in_features * out_features
    if method == "dense":
        return Cost(entries, 0)
    if method in ("laplex", "laplex-phased", "kronecker"):
        return Cost(entries, size * entries)
    return Cost(size * (in_features + out_features), 0)


# --- Layers ----------------------------------------------------------------------------------------------------------


class MonarchLinear(nn.Module):
    """y = x W^T + bias with W two block-diagonal factors and a shuffle between them (Dao et al., 2022).

    The vector between them is as wide as the smaller side, m = min(in, out), and both factors have m / r blocks: those
    of the first are (r, in r / m), those of the second (out r / m, r). The shuffle lets every block of the second
    factor read from several of the first, from r of them where there are as many.

    Args:
        in_features, out_features: sizes, multiples of m / r.
        width: r, a divisor of m.
    """

    def __init__(self, in_features: int, out_features: int, width: int) -> None:
        super().__init__()
        self.blocks = min(in_features, out_features) // width
        fan_in = in_features // self.blocks
        self.first = nn.Parameter(torch.randn(self.blocks, width, fan_in) / fan_in**0.5)
        self.second = nn.Parameter(torch.randn(self.blocks, out_features // self.blocks, width) / width**0.5)
        self.bias = nn.Parameter(torch.zeros(out_features))

    def forward(self, x: Tensor) -> Tensor:
        """X (..., in_features) -> y (..., out_features)."""
        return _by_factors_or_formed(x, self.product, self.bias)

    def product(self, x: Tensor) -> Tensor:
        """X W^T by the factors."""
        middle = _shuffled(torch.einsum("...bi,boi->...bo", x.unflatten(-1, (self.blocks, -1)), self.first))
        return _shuffled(torch.einsum("...bi,boi->...bo", middle.unflatten(-1, (self.blocks, -1)), self.second))


def _by_factors_or_formed(x: Tensor, product: Callable[[Tensor], Tensor], bias: Tensor) -> Tensor:
    """x W^T + bias. For more rows than W has columns W is formed: a GPU multiplies by small factors far more slowly."""
    k = x.shape[-1]
    if x.numel() <= k * k:
        return product(x) + bias
    identity = torch.eye(k, device=x.device, dtype=x.dtype)
    return nn.functional.linear(x, product(identity).t(), bias)


def _shuffled(blocks: Tensor) -> Tensor:
    """Blocks (..., b, w) as one vector (..., w b), in which neighbours are of different blocks."""
    return blocks.transpose(-1, -2).flatten(-2)


class BlockTensorTrain(nn.Module):
    """y = x W^T + bias with W cut into g x g blocks of rank r each: a block tensor train of two cores.

    From Qiu, Potapczynski, Finzi, Goldblum and Wilson, "Compute Better Spent: Replacing Dense Layers with Structured
    Matrices" (2024); rank 1 is a Monarch matrix. Block (p, q), from a slice of x to every g-th entry of y, is the
    product of left[p, :, q] (out / g, r) and right[q, p] (r, in / g).

    Their scaling, derived from that of dense layers whose width grows: a core with f inputs and o outputs per unit
    starts at a standard deviation of sqrt(min(f, o)) / f, and its learning rate with Adam goes as 1 / f.
    ``rate_scales`` holds g / f for each core, by which the rate is multiplied: 1 for a square matrix of rank 1. The
    factor that all cores share is left to the search for the rate.

    Args:
        in_features, out_features: sizes.
        size: g r, at one of the sizes of :func:`exists`; g is near the square root of the smaller side.
    """

    def __init__(self, in_features: int, out_features: int, size: int) -> None:
        super().__init__()
        self.grid = _grid(in_features, out_features, size)
        rank, rows, cols = size // self.grid, out_features // self.grid, in_features // self.grid
        self.right = nn.Parameter(_spread(cols, self.grid * rank) * torch.randn(self.grid, self.grid, rank, cols))
        self.left = nn.Parameter(_spread(self.grid * rank, rows) * torch.randn(self.grid, rows, self.grid, rank))
        self.bias = nn.Parameter(torch.zeros(out_features))
        self.rate_scales = {"right": self.grid / cols, "left": 1 / rank}

    def forward(self, x: Tensor) -> Tensor:
        """X (..., in_features) -> y (..., out_features)."""
        return _by_factors_or_formed(x, self.product, self.bias)

    def product(self, x: Tensor) -> Tensor:
        """X W^T by the cores."""
        middle = torch.einsum("...qi,qpri->...pqr", x.unflatten(-1, (self.grid, -1)), self.right)
        return _shuffled(torch.einsum("...pqr,poqr->...po", middle, self.left))


def _spread(inputs: int, outputs: int) -> float:
    """The standard deviation at the start of a core, for results whose size does not depend on the width."""
    return float(min(inputs, outputs) ** 0.5 / inputs)


def _grid(in_features: int, out_features: int, size: int) -> int:
    """The blocks of a side: the largest common divisor of both sides and of size, up to the root of the smaller side.

    Fewer than half of the root would be a matrix of low rank in all but name; 0 then, for no layer.
    """
    root = math.isqrt(min(in_features, out_features))
    common = math.gcd(in_features, out_features, size)
    return next((grid for grid in range(root, max(root // 2, 1) - 1, -1) if common % grid == 0), 0)

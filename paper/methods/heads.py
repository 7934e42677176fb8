"""Classification heads with few parameters: what LAPLEX^(r), a sum of r Laplace kernels, is compared with.

Each maps x (..., in) to scores (..., out). ``size`` is the one number that trades parameters for accuracy:

    head                   trained parameters                              size
    LaplexLinear           r (out + in) + r + out                          r kernels (twice r (out + in) with phases)
    LowRankLinear          r (out + in) + out                              r, the rank
    KroneckerSum           t (p q + (out / p) (in / q)) + out              t terms
    SeededProjectionHead   out (m + 1)                                     m, the width of the projection
    PCAHead                out (m + 1), and m in more are stored           m
    LaplexProjectionHead   in + m + 1 + out (m + 1)                        m
    torch.nn.Linear        out in + out                                    none

:func:`count` evaluates this table and :func:`size_for_budget` inverts it. The methods "pca" and "pca-stored" are both a
PCAHead: within a budget the first counts what is trained, the second what is stored. A head may also have two layers,
Linear(in, hidden) - tanh - Linear(hidden, out), both of the same method and size; their parameters add up.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from laplex.nn import LaplexLinear

METHODS = (
    "full", "laplex", "laplex-phased", "low-rank", "kronecker", "seeded", "pca", "pca-stored", "laplex-projection",
)  # fmt: skip
LAYERS = ("full", "laplex", "laplex-phased", "low-rank", "kronecker")  # methods that replace a layer, hidden ones too


# --- Parameters ------------------------------------------------------------------------------------------------------


class Count(NamedTuple):
    """Numbers that a head trains, and numbers that must be stored to use it."""

    trained: int
    stored: int


def count(method: str, in_features: int, out_features: int, size: int, *, hidden: int | None = None) -> Count:
    """The parameters of a head, biases included.

    Args:
        method: one of ``METHODS``.
        in_features, out_features: features and classes.
        size: kernels, rank, terms or width; "full" has none, and ignores it.
        hidden: the width of the hidden layer of a head of two layers; ``method`` is then one of ``LAYERS``.
    """
    if hidden is not None:
        first, last = count(method, in_features, hidden, size), count(method, hidden, out_features, size)
        return Count(first.trained + last.trained, first.stored + last.stored)
    dense = out_features * (size + 1)  # on top of a projection to `size` features
    trained = {
        "full": out_features * in_features + out_features,
        "laplex": size * (out_features + in_features) + size + out_features,
        "laplex-phased": 2 * size * (out_features + in_features) + size + out_features,
        "low-rank": size * (out_features + in_features) + out_features,
        "kronecker": size * _term_cost(in_features, out_features) + out_features,
        "seeded": dense,
        "pca": dense,
        "pca-stored": dense,
        "laplex-projection": in_features + size + 1 + dense,
    }[method]
    return Count(trained, trained + size * in_features if method.startswith("pca") else trained)


def size_for_budget(method: str, in_features: int, out_features: int, budget: int, *, hidden: int | None = None) -> int:
    """The largest size whose parameters do not exceed ``budget``, such as that of LAPLEX^(r).

    Args:
        method: one of ``METHODS`` but "full", which has no size.
        in_features, out_features: features and classes.
        budget: the most parameters, biases included: stored ones for "pca-stored", else trained ones.
        hidden: as for :func:`count`.
    """
    counts = [count(method, in_features, out_features, size, hidden=hidden) for size in (0, 1)]
    none, one = (each.stored if method == "pca-stored" else each.trained for each in counts)
    size = (budget - none) // (one - none)  # counts are linear in the size
    if size < 1:
        raise ValueError(
            f"paper.methods.heads.size_for_budget: `budget` must be at least {one}, the parameters of the smallest "
            f"head of method {method!r}, got {budget}; allow more"
        )
    return size


# --- Heads -----------------------------------------------------------------------------------------------------------


class LowRankLinear(nn.Module):
    """y = x (U V)^T + bias with U (out, r) and V (r, in).

    Args:
        in_features, out_features: features and classes.
        rank: r.
        bias: whether a bias is added; it starts at 0.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        rank: int,
        bias: bool = True,
        *,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.randn(out_features, rank, device=device, dtype=dtype) / rank**0.5)
        self.right = nn.Parameter(torch.randn(rank, in_features, device=device, dtype=dtype) / in_features**0.5)
        self.bias = nn.Parameter(torch.zeros(out_features, device=device, dtype=dtype)) if bias else None

    @classmethod
    def from_weight(
        cls, weight: Tensor, rank: int, bias: Tensor | None = None, *, moments: Tensor | None = None
    ) -> LowRankLinear:
        """The best approximation of ``weight`` (out, in) in least squares, by singular vectors.

        With ``moments`` C (in, in), the mean of x x^T over the inputs, the squared error of the *results* is least:
        trace(E C E^T) for a difference E. ``bias`` (out,) is copied. A rank above min(out, in) fills up with zeros on
        the left, so that it can be trained.
        """
        out_features, in_features = weight.shape
        layer = cls(in_features, out_features, rank, bias=bias is not None, device=weight.device, dtype=weight.dtype)
        with torch.no_grad():
            wide = weight.double()
            energy = wide @ wide.mT if moments is None else wide @ moments.double() @ wide.mT
            known = min(rank, out_features, in_features)
            left = torch.linalg.eigh(energy).eigenvectors.flip(1)[:, :known]
            right = left.mT @ wide
            root = right.norm(dim=1).clamp_min(torch.finfo(wide.dtype).tiny).sqrt()  # shared by the two sides
            layer.left.zero_()
            layer.left[:, :known] = left * root
            layer.right[:known] = right / root[:, None]
            if layer.bias is not None and bias is not None:
                layer.bias.copy_(bias)
        return layer

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(nn.functional.linear(x, self.right), self.left, self.bias)


class KroneckerSum(nn.Module):
    """y = x W^T + bias with W the sum of ``terms`` Kronecker products A_i (x) B_i, A_i (p, q), B_i (out/p, in/q).

    p and q are the divisors of out and in with the fewest parameters per term, so that a budget buys the most terms.

    Args:
        in_features, out_features: features and classes.
        terms: how many products are summed.
        bias: whether a bias is added; it starts at 0.
    """

    def __init__(self, in_features: int, out_features: int, terms: int, bias: bool = True) -> None:
        super().__init__()
        p, q = kronecker_shape(in_features, out_features)
        self.left = nn.Parameter(torch.randn(terms, p, q))
        # An entry of W then has the variance 1 / in, as in a dense layer that keeps the variance of x.
        scale = (terms * in_features) ** -0.5
        self.right = nn.Parameter(scale * torch.randn(terms, out_features // p, in_features // q))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def to_dense(self) -> Tensor:
        """W (out, in)."""
        blocks = torch.einsum("tpq,tij->piqj", self.left, self.right)
        rows, cols = blocks.shape[0] * blocks.shape[1], blocks.shape[2] * blocks.shape[3]
        return blocks.reshape(rows, cols)

    def forward(self, x: Tensor) -> Tensor:
        # For the rows of a training batch forming W once is cheaper than applying each term to each row.
        return nn.functional.linear(x, self.to_dense(), self.bias)


def kronecker_shape(in_features: int, out_features: int) -> tuple[int, int]:
    """The shape (p, q) of A for the fewest parameters per term; among equals that of the largest rank per term."""
    rows, cols = ([d for d in range(1, n + 1) if n % d == 0] for n in (out_features, in_features))

    def cost(shape: tuple[int, int]) -> tuple[int, int]:
        p, q = shape
        rank = min(p, q) * min(out_features // p, in_features // q)
        return p * q + (out_features // p) * (in_features // q), -rank

    return min(((p, q) for p in rows for q in cols), key=cost)


def _term_cost(in_features: int, out_features: int) -> int:
    p, q = kronecker_shape(in_features, out_features)
    return p * q + (out_features // p) * (in_features // q)


class SeededProjectionHead(nn.Module):
    """A dense head on a random projection P (m, in) that is drawn again from its seed: neither trained nor stored.

    Args:
        in_features, out_features: features and classes.
        width: m.
        seed: of the projection. The same seed gives the same P on every device.
    """

    projection: Tensor

    def __init__(self, in_features: int, out_features: int, width: int, seed: int) -> None:
        super().__init__()
        drawn = torch.randn(width, in_features, generator=torch.Generator().manual_seed(seed), device="cpu")
        self.head = nn.Linear(width, out_features)
        self.register_buffer("projection", drawn.to(self.head.weight) / in_features**0.5, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(nn.functional.linear(x, self.projection))
        return scores


class PCAHead(nn.Module):
    """A dense head on the leading principal coordinates of x, whose directions (m, in) are stored and not trained.

    Args:
        x (rows, in): what the directions are found from.
        out_features: classes.
        width: m, at most the rows and the features of x.
    """

    directions: Tensor

    def __init__(self, x: Tensor, out_features: int, width: int) -> None:
        super().__init__()
        centred = x.double() - x.double().mean(0)
        _, vectors = torch.linalg.eigh(centred.mT @ centred)  # ascending
        self.register_buffer("directions", vectors.mT.flip(0)[:width].to(x.dtype).contiguous())
        self.head = nn.Linear(width, out_features, device=x.device, dtype=x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        # The mean need not be subtracted: the bias of the head takes it up.
        scores: Tensor = self.head(nn.functional.linear(x, self.directions))
        return scores


class LaplexProjectionHead(nn.Module):
    """A dense head on a trained LAPLEX projection to m features, of in + m + 1 parameters.

    Args:
        in_features, out_features: features and classes.
        width: m.
    """

    def __init__(self, in_features: int, out_features: int, width: int) -> None:
        super().__init__()
        self.projection = LaplexLinear(in_features, width, bias=False, tau=1.0)  # the paper's unit, and its rates
        self.head = nn.Linear(width, out_features)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.projection(x))
        return scores

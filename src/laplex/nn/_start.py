"""Where the anchors of a layer start: on interlaced grids, or at the singular vectors of a dense weight.

A kernel with random anchors does not have full rank: its rank is the number of disjoint neighbouring pairs of a row and
a column on the line, about two thirds of n for n rows and n columns. On interlaced grids it is full.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from laplex.nn import _checks as checks

if TYPE_CHECKING:
    from laplex.nn._linear import LaplexLinear

SPREAD = 2.5  # standard deviation of a kernel's anchors, in units of tau; between 1 and 4 results hardly differ
SPAN = SPREAD * math.sqrt(12.0)  # the length of an even grid with that standard deviation
PHASES = 0.5  # radians; of a start in which the places say more than the phases
ALIKE = 1e-12  # entries of a singular vector that differ by less, relatively, differ by rounding alone
JITTER = 0.25  # of a cell, so that no row is tied with a column


@torch.no_grad()
def interlaced(layer: LaplexLinear, draws: torch.Generator | None = None) -> None:
    """Even grids in random order, random signs, and results with the variance that those of nn.Linear have."""

    def uniform(like: Tensor) -> Tensor:
        drawn_on = like.device if draws is None else draws.device
        return torch.rand(like.shape, generator=draws, device=drawn_on, dtype=like.dtype).to(like.device)

    n, k, tau = layer.out_features, layer.in_features, layer.tau[:, None]
    for anchors, other in ((layer.a, k), (layer.b, n)):
        size = anchors.shape[1]
        places = uniform(anchors).argsort(1) + 0.5
        # Of two sides the shorter has one anchor in each of its cells, and every cell holds an anchor of the longer.
        # So the shorter may move within its cells, and all pairs stay disjoint.
        if size <= other:
            places = places + JITTER * (2 * uniform(anchors) - 1)
        anchors.copy_((places / size - 0.5) * SPAN * tau)
    for phases in (layer.phi, layer.psi):
        if phases is not None:
            phases.copy_(math.pi * (2 * uniform(phases) - 1))
    energy = mean_square_entry() * (0.5 if layer.phi is not None else 1.0)
    large = 1 / math.sqrt(3 * k * layer.rank * energy)  # nn.Linear's weights have variance 1 / (3 in_features)
    layer.weight.copy_(torch.where(uniform(layer.weight) < 0.5, -large, large))
    if layer.bias is not None:
        layer.bias.copy_((2 * uniform(layer.bias) - 1) / math.sqrt(k))


def mean_square_entry() -> float:
    """The mean of exp(-|s - t|)^2 over s and t in an interval of length :data:`SPAN`."""
    return (SPAN / 2 - (1 - math.exp(-2 * SPAN)) / 4) * 2 / SPAN**2


@torch.no_grad()
def singular(layer: LaplexLinear, target: Tensor | tuple[Tensor, Tensor]) -> None:
    """Anchors at singular vectors of a weight, or of the discriminant's weight of examples."""
    where = "laplex.nn.LaplexLinear.init_from"
    shape = layer.out_features, layer.in_features
    if isinstance(target, tuple):
        if len(target) != 2:
            raise ValueError(f"{where}: `target` must be a weight or a pair (x, y), got {len(target)} values")
        weight = discriminant(where, *target, shape)
    else:
        checks.weight_like(where, "target", target, shape)
        weight = target
    weight = weight.to(layer.a.device, torch.float64)
    if layer.rank > min(shape):
        raise ValueError(
            f"{where}: `rank` must be at most {min(shape)}, the number of singular vectors, got {layer.rank}; "
            "use reset_parameters for the kernels beyond"
        )
    left, _, right = torch.linalg.svd(weight, full_matrices=False)
    a, b = left.T[: layer.rank], right[: layer.rank]
    for anchors, vectors in ((layer.a, a), (layer.b, b)):
        spread = vectors.std(1, keepdim=True, correction=0)
        level = vectors - vectors.mean(1, keepdim=True)
        alike = spread <= ALIKE * vectors.abs().amax(1, keepdim=True)
        anchors.copy_(torch.where(alike, 0.0, level / spread) * SPREAD * layer.tau[:, None])
    for phases in (layer.phi, layer.psi):
        if phases is not None:  # where all phases are equal every cosine is at its maximum, and none would ever move
            phases.uniform_(-PHASES, PHASES)
    layer.weight.fill_(1 / math.sqrt(3 * layer.in_features * layer.rank * mean_square_entry()))
    if layer.bias is not None:
        layer.bias.zero_()


def discriminant(where: str, x: Tensor, y: Tensor, shape: tuple[int, int], ridge: float = 1.0) -> Tensor:
    """The weight of a linear discriminant: class means through the inverse of the covariance within classes.

    ``ridge``, in units of the mean variance, is added to the covariance's diagonal.
    """
    classes, features = shape
    examples(where, x, y, shape)
    x, y = x.double(), y.long()
    counts = torch.bincount(y, minlength=classes).clamp_min(1)[:, None]
    means = torch.zeros(shape, dtype=x.dtype, device=x.device).index_add_(0, y, x) / counts
    within = x - means[y]
    covariance = within.T @ within / max(len(x) - 1, 1)
    scale = covariance.diagonal().mean().clamp_min(torch.finfo(x.dtype).tiny)
    covariance += ridge * scale * torch.eye(features, dtype=x.dtype, device=x.device)
    solved: Tensor = torch.linalg.solve(covariance, (means - means.mean(0)).T)
    return solved.T


def examples(where: str, x: object, y: object, shape: tuple[int, int]) -> None:
    """Checks x (N, features) and class labels y (N,)."""
    classes, features = shape
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        raise TypeError(f"{where}: examples must be tensors, got {type(x).__name__} and {type(y).__name__}")
    checks.real_values(where, "x", x)
    if x.dim() != 2 or x.shape[1] != features or len(x) == 0:
        raise ValueError(f"{where}: `x` must be (N, {features}) with at least one example, got {tuple(x.shape)}")
    if not bool(x.isfinite().all()):
        raise ValueError(f"{where}: `x` must be finite; it has {int((~x.isfinite()).sum())} NaN or infinity")
    if tuple(y.shape) != (len(x),) or y.is_floating_point() or y.is_complex():
        raise ValueError(f"{where}: `y` must hold {len(x)} class labels, whole numbers, got {y.dtype} {tuple(y.shape)}")
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        raise ValueError(f"{where}: `y` must be in 0 ... {classes - 1}, the classes, got {low} ... {high}")

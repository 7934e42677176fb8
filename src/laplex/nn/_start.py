"""Where a layer starts: anchors on interlaced grids, in random order or in that of singular vectors; and its signs.

**Rank.** A kernel with random anchors does not have full rank: its rank is the number of disjoint neighbouring pairs of
a row and a column on the line, about two thirds of n for n rows and n columns. On interlaced grids it is full.

**Signs.** Every entry of a kernel is positive. So for inputs with a mean, such as the results of a ReLU, each kernel
raises all results, and if the kernels' weights do not cancel, the units of a layer are all positive or all negative,
and then dead in front of a ReLU. So the kernels' weights have alternating signs, and their sum is 0. A row's sum then
comes only from the ends of the line: a row near an end has fewer columns within reach. On a line of length L, in units
of tau, and with the same mean square of W's entries as in nn.Linear, the variance of the rows' sums is k / L^2 times
that of nn.Linear. If that is more than 1, a fraction 1 - L^2 / k of the rows gets the same place in two kernels of
opposite sign, which cancels. So the results for inputs with a mean are hardly larger, compared with nn.Linear, than
those for inputs without one.

**Lengths.** A step of Adam moves the weight of every kernel by eta, often all in one direction, since their gradients
share what raises all results. For inputs of mean m all results then move by  eta r m (2 k / L):  a row has 2 k / L
columns within reach. In a dense layer a step moves a result by at most eta k m, and not all of them in one direction.
So the line has a length of ``LENGTH_OF_A_KERNEL`` = 1.5 per kernel, and results move by at most 4 / 3 as much. (On
longer lines a row sees fewer columns, and a language model learned less; on shorter ones gradient descent diverged at
learning rates that suit dense layers.)

**One kernel** has nothing to cancel with. Its weight is positive, so that units stay alive, and results for inputs with
a mean are sqrt(4 k / L) times as large as those of nn.Linear. A longer line lowers that, but lets a row see fewer
columns; with L = 4 sqrt(k) it is the fourth root of k. Two kernels, or phases, are better in front of a ReLU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from laplex.nn import _checks as checks
from laplex.nn import _scales as scales
from laplex.nn._anchored import uniform

if TYPE_CHECKING:
    from laplex.nn._linear import LaplexLinear

    Target = Tensor | Sequence[Tensor] | Iterable[Sequence[Tensor]]

PHASES = 0.5  # radians; small, so that at the start the places matter more than the phases
ROUNDING = 1e-12  # entries of a singular vector with a smaller relative difference differ only by rounding
JITTER = 0.25  # of a cell, so that no row is tied with a column


def line_length(layer: LaplexLinear) -> float:
    """The length of the line on which the anchors of a fresh layer lie, in units of tau."""
    return scales.line_length(layer.in_features, layer.kernels, layer.phi is not None)


def groups(kernels: int) -> list[range]:
    """The kernels in pairs, whose weights cancel; if the number is odd, the last three are together."""
    pairs = [range(first, first + 2) for first in range(0, kernels - 1, 2)]
    return [*pairs[:-1], range(max(kernels - 3, 0), kernels)] if kernels % 2 else pairs


def balanced_signs(like: Tensor) -> Tensor:
    """Weights (kernels,) of alternating sign, with sum 0 in each group and mean square 1; a single weight is 1."""
    shares = {1: (1.0,), 2: (1.0, -1.0), 3: (math.sqrt(0.5), -math.sqrt(2.0), math.sqrt(0.5))}
    return like.new_tensor([share for group in groups(len(like)) for share in shares[len(group)]])


@torch.no_grad()
def interlace(layer: LaplexLinear, draws: torch.Generator | None = None) -> None:
    """Set anchors to even grids in random order, with balanced signs, and results as large as ``_scales.gain`` says."""
    n, k, tau, length = layer.out_features, layer.in_features, layer.tau[:, None], line_length(layer)
    for anchors, other in ((layer.a, k), (layer.b, n)):
        size = anchors.shape[1]
        places = uniform(anchors, draws).argsort(1)
        if anchors is layer.a and layer.phi is None:
            places = _tie(places, uniform(anchors, draws) < 1 - length**2 / k)
        places = places + 0.5
        # The shorter side has one anchor in each of its cells, and every cell also holds an anchor of the longer side.
        # So the shorter side may move within its cells, and all pairs stay disjoint.
        if size <= other:
            places = places + JITTER * (2 * uniform(anchors, draws) - 1)
        anchors.copy_((places / size - 0.5) * length * tau)
    for phases in (layer.phi, layer.psi):
        if phases is not None:
            phases.copy_(math.pi * (2 * uniform(phases, draws) - 1))
    variance = 3 * k * layer.kernels * _energy(layer, length)  # nn.Linear's weights have variance 1 / (3 k)
    layer.mix.copy_(_gain(layer) / math.sqrt(variance) * balanced_signs(layer.mix))
    if layer.bias is not None:
        layer.bias.copy_((2 * uniform(layer.bias, draws) - 1) / math.sqrt(k))


def _tie(places: Tensor, chosen: Tensor) -> Tensor:
    """Places (kernels, n), in which the chosen rows (kernels, n) have the same place in all kernels of a group.

    The other rows take the places that are left, in the order that they had before.
    """
    tied, n = places.clone(), places.shape[1]
    for first, *later in groups(len(places)):
        shift = n * chosen[first]  # puts the free rows first in both orders, and the chosen ones in the same order
        seats = places[first][(places[first] + shift).argsort()]
        for r in later:
            rows = torch.where(chosen[first], places[first], places[r]).add(shift).argsort()
            tied[r].scatter_(0, rows, seats)
    return tied


def _gain(layer: LaplexLinear) -> float:
    return scales.gain(layer.kernels, layer.phi is not None)


def _energy(layer: LaplexLinear, length: float) -> float:
    """What a kernel of weight 1 adds to the mean square of W's entries.

    This is the mean of exp(-2 |s - t|) over s and t in an interval of this length; halved by the cosines of random
    phases, or minus the squared mean of exp(-|s - t|), which balanced weights cancel.
    """
    if layer.phi is not None:
        return _mean_decay(2 * length) / 2
    return _mean_decay(2 * length) - (0.0 if layer.kernels == 1 else _mean_decay(length) ** 2)


def _mean_decay(length: float) -> float:
    """The mean of exp(-|s - t|) over s and t in an interval of this length."""
    return 2 * (length - 1 + math.exp(-length)) / length**2


@torch.no_grad()
def start_from(layer: LaplexLinear, target: Target) -> None:
    """Place anchors by the singular vectors of a weight, or of the weight of a discriminant for examples."""
    where = "laplex.nn.LaplexLinear.init_from"
    shape = layer.out_features, layer.in_features
    if isinstance(target, Tensor):
        checks.weight_like(where, "target", target, shape)
        weight = target
    else:
        weight = discriminant(where, *_one_batch(where, target), shape)
    weight = weight.to(layer.a.device, torch.float64)
    if layer.kernels > min(shape):
        raise ValueError(
            f"{where}: `kernels` must be at most {min(shape)}, the number of singular vectors, got {layer.kernels}; "
            "use reset_parameters for the kernels beyond"
        )
    left, _, right = torch.linalg.svd(weight, full_matrices=False)
    vectors = left.T[: layer.kernels], right[: layer.kernels]
    if isinstance(target, Tensor):
        place_on_grids(layer, *vectors, line_length(layer))
    else:
        _place_at_entries(layer, *vectors)
    for phases in (layer.phi, layer.psi):
        if phases is not None:  # if all were equal, every cosine would be at its maximum, and none would move
            phases.uniform_(-PHASES, PHASES)
    if layer.bias is not None:
        layer.bias.zero_()


def _one_batch(where: str, target: object) -> tuple[Tensor, Tensor]:
    """The pair (x, y), or all the pairs of a list or loader of batches joined into one."""
    if not isinstance(target, Iterable) or isinstance(target, str):
        raise TypeError(
            f"{where}: `target` must be a weight, a pair (x, y) or batches of such pairs, got {type(target).__name__}"
        )
    parts = list(target)
    is_pair = isinstance(target, Sequence) and bool(parts) and not any(isinstance(part, list | tuple) for part in parts)
    batches = [parts] if is_pair else parts
    for batch in batches:
        if not isinstance(batch, list | tuple) or len(batch) != 2:
            got = f"{len(batch)} values" if isinstance(batch, list | tuple) else type(batch).__name__
            raise ValueError(f"{where}: `target` must be a weight or a pair (x, y), or batches of them, got {got}")
    if not batches:
        raise ValueError(f"{where}: `target` must have at least one batch, got none; a loader is read to its end")
    if is_pair:
        return batches[0][0], batches[0][1]
    x, y = ([torch.as_tensor(part) for part in side] for side in zip(*batches, strict=True))
    return torch.cat(x), torch.cat(y)


def _place_at_entries(layer: LaplexLinear, left: Tensor, right: Tensor) -> None:
    """Place a head's anchors at the entries of singular vectors (kernels, n) and (kernels, k); weights are positive.

    The results of a head are compared with one another, so what kernels add to all of them does no harm; and the
    entries say more than their order does.
    """
    for anchors, vectors in ((layer.a, left), (layer.b, right)):
        deviation = vectors.std(1, keepdim=True, correction=0)
        level = vectors - vectors.mean(1, keepdim=True)
        constant = deviation <= ROUNDING * vectors.abs().amax(1, keepdim=True)
        anchors.copy_(torch.where(constant, 0.0, level / deviation) * scales.SPREAD * layer.tau[:, None])
    layer.mix.fill_(1 / math.sqrt(3 * layer.in_features * layer.kernels * _mean_decay(2 * scales.SHORTEST)))


def place_on_grids(layer: LaplexLinear, left: Tensor, right: Tensor, length: float) -> None:
    """Place anchors on even grids in the order of singular vectors (kernels, n) and (kernels, k); W as in a new layer.

    With u and v the i-th singular vectors, K(u, v) is large where u v^T is, so it gets a positive weight. K(u, -v) is
    large where u v^T is not: with a negative weight it says the same, and what both add to all results cancels.
    """
    signs = balanced_signs(layer.mix)
    right = right * signs.sign()[:, None]
    for anchors, vectors, other in ((layer.a, left, right), (layer.b, right, left)):
        size = anchors.shape[1]
        shift = JITTER if size <= other.shape[1] else 0.0  # so that no row is tied with a column
        anchors.copy_(((_ranks(vectors) + shift) / size - 0.5) * length * layer.tau[:, None])
    layer.mix.copy_(signs)
    root = float(layer.weight.square().mean().sqrt()) or 1.0  # 0 if the weight distinguishes nothing
    layer.mix.mul_(_gain(layer) / (root * math.sqrt(3 * layer.in_features)))


def _ranks(vectors: Tensor) -> Tensor:
    """The rank of each entry in its vector (kernels, n), from 0.5 to n - 0.5; equal entries share a rank."""
    slack = ROUNDING * vectors.abs().amax(1, keepdim=True)
    vectors = vectors.contiguous()
    ordered = vectors.sort(1).values
    below = torch.searchsorted(ordered, vectors - slack)
    return (below + torch.searchsorted(ordered, vectors + slack, right=True)) / 2


def discriminant(where: str, x: Tensor, y: Tensor, shape: tuple[int, int], ridge: float = 1.0) -> Tensor:
    """The weight of a linear discriminant: class means through the inverse of the covariance within classes.

    ``ridge``, in units of the mean variance, is added to the covariance's diagonal.
    """
    classes, features = shape
    _check_examples(where, x, y, shape)
    x, y = x.double(), y.long()
    counts = torch.bincount(y, minlength=classes).clamp_min(1)[:, None]
    means = torch.zeros(shape, dtype=x.dtype, device=x.device).index_add_(0, y, x) / counts
    within = x - means[y]
    covariance = within.T @ within / max(len(x) - 1, 1)
    scale = covariance.diagonal().mean()
    scale = torch.where(scale > torch.finfo(x.dtype).tiny, scale, 1.0)  # 0 for one example per class: any ridge will do
    covariance += ridge * scale * torch.eye(features, dtype=x.dtype, device=x.device)
    solved: Tensor = torch.linalg.solve(covariance, (means - means.mean(0)).T)
    return solved.T


def _check_examples(where: str, x: object, y: object, shape: tuple[int, int]) -> None:
    """Raise unless these are examples x (N, features) and class labels y (N,)."""
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

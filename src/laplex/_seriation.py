r"""Places on a line for the features of a data set: features that vary alike come to lie near one another.

The algorithm
    1. A feature is its column of the data, centred and scaled to length 1, so that the squared distance of two features
       is 2 - 2 * (their correlation). A constant feature is 0.
    2. It is compressed to its leading principal coordinates, from the leading eigenvectors of the smaller of the two
       Gram matrices of the data.
    3. The set of all features is split at the median along its leading direction, and so are its halves, until they
       are small. All sets of a level are split together: their sizes differ by at most 1.
    4. The tree is walked from its root. Of the two ways to pass two halves the walk takes the shorter one: from the
       feature that was placed last to the mean of one half, and from the mean of the other to that of the set that
       comes next. A leaf is placed along its own leading direction, forwards or backwards by the same rule.

Eigenvectors are found by power iteration from random starts; nothing else is random.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from laplex import _autocast, _checks
from laplex._checks.counts import integer

BLOCK = 1 << 22  # numbers of the data, or of a level of the tree, that are worked on at a time
ITERATIONS = 12  # of power methods; a direction of nearly the same variance does as well as the leading one
SPARE = 32  # dimensions of the iterated subspace beyond those wanted; they speed up convergence
PARTS = 4  # row blocks of a Gram matrix, of which only those up to the diagonal are computed


@_autocast.unaffected
def seriate(
    data: Tensor, *, coordinates: int = 128, leaf: int = 48, generator: torch.Generator | None = None
) -> Tensor:
    """Places in [0, 1) for the d features of a data set, near for features that vary alike: an order on a line.

    Gradient descent moves anchors locally and does not find an order. Column anchors that start at these places let a
    kernel matrix sum over features that belong together. The order is that of a tree of principal directions; the
    places are the ranks divided by d.

    Time is O(min(N, d)^2 max(N, d)) for the principal coordinates and O(d log d) for the tree. Memory is that of
    min(N, d)^2 numbers in float64 and a few times d * coordinates numbers; for N < d the data are read in blocks and
    not copied. If both N and d are large, a random subset of the rows will do.

    Args:
        data (N, d): one row per sample, real, finite; floating point or uint8.
        coordinates: the number of principal coordinates that a feature is compressed to.
        leaf: sets of at most this many features are not split any further.
        generator: of the random starts of power iterations, on the CPU. None uses one of seed 0 of its own.

    Returns:
        Places (d,), all different, on the device of the data: float64 if the data are, else float32. Permuting the
        features permutes the places, up to rounding, and up to the order of features that are equal.

    Example:
        >>> places = laplex.seriate(images.flatten(1))
        >>> y = laplex.linear(x, torch.linspace(0, 1, 100), places, tau=0.01)
    """
    where = "laplex.seriate"
    _check(where, data, coordinates, leaf)
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    points = _principal_coordinates(data.detach(), coordinates, generator)  # (d, r)
    start = torch.randn(points.shape[1], generator=generator, dtype=torch.float64, device="cpu")
    order = _walk(_split(points, leaf, start.to(points)))
    d = len(order)
    ranks = torch.empty(d, dtype=torch.float64, device=data.device)
    ranks[order.to(data.device)] = torch.arange(d, dtype=torch.float64, device=data.device) / d
    return ranks.to(points.dtype)


def _check(where: str, data: Tensor, coordinates: object, leaf: object) -> None:
    _checks.check_tensor(where, "data", data)
    if not data.dtype.is_floating_point and data.dtype != torch.uint8:
        raise TypeError(f"{where}: `data` must be real and floating point, or uint8, got {data.dtype}; call .float()")
    if data.dim() != 2 or 0 in data.shape:
        raise ValueError(
            f"{where}: `data` must be (N, d), with at least one sample and one feature, got shape {tuple(data.shape)}; "
            "use .flatten(1)"
        )
    integer(where, "coordinates", coordinates)
    integer(where, "leaf", leaf)


# --- Features as points ----------------------------------------------------------------------------------------------


def _principal_coordinates(data: Tensor, coordinates: int, generator: torch.Generator) -> Tensor:
    """The features in their leading principal coordinates: (d, r), float64 if the data are, else float32.

    Of the standardised data S (N, d), the smaller one of S S^T and S^T S is decomposed. The sign of a coordinate is the
    one that makes its sum of cubes positive; it must not depend on the order of the features.
    """
    (samples, d), scaling = data.shape, _scaling(data)
    if d < samples:
        standard = torch.cat(list(_standardised(data, *scaling)), 1)
        values, vectors = _leading((standard.mT @ standard).double(), coordinates, generator)
        points = vectors * values.clamp_min(0).sqrt()
    else:
        gram = torch.zeros(samples, samples, dtype=torch.float64, device=data.device)
        for block in _standardised(data, *scaling):
            _add_lower_product(gram, block)
        _, vectors = _leading(gram.tril() + gram.tril(-1).mT, coordinates, generator)
        points = torch.cat([block.mT @ vectors.to(block) for block in _standardised(data, *scaling)])
    points = points.to(_precision(data))
    points *= torch.where(points.pow(3).sum(0) < 0, -1.0, 1.0).to(points)
    return points


def _leading(matrix: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """About the ``count`` leading eigenvalues and eigenvectors of a positive semidefinite matrix, the largest first.

    Large matrices by subspace iteration: a complete decomposition for 3000 samples would take longer than all else.
    Eigenvectors near the last one are then mixed with those beyond it, which moves no feature far.
    """
    size, width = len(matrix), count + SPARE
    if size <= width:
        values, vectors = torch.linalg.eigh(matrix)
    else:
        basis = torch.randn(size, width, generator=generator, dtype=torch.float64, device="cpu").to(matrix.device)
        for _ in range(ITERATIONS):
            basis = torch.linalg.qr(matrix @ basis).Q
        values, vectors = torch.linalg.eigh(basis.mT @ matrix @ basis)
        vectors = basis @ vectors
    return values.flip(0)[:count], vectors.flip(1)[:, :count]


def _precision(data: Tensor) -> torch.dtype:
    return torch.promote_types(data.dtype, torch.float32)


def _blocks(data: Tensor) -> Iterator[slice]:
    """Blocks of columns."""
    samples, d = data.shape
    width = max(1, BLOCK // samples)
    return (slice(first, first + width) for first in range(0, d, width))


def _scaling(data: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of every feature and the factor that gives it length 1, in float64; 0 for a constant feature."""
    means, factors = [], []
    for block in _blocks(data):
        columns = data[:, block]
        mean = columns.mean(0, dtype=torch.float64)
        if not bool(torch.isfinite(mean).all()):
            raise ValueError(_checks.not_finite("laplex.seriate", "data"))
        low, high = columns.aminmax(dim=0)  # a rounded mean would leave a constant feature some length
        means.append(mean)
        size = low.abs().maximum(high.abs()).double()  # without it squares of 1e200 or 1e-200 would leave float64
        factor = 1 / ((columns - mean) / size).norm(dim=0) / size
        factors.append(torch.where((low == high) | factor.isinf(), 0.0, factor))
    return torch.cat(means), torch.cat(factors)


def _standardised(data: Tensor, means: Tensor, factors: Tensor) -> Iterator[Tensor]:
    """Blocks of columns, centred and scaled in float64, in the precision of the result."""
    return (((data[:, block] - means[block]) * factors[block]).to(_precision(data)) for block in _blocks(data))


def _add_lower_product(gram: Tensor, block: Tensor) -> None:
    """Add block block^T to the lower triangle of the Gram matrix; parts of the upper one are left out."""
    size = len(gram)
    step = -(-size // PARTS)
    for first in range(0, size, step):
        end = min(first + step, size)
        gram[first:end, :end] += block[first:end] @ block[:end].mT


# --- The tree --------------------------------------------------------------------------------------------------------


class _Tree(NamedTuple):
    """Sets of features. The set i of a level is split into the sets 2i and 2i + 1 of the next."""

    order: Tensor  # (d,) the features, in the order of the leaves and along each
    starts: np.ndarray  # (leaves + 1,) the first feature of each leaf
    means: list[np.ndarray]  # of each level: (sets, r)
    ends: np.ndarray  # (leaves, 2, r) the first and the last feature of each leaf


def _split(points: Tensor, leaf: int, start: Tensor) -> _Tree:
    """Split all features (d, r) down to leaves; ``start`` (r,) is where the power method begins."""
    order = torch.arange(len(points), device=points.device)
    sizes, means = np.array([len(points)]), []
    while True:
        starts = np.concatenate([[0], np.cumsum(sizes)])
        order, mean = _sort_each(points, order, starts, sizes, start)
        means.append(mean)
        if sizes.max() <= leaf or sizes.min() < 2:
            break
        sizes = np.stack([sizes // 2, sizes - sizes // 2], 1).reshape(-1)
    edges = torch.as_tensor(np.stack([starts[:-1], starts[1:] - 1], 1), device=order.device)
    return _Tree(order, starts, means, points[order[edges]].cpu().numpy())


def _sort_each(
    points: Tensor, order: Tensor, starts: np.ndarray, sizes: np.ndarray, start: Tensor
) -> tuple[Tensor, np.ndarray]:
    """The order with each set sorted along its leading direction, and the means of the sets."""
    new_order, r = order.clone(), points.shape[1]
    means = np.empty((len(sizes), r), dtype=np.float64)
    for size in np.unique(sizes):  # one size or two
        sets = np.flatnonzero(sizes == size)
        for block in np.array_split(sets, max(1, len(sets) * int(size) * r // BLOCK)):
            first = torch.as_tensor(starts[block], device=order.device)
            index = first[:, None] + torch.arange(int(size), device=order.device)  # (sets, size)
            features = order[index]
            centred = points[features]
            mean = centred.mean(1, keepdim=True)
            centred -= mean
            along = _along_leading_direction(centred, start).argsort(dim=1, stable=True)
            new_order[index] = features.gather(1, along)
            means[block] = mean[:, 0].double().cpu().numpy()
    return new_order, means


def _along_leading_direction(centred: Tensor, start: Tensor) -> Tensor:
    """Coordinates (sets, size) of centred points (sets, size, r) along the direction of their largest variance."""
    direction = start.expand(len(centred), -1)[..., None]  # (sets, r, 1)
    if centred.shape[1] < centred.shape[2]:
        small = centred @ centred.mT  # its leading vector is the points' coordinates themselves
        return _power(small, centred @ direction)[..., 0]
    return (centred @ _power(centred.mT @ centred, direction))[..., 0]


def _power(matrix: Tensor, vector: Tensor) -> Tensor:
    """The leading eigenvectors (sets, size, 1) of positive semidefinite matrices (sets, size, size)."""
    for _ in range(ITERATIONS):
        vector = matrix @ vector
        vector = vector / vector.norm(dim=1, keepdim=True).clamp_min(torch.finfo(vector.dtype).tiny)
    return vector


# --- The walk --------------------------------------------------------------------------------------------------------


def _walk(tree: _Tree) -> Tensor:
    """The features (d,) in the order of the walk, on the CPU."""
    order, bottom = tree.order.cpu().numpy(), len(tree.means) - 1
    placed = []
    last: np.ndarray | None = None  # the feature placed last
    stack: list[tuple[int, int, np.ndarray | None]] = [(0, 0, None)]  # a level, a set, and the mean of what follows it
    while stack:
        level, i, ahead = stack.pop()
        ends = tree.ends[i] if level == bottom else tree.means[level + 1][2 * i : 2 * i + 2]
        backwards = _way(last, ends[1], ends[0], ahead) < _way(last, ends[0], ends[1], ahead)
        first, second = (1, 0) if backwards else (0, 1)
        if level == bottom:
            features = order[tree.starts[i] : tree.starts[i + 1]]
            placed.append(features[::-1] if backwards else features)
            last = ends[second]
        else:  # the one that is put on the stack last is taken next
            stack += [(level + 1, 2 * i + second, ahead), (level + 1, 2 * i + first, ends[second])]
    return torch.from_numpy(np.concatenate(placed))


def _way(last: np.ndarray | None, first: np.ndarray, second: np.ndarray, ahead: np.ndarray | None) -> float:
    """How far it is from what was placed last to the first of two sets, and from the second to what follows."""
    steps = (last, first), (second, ahead)
    return sum(float(np.linalg.norm(end - start)) for start, end in steps if start is not None and end is not None)

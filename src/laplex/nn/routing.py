r"""Routing: what a kernel matrix becomes as tau tends to 0.

For fixed anchors K[i, j] = exp(-|a_i - b_j| / tau) tends to 1 where a_i = b_j and to 0 elsewhere. If anchors are
labels, K then routes inputs to outputs: it permutes, selects, or sums into buckets. A phase of pi makes an entry -1.

    permutation    y_i = x_{order_i}                          one 1 in every row and column
    gather         y_i = sign_i x_{index_i}                   at most one nonzero in every row
    count_sketch   y_i = sum over bucket_j = i of sign_j x_j  at most one nonzero in every column
    universal      y = W x, for any W                         inputs are repeated and scaled first

In floating point the limit is reached. Labels are whole numbers, so different ones are at least 1 apart, and at
:data:`ROUTING_TAU` the entry exp(-1 / tau) is 0 in float32 and in float64. So every backend applies the routing matrix
itself, and a product is as exact as the sums of its terms.

:func:`routing_of` goes the other way: from a trained matrix to the routing that is nearest to it.

How the paper's appendix differs:
    - It folds the signs of a CountSketch into the input. Here, phases 0 and pi keep them in the matrix.
    - Its universal construction repeats every input for every output and is called efficient. With that many replicas
      a product costs as much as the dense one. Replicas for entries that are 0 can be left out, as here; the
      construction pays off only for sparse W.
    - Its limit is for fixed anchors. Trained anchors are all different, so that their K tends to 0 with tau, not
      to a routing: :func:`routing_of` therefore looks at K as it is, and says how far the routing is from it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from laplex import _checks
from laplex._checks.arguments import ANCHOR_DTYPES
from laplex._checks.counts import integer
from laplex._functional import linear
from laplex._shapes import flat_tau
from laplex.nn._checks import features

ROUTING_TAU = 2.0**-10  # exp(-1024) is 0; a power of two, so gap / tau is exact


class Anchors(NamedTuple):
    """The arguments of a matrix: ``laplex.linear(x, **anchors._asdict())`` applies it.

    For a softer matrix with the same places, as a start for training, use ``anchors._replace(tau=...)``.
    """

    a: Tensor  # (n,)
    b: Tensor  # (k,)
    tau: float
    phi: Tensor | None = None  # (n,) float64
    psi: Tensor | None = None  # (k,) float64


class Replicas(NamedTuple):
    """W = K diag(scale) R, where R repeats inputs: (R x)_p = x[source_p]. Made by :func:`universal`."""

    source: Tensor  # (p,) the input that each replica repeats
    scale: Tensor  # (p,)
    anchors: Anchors  # of K, (m, p)

    def linear(self, x: Tensor) -> Tensor:
        """x (..., k) W^T: (..., m)."""
        return linear(x[..., self.source] * self.scale, **self.anchors._asdict())


class Routing(NamedTuple):
    """A routing matrix R with at most one nonzero in every column: R[target_j, j] = sign_j."""

    target: Tensor  # (k,) the row of each column's nonzero
    sign: Tensor  # (k,) 1, -1, or 0 for a column of zeros
    out_features: int
    bound: Tensor  # (k,) float64: |K - R| is at most bound_j in every entry of column j

    def linear(self, x: Tensor) -> Tensor:
        """x (..., k) R^T: (..., n), in the dtype of x, in O(k) for every row of x."""
        features("laplex.nn.routing.Routing.linear", x, len(self.target))
        return scatter(x * self.sign.to(x.dtype), self.target, self.out_features)


def scatter(x: Tensor, target: Tensor, out_features: int) -> Tensor:
    """y_i = sum over target_j = i of x_j: x (..., k) -> y (..., out_features). Half precision is added in float32."""
    wide = x.float() if x.dtype.itemsize < 4 else x
    sums = wide.new_zeros(*x.shape[:-1], out_features)
    return sums.index_add(-1, target, wide).to(x.dtype)


# --- From a routing to anchors ---------------------------------------------------------------------------------------


def permutation(order: Tensor, *, dtype: torch.dtype = torch.float32) -> Anchors:
    """Anchors for the permutation y_i = x[order_i], like ``x[..., order]``.

    Args:
        order (n,): whole numbers, each from 0 to n - 1 once.
        dtype: of the anchors, float32 or float64.

    Example:
        >>> shift = laplex.nn.routing.permutation(torch.tensor([1, 2, 0]))
        >>> laplex.linear(torch.tensor([5.0, 6.0, 7.0]), **shift._asdict())
        tensor([6., 7., 5.])
    """
    where = "laplex.nn.routing.permutation"
    _labels(where, "order", order, None)
    if not torch.equal(order.sort().values, torch.arange(len(order), device=order.device)):
        raise ValueError(
            f"{where}: `order` must hold each of 0 to {len(order) - 1} once, got others; "
            "for an index with repetitions use laplex.nn.routing.gather"
        )
    return gather(order, len(order), dtype=dtype)


def gather(
    index: Tensor, in_features: int, signs: Tensor | None = None, *, dtype: torch.dtype = torch.float32
) -> Anchors:
    """Anchors for the selection y_i = signs_i x[index_i]; inputs may be taken several times, or never.

    Args:
        index (n,): whole numbers from 0 to in_features - 1.
        in_features: the number k of inputs.
        signs (n,): 1 or -1; None for no signs.
        dtype: of the anchors, float32 or float64.
    """
    where = "laplex.nn.routing.gather"
    integer(where, "in_features", in_features, 0)
    _labels(where, "index", index, in_features)
    a, b = _places(where, index, in_features, dtype)
    if signs is None:
        return Anchors(a, b, ROUTING_TAU)
    return Anchors(a, b, ROUTING_TAU, _phases(where, signs, a), torch.zeros_like(b, dtype=torch.float64))


def count_sketch(
    buckets: Tensor, signs: Tensor | None, out_features: int, *, dtype: torch.dtype = torch.float32
) -> Anchors:
    """Anchors for the CountSketch y_i = sum over buckets_j = i of signs_j x_j.

    Args:
        buckets (k,): the output that each input is added to, whole numbers from 0 to out_features - 1.
        signs (k,): 1 or -1; None for no signs.
        out_features: the number n of outputs; buckets may be empty.
        dtype: of the anchors, float32 or float64.

    The rows have phase 0, whose sine is exactly 0. So it does not matter that no float equals pi: the cosine of the
    nearest one rounds to -1, and its sine is multiplied by 0.
    """
    where = "laplex.nn.routing.count_sketch"
    integer(where, "out_features", out_features, 0)
    _labels(where, "buckets", buckets, out_features)
    b, a = _places(where, buckets, out_features, dtype)
    if signs is None:
        return Anchors(a, b, ROUTING_TAU)
    return Anchors(a, b, ROUTING_TAU, torch.zeros_like(a, dtype=torch.float64), _phases(where, signs, b))


def universal(weight: Tensor) -> Replicas:
    """Any dense matrix as a routing of scaled replicas of the inputs: W = K diag(scale) R.

    Every nonzero entry W_ij has one replica of input j, scaled by W_ij and placed at the anchor of output i. This shows
    what the family contains; with all m k entries it is not a fast way to multiply.

    Args:
        weight (m, k): float32 or float64.
    """
    where = "laplex.nn.routing.universal"
    _checks.check_tensor(where, "weight", weight)
    if weight.dtype not in ANCHOR_DTYPES:
        raise TypeError(f"{where}: `weight` must be float32 or float64, got {weight.dtype}; call .float()")
    if weight.dim() != 2:
        raise ValueError(f"{where}: `weight` must be (m, k), got shape {tuple(weight.shape)}; use .reshape")
    rows, source = weight.detach().nonzero(as_tuple=True)
    b, a = _places(where, rows, weight.shape[0], weight.dtype)
    return Replicas(source, weight[rows, source], Anchors(a, b, ROUTING_TAU))


# --- From a trained matrix to a routing ------------------------------------------------------------------------------


def routing_of(
    a: Tensor, b: Tensor, tau: float | Tensor = 1.0, phi: Tensor | None = None, psi: Tensor | None = None
) -> Routing:
    r"""The routing matrix R close to K(a, b), with one entry 1 or -1, or none, in every column, and a bound on |K - R|.

    This takes O((n + k) log n). Without phases R is the nearest of all matrices with entries -1, 0, 1 and at most one
    nonzero in every column, in the largest and in the squared difference: it has 1 at the largest entry of a column if
    that is above 1/2, else 0. With phases a column's entry is chosen among the two rows on each side of b_j.

    The bound. Sort the rows, and let a window hold the last two with a_i < b_j and the first two with a_i >= b_j.

    - An entry in the window is compared with R directly: the one that R keeps or drops is min(|K|, 1 - |K|) away,
      since R has the sign of K; the others are |K| away.
    - A row left of the window has a_i <= a_l < b_j, where l is the leftmost in the window, so |K_ij| is at most
      exp(-|a_l - b_j| / tau). The same holds on the right.

    The bound is the largest of these numbers. Without phases the row l is itself one of "the others", or the window
    holds equal anchors, so the bound is then the largest difference itself, and not only a bound.

    Args:
        a (n,), b (k,): anchors, float32 or float64, of one matrix; n is at least 1.
        tau: positive length scale, a number or a tensor of one element.
        phi (n,), psi (k,): phases, both or neither.

    Returns:
        A :class:`Routing`, with |K_ij - R_ij| <= bound_j in all rows i, up to the rounding of float64. It carries no
        gradients.
    """
    where = "laplex.nn.routing.routing_of"
    a, b, scale = _one_matrix(where, a, b, tau, phi, psi)
    row, decay, beyond = _window(a, b, scale)
    entry = decay
    if phi is not None and psi is not None:
        finite = (_checks.finite_phase(where, name, phase) for name, phase in (("phi", phi), ("psi", psi)))
        row_phase, column_phase = (phase.detach().double() for phase in finite)
        entry = decay * torch.cos(row_phase[row] - column_phase[:, None])
    size, best = entry.abs().max(1, keepdim=True)  # (k, 1)
    strong = size > 0.5
    others = entry.abs().scatter(1, best, 0.0).amax(1)
    bound = torch.where(strong, 1 - size, size)[:, 0].maximum(others).maximum(beyond)
    sign = torch.where(strong, entry.gather(1, best).sign(), 0.0)
    return Routing(row.gather(1, best)[:, 0], sign[:, 0], len(a), bound)


def _window(a: Tensor, b: Tensor, tau: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The two rows on each side of every column, (k, 4), their decays, and a bound (k,) on all decays beyond them."""
    n, (ascending, rows) = len(a), a.sort()
    seat = torch.searchsorted(ascending, b)[:, None] + torch.arange(-2, 2, device=a.device)
    row = rows[seat.clamp(0, n - 1)]
    decay = torch.exp(-(a[row] - b[:, None]).abs() / tau)
    decay = torch.where((seat >= 0) & (seat < n), decay, 0.0)
    left = torch.where(seat[:, 0] > 0, decay[:, 0], 0.0)
    right = torch.where(seat[:, 3] < n - 1, decay[:, 3], 0.0)
    return row, decay, left.maximum(right)


def _one_matrix(
    where: str, a: Tensor, b: Tensor, tau: float | Tensor, phi: Tensor | None, psi: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The anchors and tau of one matrix, checked, detached and in float64."""
    _checks.anchor_pair(where, a, b)
    _checks.length_scale(where, tau, a)
    _checks.phases(where, a, b, phi, psi)
    if a.dim() != 1 or b.dim() != 1:
        got = f"{tuple(a.shape)} and {tuple(b.shape)}"
        raise ValueError(f"{where}: `a` and `b` must be (n,) and (k,), got {got}; take one matrix of a batch at a time")
    if len(a) == 0:
        raise ValueError(f"{where}: `a` must have at least one row, got none; a routing needs a place to send to")
    _checks.batch_shape(where, a, b, tau)
    scale = flat_tau(tau, (), a.device).detach()
    _checks.values(where, a, b, scale)
    return a.detach().double(), b.detach().double(), scale.double()


# --- Labels, places and signs ----------------------------------------------------------------------------------------


def _labels(where: str, name: str, labels: Tensor, below: int | None) -> None:
    """Raise unless these are int64 labels (n,), from 0 to ``below`` - 1."""
    _checks.check_tensor(where, name, labels)
    if labels.dtype != torch.int64:
        raise TypeError(f"{where}: `{name}` must be int64, got {labels.dtype}; call .long()")
    if labels.dim() != 1:
        raise ValueError(f"{where}: `{name}` must be (n,), got shape {tuple(labels.shape)}; use .reshape(-1)")
    if below is not None and len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < below:
        got = f"{int(labels.min())} to {int(labels.max())}"
        raise ValueError(f"{where}: `{name}` must be from 0 to {below - 1}, got {got}; count more features")


def _places(where: str, labels: Tensor, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Anchors at the labels, and at all labels 0 to count - 1."""
    if dtype not in ANCHOR_DTYPES:
        raise TypeError(f"{where}: `dtype` must be torch.float32 or torch.float64, got {dtype}; use torch.float32")
    most = round(2 / torch.finfo(dtype).eps)
    if count > most:
        raise ValueError(
            f"{where}: `dtype` must hold whole numbers up to {count - 1} exactly, got {dtype}, which does so up to "
            f"{most}; use torch.float64"
        )
    return labels.to(dtype), torch.arange(count, dtype=dtype, device=labels.device)


def _phases(where: str, signs: Tensor, like: Tensor) -> Tensor:
    """Phase 0 for the sign 1, and pi for -1. In float64: the cosine of float32's pi is -1 only in float32."""
    _checks.check_tensor(where, "signs", signs)
    if signs.is_complex() or signs.dtype == torch.bool:
        raise TypeError(f"{where}: `signs` must be real numbers, 1 or -1, got {signs.dtype}; use 1 - 2 * negative")
    if signs.shape != like.shape:
        raise ValueError(
            f"{where}: `signs` must be one sign for each label, shape {tuple(like.shape)}, got {tuple(signs.shape)}; "
            "use None for no signs"
        )
    if not bool((signs.abs() == 1).all()):
        raise ValueError(f"{where}: `signs` must be 1 or -1, got others; use signs.sign(), or scale x instead")
    return (signs.to(like.device) < 0).double() * math.pi

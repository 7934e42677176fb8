"""The bandwidth that best predicts what was left out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from laplex._checks.counts import is_number
from laplex._checks.rows import warn_of_column
from laplex._eager import outside_graphs
from laplex.stats._density import log_density
from laplex.stats._estimation import line_of, values
from laplex.stats._line import places_left_out
from laplex.stats._order import Sorting, sort
from laplex.stats._regression import constant, linear
from laplex.stats._samples import at_least_two, batch_shape, common_dtype, masses, numbers, rows

KINDS = ("density", "constant", "linear")
TRIED = 24  # bandwidths of the first search, in equal ratios
SMALLEST_RTOL = 1e-13  # float64 cannot tell closer bandwidths apart
GOLDEN = (math.sqrt(5) - 1) / 2


@outside_graphs
def bandwidth(
    x: Tensor,
    y: Tensor | None = None,
    *,
    kind: str = "density",
    weights: Tensor | None = None,
    bounds: tuple[float, float] | None = None,
    rtol: float = 1e-3,
) -> Tensor:
    r"""The tau with the best leave-one-out score, (...), in O(n) for each of some forty tries, after one sort.

    For a density the score is the likelihood of every sample under the estimate from all others, the (weighted) sum of
    ``kde(x, tau=tau)``. For regressions it is minus the squared error of the prediction from all others. Bandwidths in
    equal ratios are tried, and a golden-section search refines the best of them. The result has no derivatives.

    The search depends on values, so ``torch.compile`` breaks its graph around a call.

    Repeated samples, as in rounded data, predict each other: where all samples are repeated, the likelihood has no
    bound as tau goes to 0, and the result is the lower bound. Give the step to which the data were rounded as that
    bound. Where all samples are equal their range counts as 1, so that without ``bounds`` the result is 1 / n.

    Args:
        x (..., n): samples, at least 2.
        y (..., n): values at x, for regressions.
        kind: "density" for :func:`kde`, "constant" for :func:`nadaraya_watson`, "linear" for :func:`local_linear`.
        weights (..., n): not negative; None for equal ones.
        bounds: the range of tau to search. None: from the interquartile range over n to the range.
        rtol: the relative tolerance of the result.

    Example:
        >>> x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
        >>> tau = laplex.stats.bandwidth(x)
        >>> bool(0.05 < tau < 0.5)
        True
    """
    where = "laplex.stats.bandwidth"
    x = numbers(where, "x", x)
    if kind not in KINDS:
        raise ValueError(f"{where}: `kind` must be {', '.join(map(repr, KINDS))}, got {kind!r}")
    if (y is None) != (kind == "density"):
        raise ValueError(
            f"{where}: `y` goes with the kinds 'constant' and 'linear', got kind={kind!r} and y={type(y).__name__}"
        )
    if not is_number(rtol) or not SMALLEST_RTOL <= rtol < 1:
        raise ValueError(f"{where}: `rtol` must be between {SMALLEST_RTOL:g} and 1, got {rtol!r}")
    warn_of_column(where, "x", x, "sample")
    y = values(where, y, x)
    w = masses(where, "weights", weights, x)
    batch = batch_shape(where, x=x, y=y, weights=w)
    at_least_two(where, x.shape[-1], w)
    with torch.no_grad():
        sorting = sort(rows(x, batch).to(torch.promote_types(x.dtype, torch.float32)))
        low, high = _bounds(where, sorting.s, bounds)
        score = _score(sorting, y if y is None else rows(y, batch), w if w is None else rows(w, batch), kind)
        return _largest(score, low, high, rtol).exp().reshape(batch).to(common_dtype(x, y))


def _score(sorting: Sorting, y: Tensor | None, w: Tensor | None, kind: str) -> Callable[[Tensor], Tensor]:
    """A function of log tau (h,): the leave-one-out score (h,)."""
    s, order = sorting
    w = None if w is None else w.gather(-1, order)
    weights = torch.ones_like(s) if w is None else w

    def density(log_tau: Tensor) -> Tensor:
        scores = log_density(line_of(s, w, log_tau.exp()[:, None]), places_left_out, left_out=True)
        return torch.where(weights > 0, weights * scores, 0.0).sum(-1)

    def regression(log_tau: Tensor) -> Tensor:
        estimate = constant if kind == "constant" else linear
        residuals = targets - estimate(line_of(s, w, log_tau.exp()[:, None], targets), places_left_out)
        return -(weights * residuals.square()).sum(-1)

    if y is None:
        return density
    targets = y.double().gather(-1, order)
    return regression


def _bounds(where: str, s: Tensor, bounds: tuple[float, float] | None) -> tuple[Tensor, Tensor]:
    """The logarithms of the least and the largest tau, (h,) each."""
    if bounds is not None:
        least, most = _two_numbers(bounds)
        if not 0 < least < most < math.inf:
            raise ValueError(f"{where}: `bounds` must be two positive numbers, the smaller one first, got {bounds!r}")
        return torch.full_like(s[:, 0], math.log(least)), torch.full_like(s[:, 0], math.log(most))
    n = s.shape[-1]
    extent = s[:, -1] - s[:, 0]
    extent = torch.where(extent > 0, extent, 1.0)
    middle = s[:, (3 * n) // 4] - s[:, n // 4]
    middle = torch.where(middle > 0, middle, extent)
    return (middle / n).log(), extent.log()


def _two_numbers(bounds: Any) -> tuple[float, float]:
    """Return two numbers of any type that float() takes, from anything that holds two; NaN for anything else."""
    try:
        low, high = bounds
        if not any(isinstance(bound, bool | str | bytes) for bound in (bounds, low, high)):
            return float(low), float(high)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # the last two come from tensors and huge integers
        pass
    return math.nan, math.nan


def _largest(score: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, rtol: float) -> Tensor:
    """The place (h,) between low and high where a score is largest: first on a grid, then by the golden section."""
    step = (high - low) / (TRIED - 1)
    grid = torch.stack([score(low + i * step) for i in range(TRIED)])
    best = low + grid.argmax(0) * step
    low, high = torch.maximum(best - step, low), torch.minimum(best + step, high)
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    left_score, right_score = score(left), score(right)
    # Numbers may be further apart than rtol: where none is left in between, the search can get no closer.
    while bool(((high - low > rtol) & (low < left) & (left < right) & (right < high)).any()):
        upper = right_score > left_score
        low, high = torch.where(upper, left, low), torch.where(upper, high, right)
        probe = torch.where(upper, low + GOLDEN * (high - low), high - GOLDEN * (high - low))
        value = score(probe)
        left, right = torch.where(upper, right, probe), torch.where(upper, probe, left)
        left_score, right_score = torch.where(upper, right_score, value), torch.where(upper, value, left_score)
    return (low + high) / 2

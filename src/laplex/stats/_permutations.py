r"""Permutation tests of two samples: one sort, and then one scan for all permutations of a block.

Under the hypothesis that both samples have one distribution, their labels can be permuted. The merged samples stay
where they are, and only their signed masses change: so the order, the gaps and their decays are computed once, and a
block of permutations is a block of columns of the running sums.

    B. Phipson, G. K. Smyth, Permutation p-values should never be zero, Statistical Applications in Genetics and
        Molecular Biology 9 (2010): why one is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex._checks import counts
from laplex._checks.counts import integer
from laplex._eager import readable
from laplex._running import cumulative
from laplex.stats._energy import mass_beyond, mean_distances_in_order, squared_differences_in_order
from laplex.stats._mmd import gaps, shortfalls_in_order, squared_norms_in_order
from laplex.stats._order import sort
from laplex.stats._samples import Merged, merged

NAMES = ("mmd", "energy_distance")
BLOCK = 1 << 18  # numbers in the masses of a block of permutations: 2 MiB, which a core's cache holds
GPU_BLOCK = 1 << 24  # on a GPU few launches matter more
ROUNDING = 1e-10  # values within this relative distance count as equal: they differ by rounding
CALLERS_ROUNDING = 100  # the same for the caller's function, in units of its samples' rounding, as SciPy has it


class PermutationTest(NamedTuple):
    """The outcome of :func:`permutation_test`."""

    statistic: Tensor  # (...): of the samples as they are
    p_value: Tensor  # (...): how often permuted samples have as large a value, these samples included
    null: Tensor  # (..., permutations): the values of permuted samples


def permutation_test(
    x: Tensor,
    y: Tensor,
    *,
    statistic: str | Callable[[Tensor, Tensor], Tensor] = "mmd",
    tau: Any = None,
    permutations: int = 999,
    unbiased: bool = False,
    generator: torch.Generator | None = None,
) -> PermutationTest:
    r"""Test whether two samples come from one distribution, by permuting their labels.

        p = (1 + number of permutations with a value >= that of the samples) / (1 + permutations)

    so p is never 0, and a test at the level alpha is exact if alpha (1 + permutations) is an integer. For the
    named statistics the merged samples are sorted once, and every permutation takes O(n + m). No derivatives.

    Args:
        x (..., n), y (..., m): samples. Leading dimensions broadcast; each row is a test of its own.
        statistic: "mmd", "energy_distance", or a function of batches (permutations, ..., n) and (permutations, ..., m)
            that returns (permutations, ...), large where the samples differ:
            ``lambda a, b: (a.mean(-1) - b.mean(-1)).abs()``.
        tau: the length of the kernel, for "mmd".
        permutations: how many are drawn.
        unbiased: use the unbiased estimators of the named statistics.
        generator: the random generator of the permutations.

    Returns:
        ``(statistic, p_value, null)``.

    Example:
        >>> x = torch.randn(200, generator=torch.Generator().manual_seed(0))
        >>> laplex.stats.permutation_test(x[:100], x[100:] + 1, tau=1.0).p_value
        tensor(0.0010)
    """
    where = "laplex.stats.permutation_test"
    if not callable(statistic) and statistic not in NAMES:
        raise ValueError(f"{where}: `statistic` must be {', '.join(map(repr, NAMES))} or a function, got {statistic!r}")
    if (tau is None) == (statistic == "mmd"):
        needed = "needs" if statistic == "mmd" else "has no use for"
        raise ValueError(f"{where}: the statistic {statistic!r} {needed} `tau`, got {tau!r}")
    permutations = integer(where, "permutations", permutations)
    with torch.no_grad():
        data = merged(where, x, y, None, None, unbiased, 1.0 if tau is None else tau)
        if callable(statistic):
            values = _callers_statistic(where, statistic, data)
        else:
            values = _named_statistic(statistic, data, unbiased)
        blocks = _labels(data, permutations, counts.generator(where, generator, data.z.device))
        observed, null = values(next(blocks))[:, 0], torch.cat([values(labels) for labels in blocks], 1)
        least = observed - _rounding(statistic, data.dtype) * observed.abs()
        reached = null >= torch.where(observed.isinf(), observed, least)[:, None]
        p = (1 + reached.sum(-1)).double() / (1 + permutations)
        p = torch.where(_known(where, observed, null), p, torch.nan)
    return PermutationTest(data.result(observed), data.result(p), null.reshape(*data.batch, -1).to(data.dtype))


def _known(where: str, observed: Tensor, null: Tensor) -> Tensor:
    """Whether no value of a row is NaN, (h,), for values (h,) and (h, permutations).

    A NaN compares as small, and would count as evidence. Where values can be read this raises; elsewhere, as on a GPU,
    p becomes NaN.
    """
    missing = torch.cat([observed[:, None], null], 1).isnan()
    known = ~missing.any(-1)
    if readable(known) and not bool(known.all()):
        raise ValueError(
            f"{where}: `statistic` must not be NaN, got NaN for {int(missing.sum())} of {missing.numel()} values, of "
            "the samples as they are and of permuted ones; where it divides 0 by 0 or overflows, have it return what "
            "is meant, as with torch.nan_to_num"
        )
    return known


def _rounding(statistic: str | Callable[..., Tensor], dtype: torch.dtype) -> float:
    """The relative distance within which values count as equal. The caller's function computes in the samples' dtype,
    and equal samples in another order change its result; named statistics are computed in float64."""
    return max(ROUNDING, CALLERS_ROUNDING * torch.finfo(dtype).eps) if callable(statistic) else ROUNDING


def _labels(data: Merged, permutations: int, generator: torch.Generator | None) -> Iterator[Tensor]:
    """Blocks of permutations (h, n + m, c) of the merged samples; the first one is the samples as they are."""
    h, size = data.z.shape
    yield torch.arange(size, device=data.z.device).expand(h, 1, size).mT
    most = max((BLOCK if data.z.device.type == "cpu" else GPU_BLOCK) // (h * size), 1)
    for first in range(0, permutations, most):
        count = min(most, permutations - first)
        drawn = [torch.randperm(size, generator=generator, device=data.z.device) for _ in range(h * count)]
        yield torch.stack(drawn).reshape(h, count, size).mT


def _named_statistic(name: str, data: Merged, unbiased: bool) -> Callable[[Tensor], Tensor]:
    """A function from permutations (h, n + m, c) to values (h, c) of a statistic."""
    s, order = sort(data.z)
    n, m = data.n, data.z.shape[-1] - data.n
    gap, u = s.diff(dim=-1), gaps(s, data.tau)

    def norm(signed: Tensor) -> Tensor:
        if name == "mmd":
            return squared_norms_in_order(u, signed)
        return squared_differences_in_order(gap, cumulative(signed))

    def excess(masses: Tensor) -> Tensor:
        if name == "mmd":
            return shortfalls_in_order(u, masses)
        return mean_distances_in_order(gap, cumulative(masses), mass_beyond(masses))

    def values(permuted: Tensor) -> Tensor:
        first = permuted.gather(1, order[..., None].expand_as(permuted)) < n
        value = norm(first.double() * (n + m) - n) / (n * m) ** 2  # of m and -n
        if not unbiased:
            return value
        return value - excess(first.double() / n) / (n - 1) - excess((~first).double() / m) / (m - 1)

    return values


def _callers_statistic(where: str, statistic: Callable[..., Tensor], data: Merged) -> Callable[[Tensor], Tensor]:
    """The same for the caller's function of samples."""
    n = data.n

    def values(permuted: Tensor) -> Tensor:
        z = data.z[..., None].expand_as(permuted)
        pool = torch.empty_like(z).scatter(1, permuted, z).movedim(-1, 0)
        pool = pool.reshape(-1, *data.batch, data.z.shape[-1]).to(data.dtype)
        value = statistic(pool[..., :n], pool[..., n:])
        wanted = pool.shape[:-1]
        if not isinstance(value, Tensor) or value.shape != wanted:
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"{where}: `statistic` must return one number for each of {tuple(wanted)}, got {got}; its arguments "
                "lead with a dimension of permutations, so reduce over the last one only, as in a.mean(-1)"
            )
        return value.double().reshape(wanted[0], -1).mT

    return values

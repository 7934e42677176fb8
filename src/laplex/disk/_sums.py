"""What a bucket has to know about the sources of all other buckets: two numbers for every channel.

Seen from bucket j, all sources of lower buckets lie left of its left border, and those of higher ones at its right
border or beyond. So they act as two extra sources, at the borders. Each bucket reduces its own sources to

    ahead     sum over its sources of exp(-(right border - s) / tau) x
    behind    sum over its sources of exp(-(s - left border) / tau) x

and `ahead` moves to a border further right, `behind` to one further left, by one decay over the difference of two
borders: no exponent is positive, and no decay is a product of many. This is ``laplex.distributed._ends`` with buckets
as ranks, and simpler: borders are the same for both sides, so there are no ties with sources elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from laplex.disk._borders import Borders
from laplex.disk._problem import phased

CHUNK = 1 << 13  # sources that are reduced at a time: intermediates stay in the cache
BEYOND = 1e3  # for u >= 1e3, exp(-u) is 0 in float64


def decayed(
    s: np.ndarray[Any, Any], x: np.ndarray[Any, Any], psi: np.ndarray[Any, Any] | None, border: float, tau: float
) -> np.ndarray[Any, Any]:
    """The sum (channels,) of x (m, count) at s (count,), all on one side of a border, decayed up to that border."""
    total = np.zeros(len(x) * (1 if psi is None else 2))
    for first in range(0, len(s), CHUNK):
        part = slice(first, first + CHUNK)
        values = phased(x[:, part], psi if psi is None else psi[part])
        values *= _decay(s[part], border, tau)
        total += values.sum(-1)
    return total


def ghosts(ahead: np.ndarray[Any, Any], behind: np.ndarray[Any, Any], borders: Borders, tau: float) -> Any:
    """For each bucket, the sums of all lower buckets at its left border and of all higher ones at its right border.

    ``ahead``, ``behind`` and both results are (buckets, channels); the last ``ahead`` and first ``behind`` are unused.
    """
    left, right = np.zeros_like(ahead), np.zeros_like(behind)
    places = borders.values.astype(np.float64)
    for bucket in range(borders.buckets):
        if bucket > 0:
            left[bucket] = _decay(places[:bucket], places[bucket - 1], tau) @ ahead[:bucket]
        if bucket < borders.buckets - 1:
            right[bucket] = _decay(places[bucket:], places[bucket], tau) @ behind[bucket + 1 :]
    return left, right


def _decay(s: np.ndarray[Any, Any], border: float, tau: float) -> np.ndarray[Any, Any]:
    """exp(-|s - border| / tau)."""
    with np.errstate(over="ignore"):
        gap: np.ndarray[Any, Any] = np.subtract(s, border, dtype=np.float64)
        np.abs(gap, out=gap)
        gap /= tau
    np.minimum(gap, BEYOND, out=gap)
    np.negative(gap, out=gap)
    np.exp(gap, out=gap)
    return gap


def at_border(right: np.ndarray[Any, Any], borders: Borders, bucket: int, tau: float) -> Any:
    """The sums of the higher buckets at a bucket's left border, given those at its right border."""
    if bucket == borders.buckets - 1:  # there are no higher buckets
        return right
    ends = borders.values[bucket - 1 : bucket + 1].astype(np.float64)
    return right * _decay(ends[:1], ends[1], tau)

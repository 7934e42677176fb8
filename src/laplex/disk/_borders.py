"""Borders that cut the line into buckets, each of which fits into memory.

With borders S_1 < S_2 < ..., bucket j has all anchors with S_j <= anchor < S_{j+1}. Equal anchors are in one bucket,
whichever side they are on, so no tie crosses a border. A value that many anchors share gets a bucket of its own, from
that value to the next one in the dtype, if there is one. Such a bucket may have any size: its rows differ only in
their phases.

Borders come from a sample of numbers at evenly spaced places. What the sample missed shows once anchors have been
counted: a bucket that is too large then gets more borders, from a sample of that bucket.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from laplex import _checks
from laplex.disk._arrays import Stored
from laplex.disk._files import WHERE

PLACES, RUN = 4096, 64  # a sample has this many places, and this many numbers at each
LEAST_PLACES = 64  # even if there is little memory
SAMPLED = 400  # bytes of memory per number of a sample, of which finding borders takes about 100
FILL = 0.6  # target size of a bucket relative to the capacity; counts from the sample are off by a few percent
HEAVY = 0.2  # of the capacity: a value with more than that in the sample gets a bucket of its own
CELLS = 20  # leading bits that index the table that finds buckets
CHUNK = 1 << 16  # anchors whose buckets are found at a time: their bits stay in the cache
MOST_BUCKETS = (1 << 16) - 1  # labels are uint16, and one label marks cells with a border inside


class NotFiniteError(ValueError):
    """Anchors are not finite, so everything done so far is useless."""


def finite(anchors: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """The anchors, with 0 for -0, after checking that they are finite."""
    if not np.isfinite(anchors).all():
        raise NotFiniteError(_checks.not_finite(WHERE, name))
    positive: np.ndarray[Any, Any] = anchors + anchors.dtype.type(0)
    return positive


class Sample(NamedTuple):
    """Anchors (count,) that stand for ``total`` anchors."""

    values: np.ndarray[Any, Any]
    total: int


def sample(anchors: Stored, name: str, memory: int) -> Sample:
    """A sample of anchors at evenly spaced places; all of them if there are few."""
    places = max(LEAST_PLACES, min(PLACES, memory // (RUN * SAMPLED)))
    if anchors.size <= places * RUN:
        values = anchors.read(0, anchors.size)[0]
    else:
        starts = np.linspace(0, anchors.size - RUN, places).astype(np.int64)
        values = np.concatenate([anchors.read(int(start), int(start) + RUN)[0] for start in starts])
    return Sample(finite(values, name), anchors.size)


def chosen(samples: list[Sample], capacity: float) -> np.ndarray[Any, Any]:
    """Borders that cut the anchors of all samples into buckets: sorted, without repeats."""
    masses = np.concatenate([np.full(len(drawn.values), drawn.total / max(len(drawn.values), 1)) for drawn in samples])
    values, inverse = np.unique(np.concatenate([drawn.values for drawn in samples]), return_inverse=True)
    mass = np.bincount(inverse.reshape(-1), masses, len(values))
    total = mass.cumsum()
    if len(values) == 0 or total[-1] <= capacity:
        return values[:0]
    buckets = expected_buckets(total[-1], capacity)
    cuts = values[np.searchsorted(total, total[-1] * np.arange(1, buckets) / buckets)]
    heavy = values[mass > HEAVY * capacity]
    borders = np.unique(np.concatenate([cuts, heavy, _next(heavy)]))
    usable: np.ndarray[Any, Any] = borders[np.isfinite(borders)]
    return usable


def _next(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The next larger number of the dtype; infinity after the largest."""
    with np.errstate(over="ignore"):
        above: np.ndarray[Any, Any] = np.nextafter(values, values.dtype.type(np.inf))
    return above


def expected_buckets(total: float, capacity: float) -> int:
    """How many buckets ``total`` anchors get, not counting buckets of one value."""
    return int(np.ceil(total / (FILL * capacity)))


class Borders:
    """Borders (buckets - 1,), sorted and without repeats, and the table that finds the bucket of an anchor.

    The bits of numbers, read as integers, sort as the numbers do. So the leading bits name a cell of the line, and a
    table has the bucket of each cell; anchors are compared with the borders only if their cell has a border inside.
    """

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values, self.buckets = values, len(values) + 1
        self.label_dtype = np.dtype(np.uint8 if self.buckets < 256 else np.uint16)
        self._mixed = (1 << 8 * self.label_dtype.itemsize) - 1  # marks cells with a border inside
        width = 8 * values.itemsize
        self._bits = np.dtype(f"int{width}")
        self._magnitude = self._bits.type((1 << (width - 1)) - 1)
        self._shift, self._half = width - CELLS, 1 << (CELLS - 1)
        keys = self._keys(values)
        starts = np.arange(-self._half, self._half, dtype=self._bits) << self._shift
        table = np.searchsorted(keys, starts, side="right").astype(self.label_dtype)
        cells = keys >> self._shift
        table[(cells + self._half)[keys != cells << self._shift]] = self._mixed
        self._table = table

    def _keys(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Integers that sort as the values do, which must be finite and without -0."""
        bits: np.ndarray[Any, Any] = values.view(self._bits)
        keys: np.ndarray[Any, Any] = bits ^ ((bits >> (8 * values.itemsize - 1)) & self._magnitude)
        return keys

    def labels(self, anchors: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
        """The buckets of anchors (size,)."""
        labels = np.empty(len(anchors), self.label_dtype)
        for first in range(0, len(anchors), CHUNK):
            values = finite(anchors[first : first + CHUNK], name)
            part = labels[first : first + CHUNK]
            cells = (self._keys(values) >> self._shift) + self._half
            np.take(self._table, cells, out=part, mode="clip")
            mixed = np.flatnonzero(part == self._mixed)
            if len(mixed):
                part[mixed] = np.searchsorted(self.values, values[mixed], side="right")
        return labels

    def left(self, bucket: int) -> float | None:
        """The border left of a bucket; None if it has none."""
        return float(self.values[bucket - 1]) if bucket > 0 else None

    def right(self, bucket: int) -> float | None:
        return float(self.values[bucket]) if bucket < self.buckets - 1 else None

    @property
    def single(self) -> np.ndarray[Any, Any]:
        """Whether each bucket has only one value, its left border."""
        single = np.zeros(self.buckets, bool)
        single[1:-1] = _next(self.values[:-1]) == self.values[1:]
        single[1:][-1:] = self.values[-1:] == np.finfo(self.values.dtype).max  # nothing is larger
        return single

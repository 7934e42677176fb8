"""A product as its steps see it, and how much memory its parts take."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from laplex.disk._arrays import Stored

ORDER = 11  # numbers of an anchor's size that a product has for each anchor: the anchor, its plan, and copies in order
CHANNELS = 3  # numbers of x's size for each channel of an anchor: x or y, and copies in order
CACHES = 96 << 20  # bytes that the compiled core and the allocator hold for later; at most half of the memory
MOST_BLOCK = 1 << 24  # anchors that are read at a time, if there is memory for them


class Problem(NamedTuple):
    """y = x K(a, b)^T."""

    x: Stored  # (m, k)
    a: Stored  # (1, n)
    b: Stored  # (1, k)
    tau: float
    phi: Stored | None
    psi: Stored | None
    memory: int  # bytes
    where: str

    @property
    def channels(self) -> int:
        """Rows of the scan: those of x, twice with phases."""
        return self.x.m * (1 if self.phi is None else 2)

    @property
    def anchor_bytes(self) -> int:
        """Memory that a product takes for every anchor on either side."""
        return ORDER * self.a.dtype.itemsize + CHANNELS * self.x.dtype.itemsize * self.channels

    @property
    def capacity(self) -> int:
        """Anchors of both sides together that can be multiplied in memory."""
        return (self.memory - min(self.memory // 2, CACHES)) // self.anchor_bytes

    @property
    def block(self) -> int:
        """Anchors that are read at a time, so that they fit with all that is made of them."""
        return min(MOST_BLOCK, self.capacity // 2)

    def identity(self) -> dict[str, Any]:
        """What the product is, as a dictionary for JSON."""
        sides = {"x": self.x, "a": self.a, "b": self.b, "phi": self.phi, "psi": self.psi}
        about: dict[str, Any] = {name: side and side.identity() for name, side in sides.items()}
        return about | {"tau": self.tau.hex(), "memory": self.memory}


def blocks(size: int, block: int) -> int:
    """How many blocks there are."""
    return -(-size // block)


def span(block: int, item: int, size: int) -> tuple[int, int]:
    """The first and the last column, which is not included, of a block."""
    return item * block, min((item + 1) * block, size)


def phased(x: np.ndarray[Any, Any], psi: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
    """The channels (channels, count) of x (m, count) in float64: x, or x cos psi and x sin psi."""
    wide = x.astype(np.float64)
    if psi is None:
        return wide
    return np.concatenate([wide * np.cos(psi, dtype=np.float64), wide * np.sin(psi, dtype=np.float64)])

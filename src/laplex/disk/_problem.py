"""The product that the steps work on, and how much memory its parts take."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from laplex.disk._arrays import Stored

ORDER = 11  # numbers of an anchor's size that a product keeps per anchor: the anchor, its plan, and sorted copies
CHANNELS = 3  # numbers of x's size per channel of an anchor: x or y, and sorted copies
CACHES = 96 << 20  # bytes that the compiled core and the allocator keep for reuse; at most half of the memory
MOST_BLOCK = 1 << 24  # anchors that are read at a time if there is memory for them


class Problem(NamedTuple):
    """y = x K(a, b)^T."""

    x: Stored  # (m, k)
    a: Stored  # (1, n)
    b: Stored  # (1, k)
    tau: float
    phi: Stored | None
    psi: Stored | None
    memory: int  # bytes

    @property
    def channels(self) -> int:
        """How many rows the scan has: those of x, or twice as many with phases."""
        return self.x.m * (1 if self.phi is None else 2)

    @property
    def anchor_bytes(self) -> int:
        """Bytes of memory that a product takes per anchor on either side."""
        return ORDER * self.a.dtype.itemsize + CHANNELS * self.x.dtype.itemsize * self.channels

    @property
    def capacity(self) -> int:
        """How many anchors, of both sides together, can be multiplied in memory."""
        return (self.memory - min(self.memory // 2, CACHES)) // self.anchor_bytes

    @property
    def block(self) -> int:
        """How many anchors are read at a time, so that they fit together with everything computed from them."""
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
    """The columns [first, last) of a block."""
    return item * block, min((item + 1) * block, size)


def phased(x: np.ndarray[Any, Any], psi: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
    """The channels (channels, count) of x (m, count) in float64: x, or x cos psi and x sin psi."""
    wide = x.astype(np.float64)
    if psi is None:
        return wide
    return np.concatenate([wide * np.cos(psi, dtype=np.float64), wide * np.sin(psi, dtype=np.float64)])

"""What a benchmark row is: declared here, measured elsewhere.

A `Row` says in words what it claims, lists its sizes, and names what is measured, what that is divided by, and the
bar. A suite is a list of rows, so a new suite is a new list and no new code.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from laplex.testing import Budget
from paper.methods.products import BASELINES

Anchors = Literal["normal", "narrow", "offset", "in order"]
Mode = Literal[
    "kept", "symmetric", "whole", "graph", "forward+backward", "forward+backward whole", "forward+backward compiled",
    "phased", "phased forward+backward", "phased forward+backward, tau too",
    "solve", "gram", "gram, a tenth",
]  # fmt: skip
Measure = Literal["error", "ratio", "time", "memory", "memory ratio", "import"]

ANCHORS: dict[Anchors, str] = {
    "normal": "N(0, 1) anchors, in no order",
    "narrow": "anchors in a span of 0.01",
    "offset": "N(0, 1) anchors offset by 1e4",
    "in order": "N(0, 1) anchors, in order",
}
SOLVES: tuple[Mode, ...] = ("solve", "gram", "gram, a tenth")  # set up by `solves`
OURS = {"laplex": "laplex", "laplex-gram": "laplex.gram"}
LAPLEX_MODES: dict[Mode, str] = {
    "kept": "plan kept",
    "symmetric": "symmetric product, plan kept",
    "whole": "whole call",
    "graph": "plan kept, as a CUDA graph",
    "forward+backward": "forward and backward, plan kept",
    "forward+backward whole": "forward and backward with planning",
    "forward+backward compiled": "forward and backward with planning, by torch.compile",
    "phased": "with phases, whole call",
    "phased forward+backward": "with phases, forward and backward with planning",
    "phased forward+backward, tau too": "with phases, forward and backward with planning, tau trained",
    "solve": "solve of K + diag, plan kept",
    "gram": "solve and log det of a Gram matrix + diag, plan kept",
    "gram, a tenth": "the same of a tenth of n and k",
}


@dataclass(frozen=True)
class Size:
    """K is (n, k), x is (batch, k)."""

    n: int
    k: int
    batch: int

    def __str__(self) -> str:
        """Powers of two written as such, since that is how sizes are chosen and read."""
        axes = f"n = k = {power(self.n)}" if self.n == self.k else f"n = {power(self.n)}, k = {power(self.k)}"
        return f"{axes}, B = {self.batch}"


@dataclass(frozen=True)
class Side:
    """One thing that is run: laplex or a baseline, with its set-up kept, or whole, or with its derivative."""

    method: str = "laplex"  # or "laplex-gram", whose weights are the rows of x
    mode: Mode = "kept"
    backend: str | None = None  # laplex only; None: what laplex chooses

    @property
    def label(self) -> str:
        """The name in tables; also the key in the results."""
        if self.method in OURS:
            name = OURS[self.method] if self.backend is None else f"{OURS[self.method]} {self.backend}"
            return f"{name}, {LAPLEX_MODES[self.mode]}"
        baseline = BASELINES[self.method]
        if baseline.yardstick:
            return baseline.what
        if self.mode == "forward+backward whole":
            return f"{baseline.what}, forward and backward"
        return f"{baseline.what}, {baseline.keeps if self.mode == 'kept' else 'whole call'}"


@dataclass(frozen=True)
class Row:
    """One line of a suite: a claim, at one or several sizes."""

    name: str  # a slug: the key in the results, and what --only matches
    says: str
    sizes: tuple[Size, ...]
    measure: Measure
    bar: float | None = None  # the value must not exceed it; None: a figure without a bar
    ours: Side = Side()
    against: Side | None = None  # ratios: divided by its time or memory; error: must also stay below its error
    also: tuple[Side, ...] = ()  # timed in the same run for the record
    dtype: torch.dtype = torch.float32
    anchors: Anchors = "normal"
    tau: float = 1.0
    threads: int | None = None  # torch's, for this row alone; None: those of the run


@dataclass(frozen=True)
class Suite:
    """Rows for one device, and how long each may be timed."""

    name: str
    device: Literal["cpu", "cuda"]
    rows: tuple[Row, ...]
    budget: Budget
    committed: bool  # its results are for the repository, not for a look


def power(size: int) -> str:
    """1048576 -> 2^20; anything else in digits."""
    exponent = size.bit_length() - 1
    return f"2^{exponent}" if size == 1 << exponent and exponent >= 8 else str(size)

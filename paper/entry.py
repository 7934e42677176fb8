"""An entry, of the paper or beyond it, and what came of it: figures compared, plots, pictures and a verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from paper.results import Archive
from paper.running import Experiments, Measurement

Verdict = Literal["exceeded", "reproduced", "not reproduced", "not run"]
VERDICTS: tuple[Verdict, ...] = ("exceeded", "reproduced", "not reproduced", "not run")
TENTH = "Each figure counts as reproduced if it is at most a tenth worse than the paper's, as exceeded if it is more \
than a tenth better; the entry has the worst of them."

BEYOND = "beyond the paper"  # the source of an entry that the paper does not have


@dataclass(frozen=True)
class Entry:
    """A table or figure of the paper, a claim of its text, or an addition to it, a claim of ours."""

    name: str  # on the command line: lower case and hyphens
    title: str  # in plain words
    section: str  # of the report: "Operator", "Gram", "Accuracy", "Projections", "Heads", "Densities", ...
    source: str  # as the paper numbers it: "Figure 15, Figure 1"; or BEYOND
    claim: str  # what the paper says, in one sentence of ours; of an addition what we say
    criterion: str  # when it counts as reproduced, and when as exceeded, in words
    minutes: dict[str, float]  # by the devices that it can run on, "cuda" and "cpu"; about
    measure: tuple[Measurement | Experiments, ...]  # entries may share them; each is then run once
    judge: Callable[[Entry, Archive], Outcome | None]  # what came of it, from results; None without any
    data: str = ""  # what it needs besides the library
    gpu_figures: bool = False  # the paper's figures are of a GPU: those of a CPU are shown and not judged

    @property
    def added(self) -> bool:
        """Whether it is not the paper's."""
        return self.source == BEYOND

    @property
    def labels(self) -> tuple[str, ...]:
        """The figures, tables and other places of the paper that it is about."""
        return () if self.added else tuple(self.source.split(", "))


@dataclass(frozen=True)
class Figure:
    """One number of the paper and ours: judged, or only shown."""

    label: str  # "n = 2^20, 8 rows, forward and backward"
    paper: float | None  # None: the paper gives none
    ours: float | None  # None: not measured
    unit: str  # "ms", "GB", "%", "nats", "relative error", "x"
    better: Literal["lower", "higher"]
    verdict: Verdict | None  # None: it is not part of the criterion
    note: str = ""
    condition: bool = False  # it has to hold, and cannot be exceeded: "reproduced" where it holds


@dataclass(frozen=True)
class Series:
    """One line of a plot."""

    label: str
    x: list[float]
    y: list[float | None]  # None: no point here
    from_paper: bool = False  # drawn as marks without a line: the paper names points, not curves


@dataclass(frozen=True)
class Plot:
    title: str
    x_label: str
    y_label: str
    series: list[Series]
    x_scale: Literal["linear", "log2", "log10"] = "linear"
    y_scale: Literal["linear", "log10"] = "linear"


@dataclass(frozen=True)
class Picture:
    path: Path  # PNG
    caption: str


@dataclass(frozen=True)
class TextTable:
    """Further results, as text."""

    title: str
    columns: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Outcome:
    """What came of an entry."""

    entry: Entry
    verdict: Verdict
    reason: str  # in one sentence: why this verdict, with the numbers; for "not run", what is missing
    figures: list[Figure] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    tables: list[TextTable] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    machines: list[dict[str, Any]] = field(default_factory=list)  # where it ran: device, cpu, gpu, torch, commit, date
    files: list[str] = field(default_factory=list)  # the JSON that the figures come from, relative to the repository
    damage: str = ""  # why results that are there could not be read

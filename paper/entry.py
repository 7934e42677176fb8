"""An entry of the paper, and what came of it: the figures compared, plots, pictures and a verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Verdict = Literal["exceeded", "reproduced", "not reproduced", "not run"]
VERDICTS: tuple[Verdict, ...] = ("exceeded", "reproduced", "not reproduced", "not run")


@dataclass(frozen=True)
class Entry:
    """A table or figure of the paper."""

    name: str  # on the command line: lower case and hyphens
    title: str  # in plain words
    section: str  # of the report: "Operator", "Gram", "Accuracy", "Projections", "Heads", "Densities", ...
    source: str  # as the paper numbers it: "Figure 15, Figure 1"
    claim: str  # what the paper says, in one sentence of ours
    criterion: str  # when it counts as reproduced, and when as exceeded, in words
    devices: tuple[str, ...]  # "cpu", "cuda": where it can run
    data: str  # what it needs besides the library; "" for nothing
    minutes: dict[str, float]  # by device, about
    of_gpu: bool = False  # the paper's figures are of a GPU: those of a CPU are shown and not judged


@dataclass(frozen=True)
class Figure:
    """One number of the paper beside ours: judged, or only shown."""

    label: str  # "n = 2^20, 8 rows, forward and backward"
    paper: float | None  # None: the paper gives none
    ours: float | None  # None: not measured
    unit: str  # "ms", "GB", "%", "nats", "relative error", "x"
    better: Literal["lower", "higher"]
    verdict: Verdict | None  # None: it is no part of the criterion
    note: str = ""
    condition: bool = False  # it has to hold, and cannot be exceeded: "reproduced" where it holds


@dataclass(frozen=True)
class Series:
    """One line of a plot."""

    label: str
    x: list[float]
    y: list[float | None]  # None: no point here
    of_paper: bool = False  # drawn as marks without a line: the paper names points, not curves


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
class Table:
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
    tables: list[Table] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    machines: list[dict[str, Any]] = field(default_factory=list)  # where it ran: device, cpu, gpu, torch, commit, date
    files: list[str] = field(default_factory=list)  # the JSON that the figures come from, relative to the repository
    damage: str = ""  # why results that are there could not be read

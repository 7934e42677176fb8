"""What was measured, as plain data that goes into the JSON and comes back from it."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from benchmarks.problems import Measure, Row, Size
from laplex.testing import Times

Unit = Literal["relative error", "ratio", "s", "bytes"]
Status = Literal["pass", "miss", "info", "wrong", "failed", "skipped"]

FINISHED: tuple[Status, ...] = ("pass", "miss", "info")  # measured: --resume need not repeat it


@dataclass(frozen=True)
class Measured:
    """One side of a row: how wrong it was, how long it took, and the most memory a call held."""

    error: float | None = None  # None: a yardstick, which computes something else
    time: Times | None = None
    peak_bytes: int | None = None
    backend: str | None = None  # what laplex chose


@dataclass(frozen=True)
class Result:
    """One row at one size."""

    row: str
    says: str
    size: Size | None
    unit: Unit
    bar: float | None
    status: Status
    value: float | None = None
    note: str = ""
    sides: dict[str, Measured] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """What tells this result from every other of its suite."""
        return key(self.row, self.size)


def key(row: str, size: Size | None) -> str:
    """A row and a size, in one string."""
    return row if size is None else f"{row} ({size})"


def judge(
    row: Row, size: Size | None, value: float, sides: dict[str, Measured], note: str = "", met: bool = True
) -> Result:
    """Hold a value against the row's bar; `met` says whether its other conditions hold."""
    status: Status = "info" if row.bar is None else "pass" if value <= row.bar and met else "miss"
    return Result(row.name, row.says, size, UNITS[row.measure], row.bar, status, value, note, sides)


def without_value(
    row: Row, size: Size | None, status: Status, note: str, sides: dict[str, Measured] | None = None
) -> Result:
    """A row that gave no figure, and why; never a time."""
    return Result(row.name, row.says, size, UNITS[row.measure], row.bar, status, None, note, sides or {})


def to_json(result: Result) -> dict[str, Any]:
    """Nested dicts of plain values."""
    return asdict(result)


def from_json(data: dict[str, Any]) -> Result:
    """The inverse of `to_json`."""
    sides = {name: _measured(side) for name, side in data["sides"].items()}
    size = None if data["size"] is None else Size(**data["size"])
    return Result(**{**data, "size": size, "sides": sides})


def _measured(data: dict[str, Any]) -> Measured:
    time = None if data["time"] is None else Times(**data["time"])
    return Measured(**{**data, "time": time})


UNITS: dict[Measure, Unit] = {
    "error": "relative error",
    "ratio": "ratio",
    "time": "s",
    "memory": "bytes",
    "memory ratio": "ratio",
    "import": "s",
}

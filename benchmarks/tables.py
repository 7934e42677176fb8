"""Results as tables of strings, which the terminal and the HTML page show."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.problems import power
from benchmarks.result import Measured, Result, Unit

TIMES = "Time of one product y = K x, n x n, float32 (Toeplitz-FFT needs a uniform grid; one FFT is not a product)"
ERRORS = "Relative error of y, against sums in float64 (float32 itself rounds to 6e-08)"
SCALES: dict[Unit, tuple[tuple[float, str], ...]] = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")),
    "bytes": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")),
}


@dataclass(frozen=True)
class Grid:
    """Rows of cells under a header."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


def tables(results: list[Result]) -> list[Grid]:
    """Claims held against their bars; or, where there are no bars, methods side by side."""
    if any(result.bar is not None for result in results):
        return [Grid("Claims", ("claim", "size", "value", "bar", "verdict", "measured"), list(map(claim, results)))]
    return [
        side_by_side(TIMES, results, time_of),
        side_by_side(ERRORS, results, error_of),
    ]


def claim(result: Result) -> tuple[str, ...]:
    """One line of the table of claims."""
    held = value_of(result), bar_of(result), result.status
    return result.says, str(result.size or ""), *held, detail(result)


def side_by_side(title: str, results: list[Result], cell: Callable[[Measured], str]) -> Grid:
    """One line per method, one column per size."""
    measured = [result for result in results if result.sides and result.size is not None]
    labels = list(dict.fromkeys(label for result in measured for label in result.sides))
    header = "", *(f"n = {power(result.size.n)}" for result in measured if result.size is not None)
    lines = [
        (label, *(cell(result.sides[label]) if label in result.sides else "-" for result in measured))
        for label in labels
    ]
    return Grid(title, header, lines)


def outcome(result: Result) -> str:
    """In one line: value, bar and verdict, or why there is none."""
    if result.status == "info":
        return "done"
    return " ".join(filter(None, [value_of(result), bar_of(result), result.status, result.note]))


def value_of(result: Result) -> str:
    """The figure that is held against the bar."""
    if result.value is None:
        return "-"
    if result.unit in SCALES:
        return scaled(result.value, result.unit)
    return f"{result.value:.1e}" if result.unit == "relative error" else f"{result.value:.3g}"


def bar_of(result: Result) -> str:
    """The bar, in the value's unit."""
    if result.bar is None:
        return ""
    return f"<= {scaled(result.bar, result.unit) if result.unit in SCALES else f'{result.bar:.3g}'}"


def detail(result: Result) -> str:
    """Each side's median time, or its error where nothing was timed, and the note."""
    parts = [f"{label}: {time_of(side) if side.time else error_of(side)}" for label, side in result.sides.items()]
    return "; ".join([*parts, *([result.note] if result.note else [])])


def time_of(side: Measured) -> str:
    """The median time."""
    return "-" if side.time is None else scaled(side.time.median, "s")


def error_of(side: Measured) -> str:
    """The relative error; a yardstick has none."""
    return "(not K x)" if side.error is None else f"{side.error:.1e}"


def scaled(value: float, unit: Unit) -> str:
    """1.23 s, 4.56 ms or 7.89 us; 1.23 GB, 4.56 MB or 7.89 kB."""
    *larger, (smallest, last) = SCALES[unit]
    for scale, name in larger:
        if value >= scale:
            return f"{value / scale:.3g} {name}"
    return f"{value / smallest:.3g} {last}"


def plain(grid: Grid) -> str:
    """Aligned columns of text."""
    lines = [grid.header, *grid.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([grid.title, *("  " + line for line in text)])

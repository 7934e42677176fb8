"""Rows that are measured over a range of sizes, without a bar: the curves of the picture."""

from dataclasses import dataclass

from benchmarks.result import Result

FEWEST = 3  # sizes that make a curve


@dataclass(frozen=True)
class Panel:
    """Curves over one of n, k and B."""

    title: str
    over: str
    sizes: list[int]
    curves: dict[str, list[tuple[int, float]]]  # by label


def all_panels(results: list[Result]) -> list[Panel]:
    """The panels of a report: times of every sweep, and the peak memory where it was looked at."""
    rows = dict.fromkeys(result.row for result in results if result.bar is None and result.size is not None)
    swept = [[result for result in results if result.row == row] for row in rows]
    panels = []
    for row in swept:
        if len(row) >= FEWEST:
            memory = row[0].unit == "bytes"
            panels.append(_panel(row, memory=memory))
            if not memory and any(side.peak_bytes for result in row for side in result.sides.values()):
                panels.append(_panel(row, memory=True))
    return panels


def _panel(row: list[Result], *, memory: bool) -> Panel:
    sizes = [result.size for result in row if result.size is not None]
    over = next((name for name in ("n", "k", "batch") if len({getattr(size, name) for size in sizes}) > 1), "n")
    curves: dict[str, list[tuple[int, float]]] = {}
    for result, size in zip(row, sizes, strict=True):
        for label, side in result.sides.items():
            value = side.peak_bytes and side.peak_bytes / 1e6 if memory else side.time and 1e3 * side.time.median
            if value:
                curves.setdefault(label, []).append((getattr(size, over), value))
    fixed = [f"{name} = {getattr(sizes[0], name)}" for name in ("n", "k", "batch") if name != over]
    what = "Peak memory, MB" if memory else "Time, ms"
    constant = ", ".join(text for text in fixed if not (over == "n" and text.startswith("k") and _square(row)))
    square = " = k" if _square(row) and over == "n" else ""
    title = f"{what}, {row[0].says}{square}\n{constant.replace('batch', 'B')}"
    return Panel(title, over.replace("batch", "B"), sorted(getattr(size, over) for size in sizes), curves)


def _square(row: list[Result]) -> bool:
    return all(result.size is not None and result.size.n == result.size.k for result in row)

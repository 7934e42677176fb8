"""The picture of a report: methods over size where there are no bars, claims against their bars where there are."""

import re
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from benchmarks import sweeps
from benchmarks.problems import power
from benchmarks.result import Measured, Result
from benchmarks.tables import value_of

SWEEPS_A_ROW = 3
ROUNDING = 2.0**-24  # of float32
GRID = "#e4e4e4"
INK = "#444444"
BLUE, RED = "#1f5fbf", "#c8382c"
# By what a label starts with: a method keeps its colour in every picture.
COLORS = {
    "laplex": BLUE,
    "dense": "#e07b00",
    "Toeplitz-FFT": "#2a9d5c",
    "logcumsumexp": "#b8408f",
    "one torch.fft.fft": "#555555",
}


def draw(results: list[Result], caption: str) -> Figure:
    """One figure, whatever the suite."""
    measured = [result for result in results if result.value is not None]
    claims = [result for result in measured if result.bar is not None]
    figure = _claims(claims, sweeps.all_panels(measured)) if claims else _side_by_side(measured)
    figure.suptitle(caption, fontsize=9, color=INK)
    return figure


def draw_sweep(results: list[Result], row: str, caption: str) -> Figure:
    """The curves of one swept row: its times, and its peak memory where that was looked at."""
    panels = sweeps.all_panels([result for result in results if result.row == row])
    figure = Figure(figsize=(5.2 * len(panels), 4.4), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False).flat, panels, strict=True):
        _swept(axes, panel)
    figure.suptitle(caption.replace("`", ""), fontsize=8, color=INK)
    return figure


def _side_by_side(results: list[Result]) -> Figure:
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for label in dict.fromkeys(label for result in results for label in result.sides):
        points = [(r.size.n, r.sides[label]) for r in results if r.size is not None and label in r.sides]
        _time_curve(left, label, points)
        checked = [(n, side.error) for n, side in points if side.error is not None]
        right.plot(*_columns(checked), **_style(label))
    _rounding(right)
    _size_axis(left, results, "Time of one product, ms (median; band: 20 % to 80 %)")
    left.yaxis.set_major_formatter(FuncFormatter(lambda time, _: f"{time:g}"))
    _size_axis(right, results, "Relative error, against sums in float64")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure


def _time_curve(axes: Axes, label: str, points: list[tuple[int, Measured]]) -> None:
    timed = [(n, side.time) for n, side in points if side.time is not None]
    sizes = [n for n, _ in timed]
    style = _style(label)
    axes.plot(sizes, [1e3 * time.median for _, time in timed], label=label, **style)
    low, high = [1e3 * time.p20 for _, time in timed], [1e3 * time.p80 for _, time in timed]
    axes.fill_between(sizes, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _claims(results: list[Result], panels: list[sweeps.Panel]) -> Figure:
    """The claims against their bars, and under them what is swept over."""
    errors = [result for result in results if result.unit == "relative error"]
    times = [result for result in results if result.unit != "relative error"]
    high, rows = 1.8 + 0.27 * max(len(errors), len(times)), -(-len(panels) // SWEEPS_A_ROW)
    figure = Figure(figsize=(13, high + 4.2 * rows), layout="constrained")
    above: Any = figure
    below: Any = None
    if rows:
        above, below = figure.subfigures(2, 1, height_ratios=[high, 4.2 * rows])  # type: ignore[misc]
    left, right = above.subplots(1, 2)
    _against_bars(left, errors, "Errors, as a share of the bar")
    _against_bars(right, times, "Times and memory, as a share of the bar")
    above.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    if below is not None:
        for axes, panel in zip(below.subplots(rows, SWEEPS_A_ROW, squeeze=False).flat, panels, strict=False):
            _swept(axes, panel)
        for axes in below.axes[len(panels) :]:
            axes.set_visible(False)
    return figure


def _swept(axes: Axes, panel: sweeps.Panel) -> None:
    for label, points in panel.curves.items():
        axes.plot(*_columns(points), label=label, **_style(label))
    axes.set(xscale="log", yscale="log", xlabel=panel.over, title=panel.title)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.35)  # room for the legend
    axes.xaxis.set_major_locator(FixedLocator(panel.sizes[:: max(len(panel.sizes) // 6, 1)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"$2^{{{int(n).bit_length() - 1}}}$"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.legend(fontsize=7, frameon=False, loc="upper left")
    _clean(axes)


def _against_bars(axes: Axes, results: list[Result], title: str) -> None:
    """One dot a claim: how much of its bar it uses. Left of the line it holds, right of it it does not."""
    met = [(place, r, r.value) for place, r in enumerate(results) if r.status == "pass"]
    missed = [(place, r, r.value) for place, r in enumerate(results) if r.status != "pass"]
    _dots(axes, met, BLUE, "laplex, bar met")
    _dots(axes, missed, RED, "laplex, bar missed")
    dense = [(place, r, _dense_error(r)) for place, r in enumerate(results)]
    if any(error is not None for *_, error in dense):
        _dots(axes, dense, COLORS["dense"], "dense float32")
    for place, result in enumerate(results):
        point = _share(result, result.value), place
        axes.annotate(value_of(result), point, (0, 5), textcoords="offset points", ha="center", fontsize=7)
    axes.axvline(1.0, color=INK, linewidth=1)
    axes.set(xscale="log", title=title)
    axes.set_yticks(range(len(results)), [_claim_name(result) for result in results], fontsize=8)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:g}"))
    axes.invert_yaxis()
    axes.margins(x=0.12)
    _clean(axes)


def _dots(axes: Axes, points: list[tuple[int, Result, float | None]], color: str, label: str) -> None:
    known = [(_share(result, value), place) for place, result, value in points if value is not None]
    axes.scatter([share for share, _ in known], [place for _, place in known], color=color, label=label, s=28)


def _share(result: Result, value: float | None) -> float:
    return (value or 0.0) / (result.bar or 1.0)


def _dense_error(result: Result) -> float | None:
    """The error of the formed matrix, where the claim is about errors and compares with it."""
    errors = [side.error for label, side in result.sides.items() if label.startswith("dense")]
    return errors[0] if errors and result.unit == "relative error" else None


def _claim_name(result: Result) -> str:
    name = result.row.removeprefix("error-").removeprefix("time-").replace("-", " ")
    size = re.sub(r"2\^(\d+)", r"$2^{\1}$", str(result.size or ""))
    return f"{name}   {size}"


def _size_axis(axes: Axes, results: list[Result], title: str) -> None:
    sizes = sorted({result.size.n for result in results if result.size is not None})
    axes.set(xscale="log", yscale="log", xlabel="n = k", title=title)
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"$2^{{{power(int(n)).removeprefix('2^')}}}$"))
    _clean(axes)


def _rounding(axes: Axes) -> None:
    axes.axhline(ROUNDING, color="#9a9a9a", linestyle=":", linewidth=1)
    where = axes.get_yaxis_transform()
    axes.annotate(
        "float32 rounding", (0.99, ROUNDING), (0, 2), xycoords=where, textcoords="offset points", ha="right", fontsize=7
    )


def _clean(axes: Axes) -> None:
    axes.title.set_fontsize(10)
    axes.grid(True, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _style(label: str) -> dict[str, Any]:
    """A method's colour; a whole call is dashed where the kept one is solid, and dotted with its backward."""
    color = next((color for name, color in COLORS.items() if label.startswith(name)), INK)
    line = ":" if "backward" in label else "--" if label.startswith("laplex") and "whole call" in label else "-"
    return {"color": color, "linestyle": line, "marker": "o", "markersize": 4, "linewidth": 1.8}


def _columns(points: list[tuple[int, Any]]) -> tuple[list[int], list[Any]]:
    return [n for n, _ in points], [value for _, value in points]

"""The pictures of two real series, CO2 and sunspots: observations, forecasts and parts, from committed JSON."""

from typing import Any

import numpy
from matplotlib.figure import Figure

from benchmarks.committed import content
from benchmarks.series_tables import CURVES

BAND = 1.96  # standard deviations: 95 %
BLUE, ORANGE, GREY, SHADE = "#1f5f99", "#c8501e", "#555555", "#f4efe6"
PARTS = {"trend": "trend, ppm", "years": "over years, ppm", "season": "season, ppm", "weeks": "over weeks, ppm"}


def draw_co2() -> Figure:
    """The series with its forecast, the forecast and its errors enlarged, and the parts below one another."""
    curves = _arrays(content(CURVES)["co2"])
    t, until, observed = curves["t"], curves["until"], curves["observed"]
    figure = Figure(figsize=(8.6, 11), layout="constrained")
    rows: list[Any] = [["all", "all"], ["zoom", "error"], *([name, name] for name in PARTS)]
    panels = figure.subplot_mosaic(rows, height_ratios=[2.2, 2.0, 1, 1, 1, 1])
    for name, points in (("all", slice(None)), ("zoom", observed["t"] > until - 1)):
        _observations(panels[name], observed["t"][points], observed["y"][points], until, 3.0)
        _band(panels[name], t, curves, "mean and 95 % band of an observation")
        panels[name].set_ylabel("CO$_2$, ppm")
    panels["zoom"].set_ylim(350, 381)
    later = observed["t"] >= until
    mean, deviation = (numpy.interp(observed["t"], t, curves[name]) for name in ("mean", "sd"))
    error = observed["y"] - mean
    panels["error"].scatter(observed["t"][later], error[later], s=3, color=ORANGE, linewidths=0, zorder=3)
    _band(panels["error"], observed["t"][later], {"mean": 0 * mean[later], "sd": deviation[later]})
    panels["error"].set_ylabel("observed - mean, ppm")
    for name, label in PARTS.items():
        level = curves["level"] if name == "trend" else 0.0
        _band(panels[name], t, {"mean": curves[name]["mean"] + level, "sd": curves[name]["sd"]})
        panels[name].set_ylabel(label)
    for name, axes in panels.items():
        _finish(axes, until, until - 1 if name in ("zoom", "error") else t[0], 2002, named=name not in PARTS)
    panels["weeks"].set_xlabel("year", fontsize=9)
    panels["all"].legend(loc="upper left", fontsize=8, frameon=False, markerscale=3)
    panels["all"].set_title("Weekly CO$_2$ at Mauna Loa: fitted before 1992, then forecast for ten years", fontsize=10)
    panels["trend"].set_title("The parts of the process, with 95 % bands", fontsize=9)
    figure.align_ylabels([panels[name] for name in ("all", "zoom", *PARTS)])
    return figure


def draw_sunspots() -> Figure:
    """The series with its forecast, the forecast enlarged, and the parts on the scale of square roots."""
    curves = _arrays(content(CURVES)["sunspots"])
    t, until, observed = curves["t"], curves["until"], curves["observed"]
    figure = Figure(figsize=(8.6, 6.6), layout="constrained")
    rows: list[Any] = [["all", "all"], ["cycle", "zoom"], ["level", "zoom"]]
    panels = figure.subplot_mosaic(rows, height_ratios=[1.6, 1, 1], width_ratios=[1.35, 1])
    lower, middle, upper = (numpy.clip(curves["mean"] + k * curves["sd"], 0, None) ** 2 for k in (-BAND, 0, BAND))
    for name, size in (("all", 7.0), ("zoom", 14.0)):
        axes = panels[name]
        _observations(axes, observed["t"], observed["y"], until, size)
        axes.fill_between(t, lower, upper, color=BLUE, alpha=0.22, linewidth=0)
        axes.plot(t, middle, color=BLUE, linewidth=1.0, label="median and 95 % band of an observation")
        axes.set_ylabel("sunspot number")
        axes.set_ylim(0, 250)
    for name, offset in (("cycle", 0.0), ("level", curves["level_mean"])):
        _band(panels[name], t, {"mean": curves[name]["mean"] + offset, "sd": curves[name]["sd"]})
        panels[name].set_ylabel(f"{name}, $\\sqrt{{\\mathrm{{number}}}}$")
    for name, axes in panels.items():
        _finish(axes, until, 1955 if name == "zoom" else t[0], t[-1], named=name in ("all", "zoom"))
    for name in ("level", "zoom"):
        panels[name].set_xlabel("year", fontsize=9)
    panels["all"].legend(loc="upper left", fontsize=8, frameon=False, markerscale=2, ncols=3)
    panels["all"].set_title("Yearly sunspot numbers: fitted before 1987, then forecast until 2020", fontsize=10)
    figure.align_ylabels([panels[name] for name in ("all", "cycle", "level")])
    return figure


def _arrays(value: Any) -> Any:
    """Lists as arrays, in dictionaries of dictionaries."""
    if isinstance(value, dict):
        return {name: _arrays(inner) for name, inner in value.items()}
    return numpy.array(value) if isinstance(value, list) else value


def _observations(axes: Any, t: Any, y: Any, until: float, size: float) -> None:
    for chosen, colour, label in ((t < until, GREY, "observed, fitted"), (t >= until, ORANGE, "observed, held out")):
        axes.scatter(t[chosen], y[chosen], s=size, color=colour, linewidths=0, label=label, zorder=3)


def _band(axes: Any, t: Any, curve: dict[str, Any], label: str | None = None) -> None:
    width = BAND * curve["sd"]
    axes.fill_between(t, curve["mean"] - width, curve["mean"] + width, color=BLUE, alpha=0.25, linewidth=0)
    axes.plot(t, curve["mean"], color=BLUE, linewidth=0.9, label=label)


def _finish(axes: Any, until: float, first: float, last: float, *, named: bool) -> None:
    """The span of the forecast is marked; the axes are plain."""
    axes.axvspan(until, last, color=SHADE, zorder=0, linewidth=0)
    axes.axvline(until, color="black", linewidth=0.7, linestyle="--")
    if named:
        axes.annotate(
            "forecast", (until, 1.0), xycoords=("data", "axes fraction"), xytext=(4, -9), textcoords="offset points",
            fontsize=7,
        )  # fmt: skip
    axes.set_xlim(first, last)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.yaxis.label.set_size(8.5)

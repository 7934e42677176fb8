"""The section of one entry: what the paper says, what came of it, and all that shows it."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable

from paper.entry import Figure, Outcome, Picture, Plot, TextTable, Verdict
from paper.report.markup import NONE, Markup, join, number, prose, table, tag, void
from paper.report.origin import origin

SIGNS: dict[Verdict, str] = {"exceeded": "▲", "reproduced": "✓", "not reproduced": "✗", "not run": "○"}
HOLDS: dict[Verdict, str] = {"reproduced": "holds", "not reproduced": "does not hold"}  # of conditions
IN_DIFFERENCES = {"%", "nats", "points"}  # units whose ratio says little

FOLDED_ABOVE = 12  # rows of a table

PlotNumber = Callable[[Plot], int]  # keeps the data of a plot for the script, and gives its number


def slug(text: str) -> str:
    """An anchor's worth of a name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def anchor(outcome: Outcome) -> str:
    """Where the entry is on the page."""
    return f"entry-{slug(outcome.entry.name)}"


def badge(verdict: Verdict, words: str | None = None) -> Markup:
    """A verdict, told apart by its sign and its words, and by colour."""
    sign = tag("span", SIGNS[verdict], aria_hidden="true")
    return tag("span", sign, Markup("&nbsp;"), words or verdict, class_=f"badge {slug(verdict)}")


def section(outcome: Outcome, plot_number: PlotNumber) -> Markup:
    """The whole entry."""
    entry, here = outcome.entry, anchor(outcome)
    link = tag("a", "#", href=f"#{here}", class_="permalink", aria_label=f"Link to {entry.title}")
    title = tag("h3", prose(entry.title), id=f"{here}-title"), badge(outcome.verdict)
    inner = (
        tag("summary", *title, class_="title"),
        tag("p", prose(outcome.reason), " ", link, class_="reason"),
        _statements(outcome),
        _figures(outcome.figures),
        _plots(outcome.plots, plot_number),
        join(map(_table, outcome.tables)),
        _pictures(outcome.pictures),
        origin(outcome),
    )
    return tag(
        "section",
        tag("details", *inner),
        id=here,
        class_="entry",
        data_verdict=outcome.verdict,
        aria_labelledby=f"{here}-title",
    )


def _statements(outcome: Outcome) -> Markup:
    """Where it stands in the paper, what is claimed there, and when it counts."""
    entry = outcome.entry
    devices = [f"{device} (about {minutes:g} min)" for device, minutes in entry.minutes.items()]
    needs = [f"runs on {' or '.join(devices)}" if devices else "", f"needs {entry.data}" if entry.data else ""]
    pairs = [
        ("The paper", entry.claim),
        ("Where", entry.source),
        ("Criterion", entry.criterion),
        ("To run it", "; ".join([f"`python -m paper run {entry.name}`", *filter(None, needs)])),
    ]
    return tag("dl", *(tag("dt", name) + tag("dd", prose(text)) for name, text in pairs if text), class_="statements")


def _table(listing: TextTable) -> Markup:
    """Further results; a long table is folded."""
    shown = table(map(prose, listing.columns), ([prose(cell) for cell in row] for row in listing.rows))
    if len(listing.rows) <= FOLDED_ABOVE:
        return tag("h4", prose(listing.title)) + shown
    return tag("details", tag("summary", prose(listing.title), f" ({len(listing.rows)} rows)"), shown, class_="long")


# --- Figures --------------------------------------------------------------------------------------------------------


def _figures(figures: list[Figure]) -> Markup:
    """The paper's numbers beside ours."""
    if not figures:
        return Markup("")
    columns = ["figure", "paper", "ours", "ours / paper", "", "verdict"]
    return table(columns, map(_figure_row, figures), "figures")


def _figure_row(figure: Figure) -> list[Markup]:
    note = tag("small", prose(figure.note), class_="note") if figure.note else Markup("")
    positive = (figure.ours or 0) > 0 and (figure.paper or 0) > 0  # a ratio of others says nothing
    ratio = number((figure.ours or 0) / (figure.paper or 1)) if positive else Markup(NONE)
    label = tag("span", prose(figure.label)) + note
    shown = [_with_unit(value, figure.unit) for value in (figure.paper, figure.ours)]
    return [label, *shown, ratio, compared(figure), _row_verdict(figure)]


def _row_verdict(figure: Figure) -> Markup:
    """The verdict on one number; a condition holds or not, and what is only shown has none."""
    if figure.verdict is None:
        return tag("span", "not judged", class_="unjudged")
    words = HOLDS.get(figure.verdict) if figure.condition else None
    return badge(figure.verdict, words)


def _with_unit(value: float | None, unit: str) -> Markup:
    spoken = "" if value is None or unit == "relative error" else unit
    return number(value) + (Markup("&nbsp;") + tag("span", "×" if spoken == "x" else spoken) if spoken else Markup(""))


def compared(figure: Figure) -> Markup:
    """1.6 times better, or 2.1 points worse; which way is better depends on the figure."""
    ours, paper = figure.ours, figure.paper
    if ours is None or paper is None or figure.condition:
        return Markup("")
    if ours == paper:
        return Markup("equal")
    word = "better" if (ours < paper) == (figure.better == "lower") else "worse"
    if figure.unit in IN_DIFFERENCES or ours <= 0 or paper <= 0:
        unit = "points" if figure.unit == "%" else figure.unit
        return join([number(_three_digits(abs(ours - paper))), f" {unit} {word}"])
    return join([number(_three_digits(max(ours / paper, paper / ours))), f"× {word}"])


def _three_digits(value: float) -> float:
    return float(f"{value:.3g}")


# --- Plots and pictures ---------------------------------------------------------------------------------------------


def _plots(plots: list[Plot], plot_number: PlotNumber) -> Markup:
    drawn = [_plot(plot, plot_number(plot)) for plot in plots]
    return tag("div", *drawn, class_="plots") if drawn else Markup("")


def _plot(plot: Plot, place: int) -> Markup:
    """A box that the script draws into, and the same numbers as a table."""
    summary = tag("summary", "Values")
    values = tag("details", summary, values_table(plot), class_="values")
    return tag("figure", tag("figcaption", prose(plot.title)), values, class_="plot", data_plot=str(place))


def values_table(plot: Plot) -> Markup:
    """A row for every x, a column for every line."""
    places = sorted({x for series in plot.series for x in series.x})
    lookup = [dict(zip(series.x, series.y, strict=False)) for series in plot.series]
    names = [
        f"{series.label} (paper)" if series.from_paper and "paper" not in series.label.lower() else series.label
        for series in plot.series
    ]
    rows = [[number(x), *(number(values.get(x)) for values in lookup)] for x in places]
    return table(map(prose, [plot.x_label, *names]), rows, "numbers")


def _pictures(pictures: list[Picture]) -> Markup:
    shown = [_picture(picture) for picture in pictures]
    return tag("div", *shown, class_="pictures") if shown else Markup("")


def _picture(picture: Picture) -> Markup:
    caption = tag("figcaption", prose(picture.caption))
    try:
        content = base64.b64encode(picture.path.read_bytes()).decode()
    except OSError as error:
        missing = f"The picture {picture.path.name} cannot be read: {error.strerror or error}."
        return tag("figure", tag("p", missing, class_="missing"), caption)
    image = void("img", src=f"data:image/png;base64,{content}", alt=picture.caption)
    return tag("figure", tag("button", image, type="button", class_="enlarge", title="Enlarge"), caption)

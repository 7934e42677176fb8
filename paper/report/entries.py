"""The section of one entry: what the paper says, what came of it, all that shows it, and where it ran."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from typing import Any

from paper.entry import Figure, Outcome, Picture, Plot, TextTable, Verdict
from paper.report.markup import NONE, Markup, join, number, prose, table, tag, void

SIGNS: dict[Verdict, str] = {"exceeded": "▲", "reproduced": "✓", "not reproduced": "✗", "not run": "○"}
# Of conditions, and of additions, which reproduce nothing.
HOLDS: dict[Verdict, str] = {"exceeded": "holds", "reproduced": "holds", "not reproduced": "does not hold"}
IN_DIFFERENCES = {"%", "nats", "points"}  # units whose ratio says little
FOLDED_ABOVE = 12  # rows of a table


def slug(text: str) -> str:
    """A name as an anchor or a class."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def anchor(outcome: Outcome) -> str:
    """Where the entry is on the page."""
    return f"entry-{slug(outcome.entry.name)}"


def badge(verdict: Verdict, words: str | None = None) -> Markup:
    """A verdict, told apart by its sign and its words, and by colour."""
    sign = tag("span", SIGNS[verdict], aria_hidden="true")
    return tag("span", sign, Markup("&nbsp;"), words or verdict, class_=f"badge {slug(verdict)}")


def entry_section(outcome: Outcome, first_plot: int) -> Markup:
    """The entry, folded under its title; the script finds the data of its plots by number."""
    entry, place = outcome.entry, anchor(outcome)
    words = HOLDS.get(outcome.verdict) if entry.added else None
    title = tag("h3", prose(entry.title), id=f"{place}-title"), badge(outcome.verdict, words)
    link = tag("a", "#", href=f"#{place}", class_="permalink", aria_label=f"Link to {entry.title}")
    plots = [_plot(plot, first_plot + index) for index, plot in enumerate(outcome.plots)]
    inner = (
        tag("summary", *title, class_="title"),
        tag("p", prose(outcome.reason), " ", link, class_="reason"),
        _statements(outcome),
        _figures([replace(row, condition=row.condition or entry.added) for row in outcome.figures]),
        tag("div", *plots, class_="plots") if plots else "",
        *map(_table, outcome.tables),
        tag("div", *map(_picture, outcome.pictures), class_="pictures") if outcome.pictures else "",
        _origin(outcome),
    )
    attributes = {"id": place, "data_verdict": outcome.verdict, "aria_labelledby": f"{place}-title"}
    return tag("section", tag("details", *inner), class_="entry", **attributes)


def _statements(outcome: Outcome) -> Markup:
    """What is claimed, by the paper or by us, where, and when it counts."""
    entry = outcome.entry
    devices = " or ".join(f"{device} (about {minutes:g} min)" for device, minutes in entry.minutes.items())
    needs = [f"runs on {devices}" if devices else "", f"needs {entry.data}" if entry.data else ""]
    pairs = {
        "Our claim" if entry.added else "The paper": entry.claim,
        "Where": entry.source,
        "Criterion": entry.criterion,
        "To run it": "; ".join([f"`python -m paper run {entry.name}`", *filter(None, needs)]),
    }
    return tag("dl", *(tag("dt", name) + tag("dd", prose(text)) for name, text in pairs.items()), class_="statements")


def _table(listing: TextTable) -> Markup:
    """Further results; a long table is folded."""
    shown = table(map(prose, listing.columns), ([prose(cell) for cell in row] for row in listing.rows))
    if len(listing.rows) <= FOLDED_ABOVE:
        return tag("h4", prose(listing.title)) + shown
    return tag("details", tag("summary", prose(listing.title), f" ({len(listing.rows)} rows)"), shown, class_="long")


# --- Figures --------------------------------------------------------------------------------------------------------


def _figures(figures: list[Figure]) -> Markup:
    """The paper's numbers and ours."""
    columns = ["figure", "paper", "ours", "ours / paper", "", "verdict"]
    return table(columns, map(figure_row, figures), "figures") if figures else Markup("")


def figure_row(figure: Figure) -> list[Markup]:
    """Its cells; a condition holds or not, and what is only shown has no verdict."""
    note = tag("small", prose(figure.note), class_="note") if figure.note else ""
    positive = (figure.ours or 0) > 0 and (figure.paper or 0) > 0  # a ratio of others says nothing
    ratio = number((figure.ours or 0) / (figure.paper or 1)) if positive else Markup(NONE)
    if figure.verdict is None:
        verdict = tag("span", "not judged", class_="unjudged")
    else:
        verdict = badge(figure.verdict, HOLDS.get(figure.verdict) if figure.condition else None)
    label = tag("span", prose(figure.label)) + note
    numbers = [_with_unit(value, figure.unit) for value in (figure.paper, figure.ours)]
    return [label, *numbers, ratio, comparison(figure), verdict]


def _with_unit(value: float | None, unit: str) -> Markup:
    if value is None or unit in ("", "relative error"):
        return number(value)
    return number(value) + Markup("&nbsp;") + tag("span", "×" if unit == "x" else unit)


def comparison(figure: Figure) -> Markup:
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


def _plot(plot: Plot, place: int) -> Markup:
    """A box that the script draws into, and the same numbers as a table: a row for every x, a column for every line."""
    lookup = [dict(zip(series.x, series.y, strict=False)) for series in plot.series]
    rows = [[number(x), *(number(values.get(x)) for values in lookup)] for x in sorted(set().union(*lookup))]
    values = table(map(prose, [plot.x_label, *(series.label for series in plot.series)]), rows, "numbers")
    details = tag("details", tag("summary", "Values"), values, class_="values")
    return tag("figure", tag("figcaption", prose(plot.title)), details, class_="plot", data_plot=str(place))


def _picture(picture: Picture) -> Markup:
    caption = tag("figcaption", prose(picture.caption))
    try:
        content = base64.b64encode(picture.path.read_bytes()).decode()
    except OSError as error:
        missing = f"The picture {picture.path.name} cannot be read: {error.strerror or error}."
        return tag("figure", tag("p", missing, class_="missing"), caption)
    image = void("img", src=f"data:image/png;base64,{content}", alt=picture.caption)
    return tag("figure", tag("button", image, type="button", class_="enlarge", title="Enlarge"), caption)


# --- Where it ran ---------------------------------------------------------------------------------------------------


def machine_name(machine: dict[str, Any]) -> str:
    """The accelerator, or else the processor."""
    return str(machine.get("gpu") or machine.get("cpu") or machine.get("device") or "an unnamed machine")


def _origin(outcome: Outcome) -> Markup:
    """The machines, in a line each that unfolds to all details, and the files."""
    by_line: dict[tuple[str, str], list[Markup]] = {}
    for machine in outcome.machines:
        version = f", torch {machine['torch']}" if machine.get("torch") else ""
        date = f", {str(machine['date'])[:10]}" if machine.get("date") else ""
        pairs = [(str(key), str(value)) for key, value in machine.items() if value not in (None, "")]
        details = tag("dl", *(tag("dt", key) + tag("dd", value) for key, value in pairs))
        by_line.setdefault((machine_name(machine), version + date), []).append(details)
    machines = [
        tag("details", tag("summary", "Ran on ", tag("strong", name), rest), *dict.fromkeys(details))
        for (name, rest), details in by_line.items()
    ]
    files = [tag("code", file) for file in outcome.files]
    sources = tag("p", "From ", files[0], *(Markup(", ") + file for file in files[1:]), ".") if files else ""
    return tag("div", *machines, sources, class_="origin") if machines or files else Markup("")

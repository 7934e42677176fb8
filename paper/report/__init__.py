"""The page of `python -m paper report`: one HTML file with all results, their plots and pictures.

It needs nothing else: style, scripts, data and pictures are inside, and its policy forbids a browser to fetch anything.

    markup           text to HTML, escaped; numbers
    entries          the section of one entry
    page/            the style and the scripts, plain CSS and JavaScript
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from paper.entry import VERDICTS, Outcome
from paper.report.entries import SIGNS, anchor, badge, entry_section, machine_name, slug
from paper.report.markup import Markup, embedded_json, join, prose, tag, void

TITLE = "LAPLEX: the paper's results and ours"
PARTS = Path(__file__).parent / "page"
STYLES = ("report.css", "entry.css")
SCRIPTS = ("scales.js", "plot.js", "plot_hover.js", "report.js")  # in the order in which they use each other
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
MEANINGS = {
    "exceeded": "ours is better by more than the entry's criterion asks for",
    "reproduced": "ours is at most a tenth worse than the paper's, or the claim holds, by the entry's criterion",
    "not reproduced": "ours is worse, or contradicts the paper",
    "not run": "not all that the criterion needs is there; the entry says what is missing, and shows what there is",
}
ROWS = "A row of an entry that is not part of its criterion is not judged. A condition holds or not; an entry is \
exceeded if all its conditions hold, and all its other judged rows are exceeded."

Groups = dict[str, list[Outcome]]


def to_html(outcomes: Sequence[Outcome]) -> str:
    """The page."""
    groups: Groups = {}
    for outcome in outcomes:
        groups.setdefault(outcome.entry.section, []).append(outcome)
    plots = [asdict(plot) for group in groups.values() for outcome in group for plot in outcome.plots]
    columns = tag("div", _contents(groups), _main(groups), class_="columns")
    data = tag("script", embedded_json(plots), type="application/json", id="plot-data")
    scripts = [tag("script", _part(name)) for name in SCRIPTS]
    body = tag("body", _header(outcomes), columns, _footer(), data, *scripts)
    return f"<!doctype html>\n{tag('html', _head(), body, lang='en')}\n"


def _head() -> Markup:
    return tag(
        "head",
        void("meta", charset="utf-8"),
        void("meta", http_equiv="Content-Security-Policy", content=POLICY),
        void("meta", name="viewport", content="width=device-width, initial-scale=1"),
        void("meta", name="color-scheme", content="light dark"),
        void("link", rel="icon", href="data:,"),
        tag("title", TITLE),
        *(tag("style", _part(name)) for name in STYLES),
    )


def _part(name: str) -> Markup:
    """A file of ours, as it is."""
    return Markup((PARTS / name).read_text(encoding="utf-8"))


def _main(groups: Groups) -> Markup:
    """All entries; plots are numbered through."""
    sections, plots = [], 0
    for name, group in groups.items():
        entries = []
        for outcome in group:
            entries.append(entry_section(outcome, plots))
            plots += len(outcome.plots)
        sections.append(tag("section", tag("h2", name), *entries, class_="group", id=f"group-{slug(name)}"))
    return tag("main", *sections, tag("p", "No entry matches.", id="none-matches", hidden=True))


def _header(outcomes: Sequence[Outcome]) -> Markup:
    return tag(
        "header",
        tag("h1", TITLE),
        tag("p", prose(_summary(outcomes))),
        _filters(Counter(outcome.verdict for outcome in outcomes)),
        _machines(outcomes),
        tag("noscript", tag("p", "Plots and filters need JavaScript; the values are in the tables.")),
    )


def _summary(outcomes: Sequence[Outcome]) -> str:
    """One paragraph: what this is, and how much of it was looked at."""
    paper = [outcome for outcome in outcomes if not outcome.entry.added]
    ran = sum(outcome.verdict != "not run" for outcome in paper)
    good = sum(outcome.verdict in ("exceeded", "reproduced") for outcome in paper)
    added = [outcome.entry.name for outcome in outcomes if outcome.entry.added]
    more = f"Not in the paper, and ours: {', '.join(added)}. " if added else ""
    return (
        "Every table and figure of “LAPLEX: The FFT of Learnable Laplace Kernels”, compared with what the library "
        f"laplex measures. Of {len(paper)} entries {ran} were run, and {good} of these reproduce or exceed the "
        f"paper. {more}Each verdict follows from a criterion that the entry states; each figure of ours comes from a "
        "file that it names. Press an entry to open it. In plots the paper's points are marks without a line."
    )


def _filters(counts: Counter[str]) -> Markup:
    """A button for each verdict, which also shows how many there are, and a search."""
    buttons = [("all", "all", counts.total(), "every entry")]
    buttons += [(verdict, f"{SIGNS[verdict]} {verdict}", counts[verdict], MEANINGS[verdict]) for verdict in VERDICTS]
    pressed = {"all": "true"}
    shown = [
        tag("button", tag("strong", str(count)), tag("span", label), type="button", class_=slug(name), title=meaning,
            data_filter=name, aria_pressed=pressed.get(name, "false"))
        for name, label, count, meaning in buttons
    ]  # fmt: skip
    search = void("input", type="search", id="search", placeholder="Search entries", aria_label="Search entries")
    group = tag("div", *shown, class_="verdicts", role="group", aria_label="Show entries by verdict")
    output = tag("output", "", id="shown", for_="search")
    return tag("div", group, tag("div", search, output, class_="search"), class_="filters")


def _machines(outcomes: Sequence[Outcome]) -> Markup:
    """Where the results come from: each machine once, with the number of its entries."""
    names = Counter(name for outcome in outcomes for name in {machine_name(each) for each in outcome.machines})
    if not names:
        return Markup("")
    counts = [f"{name} ({count} {'entry' if count == 1 else 'entries'})" for name, count in names.most_common()]
    return tag("p", tag("strong", "Ran on: "), "; ".join(counts), ".", class_="machines")


def _contents(groups: Groups) -> Markup:
    """Links to all entries, with their verdicts."""
    lists = []
    for name, group in groups.items():
        items = [tag("li", _link(outcome), data_entry=anchor(outcome)) for outcome in group]
        lists.append(tag("section", tag("h3", tag("a", name, href=f"#group-{slug(name)}")), tag("ul", *items)))
    inner = tag("details", tag("summary", "Contents"), *lists, open=True)
    return tag("nav", inner, aria_label="Contents", id="contents")


def _link(outcome: Outcome) -> Markup:
    sign = tag("span", SIGNS[outcome.verdict], class_=f"sign {slug(outcome.verdict)}", title=outcome.verdict)
    return tag("a", sign, tag("span", prose(outcome.entry.title)), href=f"#{anchor(outcome)}")


def _footer() -> Markup:
    meanings = join(tag("li", badge(verdict), f": {MEANINGS[verdict]}.") for verdict in VERDICTS)
    origin = f"Made by `python -m paper report` on {datetime.now(UTC):%Y-%m-%d}. It needs no network and no other file."
    return tag("footer", tag("h2", "Verdicts"), tag("ul", meanings), tag("p", ROWS), tag("p", prose(origin)))

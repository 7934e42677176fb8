"""The page of `python -m paper report` as text: well formed, self-contained, complete, and escaped."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import made_outcomes
from made_results import write
from paper import report
from paper.commands import report as command
from paper.entry import VERDICTS, Figure
from paper.report import entries
from paper.report.entries import comparison
from paper.report.markup import Markup, embedded_json, number, prose, tag
from paper.results import COMMITTED

VOID = {"meta", "link", "img", "input", "br"}


class Elements(HTMLParser):
    """All elements with their attributes; a close tag that does not fit fails."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[tuple[str, str]] = []  # with the element it is in
        self.data = ""  # of the script that holds the plots

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((name, dict(attributes)))
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.open, f"</{name}> closes nothing"
        assert self.open.pop() == name, f"</{name}> closes another element, on line {self.getpos()[0]}"

    def handle_data(self, text: str) -> None:
        self.text.append((self.open[-1] if self.open else "", text))
        if self.elements and self.elements[-1][1].get("id") == "plot-data":
            self.data += text


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    return made_outcomes.outcomes(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def page(samples):
    return report.to_html(samples)


@pytest.fixture(scope="module")
def parsed(page):
    elements = Elements()
    elements.feed(page)
    elements.close()
    return elements


def test_it_is_well_formed(parsed):
    assert parsed.open == []
    ids = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [attributes["href"] for name, attributes in parsed.elements if name == "a"]
    assert all(target.startswith("#") and target[1:] in ids for target in targets)


def test_it_loads_nothing(page, parsed):
    loaded = [attributes.get(name) for _, attributes in parsed.elements for name in ("src", "href", "srcset", "action")]
    assert all(each.startswith(("#", "data:")) for each in loaded if each is not None)
    assert not re.search(r"@import|url\(", page)
    assert {"http-equiv": "Content-Security-Policy", "content": report.POLICY} in [each for _, each in parsed.elements]


def test_every_entry_is_there_with_its_verdict(samples, parsed):
    shown = {
        attributes["id"]: attributes["data-verdict"]
        for _, attributes in parsed.elements
        if attributes.get("class") == "entry"
    }
    assert shown == {f"entry-{outcome.entry.name}": outcome.verdict for outcome in samples}
    listed = [attributes["data-entry"] for _, attributes in parsed.elements if "data-entry" in attributes]
    assert sorted(listed) == sorted(shown)


def test_an_entry_is_folded_under_its_title_and_verdict(samples, page):
    for outcome in samples:
        section = page[page.index(f'id="entry-{outcome.entry.name}"') :].split("</section>")[0]
        inside = section[section.index("<details>") :]
        assert f'class="badge {report.slug(outcome.verdict)}"' in inside[: inside.index("</summary>")]
        assert 'class="reason"' in inside[inside.index("</summary>") :]


@pytest.mark.parametrize(
    ("row", "shown", "absent"),
    [
        (Figure("a", 1.0, 2.0, "ms", "lower", None, "why"), "not judged", "badge"),
        (Figure("a", 5.0, 5.0, "", "higher", "reproduced", condition=True), "holds", "equal"),
        (Figure("a", 5.0, 4.0, "", "higher", "not reproduced", condition=True), "does not hold", "worse"),
        (Figure("a", 5.0, None, "", "higher", "not run", condition=True), "not run", "holds"),
        (Figure("a", 5.0, 2.0, "ms", "lower", "exceeded"), "2.5× better", "not judged"),
    ],
)
def test_rows_that_are_shown_and_conditions_have_words_of_their_own(row, shown, absent):
    text = "".join(entries.figure_row(row))
    assert shown in text
    assert absent not in text


def test_sources_are_named_as_in_the_paper(page):
    assert "<dd>Figure 3</dd>" in page


def test_what_was_not_run_says_so_and_why(page):
    section = page[page.index('id="entry-images"') :].split("</section>")[0]
    assert 'data-verdict="not run"' in section
    assert "CelebA is not here." in section
    assert "needs CelebA" in section


def test_hostile_text_stays_text(page, parsed):
    scripts = [attributes for name, attributes in parsed.elements if name == "script"]
    assert len(scripts) == 1 + len(report.SCRIPTS)
    assert not any("onerror" in attributes for _, attributes in parsed.elements)
    assert "<script>alert" not in page
    shown = "".join(text for within, text in parsed.text if within not in ("script", "style"))
    assert made_outcomes.HOSTILE in shown


def test_the_data_of_plots_comes_back(samples, parsed):
    data = json.loads(parsed.data)
    plots = [plot for outcome in samples for plot in outcome.plots]
    assert sorted(each["title"] for each in data) == sorted(plot.title for plot in plots)
    hostile = next(each for each in data if each["title"] == made_outcomes.HOSTILE)
    assert hostile["series"][0]["y"] == [1.0, None]  # JSON has no NaN


def test_pictures_are_inside_and_missing_ones_are_told(page):
    assert made_outcomes.picture_text() in page
    assert "The picture gone.png cannot be read" in page


def test_a_page_without_outcomes_is_a_page():
    elements = Elements()
    elements.feed(report.to_html([]))
    assert elements.open == []


# --- numbers and words ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "want"),
    [(None, "–"), (float("nan"), "–"), (0.0, "0"), (116424.3, "116,424"), (-12.5, "−12.5"), (1.0, "1")]
    + [(2.5e-8, "2.50&nbsp;×&nbsp;10<sup>−8</sup>"), (3e9, "3.00&nbsp;×&nbsp;10<sup>9</sup>"), (float("inf"), "∞")],
)
def test_numbers(value, want):
    assert number(value) == want


def figure(paper, ours, unit, better):
    return Figure("", paper, ours, unit, better, "reproduced")


@pytest.mark.parametrize(
    ("given", "want"),
    [
        (figure(3.2, 1.6, "ms", "lower"), "2× better"),
        (figure(1.6, 3.2, "ms", "lower"), "2× worse"),
        (figure(2.0, 5.0, "x", "higher"), "2.5× better"),
        (figure(90.0, 91.5, "%", "higher"), "1.5 points better"),
        (figure(-10.0, -12.0, "nats", "higher"), "2 nats worse"),
        (figure(3.0, 3.0, "ms", "lower"), "equal"),
        (figure(None, 3.0, "ms", "lower"), ""),
        (figure(0.0, 3.0, "GB", "lower"), "3 GB worse"),
    ],
)
def test_comparisons(given, want):
    assert comparison(given) == want


def test_text_is_escaped_once():
    assert tag("p", "a < b", Markup("<b>")) == "<p>a &lt; b<b></p>"
    assert Markup("<b>") + "<" == "<b>&lt;"
    assert prose("`K < 1` at n = 2^20") == "<code>K &lt; 1</code> at n = 2<sup>20</sup>"
    assert "</" not in embedded_json(["</script>", {"<!--": float("inf")}])


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def results(tmp_path, monkeypatch, samples):
    """A folder of results; what is in it does not matter here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "outcomes", lambda folders: samples)
    folder = tmp_path / "reproduced"
    folder.mkdir()
    folder.joinpath("one.json").write_text("{}")
    return folder


def test_the_command_writes_the_page_and_counts(results, paper_command, page):
    status, output, errors = paper_command("report", "--out", "page.html")
    assert (status, errors) == (0, "")
    undated = [re.sub(r"on \d{4}-\d\d-\d\d\. It needs", "", text) for text in (Path("page.html").read_text(), page)]
    assert undated[0] == undated[1] != page
    assert str(Path("page.html").absolute()) in output
    assert "1 exceeded, 1 reproduced, 2 not reproduced, 1 not run" in output
    assert all(verdict in output for verdict in VERDICTS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--results", "nowhere"), "--results: nowhere is not a folder"),
        (("--results", "empty"), "--results: empty holds no JSON"),
        (("--out", "no/such/folder/page.html"), "--out: cannot write"),
    ],
)
def test_what_the_command_refuses(results, paper_command, arguments, message):
    Path("empty").mkdir()
    status, output, errors = paper_command("report", *arguments)
    assert (status, output) == (2, "")
    assert message in errors


def test_damaged_results_are_told(tmp_path, paper_command):
    (tmp_path / "cuda-sizes.json").write_text('{"runs": [1')
    status, output, errors = paper_command("report", "--results", tmp_path, "--out", tmp_path / "page.html")
    assert status == 0
    assert "not run" in output
    lost = "runtime, fft, cpu, cpu-fft"
    start = f"python -m paper report: not run, because results cannot be read: {lost}: ValueError: {tmp_path}"
    assert errors.startswith(start)
    assert errors.count("\n") == 1
    (tmp_path / "cuda-sizes.json").unlink()
    write(tmp_path, "cpu-theorem", [({"n": 8}, {})], "cpu")
    _, _, errors = paper_command("report", "--results", tmp_path, "--out", tmp_path / "page.html")
    assert errors.endswith(f"theorem-1: KeyError: 'strict', in {tmp_path / 'cpu-theorem.json'}\n")


def test_no_results_at_all(tmp_path, monkeypatch, paper_command):
    monkeypatch.chdir(tmp_path)
    for folder in (".", "reproduced", "reproduced/quick"):
        Path(folder).mkdir(exist_ok=True)
        if folder.endswith("quick"):
            Path(folder, "cpu-rank.json").write_text("{}")
        status, _, errors = paper_command("report")
        assert status == 2
        assert "no results found" in errors
    assert not Path("laplex-report.html").exists()


def test_a_quick_look_is_no_result(tmp_path, paper_command):
    (tmp_path / "quick").mkdir()
    (tmp_path / "quick" / "cpu-rank.json").write_text("{}")
    for folder in (tmp_path, tmp_path / "quick"):
        status, _, errors = paper_command("report", "--results", folder, "--out", tmp_path / "page.html")
        assert status == 2
        assert f"{tmp_path / 'quick'} is a quick look, whose figures are too rough to be results" in errors
    (tmp_path / "cpu-theorem.json").write_text((COMMITTED / "reproduce" / "cpu-theorem.json").read_text())
    assert paper_command("report", "--results", tmp_path, "--out", tmp_path / "page.html")[0] == 0


def test_the_page_needs_no_extra():
    extras = ("rich", "matplotlib", "PIL", "sklearn", "scipy", "safetensors")
    code = f"import sys; sys.modules.update(dict.fromkeys({extras})); import paper.report, paper.commands.report"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_not_run_means_is_true_of_entries_that_show_a_part(page):
    footer = page[page.index("<footer") :]
    assert "not all that the criterion needs is there" in footer
    assert "nothing to show" not in page

"""README.md: its Python blocks run, its figures come from the committed results, and it stays short."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import laplex
from benchmarks import figures, markdown
from benchmarks.problems import Size
from benchmarks.result import Measured, Result
from laplex.testing import Times

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.usefixtures("one_thread")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_blocks_run(tmp_path, monkeypatch):
    """In order, in one namespace."""
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "readme"}
    for match in BLOCK.finditer(TEXT):
        line = TEXT.count("\n", 0, match.start(1))
        exec(compile("\n" * line + match[1], "README.md", "exec"), namespace)


def test_it_is_short_and_two_of_its_five_figures_are_losses():
    assert len(TEXT.splitlines()) <= 130
    rows = figures.figures().splitlines()[2:7]
    assert len(rows) == 5
    assert sum("times slower**" in row for row in rows) == 2
    assert sum("times faster" in row for row in rows) == 2


def test_a_figure_is_shown_with_both_times_whichever_way_it_goes():
    sides = {name: Measured(time=Times(time, time, time, 5)) for name, time in (("ours", 3e-3), ("theirs", 1e-3))}
    result = Result("r", "", Size(2, 2, 1), "ratio", 1.0, "miss", 3.0, "", sides)
    assert figures.in_short(result) == "3 ms against 1 ms: **3 times slower**"
    faster = replace(result, sides=dict(reversed(sides.items())))
    assert figures.in_short(faster) == "1 ms against 3 ms: 3 times faster"
    assert figures.in_short(replace(result, unit="relative error", value=2.5e-8)) == "2.5e-08"


# --- Numbers outside the tables ---------------------------------------------------------------------------------------

NOT_PROSE = re.compile(
    r"^```.*?^```|^\|.*?$|`[^`]*`|\]\([^)]*\)|O\((?:[^()]|\([^()]*\))*\)|celerite2|C\+\+17", re.MULTILINE | re.DOTALL
)
NUMBER = re.compile(r"\d[\d.e]*\d|\d")


def test_every_number_outside_its_tables_is_known():
    prose = NOT_PROSE.sub(" ", markdown.MARKED.sub("", TEXT))
    assert {float(number) for number in NUMBER.findall(prose)} == {100_000 * 50_000}  # the weight of the first example


def test_its_comments_count_right():
    layer = laplex.nn.LaplexLinear(768, 1000, kernels=8)
    counts = re.search(r"# ([\d ]+) parameters instead of ([\d ]+)", TEXT)
    assert sum(parameter.numel() for parameter in layer.parameters()) == int(counts[1].replace(" ", ""))
    assert int(counts[2].replace(" ", "")) == 768 * 1000 + 1000


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_to_files_lead_somewhere(name):
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []

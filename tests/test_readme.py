"""The Python blocks of README.md run, in order, in one namespace; so do the examples of the docstrings."""

import doctest
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import laplex
from benchmarks import markdown
from benchmarks.problems import Size
from benchmarks.result import Measured, Result
from benchmarks.run import SUITES
from benchmarks.timing import Stats

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```(?:python|py)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_readme_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "readme"}
    text = README.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start(1))
        exec(compile("\n" * line + match[1], str(README), "exec"), namespace)


DOCUMENTED = [laplex.linear, laplex.LaplaceOperator, laplex.LaplaceOperator.solve, laplex.rank, laplex.Plan]
DOCUMENTED += [laplex.GramOperator, laplex.CholeskyFactor, laplex.gram, laplex.reseat]
DOCUMENTED += [laplex.nn.LaplexLinear, laplex.nn.LaplexProjection, laplex.nn.replace_linear]


@pytest.mark.parametrize("documented", DOCUMENTED)
def test_docstring_examples(documented):
    names = {"torch": torch, "laplex": laplex, "LaplaceOperator": laplex.LaplaceOperator}
    names["LaplexProjection"] = laplex.nn.LaplexProjection
    for test in doctest.DocTestFinder(recurse=False).find(documented, globs=names):
        failed, _ = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test)
        assert failed == 0


@pytest.mark.parametrize("path", markdown.FILES, ids=str)
def test_the_tables_are_those_of_the_committed_results(path, monkeypatch):
    monkeypatch.chdir(README.parent)
    text = path.read_text(encoding="utf-8")
    assert markdown.filled(text) == text, "run `make readme`"
    assert "<!-- begin: " in text


def test_a_figure_is_shown_with_both_times_whichever_way_it_goes():
    sides = {name: Measured(time=Stats(time, time, time, 5)) for name, time in (("ours", 3e-3), ("theirs", 1e-3))}
    result = Result("r", "", Size(2, 2, 1), "ratio", 1.0, "miss", 3.0, "", sides)
    assert markdown.in_short(result) == "3 ms against 1 ms: **3 times slower**"
    faster = replace(result, sides=dict(reversed(sides.items())))
    assert markdown.in_short(faster) == "1 ms against 3 ms: 3 times faster"
    assert markdown.in_short(replace(result, unit="relative error", value=2.5e-8)) == "2.5e-08"


def test_every_figure_of_the_readme_is_a_row_of_its_suite():
    for figure in markdown.FIGURES:
        suite = "cpu" if figure.suite == "layers" else figure.suite  # rows of the CPU suite, in a file of their own
        sizes = {row.name: row.sizes for row in SUITES[suite].rows}
        assert figure.size in sizes[figure.row]

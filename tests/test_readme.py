"""The Python blocks of README.md run, in order, in one namespace; so do the examples of the docstrings."""

import doctest
import re
from pathlib import Path

import pytest
import torch

import laplex
from benchmarks import markdown

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
DOCUMENTED += [laplex.GramOperator, laplex.CholeskyFactor, laplex.gram]


@pytest.mark.parametrize("documented", DOCUMENTED)
def test_docstring_examples(documented):
    names = {"torch": torch, "laplex": laplex, "LaplaceOperator": laplex.LaplaceOperator}
    for test in doctest.DocTestFinder(recurse=False).find(documented, globs=names):
        failed, _ = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test)
        assert failed == 0


def test_the_tables_are_those_of_the_committed_results(monkeypatch):
    monkeypatch.chdir(README.parent)
    text = README.read_text(encoding="utf-8")
    assert markdown.filled(text) == text, "run `make readme`"

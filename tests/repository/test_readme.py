"""The Python blocks of README.md run, in order, in one namespace; so do the examples of the docstrings."""

import doctest
import json
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

README = Path(__file__).parents[2] / "README.md"
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


# --- Numbers outside the tables ---------------------------------------------------------------------------------------

RESULTS = README.parent / "benchmarks" / "results" / "experiments"
NOT_PROSE = re.compile(
    r"^```.*?^```|`[^`]*`|\]\([^)]*\)|O\([^|]*\)|float(?:32|64)|celerite2|C\+\+17|H200|[wK]_1|\^-1",
    re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(r"\d{1,3}(?: \d{3})+|\d[\d.e]*\d|\d")


def _runs(name):
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))["runs"]


def _seeds(name):
    return len({run["settings"]["seed"] for run in _runs(name)})


def _fitted(name, dim):
    """How many images were fitted: the empirical Gaussian stores them and their mean."""
    (ceiling,) = (run["result"] for run in _runs(name) if run["settings"]["method"] == "empirical")
    return ceiling["parameters"] // dim - 1


def known_numbers():
    """Every number that the README may say outside its tables, computed where it can be."""
    train, _ = laplex.density.images.bundled()
    fits = [run["settings"] for run in _runs("density-photos1024.json") if run["settings"]["method"] == "em"]
    computed = {
        _seeds("heads-clinc150-tuned.json"),
        _seeds("projection-imagenette224-3000.json"),
        _fitted("density-imagenette224.json", 224 * 224 * 3),
        _fitted("density-imagenette224-6000.json", 224 * 224 * 3),
        len(train.values),
        round(train.values[0].numel() ** 0.5 / 3**0.5),  # of a side
        *(settings["rank"] for settings in fits),
        *(settings["functions"] for settings in fits),
        *(run["settings"]["components"] for run in _runs("density-imagenette224.json")),
        *(224, 224 * 224 * 3, 1024, 1024 * 1024 * 3),  # pixels of a side, and numbers of an image
        100_000 * 50_000,  # the weight of the first example
    }
    chosen = {500, 0.1, 0.3, 2017, 2021}  # images of either kind that are not fitted; advice; years
    return {float(number) for number in computed | chosen}


def test_every_number_of_the_readme_outside_its_tables_is_known():
    prose = NOT_PROSE.sub(" ", markdown.MARKED.sub("", README.read_text(encoding="utf-8")))
    said = {float(found.replace(" ", "")) for found in NUMBER.findall(prose)}
    assert said - known_numbers() == set()
    assert {150528.0, 5e9} <= said  # the pattern finds numbers

"""The documentation: Python blocks of its pages run, examples of docstrings run, and no figure is typed by hand."""

import doctest
import importlib
import pkgutil
import re
import sys
from pathlib import Path

import pytest
import torch

import laplex
import laplex.testing
from benchmarks import markdown

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
TYPED = re.compile(r"\d[\d.,]*\s?(?:ms|us|µs|[kMGT]B|seconds|minutes|times (?:as|faster|slower|more|less))\b")
NAMED = re.compile(r"^ *\.\. (?:auto(?:function|class|exception|data|module)|py:data):: (\S+)", re.MULTILINE)
WIDEST = 102  # characters of a line of code that fit into a page


pytestmark = pytest.mark.usefixtures("one_thread")


def text_of(page):
    return page.read_text(encoding="utf-8")


def named(page):
    return page.relative_to(DOCS).as_posix()


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCK.search(text_of(page))], ids=named)
def test_blocks_run(page, tmp_path, monkeypatch):
    """In order, in one namespace. A block that ends in an assert says what a reader may rely on."""
    monkeypatch.chdir(tmp_path)
    text, namespace = text_of(page), {"__name__": "page"}
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start(1))
        exec(compile("\n" * line + match[1], str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_blocks_fit_into_the_page(page):
    for match in FENCED.finditer(text_of(page)):
        if match[0].startswith("```{"):  # a directive is not shown
            continue
        assert max(map(len, match[0].splitlines())) <= WIDEST, match[0]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_figure_of_performance_is_typed(page):
    text = FENCED.sub("", markdown.MARKED.sub("", text_of(page)))
    assert TYPED.findall(text) == []


def test_a_typed_figure_is_found():
    assert all(TYPED.search(line) for line in ("takes 3 ms", "1.5 GB of memory", "2.5 times faster", "in 40 seconds"))
    assert not TYPED.search("from 0.1 to 0.3, at most 2^28 numbers, 64 images at a time")


def tables():
    """Every table of README and documentation, with its page."""
    for page in (DOCS.parent / "README.md", *PAGES):
        for table in re.findall(r"^\|.*(?:\n\|.*)+", text_of(page), re.MULTILINE):
            yield table, page.name


def test_no_table_appears_twice():
    names = [
        match["name"]
        for page in (DOCS.parent / "README.md", *PAGES)
        for match in markdown.MARKED.finditer(text_of(page))
    ]
    assert sorted(names) == sorted(markdown.CONTENT)
    homes = {}
    for table, page in tables():
        homes.setdefault(table, []).append(page)
    assert [pages for pages in homes.values() if len(pages) > 1] == []


def test_the_tables_are_those_of_the_committed_results(monkeypatch):
    monkeypatch.chdir(DOCS.parent)
    for page in markdown.pages():
        assert markdown.filled(text_of(page)) == text_of(page), f"run `make tables`: {page}"


# --- The reference ---------------------------------------------------------------------------------------------------


def documented():
    return [name for page in PAGES for name in NAMED.findall(text_of(page))]


class Lenient(doctest.OutputChecker):
    """An example may leave out what it prints."""

    def check_output(self, want, got, optionflags):
        return not want or super().check_output(want, got, optionflags)


def names_of_examples():
    """What examples of docstrings use without defining it."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    images = torch.rand(60, 110)
    names = {"images": images, "x": images, "batch": slice(0, 16), "X": images.numpy(), "y": torch.arange(60) % 3}
    names |= {"LaplaceOperator": laplex.LaplaceOperator, "LaplexProjection": laplex.nn.LaplexProjection}
    names |= {
        "LaplexTransformer": pkgutil.resolve_name("laplex.sklearn.LaplexTransformer"),
        "torch": torch,
        "laplex": laplex,
    }
    return names | {each.__name__: each for each in (LogisticRegression, StandardScaler, make_pipeline)}


@pytest.mark.parametrize("name", [name for name in documented() if not name.rpartition(".")[2].isupper()])
def test_docstring_examples(name):
    """Every name of the reference exists, and its example runs, if it has one. (A number has no docstring.)"""
    with torch.no_grad() if name.endswith("LaplexGaussian") else torch.enable_grad():  # it sets a buffer
        for test in doctest.DocTestFinder().find(pkgutil.resolve_name(name), globs=names_of_examples()):
            flags = doctest.NORMALIZE_WHITESPACE
            failed, _ = doctest.DocTestRunner(Lenient(), optionflags=flags, verbose=False).run(test)
            assert failed == 0


PACKAGES = [
    laplex,
    laplex.nn,
    laplex.gp,
    laplex.density,
    laplex.soft,
    laplex.stats,
    laplex.disk,
    laplex.reference,
    laplex.backends,
    laplex.testing,
]


@pytest.mark.parametrize("package", PACKAGES, ids=str)
def test_every_public_name_is_in_the_reference(package):
    modules = {"laplex.reference", "laplex.backends", "laplex.testing"}  # with all their members
    known = {*documented(), *(f"{module}.{name}" for module in modules for name in sys.modules[module].__all__)}
    public = {f"{package.__name__}.{name}" for name in package.__all__ if not name.startswith("__")}
    assert {name for name in public if name not in known and name not in sys.modules} == set()


# --- Docstrings as reStructuredText ----------------------------------------------------------------------------------


@pytest.fixture
def docstrings(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("docstrings")


def test_formulas_become_literal_blocks(docstrings):
    lines = ["The norm |x|.", "", "    K = |a - b|", "    M = K * K", "", "More, of *H and w_.", ""]
    want = ["The norm \\|x\\|.", "", "::", "", "    K = |a - b|", "    M = K * K", "", "More, of \\*H and w\\_.", ""]
    assert docstrings.converted(lines) == want


def test_what_is_literal_already_stays(docstrings):
    lines = ["Use it so::", "", "    y = a * b", ""]
    assert docstrings.converted(lines) == lines


def test_arguments_keep_their_shapes(docstrings):
    lines = [
        "Multiply.",
        "",
        "Args:",
        "    a (*H, n), b (*H, k): anchors, |a| < 1,",
        "        as :func:`laplex.rank` has.",
        "",
    ]
    text = docstrings.converted(lines)
    want = [":Arguments:", "    ``a (*H, n), b (*H, k)``", "        anchors, \\|a\\| < 1,"]
    assert text[2:6] == [*want, "        as :func:`laplex.rank` has."]


def test_roles_code_and_bold_text_stay(docstrings):
    line = "**Note.** ``a * b`` and :class:`laplex.Plan` are 2 * 3."
    assert docstrings.escaped(line) == "**Note.** ``a * b`` and :class:`laplex.Plan` are 2 \\* 3."


def test_examples_are_code(docstrings):
    lines = ["Do.", "", "Example:", "    >>> f(*x)", "    3"]
    assert docstrings.converted(lines)[2:6] == [".. code-block:: pycon", "", "    >>> f(*x)", "    3"]

"""Without the compiled core everything works, slower: one warning says so, where it matters, and how to mend it."""

import subprocess
import sys
import warnings

import pytest
import torch

import laplex
from laplex import LaplaceOperator, PerformanceWarning, _backends, _compiled

SMALL, LARGE = 100, 1 << 15  # n = k: two of them are 2^16


@pytest.fixture
def _missing(monkeypatch):
    monkeypatch.setattr(_compiled, "MISSING", "it was not built; build it")
    _backends._warn_without_core.cache_clear()
    yield
    _backends._warn_without_core.cache_clear()


def warned(call):
    """The messages of what warns there, of our category."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in caught if one.category is PerformanceWarning]


def product(size, **options):
    a = torch.randn(size)
    return laplex.linear(a, a, a, **options)


CALLS = {
    "linear": product,
    "linear of rows": lambda size: laplex.linear(torch.randn(size // 20, 20), torch.randn(30), torch.randn(20)),
    "K @ x": lambda size: LaplaceOperator(torch.randn(size)) @ torch.randn(size),
    "gram": lambda size: laplex.gram(torch.randn(int(2 * size**0.5)), torch.randn(20)),
    "gram of columns": lambda size: laplex.gram(torch.randn(4), torch.randn(2 * size)),
    "K.solve": lambda size: LaplaceOperator(torch.randn(size)).solve(torch.randn(size), 0.1),
    "K.logdet": lambda size: LaplaceOperator(torch.randn(size)).logdet(0.1),
    "M.solve": lambda size: LaplaceOperator(torch.randn(size)).gram().solve(torch.randn(size), 0.1),
    "C.solve": lambda size: LaplaceOperator(torch.randn(40)).cholesky(0.1).solve(torch.randn(40, 2 * size // 40 + 1)),
}


@pytest.mark.usefixtures("_missing")
@pytest.mark.parametrize("name", CALLS)
def test_one_warning_where_it_matters(name):
    call = CALLS[name]
    assert warned(lambda: call(SMALL)) == []
    (message,) = warned(lambda: call(LARGE))
    assert "it was not built; build it" in message
    assert "laplex.PerformanceWarning" in message
    assert warned(lambda: product(LARGE)) == []  # whatever was called first


@pytest.mark.usefixtures("_missing")
def test_a_filter_makes_it_an_error_every_time():
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("error", PerformanceWarning)
            with pytest.raises(PerformanceWarning):
                product(LARGE)


@pytest.mark.usefixtures("_missing")
@pytest.mark.parametrize("backend", ["torch", "dense"])
def test_no_warning_for_a_backend_asked_for_by_name(backend):
    a, x = torch.randn(300), torch.randn(200, 300)
    assert warned(lambda: laplex.linear(x, a, a, backend=backend)) == []
    assert warned(lambda: laplex.gram(a, a, backend=backend)) == []


@pytest.mark.usefixtures("_missing", "unpoisoned")
def test_no_warning_in_a_graph():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: laplex.linear(x, x, x), fullgraph=True, backend="eager")
    assert warned(lambda: compiled(torch.randn(LARGE))) == []


def test_no_warning_with_the_core():
    assert warned(lambda: product(LARGE)) == []


@pytest.mark.usefixtures("_missing")
def test_no_warning_on_another_device():
    x = torch.randn(LARGE, device="meta")
    assert warned(lambda: laplex.linear(x, x, x)) == []


FRESH = """
import sys
sys.modules["laplex._core"] = None
import torch, laplex
a = torch.randn(1 << 15)
for _ in range(3):
    laplex.linear(a, a, a)
print(laplex.backends.available()["cpp"])
"""


def test_the_advice_is_the_same_everywhere_and_names_no_index(tmp_path):
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = done.stdout.strip()
    assert answer.endswith("in the folder of laplex's source: pip install --force-reinstall --no-deps .")
    assert "C++17 compiler" in answer
    assert done.stderr.count("PerformanceWarning: ") == 1
    assert answer in done.stderr

"""The GPU's programs for formed matrices, under Triton's interpreter: entries, sums, pullbacks and faults."""

import pytest
import torch

from cases import CASES, every, named
from helpers import all_nan, error, phases_for, wide
from laplex._formed import torch as dense
from laplex._formed.kernels import Kernels, Needs
from test_formed import SMALL, TOLERANCE, a_sum

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture
def launches(monkeypatch):
    from laplex._triton import tuning
    from laplex._triton.formed import launch

    monkeypatch.setattr(tuning, "FORM_TILE", (4, 8))
    monkeypatch.setattr(tuning, "PULL_TILES", ((8, 4), (8, 4)))
    monkeypatch.setattr(tuning, "FINISH_TILE", (16, 4))
    return launch


def of_case(case, dtype, phased):
    """The matrices of a case, each its own result."""
    a, b, tau = case(dtype)
    batch = a.shape[:-1]
    phi, psi = phases_for(a, b) if phased else (None, None)
    return Kernels(a, b, torch.as_tensor(tau, dtype=torch.float64).expand(batch).contiguous(), None, phi, psi, 1)


def in_double(kernels):
    return Kernels(*(None if value is None else wide(value) for value in kernels.tensors), kernels.summed)


SMALL_CASES = [case for case in CASES if case()[0].shape[-1] * case()[1].shape[-1] <= 50 * 50]


@every(SMALL_CASES)
def test_entries_on_the_gpu(case, dtype, launches):
    kernels = of_case(case, dtype, phased=case.name == "generic")
    true = dense.form(in_double(kernels), torch.float64)
    assert error(launches.form(kernels, dtype), true) <= {torch.float32: 2e-7, torch.float64: 1e-14}[dtype]


@named(*SMALL)
def test_pullback_on_the_gpu(case, dtype, launches):
    kernels = of_case(case, dtype, phased=True)
    g, needs = torch.randn(kernels.shape, dtype=dtype), Needs(True, True, False, True)
    true = dense.pull(wide(g), in_double(kernels), needs)
    scale = dense.pull(wide(g).abs(), in_double(kernels), needs)
    for got, wanted, size in zip(launches.pull(g, kernels, needs), true, scale):
        if wanted is not None:
            assert error(got, wanted, size) <= TOLERANCE[dtype]


@pytest.mark.parametrize("phased", [False, True], ids=["plain", "phased"])
def test_sums_on_the_gpu(phased, launches):
    inputs = a_sum((6,), torch.float32, phased)
    kernels = Kernels(*(inputs.get(name) for name in ("a", "b", "tau", "weight", "phi", "psi")), 3)
    true = dense.form(in_double(kernels), torch.float64)
    assert error(launches.form(kernels, torch.float32), true) <= 3e-7
    g, needs = torch.randn(2, 19, 23), Needs(True, True, True, phased)
    for got, wanted in zip(launches.pull(g, kernels, needs), dense.pull(wide(g), in_double(kernels), needs)):
        assert (got is None) == (wanted is None)
        assert got is None or error(got, wanted) <= 5e-7


def test_many_matrices_are_pulled_in_groups(launches, monkeypatch):
    from laplex._triton import tuning

    inputs = a_sum((10,), torch.float64)
    kernels = Kernels(*(inputs.get(name) for name in ("a", "b", "tau", "weight", "phi", "psi")), 5)
    g, needs = torch.randn(2, 19, 23, dtype=torch.float64), Needs(True, True, True, True)
    at_once = launches.pull(g, kernels, needs)
    monkeypatch.setattr(tuning, "PULL_PARTS", 0)
    assert all(torch.equal(one, two) for one, two in zip(at_once, launches.pull(g, kernels, needs)))


@pytest.mark.parametrize("known", [False, True], ids=["by_all_programs", "by_its_own_program"])
@pytest.mark.parametrize(("name", "value"), [("a", torch.inf), ("a", torch.nan), ("b", -torch.inf), ("tau", 0.0)])
def test_a_fault_shows_in_every_row(name, value, known, launches, monkeypatch):
    from laplex._triton import tuning

    monkeypatch.setattr(tuning, "TARGETS_CHECKED", 0 if known else 1 << 15)
    monkeypatch.setattr(tuning, "FAULT_TILE", 16)
    inputs = a_sum((2,), torch.float32, phased=False)
    inputs[name].view(-1)[-1] = value
    kernels = Kernels(inputs["a"], inputs["b"], inputs["tau"], inputs["weight"], None, None, 2)
    assert all_nan(launches.multiply(torch.zeros(2, 23), launches.form(kernels, torch.float32)))


@pytest.mark.parametrize("transposed", ["neither", "left", "right", "both"])
@pytest.mark.parametrize("size", [(1, 1, 1), (7, 33, 5), (40, 50, 100), (3, 70, 33)])
@pytest.mark.parametrize("batch", [(), (2,)], ids=["one", "batch"])
@pytest.mark.parametrize("doubles", [False, True], ids=["in blocks", "in float64"])
def test_products_are_exact_for_all_sizes_and_layouts(launches, size, transposed, batch, doubles, monkeypatch):
    from laplex._triton.formed import multiply

    monkeypatch.setattr(multiply, "multiplies_doubles", lambda device: doubles)
    m, n, length = size
    left, right = torch.rand(*batch, m, length), torch.rand(*batch, length, n)
    left = left.mT.contiguous().mT if transposed in ("left", "both") else left
    right = right.mT.contiguous().mT if transposed in ("right", "both") else right
    true = left.double() @ right.double()
    assert ((launches.matmul(left, right, torch.float32) - true) / true).abs().max() <= (6.1e-8 if doubles else 2.5e-7)


def test_products_carry_infinities_and_nan(launches):
    left, right = torch.ones(3, 40), torch.ones(40, 5)
    left[0, 3], left[1, 7], right[39, 4] = float("inf"), float("nan"), float("-inf")
    got = launches.matmul(left, right, torch.float32)
    assert torch.equal(got.isnan(), (left @ right).isnan())
    assert torch.equal(got.isinf(), (left @ right).isinf())


def test_large_products_are_in_float64_where_a_gpu_has_units_for_that(monkeypatch):
    from laplex._triton import tuning
    from laplex._triton.formed import multiply

    written, large = multiply.entries_dtype, tuning.MULTIPLY_DOUBLES
    assert written(torch.float32, torch.device("cpu"), large) == torch.float32
    monkeypatch.setattr(multiply, "multiplies_doubles", lambda device: True)
    assert written(torch.float32, torch.device("cpu"), large) == torch.float64
    assert written(torch.float32, torch.device("cpu"), large - 1) == torch.float32
    assert written(torch.bfloat16, torch.device("cpu"), large) == torch.bfloat16


def test_products_in_float64(launches):
    kernels = Kernels(torch.randn(19), torch.randn(23), torch.tensor(0.7), None, None, None, 1)
    matrix = launches.form(kernels, torch.float32, torch.float64)
    assert matrix.dtype == torch.float64
    x, true = torch.rand(5, 23), dense.form(in_double(kernels), torch.float64)
    y = launches.multiply(x, matrix)
    assert y.dtype == torch.float32
    assert ((y - x.double() @ true.mT) / (x.double() @ true.mT)).abs().max() <= 2.5e-7
    assert torch.equal(launches.matmul(x, matrix.mT, torch.float32), y)
    assert launches.matmul(y.mT, x, torch.float64).dtype == torch.float64

"""Every baseline computes the product it is compared on; a wrong rival would flatter laplex."""

import pytest
import torch
from torch import Tensor

from benchmarks.baselines import BASELINES, Baseline
from benchmarks.inputs import Inputs, suited_to
from laplex import LaplaceOperator, reference

EXACT = [
    name
    for name, baseline in BASELINES.items()
    if not (baseline.yardstick or baseline.solves) and baseline.computes == "product"
]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def relative_error(got: Tensor, truth: Tensor) -> float:
    return float((got.double() - truth).norm() / truth.norm())


def draw(n: int, k: int, dtype: torch.dtype, tau: float = 0.7) -> Inputs:
    generator = torch.Generator().manual_seed(1)
    x, a, b, g = (torch.randn(*s, generator=generator, dtype=dtype) for s in [(3, k), (n,), (k,), (3, n)])
    return Inputs(x, a, b, tau, g)


def truth(inputs: Inputs) -> Tensor:
    return reference.linear(inputs.x.double(), inputs.a.double(), inputs.b.double(), inputs.tau)


def usable(name: str) -> Baseline:
    baseline = BASELINES[name]
    if baseline.needs is not None:
        pytest.importorskip(baseline.needs)
    return baseline


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", EXACT)
def test_agrees_with_the_definition(name: str, dtype: torch.dtype) -> None:
    baseline = usable(name)
    inputs = suited_to(draw(101, 101, dtype), baseline)
    got = baseline.prepare(inputs.a, inputs.b, inputs.tau)(inputs.x)
    assert got.shape == (3, 101)
    assert relative_error(got, truth(inputs)) < TOLERANCE[dtype]


RECTANGULAR = [name for name in EXACT if BASELINES[name].anchors != "grid" and not BASELINES[name].symmetric]


@pytest.mark.parametrize("name", RECTANGULAR)
def test_rectangular_with_ties_and_columns_beyond_both_ends(name: str) -> None:
    baseline = usable(name)
    inputs = draw(40, 63, torch.float64)
    inputs.b[:3] = inputs.a[5]
    inputs.b[3:6], inputs.b[6:9] = inputs.a.max() + 1.0, inputs.a.min() - 1.0
    inputs = suited_to(inputs, baseline)
    got = baseline.prepare(inputs.a, inputs.b, inputs.tau)(inputs.x)
    assert relative_error(got, truth(inputs)) < 1e-12


@pytest.mark.parametrize("name", EXACT)
def test_set_up_is_kept_for_another_input(name: str) -> None:
    baseline = usable(name)
    inputs = suited_to(draw(33, 33, torch.float64), baseline)
    apply = baseline.prepare(inputs.a, inputs.b, inputs.tau)
    first = apply(inputs.x)
    torch.testing.assert_close(apply(-2 * inputs.x), -2 * first, rtol=1e-12, atol=1e-12)


def test_logcumsumexp_takes_zeros() -> None:
    inputs = draw(20, 30, torch.float64)
    inputs.x[:, ::2] = 0.0
    inputs.x[1] = 0.0
    got = BASELINES["logcumsumexp"].prepare(inputs.a, inputs.b, inputs.tau)(inputs.x)
    torch.testing.assert_close(got, truth(inputs), rtol=1e-12, atol=1e-12)


def test_logcumsumexp_on_the_example_where_the_theorem_of_the_paper_loses_columns() -> None:
    a, b = torch.tensor([0.0, 1.0, 2.0]).double(), torch.tensor([0.5, 3.0]).double()
    got = BASELINES["logcumsumexp"].prepare(a, b, 1.0)(torch.ones(1, 2, dtype=torch.float64))
    torch.testing.assert_close(got, torch.tensor([[0.656, 0.742, 0.591]]).double(), atol=5e-4, rtol=0)


def test_yardsticks_run_on_the_long_side() -> None:
    inputs = draw(50, 20, torch.float32)
    for name in ("fft", "fft-complex", "copy", "copy-into"):
        baseline = BASELINES[name]
        fitted = suited_to(inputs, baseline)
        assert baseline.prepare(fitted.a, fitted.b, fitted.tau)(fitted.x).shape == (3, 50)


def test_celerite_multiplies_by_the_symmetric_matrix_with_ties() -> None:
    inputs = draw(40, 40, torch.float64)
    inputs.a[:3] = inputs.a[5]
    inputs = suited_to(inputs, usable("celerite2-symmetric"))
    assert inputs.b is inputs.a
    got = BASELINES["celerite2-symmetric"].prepare(inputs.a, inputs.b, inputs.tau)(inputs.x)
    assert relative_error(got, truth(inputs)) < 1e-12


def test_nn_linear_has_the_matrix_as_its_weight() -> None:
    inputs = draw(20, 33, torch.float64)
    layer = BASELINES["nn.Linear"].prepare(inputs.a, inputs.b, inputs.tau)
    assert isinstance(layer, torch.nn.Linear)
    torch.testing.assert_close(layer.weight, reference.kernel(inputs.a, inputs.b, inputs.tau))
    assert not layer.weight.requires_grad


def test_celerite_solves() -> None:
    inputs = suited_to(draw(50, 50, torch.float64), usable("celerite2-solve"))
    x = BASELINES["celerite2-solve"].prepare(inputs.a, inputs.a, inputs.tau)(inputs.cotangent)
    matrix = reference.kernel(inputs.a, inputs.a, inputs.tau) + 0.1 * torch.eye(50, dtype=torch.float64)
    assert relative_error(x, torch.linalg.solve(matrix, inputs.cotangent.mT).mT) < 1e-12


def test_celerite_agrees_with_our_solves() -> None:
    inputs = suited_to(draw(500, 500, torch.float64), usable("celerite2-solve"))
    theirs = BASELINES["celerite2-solve"].prepare(inputs.a, inputs.a, inputs.tau)(inputs.cotangent)
    ours = LaplaceOperator(inputs.a, tau=inputs.tau).solve(inputs.cotangent.mT, 0.1).mT
    assert relative_error(ours, theirs) < 1e-11


def test_dense_gram() -> None:
    inputs = draw(20, 33, torch.float64)
    got = BASELINES["dense-gram"].prepare(inputs.a, inputs.b, inputs.tau)(inputs.x)
    assert relative_error(got, reference.gram(inputs.a, inputs.b, inputs.x, inputs.tau)) < 1e-14

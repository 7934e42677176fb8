"""The Gram matrix of the Triton backend under Triton's interpreter, in tiles so small that few points cross many."""

import pytest
import torch

import laplex
from cases import CASES, every, named
from helpers import named_gradients
from laplex import reference
from laplex._kernels import triton_gram, triton_gram_sums, triton_scan
from test_gram import POSITIVE, assert_gram, weights_for
from test_gram_grad import inputs_for, on, term_scales

if not triton_scan.interpreted():
    pytest.skip("with a GPU the kernels are compiled", allow_module_level=True)

pytestmark = [
    pytest.mark.usefixtures("tiles"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),  # of overflows, which the kernels mean to make
]
FEW = [case for case in CASES if sum(side.shape[-1] for side in case()[:2]) <= 60]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(triton_gram, "ROWS", 4)
    monkeypatch.setattr(triton_gram, "COLS", 8)
    monkeypatch.setattr(triton_gram_sums, "tiling", lambda merged: 32)
    monkeypatch.setattr(triton_gram_sums, "CARRIED_AT_ONCE", 2)
    monkeypatch.setattr(triton_gram_sums, "ROWS", 2)


@every(FEW)
def test_positive_weights(case):
    a, b, tau = case(torch.float32)
    assert_gram(a, b, weights_for(b).abs(), tau, "triton", bars=POSITIVE)


@named("generic", "ties_everywhere", "batched_ties", "one_point")
@pytest.mark.parametrize("phased", [False, True])
def test_float64_and_several_weights(case, phased):
    inputs = inputs_for(*case(), m=2, phased=phased)
    assert_gram(**inputs, backend="triton")


@named("generic", "ties_everywhere", "batched_ties")
@pytest.mark.parametrize("phased", [False, True])
def test_every_gradient_is_the_dense_one(case, phased):
    inputs = inputs_for(*case(), phased=phased)
    cotangent = torch.randn_like(reference.gram(**inputs))
    want = named_gradients(reference.gram, inputs, cotangent)
    got = named_gradients(on("triton"), inputs, cotangent)
    scales = term_scales(inputs, cotangent)
    for name, exact in want.items():
        assert float((got[name] - exact).norm()) <= 1e-13 * scales[name], name


def test_far_apart_and_outside():
    a, b = torch.rand(20) * 1000, torch.rand(30) * 1000
    assert_gram(a, b, torch.rand(30), 1.0, "triton", bars=POSITIVE)
    a, b = torch.rand(20), torch.rand(30) + 21
    b[:15] -= 41
    assert_gram(a, b, torch.rand(30), 1.0, "triton", bars=POSITIVE)


def test_a_stale_plan_is_nan():
    a, b = torch.randn(6), torch.randn(7)
    plan = laplex.Plan(a, b, backend="triton")
    assert bool(laplex.gram(-a, b, torch.rand(7), plan=plan, backend="triton").isnan().all())


def test_a_bad_tau_is_nan():
    tau = torch.tensor(-1.0)
    assert bool(laplex.gram(torch.randn(4), torch.randn(3), torch.rand(3), tau, backend="triton").isnan().all())

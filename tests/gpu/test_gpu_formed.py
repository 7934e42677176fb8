"""On a CUDA device: formed matrices and sums of matrices against the dense definition in float64."""

import pytest
import torch

import laplex
from cases import BY_NAME
from helpers import all_nan, error, named_gradients, phases_for, wide
from laplex import reference
from laplex._formed import torch as dense
from laplex._formed.kernels import Kernels
from laplex._formed.matrix import matrix

pytestmark = pytest.mark.gpu
SIZES = {"layer": (100, 77, 16, 3), "head": (150, 384, 8, 20), "one_row": (33, 1, 4, 1), "wide": (1, 300, 2, 5)}


def a_sum(n, k, r, rows, dtype=torch.float32, phased=False):
    a, b = torch.randn(r, n, dtype=dtype, device="cuda"), torch.randn(r, k, dtype=dtype, device="cuda")
    b[:, 0] = a[:, 0]
    inputs = {"x": torch.randn(rows, k, dtype=dtype, device="cuda"), "a": a, "b": b}
    inputs |= {name: torch.rand(r, dtype=dtype, device="cuda") + 0.5 for name in ("tau", "weight")}
    if phased:
        inputs["phi"], inputs["psi"] = phases_for(a, b)
    return inputs


def doubled(inputs):
    return {name: wide(value) for name, value in inputs.items()}


@pytest.mark.parametrize("name", BY_NAME)
def test_entries(name, dtype):
    from laplex._triton.formed import launch

    a, b, tau = BY_NAME[name](dtype)
    length = torch.as_tensor(tau, dtype=torch.float64).expand(a.shape[:-1]).contiguous().cuda()
    kernels = Kernels(a.cuda(), b.cuda(), length, None, None, None, 1)
    true = dense.form(Kernels(wide(a.cuda()), wide(b.cuda()), length, None, None, None, 1), torch.float64)
    assert error(launch.form(kernels, dtype), true) <= {torch.float32: 2e-7, torch.float64: 1e-14}[dtype]


@pytest.mark.parametrize("phased", [False, True], ids=["plain", "phased"])
@pytest.mark.parametrize("backend", ["formed", "triton", None])
@pytest.mark.parametrize("name", SIZES)
def test_sums(name, backend, phased, dtype):
    inputs = a_sum(*SIZES[name], dtype=dtype, phased=phased)
    g = torch.randn(SIZES[name][3], SIZES[name][0], dtype=dtype, device="cuda")
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-13}[dtype]
    for _ in range(3):  # the first call records, the others replay
        y = laplex.linear(**inputs, backend=backend)
        assert error(y, reference.linear(**doubled(inputs))) <= tolerance
        got = named_gradients(lambda **given: laplex.linear(**given, backend=backend), inputs, g)
        true = named_gradients(reference.linear, doubled(inputs), wide(g))
        scale = named_gradients(reference.linear, doubled(inputs), wide(g).abs())
        assert all(error(got[key], true[key], scale[key]) <= tolerance for key in inputs)
        inputs = {key: value + 0.1 for key, value in inputs.items()}


@pytest.mark.parametrize("phased", [False, True], ids=["plain", "phased"])
@pytest.mark.parametrize("name", SIZES)
def test_the_matrix_itself(name, phased, dtype):
    inputs, tolerance = (
        a_sum(*SIZES[name], dtype=dtype, phased=phased),
        {torch.float32: 1e-6, torch.float64: 1e-13}[dtype],
    )
    rows = torch.eye(SIZES[name][1], dtype=torch.float64, device="cuda")
    g = torch.randn(SIZES[name][1], SIZES[name][0], dtype=dtype, device="cuda")
    del inputs["x"]

    def formed(a, b, tau, weight, phi=None, psi=None):
        return matrix(Kernels(a, b, tau, weight, phi, psi, tau.numel())).mT

    def definition(**given):
        return reference.linear(rows, **given)

    for _ in range(3):  # the first call records, the others replay
        assert error(formed(**inputs), definition(**doubled(inputs))) <= tolerance
        got, true = named_gradients(formed, inputs, g), named_gradients(definition, doubled(inputs), wide(g))
        scale = named_gradients(definition, doubled(inputs), wide(g).abs())
        assert all(error(got[key], true[key], scale[key]) <= tolerance for key in inputs)
        inputs = {key: value + 0.1 for key, value in inputs.items()}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    inputs = a_sum(100, 77, 16, 30) | {"x": torch.randn(30, 77, device="cuda").to(dtype)}
    g = torch.randn(30, 100, device="cuda").to(dtype)
    y = laplex.linear(**inputs, backend="formed")
    assert y.dtype == dtype
    assert error(y, reference.linear(**doubled(inputs))) <= 2 * torch.finfo(dtype).eps
    got = named_gradients(lambda **given: laplex.linear(**given, backend="formed"), inputs, g)
    true = named_gradients(reference.linear, doubled(inputs), wide(g))
    assert all(error(got[key], true[key]) <= 1e-5 for key in ("a", "b", "tau", "weight"))
    assert error(got["x"], true["x"]) <= 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("n", [20, 40_000], ids=["checked_by_all", "checked_before"])
@pytest.mark.parametrize(("name", "value"), [("a", torch.inf), ("b", torch.nan), ("tau", -1.0)])
def test_a_fault_makes_everything_nan(name, value, n):
    inputs = a_sum(n, 7, 2, 3)
    inputs[name].view(-1)[-1] = value
    assert all_nan(laplex.linear(**inputs, backend="formed"))


def test_nothing_waits_for_the_device():
    inputs = {name: value.requires_grad_() for name, value in a_sum(100, 77, 4, 8).items()}
    g = torch.randn(8, 100, device="cuda")
    for _ in range(3):
        torch.cuda.set_sync_debug_mode("error" if _ else "default")
        try:
            laplex.linear(**inputs, backend="formed").backward(g)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_a_batch_of_matrices_is_formed_at_once():
    a, b, x = (torch.randn(*shape, device="cuda") for shape in ((6, 50), (6, 60), (6, 30, 60)))
    y = laplex.linear(x, a, b, 0.7, backend="formed")
    assert error(y, reference.linear(wide(x), wide(a), wide(b), 0.7)) <= 5e-7


def test_second_derivatives_go_through_the_scan():
    inputs = {name: value.requires_grad_() for name, value in a_sum(6, 5, 2, 3, torch.float64).items()}
    leaves = [inputs[name] for name in ("x", "a", "weight")]
    got, true = (
        torch.autograd.grad(
            sum(v.square().sum() for v in torch.autograd.grad(y.square().sum(), leaves, create_graph=True)), leaves
        )
        for y in (laplex.linear(**inputs, backend="formed"), reference.linear(**inputs))
    )
    assert all(error(one, two) <= 1e-11 for one, two in zip(got, true))


def test_compiled():
    inputs = {name: value.requires_grad_() for name, value in a_sum(200, 77, 4, 64).items()}
    compiled = torch.compile(laplex.linear, fullgraph=True)
    got, true = (
        torch.autograd.grad(function(**inputs).square().sum(), list(inputs.values()))
        for function in (compiled, laplex.linear)
    )
    assert all(error(one, two) <= 1e-6 for one, two in zip(got, true))

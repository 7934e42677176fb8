"""On a CUDA device: Gaussian processes over time, compared with the CPU, values and gradients."""

import pytest
import torch

from laplex import gp

pytestmark = pytest.mark.gpu


KERNELS = {
    "exponential": lambda scale: gp.Exponential(scale),
    "matern32": lambda scale: gp.Matern32(scale),
    "matern52": lambda scale: gp.Matern52(scale),
    "sho": lambda scale: gp.SHO(scale, 3.0),
    "sum": lambda scale: gp.Exponential(scale) + gp.SHO(2.0, 3.0) + gp.Linear(0.1, 5.0),
    "product": lambda scale: gp.Matern32(scale) * gp.Cosine(2.0),
}
kernels = pytest.mark.parametrize("make", KERNELS.values(), ids=KERNELS)


def results(make, device, n=700, *, exposure=None):
    """The likelihood, a prediction and leave-one-out, with the gradients of their sum, on a device."""
    torch.manual_seed(0)
    numbers = 30 * torch.rand(n).double(), torch.randn(n).double(), 0.1 + torch.rand(n).double(), torch.tensor(1.7)
    t, y, noise, scale = (one.double().to(device).requires_grad_() for one in numbers)
    process = gp.GaussianProcess(make(scale), t, diag=noise, exposure=exposure)
    mean, variance = process.predict(y, torch.linspace(-2, 33, 91, device=device).double(), return_var=True)
    values = process.log_likelihood(y), mean, variance, process.apply_inverse(y)
    gradients = torch.autograd.grad(sum(one.sum() for one in values), (t, y, noise, scale))
    return [one.detach().cpu() for one in (*values, *gradients)]


@kernels
@pytest.mark.parametrize("exposure", [None, 0.3])
def test_as_on_the_cpu(make, exposure):
    if exposure is not None and make is KERNELS["sum"]:
        make = KERNELS["sho"]  # Linear has no exposures
    for one, other in zip(
        results(make, "cuda", exposure=exposure), results(make, "cpu", exposure=exposure), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


def test_many_points():
    torch.manual_seed(0)
    n = 200_000
    t, y = n / 10 * torch.rand(n).double(), torch.randn(n).double()
    on_cpu, on_gpu = (
        gp.GaussianProcess(gp.SHO(3.0, 4.0), t.to(device), diag=0.1).log_likelihood(y.to(device)).cpu()
        for device in ("cpu", "cuda")
    )
    torch.testing.assert_close(on_gpu, on_cpu, rtol=1e-10, atol=0)


@pytest.mark.parametrize("name", ["exponential", "matern32", "matern52", "sho"])
@pytest.mark.parametrize("size", [(1, 1), (1, 2), (1, 64), (1, 65), (3, 4097), (1, 70_000)], ids=str)
@pytest.mark.parametrize("in_order", [True, False])
def test_the_likelihood_and_its_gradients(name, size, in_order):
    """At the borders of chunks and groups, and for as many points as take three levels of groups."""
    torch.manual_seed(0)
    t = size[1] / 10 * torch.rand(size).double()
    t = t.sort(-1).values if in_order else t
    numbers = (t, torch.randn(size).double(), 0.1 + torch.rand(size).double())
    outcomes = []
    for device in ("cuda", "cpu"):
        tensors = [(one[0] if size[0] == 1 else one).to(device).requires_grad_() for one in numbers]
        scale = torch.tensor(1.7, dtype=torch.float64, device=device, requires_grad=True)
        value = gp.GaussianProcess(KERNELS[name](scale), tensors[0], diag=tensors[2]).log_likelihood(tensors[1])
        gradients = torch.autograd.grad(value.sum(), (*tensors, scale))
        outcomes.append([one.detach().cpu() for one in (value, *gradients)])
    for one, other in zip(*outcomes, strict=True):
        assert float((one - other).abs().max()) <= 1e-9 * float(other.abs().max()) + 1e-12


def test_the_same_bits_again():
    t, y = (torch.rand(5000, dtype=torch.float64, device="cuda") for _ in range(2))
    process = gp.GaussianProcess(gp.SHO(3.0, 4.0), t, diag=0.1)
    assert process.log_likelihood(y) == process.log_likelihood(y)


@pytest.mark.parametrize("quality", [0.05, 0.3, 3.0])
def test_second_derivatives_of_a_quality(quality):
    """Far below 1/2 an oscillator is two blocks; which it is must not depend on the direction."""
    torch.manual_seed(0)
    t, y = 10 * torch.rand(50).double(), torch.randn(50).double()
    outcomes = []
    for device in ("cuda", "cpu"):
        one = torch.tensor(quality, dtype=torch.float64, device=device, requires_grad=True)
        value = gp.GaussianProcess(gp.SHO(3.0, one), t.to(device), diag=0.1).log_likelihood(y.to(device))
        (first,) = torch.autograd.grad(value, one, create_graph=True)
        outcomes.append([part.detach().cpu() for part in (value, first, *torch.autograd.grad(first, one))])
    torch.testing.assert_close(*outcomes, rtol=1e-8, atol=1e-8)


def test_a_matrix_that_is_not_positive_definite():
    t = torch.tensor([0.0, 1.0, 2.0, 2.0, 3.0], dtype=torch.float64, device="cuda")
    process = gp.GaussianProcess(gp.Matern32(2.0), t, diag=0.0)
    with pytest.raises(torch.linalg.LinAlgError, match="at time 2 of series 0"):
        process.log_likelihood(torch.cos(t))


def test_draws_and_lists():
    t = [torch.rand(50).double().cuda(), torch.rand(70).double().cuda()]
    process = gp.GaussianProcess(gp.Matern32(1.0), t, yerr=0.1)
    draws = process.sample(3, generator=torch.Generator("cuda").manual_seed(0))
    assert [one.shape for one in draws] == [(3, 50), (3, 70)]
    values = [one[0] for one in draws]
    assert bool(process.log_likelihood(values).isfinite().all())
    again = process.condition(values).sample(2, [one + 0.01 for one in t])
    assert all(one.is_cuda and bool(one.isfinite().all()) for one in again)

"""Kernels whose numbers are trained, and fits by the largest likelihood."""

import copy
import math
import pickle

import pytest
import torch

from laplex import gp
from processes import KERNELS, assert_close, every_kernel, named_kernels, seeded


def truth(n=600, seed=0, noise=0.3):
    """Times, and a draw of a process with noise."""
    t = 40 * torch.rand(n, generator=seeded(seed), dtype=torch.float64)
    return t, gp.GaussianProcess(gp.Matern32(2.0, 1.5), t, yerr=noise).sample(generator=seeded(seed + 1))


@every_kernel([case for case in KERNELS if not any(isinstance(one, list) for one in case.parameters.values())])
def test_a_trainable_kernel_is_the_same_function(case):
    kernel, t = case.kernel(), torch.linspace(0, 9, 12, dtype=torch.float64)
    trained = gp.trainable(kernel)
    assert_close(trained(t).detach(), kernel(t), 1e-13)
    assert_close(gp.fixed(trained)(t), kernel(t), 1e-13)
    assert not list(kernel.parameters())
    assert not list(gp.fixed(trained).parameters())
    gradients = torch.autograd.grad(trained(t).square().sum(), list(trained.parameters()))
    assert all(torch.isfinite(one).all() for one in gradients)


def test_every_number_is_trained_and_those_of_any_sign_directly():
    kernel = gp.trainable(2.0 * gp.Celerite(1.1, -0.3, 0.9, 2.5) + gp.Linear(0.4, center=-5.0))
    names = sorted(name for name, _ in kernel.named_parameters())
    logs = ["left.kernel.logs.a", "left.kernel.logs.c", "left.kernel.logs.d", "left.logs.factor", "right.logs.sigma"]
    assert names == sorted(["left.kernel.b", *logs, "right.center"])
    assert float(kernel.left.kernel.a.detach()) == pytest.approx(1.1, rel=1e-15)
    assert float(kernel.right.center.detach()) == -5.0


def test_gradients_are_those_of_logarithms():
    t, y = truth(50)
    kernel = gp.trainable(gp.Matern32(2.0, 1.5))
    value = gp.GaussianProcess(kernel, t, yerr=0.3).log_likelihood(y)
    got = torch.autograd.grad(value, [kernel.logs["scale"], kernel.logs["sigma"]])
    scale, sigma = (torch.tensor(one, dtype=torch.float64, requires_grad=True) for one in (2.0, 1.5))
    value = gp.GaussianProcess(gp.Matern32(scale, sigma), t, yerr=0.3).log_likelihood(y)
    want = [one * bar for one, bar in zip((scale, sigma), torch.autograd.grad(value, (scale, sigma)))]
    assert_close(torch.stack(got), torch.stack(want).detach(), 1e-10)


def test_tensors_stay_the_same_objects():
    log = torch.zeros((), dtype=torch.float64, requires_grad=True)
    scale, sigma = torch.nn.Parameter(torch.tensor(2.0)), log.exp()
    kernel = gp.trainable(gp.Matern32(scale, sigma) + gp.Exponential(1.0))
    assert kernel.left.scale is scale
    assert kernel.left.sigma is sigma
    assert len(list(kernel.parameters())) == 3
    fixed = gp.fixed(kernel)
    assert fixed.left.scale == 2.0
    assert not fixed.left.sigma.requires_grad


def test_a_parameter_for_each_series():
    kernel = gp.trainable(gp.SHO(3.0), batch_shape=(4,))
    assert kernel.batch_shape == (4,)
    t = torch.linspace(0, 9, 12, dtype=torch.float64)
    assert gp.GaussianProcess(kernel, t, yerr=0.1).log_likelihood(torch.sin(t)).shape == (4,)
    assert gp.fixed(kernel).period.tolist() == pytest.approx([3.0] * 4)


def test_trainable_kernels_are_copied_saved_and_loaded():
    kernel = gp.trainable(gp.Matern32(2.0) + gp.SHO(3.0))
    other = gp.trainable(gp.Matern32(1.0) + gp.SHO(1.0))
    other.load_state_dict(kernel.state_dict())
    t = torch.linspace(0, 9, 12, dtype=torch.float64)
    for one in (other, copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel))):
        assert torch.equal(one(t), kernel(t))
    assert "scale=2" in repr(kernel)


def test_a_kernel_without_an_attribute_says_so():
    with pytest.raises(AttributeError, match="object has no attribute 'period'"):
        _ = gp.trainable(gp.Matern32(1.0)).period


# --- Fits -------------------------------------------------------------------------------------------------------------


def test_finds_the_parameters():
    t, y = truth()
    start = gp.GaussianProcess(gp.Matern32(10.0, 0.3), t, diag=0.0)
    process, noise, value = gp.fit(start, y, noise=1.0)
    assert noise == pytest.approx(0.3, rel=0.15)
    assert process.kernel.sigma == pytest.approx(1.5, rel=0.4)
    assert value >= gp.GaussianProcess(gp.Matern32(2.0, 1.5), t, yerr=0.3).log_likelihood(y)
    assert_close(process.log_likelihood(y), value, 0.0)
    assert (start.kernel.scale, start.kernel.sigma, float(start.diag[0])) == (10.0, 0.3, 0.0)


def test_the_gradient_is_zero_where_the_fit_ends():
    t, y = truth(200)
    process, _, _ = gp.fit(gp.GaussianProcess(gp.Matern32(5.0) + gp.Constant(1.0), t, yerr=0.3), y)
    kernel = gp.trainable(process.kernel)
    value = gp.GaussianProcess(kernel, t, yerr=0.3).log_likelihood(y)
    assert all(abs(float(one)) < 1e-2 for one in torch.autograd.grad(value, list(kernel.parameters())))


@named_kernels("exponential", "matern52", "sho", "celerite", "rotation", "sum", "product", "trend")
def test_no_fit_is_worse_than_its_start(case):
    t, y = truth(100)
    process = gp.GaussianProcess(case.kernel(), t, yerr=0.3)
    assert gp.fit(process, y, max_iter=20).log_likelihood > process.log_likelihood(y)


def test_restarts_are_drawn_and_the_best_counts():
    t, y = truth(100)
    process = gp.GaussianProcess(gp.Matern32(1e4, 1e-3), t, diag=1e-3)
    once = gp.fit(process, y, noise=1e-3, max_iter=3).log_likelihood
    one, two = (gp.fit(process, y, noise=1e-3, max_iter=3, restarts=3, generator=seeded(5)) for _ in range(2))
    assert one.log_likelihood >= once
    assert torch.equal(one.log_likelihood, two.log_likelihood)


def test_tensors_keep_their_values_and_parameters_are_fitted_in_a_copy():
    t, y = truth(100)
    own = torch.nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
    kernel = gp.Matern32(torch.tensor(7.0), sigma=own)
    process, _, _ = gp.fit(gp.GaussianProcess(kernel, t, yerr=0.3), y)
    assert float(process.kernel.scale) == 7.0
    assert process.kernel.sigma != 1.0
    assert float(own.detach()) == 1.0


def test_a_module_as_mean_is_fitted_in_a_copy():
    class Line(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.slope = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))

        def forward(self, t):
            return self.slope * t

    t, y = truth()
    mean = Line()
    process, _, _ = gp.fit(gp.GaussianProcess(gp.Matern32(2.0), t, yerr=0.3, mean=mean), y + 5 * t)
    assert float(process.mean.slope.detach()) == pytest.approx(5.0, abs=0.3)
    assert float(mean.slope.detach()) == 0.0


def test_a_parameter_as_mean_is_fitted_in_a_copy():
    t, y = truth()
    mean = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
    process, _, _ = gp.fit(gp.GaussianProcess(gp.Matern32(2.0), t, yerr=0.3, mean=mean), y + 50)
    assert float(process.mean) == pytest.approx(50.0, abs=2.0)
    assert not process.mean.requires_grad
    assert float(mean.detach()) == 0.0


def test_a_frozen_parameter_as_mean_keeps_its_value():
    t, y = truth()
    mean = torch.nn.Parameter(torch.ones((), dtype=torch.float64), requires_grad=False)
    assert gp.fit(gp.GaussianProcess(gp.Matern32(2.0), t, yerr=0.3, mean=mean), y).process.mean == 1.0


def test_series_of_different_sizes():
    (t1, y1), (t2, y2) = truth(80), truth(60, 7)
    process, _, value = gp.fit(gp.GaussianProcess(gp.Matern32(1.0), [t1, t2], yerr=0.3), [y1, y2])
    assert value.shape == (2,)
    single = gp.GaussianProcess(process.kernel, t2, yerr=0.3).log_likelihood(y2)
    assert float(value[1]) == pytest.approx(float(single), rel=1e-12)


def test_nothing_to_train():
    t, y = truth(30)
    process = gp.GaussianProcess(gp.Matern32(torch.tensor(2.0), torch.tensor(1.0)), t, yerr=0.3)
    assert float(gp.fit(process, y).log_likelihood) == float(process.log_likelihood(y))


def test_errors():
    t, y = truth(30)
    process = gp.GaussianProcess(gp.Matern32(2.0), t, yerr=0.3)
    with pytest.raises(TypeError, match=r"laplex.gp.fit: `process` must be a laplex.gp.GaussianProcess, got Matern32"):
        gp.fit(process.kernel, y)
    with pytest.raises(ValueError, match=r"laplex.gp.fit: `restarts` must be at least 0, got -1"):
        gp.fit(process, y, restarts=-1)
    with pytest.raises(ValueError, match=r"laplex.gp.fit: `noise` must be positive and finite, got 0.0"):
        gp.fit(process, y, noise=0.0)
    with pytest.raises(ValueError, match=r"laplex.gp.fit: `y` must have the shape \(30,\) of the times"):
        gp.fit(process, y[1:])
    with pytest.raises(TypeError, match=r"laplex.gp.trainable: `kernel` must be a kernel of laplex.gp"):
        gp.trainable(3.0)
    with pytest.raises(TypeError, match=r"laplex.gp.fixed: `kernel` must be a kernel of laplex.gp"):
        gp.fixed(None)


def test_a_matrix_that_is_never_positive_definite_is_an_error():
    t = torch.tensor([1.0, 1.0, 2.0], dtype=torch.float64)
    with pytest.raises(torch.linalg.LinAlgError, match="raise `diag`"):
        gp.fit(gp.GaussianProcess(gp.Matern32(2.0), t, diag=0.0), torch.sin(t))


def test_a_kernel_that_leaves_its_domain_is_turned_back():
    """Celerite needs a c >= |b d|; a search that steps over this must not end there."""
    t, y = truth(200)
    process, _, value = gp.fit(gp.GaussianProcess(gp.Celerite(1.0, 0.9, 1.0, 1.0), t, yerr=0.3), y)
    assert math.isfinite(float(value))
    assert torch.linalg.eigvalsh(process.kernel(t) + 0.09 * torch.eye(200)).min() > 0


@pytest.mark.filterwarnings("ignore::laplex.PrecisionWarning")
@pytest.mark.parametrize("restarts", [0, 2])
@pytest.mark.parametrize("kernel", [gp.Exponential, gp.Matern32, gp.SHO], ids=lambda one: one.__name__)
@pytest.mark.parametrize(("by", "noise"), [(1e-10, 1e-60), (1e-10, 1e-140), (1.0, 1e-140)])
def test_a_search_that_gets_lost_is_turned_back(kernel, by, noise, restarts):
    """With hardly any noise gradients overflow, and parameters become NaN."""
    t = torch.linspace(0, 10, 20, dtype=torch.float64)
    y = by * (torch.sin(t) + 0.1 * torch.randn(20, generator=seeded(0), dtype=torch.float64))
    start = gp.GaussianProcess(kernel(1.0), t, diag=noise**2).log_likelihood(y)
    _, fitted_noise, value = gp.fit(
        gp.GaussianProcess(kernel(1.0), t, diag=0.0), y, noise=noise, restarts=restarts, generator=seeded(1)
    )
    assert math.isfinite(fitted_noise)
    assert value > start


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_fit_of_data_made_in_inference_mode(dtype):
    with torch.inference_mode():
        t = torch.linspace(0, 5, 30, dtype=dtype)
        y, mean = torch.sin(t), torch.zeros(30, dtype=dtype)
        process = gp.GaussianProcess(gp.Matern32(1.0), t, yerr=torch.full((30,), 0.1, dtype=dtype), mean=mean)
        inside = gp.fit(process, y, noise=0.1)
    assert torch.isfinite(gp.fit(process, y, noise=0.1).log_likelihood)
    assert torch.isfinite(inside.log_likelihood)


def test_a_mean_that_is_computed_is_not_trained_and_can_be_copied():
    t = torch.linspace(0, 5, 30).double()
    mean = 2 * torch.nn.Parameter(torch.ones(30).double())
    fitted = gp.fit(gp.GaussianProcess(gp.Matern32(1.0), t, yerr=0.1, mean=mean), torch.sin(t))
    assert not fitted.process.mean.requires_grad
    copy.deepcopy(fitted.process)

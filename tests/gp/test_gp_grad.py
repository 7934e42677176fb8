"""Derivatives of likelihoods and predictions, by name, against autograd through dense formulas; and transforms."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap

from laplex import gp
from processes import (
    FEW,
    KERNEL,
    as_tensor,
    assert_close,
    condition_number,
    density,
    every_kernel,
    named_kernels,
    observed,
    posterior,
    seeded,
    uniform,
    with_noise,
)

pytestmark = pytest.mark.filterwarnings("ignore::laplex.PrecisionWarning")


def inputs_for(case, n=30):
    """Everything that a likelihood depends on, by name. Times are distinct: kernels have kinks where they are equal."""
    t = uniform(seeded(1), n)
    diag, y = observed(t)
    return {"t": t, "diag": diag, "y": y, "mean": as_tensor(0.3), **case.tensors()}


def likelihood(case, t, diag, y, mean, **parameters):
    return gp.GaussianProcess(case.build(**parameters), t, diag=diag, mean=mean).log_likelihood(y)


def dense_likelihood(case, t, diag, y, mean, **parameters):
    return density(with_noise(case.build(**parameters), t, diag), y - mean)


NEW = as_tensor([-1.0, 0.7, 3.3, 5.2, 11.0])
WEIGHTS = as_tensor([0.3, -1.0, 0.7, 0.2, 1.1])


def prediction(case, t, diag, y, mean, **parameters):
    """A number that depends on means and variances at new times, and at those observed."""
    process = gp.GaussianProcess(case.build(**parameters), t, diag=diag, mean=mean)
    new, old = process.predict(y, NEW, return_var=True), process.predict(y, return_var=True)
    return weighed(new.mean, new.variance, old.mean, old.variance)


def dense_prediction(case, t, diag, y, mean, **parameters):
    kernel = case.build(**parameters)
    matrix = with_noise(kernel, t, diag)
    new, covariance = posterior(matrix, kernel(NEW, t), kernel(NEW), y - mean)
    old, other = posterior(matrix, kernel(t), kernel(t), y - mean)
    return weighed(new + mean, covariance.diagonal(), old + mean, other.diagonal())


def weighed(*parts):
    weights = torch.cat([WEIGHTS, WEIGHTS, 0.1 * torch.ones(1, dtype=torch.float64)])
    return (torch.cat(parts[:2]) * weights[:10]).sum() + 0.1 * (parts[2].sin().sum() + parts[3].sum())


PAIRS = {"likelihood": (likelihood, dense_likelihood), "prediction": (prediction, dense_prediction)}
every_pair = pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)


def named_gradients(function, case, inputs, create_graph=False):
    leaves = {name: value.clone().requires_grad_() for name, value in inputs.items()}
    total = function(case, **leaves)
    options = {"create_graph": create_graph, "materialize_grads": True}  # a constant does not depend on times
    return leaves, dict(zip(leaves, torch.autograd.grad(total, list(leaves.values()), **options)))


def tolerance_for(case, inputs):
    """The derivative of a solve has two solves, so the condition number counts twice."""
    matrix = with_noise(case.build(**case.tensors()), inputs["t"], inputs["diag"])
    return max(1e-11, 1e-14 * condition_number(matrix) ** 2)


# --- First order ------------------------------------------------------------------------------------------------------


@every_pair
@every_kernel()
def test_every_gradient_by_name(case, pair, path):
    inputs = inputs_for(case)
    (_, got), (_, want) = (named_gradients(function, case, inputs) for function in pair)
    for name in inputs:
        assert_close(got[name], want[name], tolerance_for(case, inputs), 1e-3)


def test_yerr(path):
    t = uniform(seeded(1), 20)
    diag, y = observed(t)
    yerr = diag.sqrt().requires_grad_()
    got = torch.autograd.grad(gp.GaussianProcess(gp.Matern32(2.0), t, yerr=yerr).log_likelihood(y), yerr)[0]
    want = torch.autograd.grad(density(with_noise(gp.Matern32(2.0), t, yerr.square()), y), yerr)[0]
    assert_close(got, want, 1e-11)


def test_parameters_of_a_mean(path):
    t = uniform(seeded(1), 20)
    diag, y = observed(t)
    line = torch.nn.Linear(1, 1).double()
    kernel = KERNEL["sum"].kernel()
    process = gp.GaussianProcess(kernel, t, diag=diag, mean=lambda x: line(x[..., None])[..., 0])
    want = density(with_noise(kernel, t, diag), y - line(t[:, None])[:, 0])
    for got, dense in zip(*(torch.autograd.grad(one, line.parameters()) for one in (process.log_likelihood(y), want))):
        assert_close(got, dense, 1e-11)


@named_kernels(*FEW)
def test_new_times(case, chain_path):
    """The derivative of a mean in its time is the slope."""
    inputs = inputs_for(case)
    got, want = (NEW.clone().requires_grad_() for _ in range(2))
    kernel, t, diag, y = case.kernel(), inputs["t"], inputs["diag"], inputs["y"]
    predicted = gp.GaussianProcess(kernel, t, diag=diag).predict(y, got, return_var=True)
    mean, covariance = posterior(with_noise(kernel, t, diag), kernel(want, t), kernel(want), y)
    for one, two in ((predicted.mean, mean), (predicted.variance, covariance.diagonal())):
        bars = [
            torch.autograd.grad((part * WEIGHTS).sum(), x, retain_graph=True)[0]
            for part, x in ((one, got), (two, want))
        ]
        assert_close(*bars, 1e-10, 1e-2)


@named_kernels(*FEW)
def test_solves_samples_and_covariances(case, chain_path):
    inputs = inputs_for(case, 12)
    y = inputs["y"].clone().requires_grad_()
    t, diag = (inputs[name].clone().requires_grad_() for name in ("t", "diag"))
    kernel = case.kernel()
    process, matrix = gp.GaussianProcess(kernel, t, diag=diag), with_noise(kernel, t, diag)
    order = torch.argsort(t.detach())
    factor = torch.linalg.cholesky(matrix[order][:, order])
    covariance = posterior(matrix, kernel(NEW, t), kernel(NEW), y)[1]
    given = process.condition(y)
    for got, want in (
        (process.apply_inverse(y).cos().sum(), torch.linalg.solve(matrix, y).cos().sum()),
        (process.dot_tril(y).cos().sum(), (factor @ y[order]).cos().sum()),
        (given.covariance(NEW).cos().sum(), covariance.cos().sum()),
        (process.leave_one_out(y).variance.sum(), (1 / torch.linalg.inv(matrix).diagonal()).sum()),
    ):
        options = {"retain_graph": True, "materialize_grads": True}  # covariances do not depend on y
        bars = (torch.autograd.grad(one, (t, diag, y), **options) for one in (got, want))
        for one, two in zip(*bars, strict=True):
            assert_close(one, two, tolerance_for(case, inputs), 1e-2)


def test_batches_and_broadcast_parameters(path):
    t = uniform(seeded(1), 3, 14)
    diag, y = observed(t)
    gradients = []
    for function in (lambda *x: gp.GaussianProcess(x[0], x[1], diag=x[2]).log_likelihood(x[3]),
                     lambda *x: density(with_noise(x[0], x[1], x[2]), x[3])):  # fmt: skip
        scale, sigma = as_tensor([0.5, 1.0, 2.0]).requires_grad_(), as_tensor(1.3).requires_grad_()
        leaves = [scale, sigma, *(part.clone().requires_grad_() for part in (t, diag, y))]
        total = (function(gp.Matern52(*leaves[:2]), *leaves[2:]) * as_tensor([1.0, -2.0, 0.5])).sum()
        gradients.append(torch.autograd.grad(total, leaves))
    for got, want in zip(*gradients, strict=True):
        assert_close(got, want, 1e-11)


def test_series_of_different_sizes(path):
    t = [uniform(seeded(size), size) for size in (5, 1, 12)]
    diag, y = zip(*(observed(one) for one in t), strict=True)
    leaves = [part.clone().requires_grad_() for part in (*t, *diag, *y)]
    scale = as_tensor(1.3).requires_grad_()
    process = gp.GaussianProcess(gp.Matern52(scale) + gp.SHO(2.0, 3.0), leaves[:3], diag=leaves[3:6])
    got = torch.autograd.grad(process.log_likelihood(leaves[6:]).sum(), [scale, *leaves])
    kernel = gp.Matern52(scale) + gp.SHO(2.0, 3.0)
    total = sum(density(with_noise(kernel, leaves[i], leaves[3 + i]), leaves[6 + i]) for i in range(3))
    want = torch.autograd.grad(total, [scale, *leaves])
    for one, two in zip(got, want, strict=True):
        assert_close(one, two, 1e-11, 1e-3)


def test_values_and_slopes_of_bands(path):
    t = uniform(seeded(1), 15)
    diag, y = observed(t)
    band = torch.arange(15) % 2

    def value_of(value, slope, scale, times):
        kernel = gp.Bands(gp.Matern52(scale), value, slope)
        return gp.GaussianProcess(kernel, times, diag=diag, band=band).log_likelihood(y)

    leaves = [as_tensor(one).requires_grad_() for one in ([1.0, 0.4], [0.2, -0.7], 1.4)]
    assert torch.autograd.gradcheck(value_of, (*leaves, t.requires_grad_()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("quality", [0.5, 0.5 - 1e-9, 0.5 + 1e-9, 0.5 - 1e-4, 0.5 + 1e-4])
def test_quality_is_trained_through_critical_damping(quality, path):
    """The gradient in the quality at 1/2 is between those on both sides, and the second derivative is one, too."""
    t = uniform(seeded(1), 20)
    diag, y = observed(t)

    def value_of(q):
        return gp.GaussianProcess(gp.SHO(3.0, q), t, diag=diag).log_likelihood(y)

    q = as_tensor(quality).requires_grad_()
    (bar,) = torch.autograd.grad(value_of(q), q, create_graph=True)
    step = 1e-4
    around = [value_of(as_tensor(quality + i * step)) for i in (-2, -1, 1, 2)]
    slope = (around[0] - 8 * around[1] + 8 * around[2] - around[3]) / (12 * step)
    assert_close(bar.detach(), slope, 1e-8)
    (second,) = torch.autograd.grad(bar, q)
    central = value_of(as_tensor(quality))
    curve = (-around[0] + 16 * around[1] - 30 * central + 16 * around[2] - around[3]) / (12 * step**2)
    assert_close(second, curve, 1e-4)


@pytest.mark.parametrize("times", ["equal", "far"])
@named_kernels(*FEW[:-1], "sho_critical", "sho_overdamped", "celerite")
def test_gradients_are_finite_where_times_are_equal_or_far_apart(case, times, path):
    t = as_tensor([1.0, 1.0, 1.0, 2.0, 2.0] if times == "equal" else [0.0, 1.0, 1e9, 1e15, 1e15 + 2])
    inputs = {
        "t": t,
        "diag": torch.full_like(t, 0.1),
        "y": torch.cos(torch.arange(5.0).double()),
        "mean": as_tensor(0.3),
    }
    for function in (likelihood, prediction):
        leaves, bars = named_gradients(function, case, {**inputs, **case.tensors()}, create_graph=True)
        assert all(bool(torch.isfinite(bar).all()) for bar in bars.values())
        second = torch.autograd.grad(sum(bar.sum() for bar in bars.values()), list(leaves.values()))
        assert all(bool(torch.isfinite(bar).all()) for bar in second)


# --- Second order -----------------------------------------------------------------------------------------------------


@every_pair
@every_kernel()
def test_second_derivatives_along_a_direction(case, pair):
    """Hessian times a vector, in everything at once."""
    inputs = inputs_for(case, 12)
    generator = seeded(5)
    direction = {
        name: torch.randn(value.shape, generator=generator, dtype=torch.float64) for name, value in inputs.items()
    }
    results = []
    for function in pair:
        leaves, bars = named_gradients(function, case, inputs, create_graph=True)
        total = sum((bars[name] * direction[name]).sum() for name in inputs)
        results.append(dict(zip(leaves, torch.autograd.grad(total, list(leaves.values()), materialize_grads=True))))
    for name in inputs:
        tolerance = 10 * tolerance_for(case, inputs)
        assert_close(results[0][name], results[1][name], tolerance, 1e-2)


@named_kernels("exponential", "matern32", "sho", "sum")
def test_third_derivatives_in_a_parameter(case):
    inputs = inputs_for(case, 8)
    results = []
    for function in PAIRS["likelihood"]:
        leaf = case.tensors()["sigma"].requires_grad_()
        value = function(case, **(inputs | {"sigma": leaf}))
        for _ in range(3):
            (value,) = torch.autograd.grad(value, leaf, create_graph=True)
        results.append(value.detach())
    assert_close(*results, 1e-9)


def test_gradgradcheck_of_a_small_process(path):
    t = as_tensor([0.3, 1.1, 1.9, 3.0, 3.2])

    def value_of(t, diag, y, scale, quality):
        return gp.GaussianProcess(gp.Matern32(scale) + gp.SHO(3.0, quality), t, diag=diag).log_likelihood(y)

    leaves = [part.requires_grad_() for part in (t, torch.full_like(t, 0.2), t.sin(), as_tensor(1.3), as_tensor(0.6))]
    assert torch.autograd.gradcheck(value_of, leaves)
    assert torch.autograd.gradgradcheck(value_of, leaves)


# --- Transforms -------------------------------------------------------------------------------------------------------


@every_pair
@named_kernels(*FEW, "state_space", "many_states")
def test_torch_func_grad_and_forward_mode(case, pair):
    inputs = inputs_for(case, 14)
    names = list(inputs)
    tangents = {name: torch.cos(value) for name, value in inputs.items()}
    tolerance = 10 * tolerance_for(case, inputs)

    def as_function(function):
        return lambda *values: function(case, **dict(zip(names, values, strict=True)))

    got, want = (grad(as_function(function), tuple(range(len(names))))(*inputs.values()) for function in pair)
    for one, two in zip(got, want, strict=True):
        assert_close(one, two, tolerance, 1e-2)
    got, want = (jvp(as_function(f), tuple(inputs.values()), tuple(tangents.values()))[1] for f in pair)
    assert_close(got, want, tolerance, 1e-2)


def test_forward_mode_with_dual_numbers():
    case = KERNEL["sum"]
    inputs = inputs_for(case, 14)
    tangents = []
    for function in PAIRS["likelihood"]:
        with forward_ad.dual_level():
            scale = forward_ad.make_dual(case.tensors()["scale"], as_tensor(1.0))
            tangents.append(forward_ad.unpack_dual(function(case, **(inputs | {"scale": scale}))).tangent)
    assert_close(*tangents, 1e-11)


@named_kernels("matern52", "sho", "sum", "carma_3_1")
def test_hessians(case):
    inputs = inputs_for(case, 10)
    name = next(iter(case.tensors()))

    def as_function(function):
        return lambda value: function(case, **(inputs | {name: value}))

    got, want = (hessian(as_function(function))(inputs[name]) for function in PAIRS["likelihood"])
    assert_close(got, want, 1e-9)
    got, want = (hessian(lambda t, f=f: f(case, **(inputs | {"t": t})))(inputs["t"]) for f in PAIRS["likelihood"])
    assert_close(got, want, 1e-9)


@named_kernels("matern52", "sho", "sum", "carma_3_1")
def test_hessians_by_nested_forward_mode(case):
    inputs = inputs_for(case, 10)
    name, likelihood = next(iter(case.tensors())), PAIRS["likelihood"][0]

    def of_parameter(value):
        return likelihood(case, **(inputs | {name: value}))

    want = hessian(of_parameter)(inputs[name])
    for outer in (jacfwd, jacrev):
        assert_close(outer(jacfwd(of_parameter))(inputs[name]), want, 1e-9)


@pytest.mark.parametrize("jacobian", [jacfwd, jacrev])
def test_jacobians_of_predictions(jacobian):
    t = uniform(seeded(1), 10)
    diag, y = observed(t)
    kernel = KERNEL["sum"].kernel()
    got = jacobian(lambda y: gp.GaussianProcess(kernel, t, diag=diag).predict(y, NEW))(y)
    want = kernel(NEW, t) @ torch.linalg.inv(with_noise(kernel, t, diag))
    assert_close(got, want, 1e-11)


def test_vmap_over_everything():
    t = uniform(seeded(1), 4, 12)
    diag, y = observed(t)
    scale = as_tensor([0.5, 1.0, 2.0, 4.0])

    def value_of(t, diag, y, scale):
        return gp.GaussianProcess(gp.Matern32(scale) + gp.SHO(2.0, 3.0), t, diag=diag).log_likelihood(y)

    want = value_of(t, diag, y, scale)
    assert_close(vmap(value_of)(t, diag, y, scale), want, 1e-11)
    alone = torch.stack([value_of(t[0], diag[0], y[0], one) for one in scale])
    assert_close(vmap(value_of, (None, None, None, 0))(t[0], diag[0], y[0], scale), alone, 1e-11)
    gradients = vmap(grad(value_of, (0, 3)))(t, diag, y, scale)
    leaves = t.clone().requires_grad_(), scale.clone().requires_grad_()
    for got, one in zip(gradients, torch.autograd.grad(value_of(leaves[0], diag, y, leaves[1]).sum(), leaves)):
        assert_close(got, one, 1e-10)


@pytest.mark.parametrize("mapped", ["feedback", "noise", "readout"])
def test_vmap_over_states(mapped):
    """What the covariances say about the slope cannot be read there."""
    feedback, noise = as_tensor([[0.0, 1.0], [-4.0, -0.5]]), as_tensor([[0.0, 0.0], [0.0, 1.0]])
    parts = {"feedback": feedback, "noise": noise, "readout": as_tensor([1.0, 0.0])}
    t = uniform(seeded(1), 12)
    diag, y = observed(t)

    def value_of(part):
        return gp.GaussianProcess(gp.StateSpace(**(parts | {mapped: part})), t, diag=diag).log_likelihood(y)

    several = torch.stack([parts[mapped], 2 * parts[mapped]])
    want = torch.stack([value_of(part) for part in several])
    assert_close(vmap(value_of)(several), want, 1e-11)


def test_vmap_over_observations_and_predictions():
    t = uniform(seeded(1), 12)
    diag, _ = observed(t)
    y = uniform(seeded(2), 5, 12)
    process = gp.GaussianProcess(gp.Matern32(2.0), t, diag=diag)
    got = vmap(lambda y: process.predict(y, NEW))(y)
    assert_close(got, torch.stack([process.predict(one, NEW) for one in y]), 1e-11)


def test_functional_call_of_a_kernel():
    kernel = gp.Matern32(torch.nn.Parameter(as_tensor(1.5)), torch.nn.Parameter(as_tensor(1.0)))
    t = uniform(seeded(1), 12)
    diag, y = observed(t)

    class Likelihood(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel = kernel

        def forward(self, y):
            return gp.GaussianProcess(self.kernel, t, diag=diag).log_likelihood(y)

    module = Likelihood()
    parameters = {name: value.detach() for name, value in module.named_parameters()}
    got = grad(lambda values: functional_call(module, values, (y,)))(parameters)
    want = torch.autograd.grad(module(y), list(kernel.parameters()))
    for one, two in zip(got.values(), want, strict=True):
        assert_close(one, two, 1e-11)


# --- torch.compile ----------------------------------------------------------------------------------------------------

COMPILED = {
    "blocks": (lambda scale, sigma: gp.Matern32(scale, sigma), "aot_eager"),
    "sum": (lambda scale, sigma: gp.Rotation(scale, 1.0, 0.5, 0.3, sigma) + gp.SHO(3.0, scale), "eager"),
    "chain": (
        lambda scale, sigma: (
            gp.CARMA(torch.stack([scale, 1 + sigma]), sigma[None])
            + gp.Scale(gp.Matern32(scale) * gp.Cosine(2.0), sigma)  # Dynamo has no tensor * module
            + gp.Linear(sigma, scale)
        ),
        "eager",
    ),
}


@pytest.mark.usefixtures("unpoisoned")
@pytest.mark.parametrize(("build", "backend"), COMPILED.values(), ids=COMPILED)
def test_compiled_likelihoods(build, backend):
    t = uniform(seeded(1), 3)  # every doubling makes the graph longer
    diag, y = observed(t)

    def value_of(scale, sigma, t, y):
        return gp.GaussianProcess(build(scale, sigma), t, diag=diag).log_likelihood(y)

    torch._dynamo.reset()
    compiled = torch.compile(value_of, backend=backend, fullgraph=True)
    leaves = [as_tensor(1.4).requires_grad_(), as_tensor(0.8).requires_grad_(), t.clone().requires_grad_(), y]
    got, want = compiled(*leaves), value_of(*leaves)
    assert_close(got.detach(), want.detach(), 1e-11)
    for one, two in zip(*(torch.autograd.grad(value, leaves[:3]) for value in (got, want)), strict=True):
        assert_close(one, two, 1e-10)


@pytest.mark.usefixtures("unpoisoned")
def test_compiled_predictions():
    t = uniform(seeded(1), 3)
    diag, y = observed(t)

    def predicted(scale, t, y):
        return gp.GaussianProcess(gp.Matern32(scale), t, diag=diag).predict(y, NEW, return_var=True)

    torch._dynamo.reset()
    got = torch.compile(predicted, backend="eager", fullgraph=True)(as_tensor(1.4), t, y)
    for one, two in zip(got, predicted(as_tensor(1.4), t, y), strict=True):
        assert_close(one, two, 1e-11)


def test_the_slope_of_a_rough_process_is_refused_in_every_mode():
    t, band = torch.linspace(0, 3, 8).double(), torch.arange(8) % 2
    noise, readout = torch.eye(2).double(), as_tensor([1.0, 0.0])

    def rough(scale):
        feedback = scale * as_tensor([[0.0, 1.0], [-4.0, -0.5]])
        kernel = gp.Bands(gp.StateSpace(feedback, noise, readout), readout, slope=readout.flip(0))
        return gp.GaussianProcess(kernel, t, diag=0.1, band=band).log_likelihood(t.sin())

    one = as_tensor(1.0)
    for call in (rough, torch.func.grad(rough), torch.compile(rough, backend="eager")):
        with pytest.raises(ValueError, match="a process with this kernel is not differentiable"):
            call(one)
    with pytest.raises(ValueError, match=r"the slope of a StateSpace is not known inside .* torch.func.vmap"):
        vmap(rough)(one[None])

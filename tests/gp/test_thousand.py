"""A thousand points: every kernel and derivative against dense matrices, and ill-conditioned cases in 60 digits."""

import functools

import mpmath
import pytest
import torch

from laplex import gp
from laplex.gp import _systems
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
    seeded,
    size_of,
    uniform,
    with_noise,
)

pytestmark = pytest.mark.filterwarnings("ignore::laplex.PrecisionWarning")
N = 1000
CLOSE = 1e-10  # of a result; more only as far as the condition number allows
ROUNDING = 2.0**-52


def by_eigenvalues(component, distance):
    """h^T exp(F D) q of distances (n, n); a matrix exponential for each of n^2 distances would take minutes."""
    values, vectors = torch.linalg.eig(component.dynamics)
    left = component.p.to(vectors.dtype) @ vectors
    right = torch.linalg.solve(vectors, component.q.to(vectors.dtype))
    return sum(left[i] * right[i] * (values[i] * distance).exp() for i in range(len(values))).real


def inputs_for(case):
    """Everything that a likelihood depends on, by name."""
    t = uniform(seeded(1), N)
    diag, y = observed(t)
    return {"t": t, "diag": diag, "y": y, "mean": as_tensor(0.3), **case.tensors()}


def likelihood(case, t, diag, y, mean, **parameters):
    return gp.GaussianProcess(case.build(**parameters), t, diag=diag, mean=mean).log_likelihood(y)


def dense_likelihood(case, t, diag, y, mean, **parameters):
    return density(with_noise(case.build(**parameters), t, diag), y - mean)


def value_and_gradients(function, case, create_graph=False):
    leaves = {name: value.clone().requires_grad_() for name, value in inputs_for(case).items()}
    value = function(case, **leaves)
    options = {"create_graph": create_graph, "materialize_grads": True}
    bars = torch.autograd.grad(value, list(leaves.values()), **options)
    return value.detach(), dict(zip(leaves, bars)), leaves


@functools.cache
def dense_results(name):
    """The value, its gradients, the condition number and the size; three ways are compared with them."""
    case = KERNEL[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_systems, "_feedback_kernel", by_eigenvalues)
        value, bars, leaves = value_and_gradients(dense_likelihood, case)
        matrix = with_noise(case.build(**case.tensors()), leaves["t"].detach(), leaves["diag"].detach())
    return value, bars, condition_number(matrix), size_of(matrix, leaves["y"].detach())


@every_kernel()
def test_every_kernel_and_every_gradient_by_name(case, path):
    value, bars, _ = value_and_gradients(likelihood, case)
    want, dense, condition, size = dense_results(case.name)
    allowed = max(CLOSE, ROUNDING * condition)
    assert_close(value, want, allowed, size)
    for name, bar in bars.items():
        assert_close(bar, dense[name], allowed, size_of_terms(name, case, dense))


def size_of_terms(name, case, dense):
    """A gradient is a sum over points that may cancel: of terms like 1 / parameter, and of residuals times slopes."""
    if name in case.parameters:
        return N / float(inputs_for(case)[name].abs().max())
    return float(dense["y"].abs().max()) if name == "t" else 1e-3


@named_kernels(*FEW)
def test_second_derivatives(case):
    """The Hessian times a vector, for all inputs at once."""
    directions = {name: torch.randn(value.shape, generator=seeded(7), dtype=torch.float64)
                  for name, value in inputs_for(case).items()}  # fmt: skip
    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_systems, "_feedback_kernel", by_eigenvalues)
        for function in (likelihood, dense_likelihood):
            _, bars, leaves = value_and_gradients(function, case, create_graph=True)
            total = sum((bars[name] * directions[name]).sum() for name in leaves)
            results.append(torch.autograd.grad(total, list(leaves.values()), materialize_grads=True))
    for got, want in zip(*results):
        assert_close(got, want, 1e-9, 1e-2)


# --- In 60 digits -----------------------------------------------------------------------------------------------------


def exact_filter(transition, covariance, t, diag, y):
    """The log density by the textbook's Kalman filter, with numbers of mpmath: x' = T x + N(0, P - T P T^T)."""
    size = covariance.rows
    mean, state, total, before = mpmath.zeros(size, 1), covariance, mpmath.mpf(0), None
    for time, noise, value in sorted(zip(t, diag, y)):
        if before is not None:
            step = transition(time - before)
            mean, state = step * mean, step * (state - covariance) * step.T + covariance
        before, d, z = time, state[0, 0] + noise, value - mean[0]
        gain = state[:, 0] / d
        mean, state = mean + gain * z, state - gain * state[0, :]
        total += z * z / d + mpmath.log(d) + mpmath.log(2 * mpmath.pi)
    return -total / 2


def exact_exponential(t, diag, y, scale, sigma):
    return exact_filter(lambda D: mpmath.matrix([[mpmath.exp(-D / scale)]]), mpmath.matrix([[sigma**2]]), t, diag, y)


def exact_matern32(t, diag, y, scale, sigma):
    a = mpmath.sqrt(3) / scale

    def transition(D):
        return mpmath.exp(-a * D) * mpmath.matrix([[1 + a * D, D], [-a * a * D, 1 - a * D]])

    return exact_filter(transition, sigma**2 * mpmath.matrix([[1, 0], [0, a * a]]), t, diag, y)


ILL = {  # a kernel, its exact likelihood, parameters, and the variance of the noise: condition numbers up to 1e14
    "exponential, little noise": (gp.Exponential, exact_exponential, {"scale": 2.0, "sigma": 1.5}, 1e-12),
    "exponential, long scale": (gp.Exponential, exact_exponential, {"scale": 1e7, "sigma": 1.5}, 1e-6),
    "exponential, much noise": (gp.Exponential, exact_exponential, {"scale": 0.5, "sigma": 1e-6}, 1.0),
    "matern32, little noise": (gp.Matern32, exact_matern32, {"scale": 2.0, "sigma": 1.5}, 1e-9),
    "matern32, long scale": (gp.Matern32, exact_matern32, {"scale": 300.0, "sigma": 1.5}, 1e-6),
}


def ill_inputs(kernel, parameters, noise):
    """Some times are nearly equal, and observations are a draw of the process."""
    t = uniform(seeded(4), N)
    t[500:510] = t[490:500] + 1e-9
    diag = noise * observed(t)[0]
    y = gp.GaussianProcess(kernel(**parameters), t, diag=diag).sample(generator=seeded(5))
    return {"t": t, "diag": diag, "y": y}


@pytest.mark.parametrize("name", ILL)
def test_ill_conditioned_likelihoods_in_sixty_digits(name):
    """One state loses nothing; two lose what a Cholesky factorisation loses, about eps times the sum of k(0) / d."""
    kernel, exact, parameters, noise = ILL[name]
    inputs = ill_inputs(kernel, parameters, noise)
    process = gp.GaussianProcess(kernel(**parameters), inputs["t"], diag=inputs["diag"])
    lost = ROUNDING * float(process.engine.likelihood(inputs["y"]).loss[0])
    with mpmath.workdps(60):
        numbers = [list(map(mpmath.mpf, value.tolist())) for value in inputs.values()]
        want = float(exact(*numbers, **{key: mpmath.mpf(one) for key, one in parameters.items()}))
    assert abs(float(process.log_likelihood(inputs["y"])) - want) <= max(1e-12 * N, 1e-12 * abs(want), lost)


@pytest.mark.parametrize("name", [name for name in ILL if name.startswith("exponential")])
def test_ill_conditioned_gradients_in_sixty_digits(name):
    """Of parameters and of single points, by differences of the exact value."""
    kernel, exact, parameters, noise = ILL[name]
    inputs = ill_inputs(kernel, parameters, noise) | {key: as_tensor(one) for key, one in parameters.items()}
    leaves = {key: value.clone().requires_grad_() for key, value in inputs.items()}
    built = kernel(**{key: leaves[key] for key in parameters})
    value = gp.GaussianProcess(built, leaves["t"], diag=leaves["diag"]).log_likelihood(leaves["y"])
    bars = dict(zip(leaves, torch.autograd.grad(value, list(leaves.values()))))
    with mpmath.workdps(60):
        for key in inputs:
            for place in [()] if key in parameters else [(3,), (505,)]:
                want = slope(exact, inputs, key, place)
                error = abs(float(bars[key][place]) - want)
                assert error <= CLOSE * max(abs(want), 1e-3 * float(bars[key].abs().max())), (key, place)


def slope(exact, inputs, key, place):
    """The derivative of the exact value in one number."""
    step, values = mpmath.mpf(10) ** -25, []
    for sign in (1, -1):
        numbers = {name: lifted(value.tolist()) for name, value in inputs.items()}
        if place:
            numbers[key][place[0]] += sign * step * abs(numbers[key][place[0]])
        else:
            numbers[key] += sign * step * abs(numbers[key])
        values.append(exact(*(numbers[name] for name in ("t", "diag", "y")), **{
            name: numbers[name] for name in numbers if name not in ("t", "diag", "y")}))  # fmt: skip
    width = 2 * step * abs(mpmath.mpf(float(inputs[key][place])))
    return float((values[0] - values[1]) / width)


def lifted(value):
    return list(map(mpmath.mpf, value)) if isinstance(value, list) else mpmath.mpf(value)

"""The likelihood in C++: memory of all kinds, halves that meet in the middle, segments; numbers with derivatives."""

import contextlib

import pytest
import torch
from torch.linalg import LinAlgError
from torch.utils.flop_counter import FlopCounterMode

from laplex import gp
from laplex._states import core_likelihood
from laplex._states.numbers import Number
from processes import (
    KERNELS,
    allowance,
    as_tensor,
    assert_close,
    density,
    named_kernels,
    observed,
    seeded,
    uniform,
    with_noise,
)


def gradients(process, y, *leaves):
    return torch.autograd.grad(process.log_likelihood(y).sum(), leaves)


# --- One state: two halves, and segments ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [255, 256, 257, 320, 641])
def test_halves_meet_in_the_middle(n):
    """From 256 points on, a series is walked from both ends."""
    t = uniform(seeded(n), n).requires_grad_()
    diag, y = observed(t.detach())
    diag.requires_grad_(), y.requires_grad_()
    kernel = gp.Exponential(1.7, 0.8)
    value = gp.GaussianProcess(kernel, t, diag=diag).log_likelihood(y)
    want = density(with_noise(kernel, t, diag), y)
    assert_close(value, want, 1e-12, n)
    for got, dense in zip(*(torch.autograd.grad(one, (t, diag, y)) for one in (value, want))):
        assert_close(got, dense, 1e-11)


MIDDLES = {
    "huge": lambda t: torch.cat([t[:200], t[200:] + 1e9]),
    "none": lambda t: torch.cat([t[:199], t[199:200], t[199:200], t[201:]]),
    "tiny": lambda t: torch.cat([t[:200], t[199:200] + 1e-13, t[201:]]),
}


@pytest.mark.parametrize("noise", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize("gap", MIDDLES)
def test_the_gap_in_the_middle(gap, noise):
    """The last gap of neither half, of all sizes; with noise of all sizes."""
    t = MIDDLES[gap](uniform(seeded(2), 400).sort().values)
    diag = noise * observed(t)[0]
    kernel = gp.Exponential(1.7, 0.8)
    y = gp.GaussianProcess(kernel, t, diag=diag).sample(generator=seeded(3))
    parts = [part.clone().requires_grad_() for part in (diag, y)]
    value = gp.GaussianProcess(kernel, t, diag=parts[0]).log_likelihood(parts[1])
    matrix = with_noise(kernel, t, parts[0])
    want, allowed = density(matrix, parts[1]), allowance(matrix)
    assert_close(value, want, allowed, 400.0)
    for got, dense in zip(*(torch.autograd.grad(one, parts) for one in (value, want))):
        assert_close(got, dense, allowed)


def test_equal_times_without_noise_in_the_middle_are_an_error():
    t = MIDDLES["none"](torch.arange(400, dtype=torch.float64))
    with pytest.raises(LinAlgError, match="at time 199 of series 0 the variance"):
        gp.GaussianProcess(gp.Exponential(1.0), t, diag=0.0).log_likelihood(torch.sin(t))


@pytest.mark.parametrize("in_order", [True, False])
def test_long_series_are_walked_again(in_order, monkeypatch):
    """The pullback computes all but the last segment of each half anew."""
    n = 300_000
    t = 1e4 * torch.rand(n, generator=seeded(1), dtype=torch.float64)
    t = (t.sort().values if in_order else t).requires_grad_()
    diag, y = observed(t.detach())
    scale = as_tensor(1.7).requires_grad_()
    results = []
    for compiled in (core_likelihood.core, None):
        monkeypatch.setattr(core_likelihood, "core", compiled)
        process = gp.GaussianProcess(gp.Exponential(scale, 0.8), t, diag=diag.requires_grad_())
        results.append(gradients(process, y, t, diag, scale))
    for got, want in zip(*results):
        assert_close(got, want, 1e-9)


def test_threads_change_no_bit_of_a_single_series():
    t = uniform(seeded(6), 50_000).requires_grad_()
    diag, y = observed(t.detach())
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        process = gp.GaussianProcess(gp.Exponential(1.7), t, diag=diag)
        results.append((process.log_likelihood(y), *gradients(process, y, t)))
    torch.set_num_threads(1)
    assert all(torch.equal(one, two) for one, two in zip(*results))


@named_kernels("exponential", "matern32")
def test_with_and_without_gradients_the_same_bits(case):
    t = uniform(seeded(6), 5000)
    diag, y = observed(t)
    process = gp.GaussianProcess(case.kernel(), t, diag=diag)
    assert process.log_likelihood(y) == process.log_likelihood(y.clone().requires_grad_()).detach()


# --- Memory -----------------------------------------------------------------------------------------------------------


DIAGS = {
    "number": (lambda d: as_tensor(0.3), ()),
    "per series": (lambda d: d[..., :1].clone(), (2, 3, 1)),
    "per time": (lambda d: d[0, 0].clone(), (17,)),
    "strided": (lambda d: torch.stack([d, d], -1)[..., 0], (2, 3, 17)),
    "transposed": (lambda d: d.transpose(0, 1).contiguous().transpose(0, 1), (2, 3, 17)),
}


@pytest.mark.parametrize("name", DIAGS)
@named_kernels("exponential", "sum")
def test_noise_in_memory_of_all_kinds(case, name):
    t = uniform(seeded(6), 2, 3, 17)
    full, y = observed(t)
    make, shape = DIAGS[name]
    diag = make(full).requires_grad_()
    assert diag.shape == shape
    kernel = case.kernel()
    got = torch.autograd.grad(gp.GaussianProcess(kernel, t, diag=diag).log_likelihood(y).sum(), diag)[0]
    want = torch.autograd.grad(density(with_noise(kernel, t, diag.expand(t.shape)), y).sum(), diag)[0]
    assert_close(got, want, 1e-10)


def test_backward_twice(path):
    t = uniform(seeded(6), 300).requires_grad_()
    diag, y = observed(t.detach())
    value = gp.GaussianProcess(gp.Exponential(1.7), t, diag=diag).log_likelihood(y)
    one, two = (torch.autograd.grad(value, t, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(one, two)


def test_one_tensor_in_several_places(path):
    """Its gradients add up, also those of second order."""
    x = as_tensor(1.3).requires_grad_()
    t = uniform(seeded(6), 30)
    diag, y = observed(t)
    kernel = gp.Matern32(x, x) + x * gp.Exponential(x)
    value, want = gp.GaussianProcess(kernel, t, diag=diag).log_likelihood(y), density(with_noise(kernel, t, diag), y)
    for _ in range(2):
        value, want = (torch.autograd.grad(one, x, create_graph=True)[0] for one in (value, want))
        assert_close(value, want, 1e-10)


def test_a_parameter_that_has_become_zero_is_an_error():
    """That of the matrix, and not one of a division."""
    scale = as_tensor(1.3)
    t = uniform(seeded(6), 30)
    process = gp.GaussianProcess(gp.Matern32(scale), t, diag=0.1)
    scale.zero_()
    with pytest.raises(LinAlgError, match="check the kernel's parameters"):
        process.log_likelihood(torch.sin(t))


# --- Numbers ----------------------------------------------------------------------------------------------------------

FORMULAS = {
    "sums": lambda a, b: (a + b) - (2 - a) + (b - 3) + 1,
    "products": lambda a, b: a * b * 2 + 3 * (-a),
    "quotients": lambda a, b: a / b + 2 / a + b / 4,
    "powers": lambda a, b: a**2 + (4 * b**2 - 1) ** 0.5 + b**-1,
}


@pytest.mark.parametrize("name", FORMULAS)
def test_arithmetic_carries_derivatives(name):
    a, b = (as_tensor(value).requires_grad_() for value in (1.7, 0.9))
    want = FORMULAS[name](a, b)
    got = FORMULAS[name](Number(1.7, {0: 1.0}), Number(0.9, {1: 1.0}))
    assert got.value == pytest.approx(float(want.detach()), rel=1e-15)
    for i, slope in enumerate(torch.autograd.grad(want, (a, b))):
        assert got.slopes[i] == pytest.approx(float(slope), rel=1e-14)


@pytest.mark.parametrize("operation", ["+", "-", "*", "/"])
def test_arithmetic_with_tensors_is_refused(operation):
    """A kernel with numbers and tensors is computed with tensors alone."""
    one, other = Number(1.0, {}), as_tensor(2.0)
    for _ in range(2):
        with pytest.raises(TypeError):
            eval(f"one {operation} other", {"one": one, "other": other})
        one, other = other, one


@pytest.mark.parametrize("case", KERNELS, ids=[case.name for case in KERNELS])
def test_which_kernels_the_core_takes(case):
    """All sums of blocks of at most 32 states, with tensors as with numbers."""
    t = uniform(seeded(6), 30)
    for kernel in (case.kernel(), case.build(**case.tensors())):
        numbers = gp.GaussianProcess(kernel, t, diag=0.1).engine.kernel_numbers()
        chained = ("linear", "trend", "fading", "carma", "state_space", "many", "product")
        expected = not any(word in case.name for word in chained)
        assert (numbers is not None) == expected


@pytest.mark.parametrize("start", [0.05, 0.3])
def test_derivatives_have_the_blocks_of_the_value(start):
    """Where calls are watched nobody looks at a quality, which chooses the blocks of an oscillator. (Observations that
    are lazily negated go the way of a GPU.)"""
    t, y = torch.rand(2, 9, dtype=torch.float64).unbind()
    derivatives = []
    for watched, sign in ((True, -1), (False, 1)):
        quality = as_tensor(start).requires_grad_()
        observations = torch._neg_view(-y) if sign < 0 else y
        value = gp.GaussianProcess(gp.SHO(3.0, quality), t, diag=0.1).log_likelihood(observations)
        with FlopCounterMode(display=False) if watched else contextlib.nullcontext():
            (first,) = torch.autograd.grad(value, quality, create_graph=True)
            derivatives.append((first.detach(), *torch.autograd.grad(first, quality)))
    torch.testing.assert_close(*derivatives)

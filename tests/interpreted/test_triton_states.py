"""Gaussian processes with few states on the GPU, under Triton's interpreter, against the C++ core: chunks are tiny."""

from types import SimpleNamespace

import pytest
import torch

from laplex import gp
from laplex._states import arithmetic, chain, core_likelihood, cpp, likelihood
from laplex._states.blocks import stacked
from laplex._triton import replay, tuning
from laplex._triton.launch import Launch, state
from laplex._triton.recording import recorded
from laplex._triton.repetition import replay_of
from laplex._triton.states import carry, launch
from laplex.gp import _engine, _kernel

pytestmark = pytest.mark.filterwarnings("ignore::laplex.PrecisionWarning")
SMALL = {"STATE_CHUNK": 4, "STATE_LANES": (4, 1, 2), "STATE_GROUP": 2, "STATE_STAGED": 8, "STATE_SUMMED": 4}
KERNELS = {
    "exponential": lambda one: gp.Exponential(1.4 * one, 1.2 * one),
    "matern32": lambda one: gp.Matern32(2.0 * one, 1.2 * one),
    "matern52": lambda one: gp.Matern52(2.0 * one, 1.2 * one),
    "underdamped": lambda one: gp.SHO(3.0 * one, 4.0 * one),
    "critical": lambda one: gp.SHO(3.0 * one, 0.5 * one),
    "overdamped": lambda one: gp.SHO(3.0 * one, 0.2 * one),
    "sum": lambda one: gp.Exponential(1.4 * one) + gp.SHO(3.0 * one, 0.7 * one),
    "sum_of_five": lambda one: gp.Matern52(2.0 * one) + gp.SHO(3.0 * one, 2.0),
}
kernels = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)


def drawn(n, *, series=2, seed=0):
    """Times of several series in any order, of which some are equal; observations and noise."""
    torch.manual_seed(seed)
    t = n / 4 * torch.rand(series, n, dtype=torch.float64)
    t[:, n // 2] = t[:, 0]
    return t, torch.sin(t) + 0.3 * torch.randn_like(t), 0.1 + torch.rand_like(t)


@pytest.fixture
def on(monkeypatch):
    """A function that makes a module do the recursions: ``launch`` under the interpreter, or ``cpp``."""
    for name, value in SMALL.items():
        monkeypatch.setattr(tuning, name, value)

    def choose(module):
        can_read = core_likelihood.core_can_read if module is cpp else lambda *tensors: False
        monkeypatch.setattr(_engine, "core_can_read", can_read)
        for user in (likelihood, chain, arithmetic):
            monkeypatch.setattr(user, "module_for", lambda *tensors: module)

    return choose


def both(on, function, *arguments):
    """The results of a function by the programs, and by the core."""
    results = []
    for module in (launch, cpp):
        on(module)
        results.append(function(*arguments))
    return zip(*results, strict=True)


def value_and_gradients(kernel, t, y, noise):
    t, y, noise, one = (part.clone().requires_grad_() for part in (t, y, noise, torch.ones((), dtype=torch.float64)))
    value = gp.GaussianProcess(kernel(one), t, diag=noise).log_likelihood(y)
    weights = torch.linspace(0.5, 1.5, value.numel(), dtype=torch.float64).reshape(value.shape)
    return value.detach(), *torch.autograd.grad((weights * value).sum(), (t, y, noise, one))


@kernels
@pytest.mark.parametrize("n", [2, 4, 5, 37], ids=["two", "a_chunk", "one_more", "many_groups"])
def test_values_and_gradients(kernel, n, on):
    for got, want in both(on, value_and_gradients, kernel, *drawn(n)):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


def test_cotangents_that_are_lazily_negated(on):
    t, y, noise = drawn(9)
    on(launch)
    value = gp.GaussianProcess(gp.Matern32(2.0), t, diag=noise).log_likelihood(y.requires_grad_())
    (want,) = torch.autograd.grad(-value.sum(), y, retain_graph=True)
    (got,) = torch.autograd.grad(value, y, torch._neg_view(torch.ones_like(value)))
    torch.testing.assert_close(got, want)


def second_derivatives(t, y, noise):
    """Of a likelihood whose observations are its noise: one tensor in two places."""
    t, y = t.clone().requires_grad_(), y.abs().add(0.1).requires_grad_()
    value = gp.GaussianProcess(gp.Matern32(2.0), t, diag=y).log_likelihood(y).sum()
    first = torch.autograd.grad(value, (t, y), create_graph=True)
    return *(one.detach() for one in first), *torch.autograd.grad(sum(one.square().sum() for one in first), (t, y))


def test_second_derivatives(on):
    t, y, noise = drawn(9)
    t[:, 4] += 0.01  # no equal times, at which first derivatives jump
    for got, want in both(on, second_derivatives, t, y, noise):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def derivatives_of_parameters(t, y, noise):
    """First and second ones of parameters in several precisions and shapes, one of which is there twice."""
    one, other = torch.tensor(1.3, dtype=torch.float64, requires_grad=True), torch.tensor([2.1], requires_grad=True)
    kernel = gp.Exponential(one, other) + gp.SHO(other, 0.7 * one, one)
    value = gp.GaussianProcess(kernel, t, diag=noise).log_likelihood(y).sum()
    first = torch.autograd.grad(value, (one, other), create_graph=True)
    second = torch.autograd.grad(sum(bar.square().sum() for bar in first), (one, other))
    assert [bar.dtype for bar in first] == [torch.float64, torch.float32]
    return value.detach(), *(bar.detach() for bar in first), *second


def test_derivatives_of_parameters(on):
    for got, want in both(on, derivatives_of_parameters, *drawn(9)):
        torch.testing.assert_close(got, want, rtol=1e-6 if got.dtype == torch.float32 else 1e-8, atol=1e-8)


def derivatives_of_an_overdamped_oscillator(t, y, noise):
    quality = torch.tensor(0.05, dtype=torch.float64, requires_grad=True)
    value = gp.GaussianProcess(gp.SHO(3.0, quality), t, diag=noise).log_likelihood(y).sum()
    (first,) = torch.autograd.grad(value, quality, create_graph=True)
    return value.detach(), first.detach(), *torch.autograd.grad(first, quality)


def test_blocks_that_depend_on_a_parameter(on, monkeypatch):
    """Parameters on a GPU are not looked at, but their copies on the host are, in both directions."""
    given = drawn(9)
    on(cpp)
    want = derivatives_of_an_overdamped_oscillator(*given)
    on(launch)
    copies, extremes = [], _kernel._extremes

    def copied(tensor):
        copies.append(tensor.clone())
        return copies[-1]

    def seen(value):
        known = not isinstance(value, torch.Tensor) or value.data_ptr() in [one.data_ptr() for one in copies]
        return extremes(value) if known else []

    monkeypatch.setattr(torch.Tensor, "cpu", copied)
    monkeypatch.setattr(_kernel, "_extremes", seen)
    got = derivatives_of_an_overdamped_oscillator(*given)
    torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8)


def test_the_arithmetic_of_a_kernel_is_one_node(on):
    """A GPU launches every operation with a tensor; parameters of a batch and zeros are left to tensors."""
    on(launch)
    t, one = torch.zeros(3, dtype=torch.float64), torch.ones((), dtype=torch.float64, requires_grad=True)
    for kernel in (gp.SHO(one, 0.05 * one, one) + gp.Matern52(one), 2.0 * gp.Exponential(one) * gp.Exponential(3.0)):
        blocks, variance = arithmetic.blocks_of_numbers(kernel.components_by, t, 2)
        assert variance == pytest.approx(float(kernel(t[:1])))
        assert type(blocks.rates.grad_fn.next_functions[0][0]).__name__ == "_ArithmeticBackward"
        want = stacked(kernel.components(), lambda value: torch.as_tensor(value, dtype=torch.float64).expand(2))
        torch.testing.assert_close(tuple(blocks), tuple(want))
    for kernel in (gp.Exponential(torch.ones(2)), gp.Exponential(1.0), gp.Exponential(one) + gp.Linear(one)):
        assert arithmetic.blocks_of_numbers(kernel.components_by, t, 2) is None


@pytest.mark.parametrize("name", ["exponential", "underdamped", "matern52"])
def test_one_point(name, on):
    t, y, noise = (part[0, :1] for part in drawn(2))
    for got, want in both(on, value_and_gradients, KERNELS[name], t, y, noise):
        torch.testing.assert_close(got, want, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", ["exponential", "underdamped", "sum"])
def test_times_in_order(name, on):
    t, y, noise = drawn(21)
    for got, want in both(on, value_and_gradients, KERNELS[name], t.sort(-1).values, y, noise):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


def of_lists(kernel, t, y, noise):
    sizes = 3, 17, 8
    parts = [[part[i, :size].clone().requires_grad_() for i, size in enumerate(sizes)] for part in (t, y, noise)]
    value = gp.GaussianProcess(kernel(1.0), parts[0], diag=parts[2]).log_likelihood(parts[1])
    return value.detach(), *torch.autograd.grad(value.sum(), [one for part in parts for one in part])


@pytest.mark.parametrize("name", ["exponential", "underdamped", "matern52"])
def test_series_of_different_sizes(name, on):
    for got, want in both(on, of_lists, KERNELS[name], *drawn(17, series=3)):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


def test_one_state_keeps_its_digits_with_hardly_any_noise(on):
    """The variance of the state is known to all digits, be the noise ever so small."""
    t, y, _ = drawn(40, series=1)
    for got, want in both(on, value_and_gradients, KERNELS["exponential"], t, y, torch.full_like(t, 1e-13)):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=0)


def test_equal_times_across_a_chunk_without_noise(on):
    """The first guess of a chunk must not find a variance of 0 where a time is that of the last chunk's last point."""
    t = torch.tensor([0.0, 1.0, 2.0, 3.0, 3.0, 4.0, 5.0], dtype=torch.float64)
    noise = torch.tensor([0.1, 0.1, 0.1, 0.1, 0.0, 0.1, 0.1], dtype=torch.float64)
    for got, want in both(on, value_and_gradients, KERNELS["exponential"], t, torch.cos(t), noise):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13)


def test_a_matrix_that_is_not_positive_definite(on):
    on(launch)
    t = torch.tensor([0.0, 1.0, 2.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    process = gp.GaussianProcess(gp.Matern32(2.0), t, diag=0.0)
    with pytest.raises(torch.linalg.LinAlgError, match="at time 2 of series 0"):
        process.log_likelihood(torch.cos(t))


@pytest.mark.parametrize("name", ["exponential", "underdamped"])
def test_parameters_that_are_not_finite_give_nan(name, on):
    on(launch)
    t, y, noise = drawn(9)
    one = torch.tensor([1.0, torch.nan], dtype=torch.float64, requires_grad=True)
    tensors = [part.requires_grad_() for part in (t, y, noise)]
    blocks = KERNELS[name](1.0).components()
    rates, squares = (torch.stack([getattr(blocks[0], part) * one], -1) for part in ("rate", "square"))
    g = torch.tensor([blocks[0].g] * 2, dtype=torch.float64)
    given = torch.zeros_like(t), rates, squares, g, *tensors[2:], tensors[1]
    quad, logdet, _loss, failed = likelihood._Likelihood.apply(*given, (blocks[0].size,), None, None, launch)
    assert quad.isnan().tolist() == logdet.isnan().tolist() == [False, True]
    assert failed.tolist() == [-1, -1]
    y_bar = torch.autograd.grad((quad + logdet).sum(), y)[0]
    assert y_bar.isnan().all(-1).tolist() == [False, True]


def conditional(kernel, t, y, noise):
    t, y, noise = (part.clone().requires_grad_() for part in (t, y, noise))
    process = gp.GaussianProcess(kernel(1.0), t, diag=noise)
    new = torch.linspace(-1, 9, 7, dtype=torch.float64)
    mean, variance = process.predict(y, new, return_var=True)
    values = mean, variance, *process.leave_one_out(y), process.dot_tril(y)
    gradients = torch.autograd.grad(sum(one.square().sum() for one in values), (t, y, noise))
    return *(one.detach() for one in values), *gradients


@pytest.mark.parametrize("name", ["exponential", "underdamped", "matern52", "sum"])
def test_predictions_and_their_gradients(name, on):
    """All recursions of a chain, both ways."""
    for got, want in both(on, conditional, KERNELS[name], *drawn(22)):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("n", [1, 4, 23])
@pytest.mark.parametrize("reverse", [False, True])
def test_scans_of_columns(size, n, reverse, on):
    on(launch)
    torch.manual_seed(0)
    steps = 0.5 * torch.randn(2, n, size, size, dtype=torch.float64)
    source, matrices = torch.randn(2, n, size, 3).double(), torch.randn(2, n, size, size).double()
    torch.testing.assert_close(launch.scan(steps, source, reverse), cpp.scan(steps, source, reverse))
    both_ways = matrices + matrices.mT
    torch.testing.assert_close(
        launch.scan_matrices(steps, both_ways, reverse), cpp.scan_matrices(steps, both_ways, reverse)
    )
    assert launch.scan(steps, source[..., :0], reverse).shape == (2, n, size, 0)


def only_noted(program, grid, tensors, *_):
    state.recorder.launched(Launch(SimpleNamespace(), grid, tensors, ()))


@pytest.mark.parametrize("name", ["exponential", "underdamped", "sum"])
@pytest.mark.parametrize("in_order", [True, False])
def test_all_launches_can_be_replayed(name, in_order, on, monkeypatch):
    """Between the launches of a likelihood and of its pullback torch computes nothing that a replay would leave out."""
    on(launch)
    for module in (launch, carry):
        monkeypatch.setattr(module, "launch", only_noted)
    t, y, noise = drawn(37)
    blocks = KERNELS[name](1.0).components()
    kernel = stacked(blocks, lambda value: torch.full((2,), value, dtype=torch.float64))
    numbers = [part.contiguous() for part in kernel[1:]]
    given = [torch.ones_like(t), *numbers, noise, y], kernel.kinds, None if in_order else t.argsort(-1), None
    with recorded((), None) as forward:
        totals, *saved = launch._filter(*given, keep=True)
    bars = totals[0].clone(), totals[1].clone()
    with recorded((), None) as backward:
        gradients = launch._pull(*given, *saved, *bars)
    for recording, results, more in ((forward, (totals, *saved), ()), (backward, gradients, (*saved, *bars))):
        assert not recording.failed
        assert replay_of(recording, launch._inputs(*given, *more)[0], results) is not None


REPLAYED = {
    "no parameter": lambda: gp.Matern32(1.0),
    "one": lambda one: gp.Exponential(one),
    "two, one of them twice": lambda one, other: gp.SHO(one, other, one),
    "a sum": lambda one, other: gp.Matern52(one) + gp.Exponential(other, one),
}


def drawn_value(make, shape, in_order, seed):
    """A likelihood, again without gradients, and the gradients of all that it depends on, of numbers drawn anew."""
    torch.manual_seed(seed)
    t = 5 * torch.rand(shape, dtype=torch.float64)
    t = t.sort(-1).values if in_order else t
    y, noise, bar = torch.randn_like(t), torch.rand_like(t) + 0.1, torch.randn(shape[:-1], dtype=torch.float64)
    parameters = [torch.rand((), dtype=torch.float64) + 0.7 for _ in range(make.__code__.co_argcount)]
    inputs = [one.requires_grad_() for one in (t, y, noise, *parameters)]
    process = gp.GaussianProcess(make(*parameters), t, diag=noise)
    value = process.log_likelihood(y)
    with torch.no_grad():
        again = process.log_likelihood(y)
    return value.detach(), again, *torch.autograd.grad(value, inputs, bar)


@pytest.mark.parametrize("make", REPLAYED.values(), ids=REPLAYED)
@pytest.mark.parametrize("shape", [(1,), (1, 2), (11,), (2, 11)], ids=str)
@pytest.mark.parametrize("in_order", [True, False])
def test_replays(make, shape, in_order, on, operators, replayed, monkeypatch):
    """The first call is recorded; the others launch its programs again on numbers of their own."""
    monkeypatch.setattr(replay, "_in_one_piece", lambda inputs: all(one.is_contiguous() for one in inputs))
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    for seed in range(3):
        for got, want in both(on, drawn_value, make, shape, in_order, seed):
            torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-9)
    assert operators.used >= 3  # of three draws two at least are both in order, or both not

"""A process whose times or noise change after it was made: results follow, they never mix old and new."""

import copy
import pickle
import re

import pytest
import torch

from laplex import gp


def fresh(t, y, diag=0.1):
    return gp.GaussianProcess(gp.Matern32(1.0), t, diag=diag).log_likelihood(y)


def test_times_that_are_moved_are_sorted_again():
    torch.manual_seed(0)
    y = torch.randn(50).double()
    for trained in (False, True):
        t = torch.rand(50).double().requires_grad_(trained)
        process = gp.GaussianProcess(gp.Matern32(1.0), t, diag=0.1)
        process.log_likelihood(y)
        with torch.no_grad():
            t.copy_(torch.rand(50))
        torch.testing.assert_close(process.log_likelihood(y), fresh(t, y))
        torch.testing.assert_close(
            process.predict(y), gp.GaussianProcess(gp.Matern32(1.0), t, diag=0.1).predict(y), rtol=1e-9, atol=1e-9
        )


def test_noise_that_is_changed_or_replaced():
    torch.manual_seed(0)
    t, y, diag = torch.rand(50).double(), torch.randn(50).double(), torch.full((50,), 0.1).double()
    process = gp.GaussianProcess(gp.Matern32(1.0), t, diag=diag)
    process.log_likelihood(y)
    diag.fill_(0.3)
    torch.testing.assert_close(process.log_likelihood(y), fresh(t, y, 0.3))
    process.diag = torch.full((50,), 0.7).double()
    torch.testing.assert_close(process.log_likelihood(y), fresh(t, y, 0.7))


def test_sums_of_lists():
    t = torch.rand(5).double()
    one, two = gp.Matern32(1.0), gp.SHO(1.0)
    torch.testing.assert_close(sum([one, two])(t), one(t) + two(t))


def test_a_noise_that_is_set_is_checked():
    t, y = torch.linspace(0, 1, 5).double(), torch.ones(5).double()
    process = gp.GaussianProcess(gp.Matern32(1.0), t, diag=0.1)
    process.diag = 0.3
    assert torch.equal(process.log_likelihood(y), fresh(t, y, diag=0.3))
    with pytest.raises(ValueError, match="`diag`"):
        process.diag = torch.ones(4)


def test_a_parameter_that_moved_out_of_its_range():
    quality = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    process = gp.GaussianProcess(gp.Rotation(3.0, quality, 0.1, 0.5), torch.linspace(0, 1, 5).double(), diag=0.1)
    with torch.no_grad():
        quality.fill_(-0.2)
    assert not process.log_likelihood(torch.ones(5)).isfinite()


class Counted(gp.CARMA):
    """A kernel that is not made of blocks, and counts how often its components are asked for."""

    asked = 0

    def components(self):
        self.asked += 1
        return super().components()


def test_components_are_asked_for_once_as_numbers_and_once_as_tensors():
    kernel = Counted(torch.tensor([1.0, 2.0]), torch.tensor([1.0]))
    fresh_process = gp.GaussianProcess(kernel, torch.linspace(0, 1, 5).double(), diag=0.1)
    fresh_process.log_likelihood(torch.ones(5))
    assert kernel.asked == 2


# --- Writes that torch does not count ---------------------------------------------------------------------------------


@pytest.mark.parametrize("view", [False, True])
def test_times_that_a_fused_optimizer_moves(view):
    torch.manual_seed(0)
    t = torch.nn.Parameter(5 * torch.rand(6, dtype=torch.float64))
    y = torch.sin(t.detach())
    process = gp.GaussianProcess(gp.Matern32(1.0), t[:] if view else t, diag=0.1)
    optimizer = torch.optim.Adam([t], lr=0.5, fused=True)
    for _ in range(3):
        optimizer.zero_grad()
        loss = -gp.GaussianProcess(gp.Matern32(1.0), t, diag=0.1).log_likelihood(y)
        assert process.log_likelihood(y) == -loss
        torch.testing.assert_close(process.predict(y), gp.GaussianProcess(gp.Matern32(1.0), t, diag=0.1).predict(y))
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda process: pickle.loads(pickle.dumps(process))])
def test_copies_of_a_process_whose_times_and_noise_were_moved(copied):
    torch.manual_seed(0)
    y = torch.randn(8).double()
    for trained in (False, True):
        t, diag = 5 * torch.rand(8).double(), torch.rand(8).double()
        with torch.no_grad():
            t.mul_(1.5)  # so that the numbers of writes of the original and of its copy agree in the end
            diag.add_(0.1)
        process = gp.GaussianProcess(gp.Matern32(1.0), t.requires_grad_(trained), diag=diag)
        process.predict(y)
        with torch.no_grad():
            t.copy_(5 * torch.rand(8))
            diag.add_(0.3)
        torch.testing.assert_close(copied(process).log_likelihood(y), fresh(t, y, diag))
        torch.testing.assert_close(copied(process).predict(y), process.predict(y))


# --- What was conditioned stays ---------------------------------------------------------------------------------------


def number(value):
    return torch.tensor(value, dtype=torch.float64)


STABLE = number([[-1.0, 0.0], [0.3, -2.0]]), torch.eye(2).double(), number([1.0, 0.5])
KERNELS = {  # a kernel, and the name of a tensor in it
    "Matern32": (lambda: gp.Matern32(number(1.0)), "scale"),
    "Celerite": (lambda: gp.Celerite(1.0, 0.1, number(0.5), 2.0), "c"),
    "StateSpace": (lambda: gp.StateSpace(STABLE[0].clone(), *STABLE[1:]), "feedback"),
    "CARMA": (lambda: gp.CARMA(number([2.0, 3.0]), number([1.0])), "alpha"),
    "Linear": (lambda: gp.Linear(number(1.0), number(1.0)), "center"),
    "Bands": (lambda: gp.Bands(gp.Matern32(1.0), number([1.0, 0.5])), "value"),
    "Matern32, exposures": (lambda: gp.Matern32(number(1.0)), "scale"),
    "StateSpace, exposures": (lambda: gp.StateSpace(STABLE[0].clone(), *STABLE[1:]), "feedback"),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_conditional_stays_as_it_was(name):
    """Kernel, times, bands, noise and observations are written to after they were worked in."""
    torch.manual_seed(0)
    kernel, parameter = KERNELS[name][0](), KERNELS[name][1]
    t, new = torch.linspace(0, 5, 10).double(), number([2.3, 6.0])
    y, diag, exposure = torch.sin(t), torch.full((10,), 0.01).double(), torch.full((10,), 0.1).double()
    band = torch.arange(10) % 2
    bands = {"band": band} if name == "Bands" else {}
    asked = {"band": torch.tensor([0, 1])} if name == "Bands" else {}
    exposed = {"exposure": exposure} if "exposures" in name else {}
    process = gp.GaussianProcess(kernel, t, diag=diag, mean=torch.cos, **bands, **exposed)
    given = process.condition(y)

    def results():
        values = [given.mean(new, **asked), given.variance(new, **asked), given.mean(), given.variance()]
        if not exposed:
            values += [
                given.sample(t=new, **asked, generator=torch.Generator().manual_seed(0)),
                given.covariance(new, **asked),
            ]
        return values

    before = results()
    for tensor in (getattr(kernel, parameter), y, diag, exposure, t):
        tensor.mul_(1.3)
    band.fill_(0)
    for one, other in zip(before, results(), strict=True):
        assert torch.equal(one, other)


# --- Kernels whose parameters are set ---------------------------------------------------------------------------------

POSITIVE = "must be positive and finite, got"
SETTINGS = {  # how a kernel is made, the name and the value that is set, the error and its message
    "negative": (lambda: gp.Matern32(2.0), "scale", -1.0, ValueError, f"Matern32: `scale` {POSITIVE} -1"),
    "NaN": (lambda: gp.Matern32(2.0), "sigma", float("nan"), ValueError, f"Matern32: `sigma` {POSITIVE} nan"),
    "0": (lambda: gp.SHO(2.0), "quality", 0, ValueError, f"SHO: `quality` {POSITIVE} 0"),
    "a negative tensor": (lambda: gp.SHO(2.0), "quality", number([1.0, -1.0]), ValueError, f"`quality` {POSITIVE} -1"),
    "a word": (lambda: gp.Cosine(2.0), "period", "x", TypeError, "Cosine: `period` must be a number or a floating-p"),
    "None": (lambda: gp.Constant(2.0), "sigma", None, TypeError, "Constant: `sigma` must be a number or a floating-po"),
    "integers": (lambda: gp.Constant(2.0), "sigma", torch.arange(3), TypeError, "got a tensor of torch.int64"),
    "signed": (lambda: gp.Linear(2.0), "center", float("inf"), ValueError, "Linear: `center` must be finite, got inf"),
    "a factor": (lambda: 2 * gp.Matern32(1.0), "factor", -2, ValueError, f"Scale: `factor` {POSITIVE} -2"),
    "trained": (lambda: gp.trainable(gp.SHO(2.0)), "quality", -7.0, ValueError, f"SHO: `quality` {POSITIVE} -7"),
    "an nn.Parameter for a trained one": (
        lambda: gp.trainable(gp.SHO(2.0)),
        "quality",
        torch.nn.Parameter(number(7.0)),
        TypeError,
        "SHO: `quality` is trained, so it must be set to a number, or a tensor without a gradient, got an nn.Parameter",
    ),
    "a tensor with a gradient for a trained one": (
        lambda: gp.Matern32(torch.nn.Parameter(number(2.0))),
        "scale",
        number(2.0).requires_grad_(),
        TypeError,
        "got a tensor that requires a gradient; to replace the parameter make another kernel, or set it on "
        "laplex.gp.fixed(kernel)",
    ),
    "several for one that is trained": (
        lambda: gp.trainable(gp.Matern32(2.0)),
        "scale",
        number([1.0, 2.0]),
        ValueError,
        "Matern32: `scale` is trained, so it must be set to a number, or one for each of (), got (2,)",
    ),
    "mistyped": (lambda: gp.Matern32(2.0), "length", 3.0, AttributeError, "`length` cannot be set, only `scale`, `si"),
    "a period": (lambda: gp.SHO(omega=2.0), "period", 3.0, AttributeError, "only `omega`, `quality`, `sigma`"),
    "of a sum": (lambda: gp.SHO(2.0) + gp.SHO(3.0), "period", 3.0, AttributeError, "Sum: `period` cannot be set, only"),
}


@pytest.mark.parametrize(("make", "name", "value", "error", "message"), SETTINGS.values(), ids=SETTINGS)
def test_parameters_that_are_set_are_checked(make, name, value, error, message):
    kernel = make()
    before = str(kernel)
    with pytest.raises(error, match=re.escape(message)):
        setattr(kernel, name, value)
    assert str(kernel) == before


STORES = {
    "a number": lambda: gp.Linear(2.0, 1.0),
    "a tensor": lambda: gp.Linear(number(2.0), number(1.0)),
    "a parameter": lambda: gp.Linear(torch.nn.Parameter(number(2.0)), torch.nn.Parameter(number(1.0))),
    "a logarithm": lambda: gp.trainable(gp.Linear(2.0, 1.0)),
}


@pytest.mark.parametrize("value", [3, 3.0, number(3.0)], ids=["int", "float", "tensor"])
@pytest.mark.parametrize("make", STORES.values(), ids=STORES)
def test_a_parameter_that_is_set_counts_everywhere(make, value):
    """Also where a number takes the place of a tensor, or a tensor that of a number."""
    kernel, t = make(), torch.linspace(0, 1, 5).double()
    parameters = list(kernel.parameters())
    kernel.sigma = kernel.center = value
    want = gp.Linear(3.0, 3.0)(t)
    for one in (kernel, copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel)), gp.fixed(kernel)):
        torch.testing.assert_close(one(t).detach(), want)
    if isinstance(value, torch.Tensor) or parameters:
        again = make()
        again.sigma = again.center = value * 2
        again.load_state_dict(kernel.state_dict())
        torch.testing.assert_close(again(t).detach(), want)
    assert [*map(id, kernel.parameters())] == [*map(id, parameters)]  # an optimizer still has them


def test_a_parameter_takes_the_place_of_a_number():
    kernel = gp.Matern32(2.0)
    kernel.scale = torch.nn.Parameter(number(3.0))
    assert [name for name, _ in kernel.named_parameters()] == ["scale"]


def test_trained_parameters_of_a_batch_are_set_one_by_one():
    kernel = gp.trainable(gp.Matern32(2.0), batch_shape=(3,))
    kernel.scale = number([1.0, 2.0, 3.0])
    torch.testing.assert_close(gp.fixed(kernel).scale, number([1.0, 2.0, 3.0]))


class Decay(gp.Kernel):
    """A kernel of one's own, with a parameter that is checked and attributes that are not."""

    parameter_names = ("rate",)

    def __init__(self, rate):
        super().__init__()
        self.rate, self.comment = rate, "a comment"

    def components(self):
        return gp.Exponential(1 / self._value("rate")).components()

    def evaluate(self, distance):
        return torch.exp(-self.rate * distance)


def test_the_matrix_of_a_kernel_of_ones_own():
    t = torch.tensor([0.0, 0.5, 2.0])
    for dense in (Decay(2.0)(t), (0.5 * (Decay(2.0) + Decay(2.0)))(t)):
        torch.testing.assert_close(dense, gp.Exponential(0.5)(t))
    lags = torch.tensor([[-1.0, 2.0]])
    torch.testing.assert_close((Decay(2.0) * Decay(2.0)).evaluate(lags), gp.Exponential(0.25).evaluate(lags))


def test_kernels_of_ones_own_have_any_attributes():
    kernel = Decay(2.0)
    kernel.comment, kernel.more = "another", 3
    assert sum(one.numel() for one in gp.trainable(kernel).parameters()) == 1
    with pytest.raises(ValueError, match="Decay: `rate` must be positive"):
        kernel.rate = -1.0


def test_a_parameter_of_another_shape_than_the_series(path):
    """The kernel is right, but the process was made for one series."""
    y, kernel = torch.ones(5).double(), gp.Matern32(2.0)
    process = gp.GaussianProcess(kernel, torch.linspace(0, 1, 5).double(), diag=0.1)
    kernel.scale = number([1.0, 2.0, 3.0])
    message = "the kernel's parameters must broadcast to the batch () of the process, got parameters of shape (3,)"
    for method in (process.log_likelihood, process.predict, process.apply_inverse):
        with pytest.raises(ValueError, match=re.escape(message)):
            method(y)


# --- Attributes of processes that are set -----------------------------------------------------------------------------

PROCESS_SETTINGS = {  # the name and the value that is set, the error and its message
    "times": ("t", torch.ones(5), AttributeError, "`t` cannot be set, only `kernel`, `mean` and `diag`, the variance"),
    "yerr": ("yerr", 3.0, AttributeError, "`yerr` cannot be set, only `kernel`, `mean` and `diag`, the variance of"),
    "band": ("band", torch.ones(5), AttributeError, "`band` cannot be set, only"),
    "exposure": ("exposure", 3.0, AttributeError, "`exposure` cannot be set, only"),
    "mistyped": ("kernels", gp.SHO(1.0), AttributeError, "`kernels` cannot be set, only `kernel`, `mean` and `diag`"),
    "no kernel": ("kernel", None, TypeError, "`kernel` must be a kernel of laplex.gp, such as"),
    "a kernel of another batch": (
        "kernel",
        gp.Matern32(number([1.0, 2.0, 3.0])),
        ValueError,
        "must broadcast to the batch () of the process, got parameters of shape (3,); make a new process",
    ),
    "a word as mean": ("mean", "x", TypeError, "`mean` must be a number, a tensor or a function of times, got str"),
    "no mean": ("mean", None, TypeError, "`mean` must be a number, a tensor or a function of times, got NoneType"),
    "an array as mean": ("mean", torch.ones(5).numpy(), TypeError, "`mean` must be a number, a tensor or a function"),
    "a mean that is NaN": ("mean", float("nan"), ValueError, "`mean` must be finite, got nan"),
}


@pytest.mark.parametrize(("name", "value", "error", "message"), PROCESS_SETTINGS.values(), ids=PROCESS_SETTINGS)
def test_what_is_set_on_a_process_is_checked(name, value, error, message):
    t, y = torch.linspace(0, 1, 5).double(), torch.ones(5).double()
    process = gp.GaussianProcess(gp.Matern32(1.0), t, diag=0.1)
    with pytest.raises(error, match=re.escape(message)):
        setattr(process, name, value)
    assert torch.equal(process.log_likelihood(y), fresh(t, y))
    assert process.t is t


def test_kernel_mean_and_noise_that_are_set_count():
    t, y = torch.linspace(0, 1, 5).double(), torch.ones(5).double()
    process = gp.GaussianProcess(gp.Matern32(1.0), t, diag=0.1)
    process.kernel, process.mean, process.diag = gp.SHO(2.0), torch.cos, 0.2
    want = gp.GaussianProcess(gp.SHO(2.0), t, diag=0.2, mean=torch.cos)
    for one in (process, copy.copy(process), copy.deepcopy(process), pickle.loads(pickle.dumps(process))):
        assert torch.equal(one.log_likelihood(y), want.log_likelihood(y))
        assert torch.equal(one.predict(y, t + 0.1), want.predict(y, t + 0.1))


def test_noise_of_series_of_different_sizes_is_set_as_a_list():
    t, y = [torch.linspace(0, 1, n).double() for n in (5, 3)], [torch.ones(n).double() for n in (5, 3)]
    noise = [torch.full((n,), 0.1 * n).double() for n in (5, 3)]
    process = gp.GaussianProcess(gp.Matern32(1.0), t, diag=0.1)
    process.diag = noise
    want = gp.GaussianProcess(gp.Matern32(1.0), t, diag=noise)
    assert torch.equal(process.log_likelihood(y), want.log_likelihood(y))


class Named(gp.GaussianProcess):
    """A process of one's own."""


def test_processes_of_ones_own_have_any_attributes():
    process = Named(gp.Matern32(1.0), torch.linspace(0, 1, 5), diag=0.1)
    process.star = "Vega"
    with pytest.raises(AttributeError, match="`t` cannot be set"):
        process.t = torch.ones(5)


@pytest.mark.usefixtures("unpoisoned")
@pytest.mark.parametrize("name", ["kernel", "mean", "diag", "scale", "sigma"])
def test_what_is_set_in_a_compiled_function_counts(name):
    t, y = torch.linspace(0, 1, 3).double(), torch.ones(3).double()

    def value_of(scale):
        process = gp.GaussianProcess(gp.Matern32(2.0, scale), t, diag=0.1)
        value = gp.SHO(scale) if name == "kernel" else 3.0 if name == "sigma" else scale
        setattr(process.kernel if name in ("scale", "sigma") else process, name, value)
        return process.log_likelihood(y)

    torch._dynamo.reset()
    compiled = torch.compile(value_of, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(number(1.5)), value_of(number(1.5)))

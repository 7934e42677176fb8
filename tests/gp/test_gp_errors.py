"""Every message of laplex.gp: the argument's name, what is required, what was passed, and what to do."""

import re

import pytest
import torch

from laplex import gp
from processes import as_tensor

T = as_tensor([0.0, 1.0, 2.5])
KERNEL = gp.Matern32(1.0)
Y = as_tensor([0.1, 0.2, 0.3])
PROCESS = gp.GaussianProcess(KERNEL, T, diag=0.1)
RAGGED = gp.GaussianProcess(KERNEL, [T, T[:2]], diag=0.1)
BATCH = gp.GaussianProcess(KERNEL, torch.stack([T, T]), diag=0.1)
SUM = gp.Matern32(1.0) + gp.Exponential(2.0)
BANDED = gp.Bands(KERNEL, as_tensor([1.0, 2.0]))


def process(kernel=KERNEL, t=T, **options):
    return gp.GaussianProcess(kernel, t, **({"diag": 0.1} | options))


SYSTEM = {"feedback": as_tensor([[-1.0]]), "noise": as_tensor([[1.0]]), "readout": as_tensor([1.0])}

TYPES = {
    "no kernel": (
        lambda: process(3.0),
        "GaussianProcess: `kernel` must be a kernel of laplex.gp, such as laplex.gp.Matern32(scale=1.0), got float",
    ),
    "times of a list of numbers": (
        lambda: process(t=[1.0, 2.0]),
        "`t` must be a tensor of floating-point times, got float; use torch.as_tensor",
    ),
    "integer times": (
        lambda: process(t=torch.arange(3)),
        "`t` must be a tensor of floating-point times, got a tensor of torch.int64",
    ),
    "array": (
        lambda: process(t=T.numpy()),
        "`t` must be a tensor of floating-point times, got ndarray",
    ),
    "y is a list": (
        lambda: PROCESS.log_likelihood([0.1, 0.2, 0.3]),
        "log_likelihood: `y` must be a tensor of floating-point numbers, got list; use torch.as_tensor",
    ),
    "integer y": (
        lambda: PROCESS.condition(torch.arange(3)),
        "condition: `y` must be a tensor of floating-point numbers, got a tensor of torch.int64",
    ),
    "integer columns": (
        lambda: PROCESS.apply_inverse(torch.arange(3)),
        "apply_inverse: `y` must be a tensor of floating-point numbers, got Tensor",
    ),
    "columns as a list": (
        lambda: PROCESS.dot_tril([1.0]),
        "dot_tril: `y` must be a tensor of floating-point numbers, got list",
    ),
    "floating-point bands": (
        lambda: process(BANDED, band=T),
        "`band` must be a tensor of integers, got a tensor of torch.float64",
    ),
    "bands as numbers": (
        lambda: process(BANDED, band=1),
        "`band` must be a tensor of integers, got int",
    ),
    "a list as the mean of one series": (
        lambda: process(mean=[1.0, 2.0]),
        "`mean` must be a number, a tensor or a function of times, got list",
    ),
    "a kernel of a list": (
        lambda: KERNEL([0.0, 1.0]),
        "Matern32: `t1` must be a tensor of floating-point times (*batch, n), got list; use torch.as_tensor(t1)",
    ),
    "a kernel of one number": (
        lambda: KERNEL(T, T[0]),
        "Matern32: `t2` must be a tensor of floating-point times (*batch, n), got a tensor of torch.float64, (); use",
    ),
    "a state space of integers": (
        lambda: gp.StateSpace(**SYSTEM | {"feedback": torch.tensor([[-1]])}),
        "StateSpace: `feedback` must be of floating point, got torch.int64",
    ),
    "include_mean as a word": (
        lambda: PROCESS.predict(Y, include_mean="no"),
        "`include_mean` must be True or False, got 'no'",
    ),
    "return_var as a word": (
        lambda: PROCESS.predict(Y, return_var="a"),
        "predict: `return_var` must be True or False, got 'a'",
    ),
    "a mean that returns a number": (
        lambda: process(mean=lambda t: 1.0).log_likelihood(Y),
        "log_likelihood: `mean` must return a tensor of the shape of the times, got float",
    ),
    "lists of numbers": (
        lambda: RAGGED.log_likelihood([0.1, 0.2]),
        "`y` must be a list of tensors, got float for series 0",
    ),
    "an unknown kernel as a term": (
        lambda: PROCESS.predict(Y, kernel=3),
        "predict: `kernel` must be a kernel of laplex.gp, such as laplex.gp.Matern32(scale=1.0), got int",
    ),
    "a string as scale": (
        lambda: gp.Matern32("2"),
        "laplex.gp.Matern32: `scale` must be a number or a floating-point tensor, got str",
    ),
    "an integer tensor": (
        lambda: gp.Exponential(torch.tensor(2)),
        "laplex.gp.Exponential: `scale` must be a number or a floating-point tensor, got a tensor of torch.int64",
    ),
    "a bool": (
        lambda: gp.Constant(True),
        "laplex.gp.Constant: `sigma` must be a number or a floating-point tensor, got bool",
    ),
    "b of Celerite": (
        lambda: gp.Celerite(1.0, None, 1.0, 1.0),
        "laplex.gp.Celerite: `b` must be a number or a floating-point tensor, got NoneType",
    ),
    "center of Linear": (
        lambda: gp.Linear(1.0, "0"),
        "laplex.gp.Linear: `center` must be a number or a floating-point tensor, got str",
    ),
    "omega of SHO": (
        lambda: gp.SHO(omega="1"),
        "laplex.gp.SHO: `omega` must be a number or a floating-point tensor, got str",
    ),
    "alpha as a list": (
        lambda: gp.CARMA([1.0], as_tensor([1.0])),
        "laplex.gp.CARMA: `alpha` must be a floating-point tensor (*batch, size), got [1.0]",
    ),
    "beta without a dimension": (
        lambda: gp.CARMA(as_tensor([1.0]), as_tensor(1.0)),
        "laplex.gp.CARMA: `beta` must be a floating-point tensor (*batch, size), got tensor(1.",
    ),
    "a kernel plus a number": (
        lambda: KERNEL + 1.0,
        "a number cannot be added to a kernel; add laplex.gp.Constant(sigma), got 1.0",
    ),
    "a kernel times a string": (
        lambda: KERNEL * "a",
        "can't multiply",
    ),
}

VALUES = {
    "no times": (
        lambda: process(t=T[:0]),
        "`t` must have shape (n,) or (*batch, n) with n >= 1, got (0,)",
    ),
    "one number": (
        lambda: process(t=T[0]),
        "`t` must have shape (n,) or (*batch, n) with n >= 1, got ()",
    ),
    "a column of times": (
        lambda: process(t=T[:, None]),
        "`t` must have shape (n,) or (*batch, n), got (3, 1), which would be 3 series of one time each; pass "
        "t.squeeze(-1)",
    ),
    "a mean that is NaN": (
        lambda: process(mean=float("nan")),
        "`mean` must be finite, got nan",
    ),
    "a scale beyond all floats": (
        lambda: gp.Matern32(10**400),
        "Matern32: `scale` must be positive and finite, got inf",
    ),
    "columns that are NaN": (
        lambda: PROCESS.apply_inverse(Y * torch.nan),
        "apply_inverse: `y` must be finite, got NaN or infinity",
    ),
    "noise of states that is not symmetric": (
        lambda: gp.StateSpace(-torch.eye(2), as_tensor([[1.0, 0.5], [0.0, 1.0]]), torch.ones(2)),
        "StateSpace: `noise` must be symmetric and positive semidefinite, got one that is not symmetric",
    ),
    "negative noise of states": (
        lambda: gp.StateSpace(**SYSTEM | {"noise": as_tensor([[-1.0]])}),
        "StateSpace: `noise` must be symmetric and positive semidefinite, got one with a negative eigenvalue",
    ),
    "one y for series of different sizes": (
        lambda: RAGGED.log_likelihood(Y),
        "`y` must be a list of 2 tensors, one for each series, got Tensor",
    ),
    "one yerr for series of different sizes": (
        lambda: gp.GaussianProcess(KERNEL, [T, T[:2]], yerr=Y.abs()),
        "`yerr` must be a list of 2 tensors, one for each series, got Tensor",
    ),
    "times that are NaN": (
        lambda: process(t=T * torch.nan),
        "`t` must be finite, got NaN or infinity; leave such times out",
    ),
    "infinite new times": (
        lambda: PROCESS.predict(Y, T / 0),
        "laplex.gp.GaussianProcess.predict: `t` must be finite, got NaN or infinity",
    ),
    "infinite times given observations": (
        lambda: PROCESS.condition(Y).mean(T / 0),
        "laplex.gp.Conditional.mean: `t` must be finite, got NaN or infinity",
    ),
    "predictions from y of another size": (
        lambda: PROCESS.predict(Y[:2], T),
        "laplex.gp.GaussianProcess.predict: `y` must have the shape (3,) of the times, got (2,)",
    ),
    "predicted covariances of a list": (
        lambda: RAGGED.predict([Y, Y[:2]], return_cov=True),
        "laplex.gp.GaussianProcess.predict: needs times in one tensor, got a list of series",
    ),
    "an empty list": (
        lambda: process(t=[]),
        "`t` must have at least one series, got an empty list",
    ),
    "a list of matrices": (
        lambda: process(t=[T, T.expand(2, 3)]),
        "in a list, `t` must have shapes (n_i,), got (2, 3) for series 1",
    ),
    "parameters that do not fit": (
        lambda: process(gp.Matern32(as_tensor([1.0, 2.0, 3.0])), torch.stack([T, T])),
        "the kernel's parameters must broadcast to the leading dimensions (2,) of the times, got parameters "
        "of shape (3,)",
    ),
    "new times of another batch": (
        lambda: BATCH.predict(torch.stack([Y, Y]), T.expand(3, 3)),
        "predict: `t` must have the shape (m,), or the leading dimensions (2,) of the observed times, got (3, 3)",
    ),
    "more new times than series": (
        lambda: PROCESS.predict(Y, T.expand(2, 3)),
        "predict: `t` must have the shape (m,), or the leading dimensions () of the observed times, got (2, 3)",
    ),
    "no noise": (
        lambda: gp.GaussianProcess(KERNEL, T),
        "either `diag`, the variance of the noise, or `yerr`, its standard deviation, must be given, got "
        "neither; for observations without noise pass a small diag",
    ),
    "two noises": (
        lambda: process(yerr=0.1),
        "must be given, got both",
    ),
    "noise of another size": (
        lambda: process(diag=as_tensor([0.1, 0.2])),
        "`diag` must be a number, or broadcast to the shape (3,) of the times, got (2,)",
    ),
    "yerr of another size": (
        lambda: gp.GaussianProcess(KERNEL, T, yerr=as_tensor([0.1, 0.2])),
        "`yerr` must be a number, or broadcast to the shape (3,) of the times, got (2,)",
    ),
    "negative noise": (
        lambda: process(diag=-0.5),
        "`diag` must not be negative or NaN, got -0.5",
    ),
    "NaN as noise": (
        lambda: gp.GaussianProcess(KERNEL, T, yerr=torch.nan),
        "`yerr` must not be negative or NaN, got nan",
    ),
    "y of another size": (
        lambda: PROCESS.log_likelihood(Y[:2]),
        "log_likelihood: `y` must have the shape (3,) of the times, got (2,); m sets of observations at the"
        " same times need m rows of times, as t.expand(m, -1)",
    ),
    "several y": (
        lambda: PROCESS.leave_one_out(Y.expand(4, 3)),
        "leave_one_out: `y` must have the shape (3,) of the times, got (4, 3)",
    ),
    "y of another batch": (
        lambda: BATCH.log_likelihood(Y.expand(3, 3)),
        "`y` must have the shape (2, 3) of the times, got (3, 3)",
    ),
    "columns of another size": (
        lambda: PROCESS.apply_inverse(Y[:2]),
        "apply_inverse: `y` must have the shape (3,) of the times, or (3, 'm') for m columns, got (2,)",
    ),
    "bands of another size": (
        lambda: process(BANDED, band=torch.tensor([0, 1])),
        "`band` must have the shape (3,) of the times, got (2,)",
    ),
    "no bands": (
        lambda: process(BANDED).log_likelihood(Y),
        "the kernel has bands, so `band` must say which of them every time is in",
    ),
    "no bands of new times": (
        lambda: process(BANDED, band=torch.tensor([0, 1, 1])).predict(Y, T),
        "the kernel has bands, so `band` must say",
    ),
    "a tensor as mean at new times": (
        lambda: process(mean=Y).predict(Y, T),
        "predict: `mean` must be a number or a function to be known at other times than those observed, got a "
        "tensor of shape (3,); pass a function of times, or include_mean=False",
    ),
    "a mean of another size": (
        lambda: process(mean=Y[:2]).log_likelihood(Y),
        "`mean` must broadcast to the shape (3,) of the times, got (2,)",
    ),
    "a function of another size": (
        lambda: process(mean=lambda t: t[:2]).log_likelihood(Y),
        "`mean` must broadcast to the shape (3,) of the times, got (2,)",
    ),
    "no draws": (
        lambda: PROCESS.sample(0),
        "GaussianProcess.sample: `size` must be a positive integer or None, got 0",
    ),
    "half a draw": (
        lambda: PROCESS.condition(Y).sample(1.5),
        "Conditional.sample: `size` must be a positive integer or None, got 1.5",
    ),
    "True draws": (
        lambda: PROCESS.sample(True),
        "`size` must be a positive integer or None, got True",
    ),
    "solves of a list": (
        lambda: RAGGED.apply_inverse(Y),
        "apply_inverse: needs times in one tensor, got a list of series; make a process of each series",
    ),
    "covariances of a list": (
        lambda: RAGGED.condition([Y, Y[:2]]).covariance(),
        "Conditional.covariance: needs times in one tensor, got a list of series",
    ),
    "too few series": (
        lambda: RAGGED.log_likelihood([Y]),
        "`y` must be a list of 2 tensors, one for each series, got 1",
    ),
    "a tensor of new times": (
        lambda: RAGGED.predict([Y, Y[:2]], T),
        "`t` must be a list of 2 tensors, one for each series, got Tensor",
    ),
    "a series of another size": (
        lambda: RAGGED.log_likelihood([Y, Y]),
        "`y` of series 1 must have the shape (2,), got (3,)",
    ),
    "noise of a series of another size": (
        lambda: process(t=[T, T[:2]], diag=[Y, Y]),
        "`diag` of series 1 must have the shape (2,), got (3,)",
    ),
    "a term of another kernel": (
        lambda: process(SUM).predict(Y, kernel=gp.Matern32(1.0)),
        "predict: `kernel` must be a term of the process's kernel, the same object as in the sum, or a sum of "
        "some of its terms; got Matern32, which is not one of its 2 terms",
    ),
    "variance and covariance": (
        lambda: PROCESS.predict(Y, return_var=True, return_cov=True),
        "predict: `return_var` and `return_cov` exclude each other, got both",
    ),
    "exposures of lists": (
        lambda: process(t=[T, T[:2]], exposure=0.1),
        "`exposure` cannot be used with lists of series, or with bands; leave one of them out",
    ),
    "exposures of another size": (
        lambda: process(exposure=Y[:2]),
        "`exposure` must be a number, or broadcast to the shape (3,) of the times, got (2,)",
    ),
    "a negative exposure": (
        lambda: process(exposure=-1.0),
        "`exposure` must be positive and finite, got -1",
    ),
    "a negative scale": (
        lambda: gp.Matern32(-1.0),
        "laplex.gp.Matern32: `scale` must be positive and finite, got -1",
    ),
    "scale 0": (
        lambda: gp.Matern52(0),
        "laplex.gp.Matern52: `scale` must be positive and finite, got 0",
    ),
    "NaN as sigma": (
        lambda: gp.Exponential(1.0, as_tensor([1.0, torch.nan])),
        "laplex.gp.Exponential: `sigma` must be positive and finite, got nan",
    ),
    "infinite period": (
        lambda: gp.Cosine(float("inf")),
        "laplex.gp.Cosine: `period` must be positive and finite, got inf",
    ),
    "a negative factor": (
        lambda: -2.0 * KERNEL,
        "laplex.gp.Scale: `factor` must be positive and finite, got -2",
    ),
    "quality 0": (
        lambda: gp.SHO(1.0, 0.0),
        "laplex.gp.SHO: `quality` must be positive and finite, got 0",
    ),
    "difference of Rotation": (
        lambda: gp.Rotation(1.0, 1.0, -0.1, 1.0),
        "laplex.gp.Rotation: `difference` must be positive and finite, got -0.1",
    ),
    "rate of Celerite": (
        lambda: gp.Celerite(1.0, 0.1, -1.0, 1.0),
        "laplex.gp.Celerite: `c` must be positive and finite, got -1",
    ),
    "no period": (
        lambda: gp.SHO(),
        "laplex.gp.SHO: either `period` or `omega` = 2 pi / period must be given, got neither",
    ),
    "period and omega": (
        lambda: gp.SHO(1.0, omega=2.0),
        "must be given, got both",
    ),
    "distances of Linear": (
        lambda: gp.Linear().evaluate(T),
        "laplex.gp.Linear.evaluate: depends on both times, not on their distance; use kernel(t1, t2)",
    ),
    "the matrix of Bands": (
        lambda: BANDED(T),
        "laplex.gp.Bands: the matrix depends on bands, too; use a GaussianProcess with `band`",
    ),
    "value of Bands": (
        lambda: gp.Bands(KERNEL, as_tensor(1.0)),
        "laplex.gp.Bands: `value` must be a tensor with a number for each band, got ()",
    ),
    "value of Bands as a list": (
        lambda: gp.Bands(KERNEL, [1.0]),
        "laplex.gp.Bands: `value` must be a tensor with a number for each band, got list",
    ),
    "slope of Bands": (
        lambda: gp.Bands(KERNEL, as_tensor([1.0]), Y),
        "laplex.gp.Bands: `slope` must be a tensor with a number for each band, got (3,)",
    ),
    "the slope of a rough process": (
        lambda: process(gp.Bands(gp.Exponential(1.0), Y, Y), band=torch.tensor([0, 1, 2])).log_likelihood(Y),
        "the slope of the process is asked for, but a process with this kernel is not differentiable; use "
        "Matern32, Matern52, SHO or Cosine",
    ),
    "the slope of a rough CARMA": (
        lambda: process(gp.Bands(gp.CARMA(Y + 1, Y), Y, Y), band=torch.tensor([0, 1, 2])).log_likelihood(Y),
        "the slope of the process is asked for",
    ),
    "too many coefficients": (
        lambda: gp.CARMA(as_tensor([1.0]), as_tensor([1.0, 2.0])),
        "laplex.gp.CARMA: `beta` must have 1 to 1 coefficients, at most as many as `alpha`, got 2",
    ),
    "a CARMA that grows": (
        lambda: gp.CARMA(as_tensor([-1.0]), as_tensor([1.0]))(T),
        "laplex.gp.CARMA: the states must decay: all eigenvalues of F, or roots of the polynomial of alpha, "
        "must have negative real parts, got one of 1",
    ),
    "a system that grows": (
        lambda: gp.StateSpace(**(SYSTEM | {"feedback": as_tensor([[0.5]])}))(T),
        "laplex.gp.StateSpace: the states must decay",
    ),
    "feedback of another size": (
        lambda: gp.StateSpace(**(SYSTEM | {"feedback": torch.zeros(2, 2)})),
        "laplex.gp.StateSpace: `feedback` must be a tensor of shape (*batch, s, s) with the s of `readout`, got (2, 2)",
    ),
    "noise of states as a list": (
        lambda: gp.StateSpace(**(SYSTEM | {"noise": [[1.0]]})),
        "laplex.gp.StateSpace: `noise` must be a tensor of shape (*batch, s, s) with the s of `readout`, got list",
    ),
    "readout without a dimension": (
        lambda: gp.StateSpace(**(SYSTEM | {"readout": as_tensor(1.0)})),
        "laplex.gp.StateSpace: `feedback` must be a tensor of shape",
    ),
}


@pytest.mark.parametrize(("call", "message"), TYPES.values(), ids=TYPES)
def test_types(call, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        call()


@pytest.mark.parametrize(("call", "message"), VALUES.values(), ids=VALUES)
def test_values(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


@pytest.mark.parametrize("method", ["log_likelihood", "condition", "apply_inverse", "leave_one_out"])
def test_a_matrix_that_is_not_positive_definite(method, path):
    """The message has the time and the series."""
    t = torch.stack([T, as_tensor([0.0, 1.0, 1.0])])
    wrong = gp.GaussianProcess(gp.Celerite(1.0, 50.0, 1.0, 1.0), t, diag=0.0)
    message = f"GaussianProcess.{method}: K + diag must be positive definite, but at time 1 of series 0 the variance"
    with pytest.raises(torch.linalg.LinAlgError, match=re.escape(message)):
        getattr(wrong, method)(torch.stack([Y, Y]))


def test_equal_times_without_noise(path):
    again = gp.GaussianProcess(gp.Exponential(1.0), as_tensor([3.0, 1.0, 1.0]), diag=0.0)
    with pytest.raises(torch.linalg.LinAlgError, match=r"at time 1 of series 0 .* raise `diag`"):
        again.log_likelihood(Y)


@pytest.mark.parametrize("method", ["covariance", "sample"])
def test_what_exposures_do_not_have(method):
    given = process(exposure=0.1).condition(Y)
    with pytest.raises(ValueError, match=rf"Conditional.{method}: is not defined for observations over exposures"):
        getattr(given, method)()


def test_exposures_of_a_line():
    with pytest.raises(ValueError, match="exposure are not defined for Linear; make it the mean"):
        process(gp.Linear(), exposure=0.1).log_likelihood(Y)


def test_a_layer_as_mean():
    """It wants float32 and columns."""
    message = (
        "It is called with the times, a float64 tensor of shape (3,), and must return as many numbers. A layer takes "
        "columns: use mean=lambda t: layer(t[..., None])[..., 0] with layer.double()"
    )
    layer = torch.nn.Linear(1, 1)
    with pytest.raises(RuntimeError, match=f"log_likelihood: `mean` failed: .*\n{re.escape(message)}") as raised:
        process(mean=layer).log_likelihood(Y)
    assert type(raised.value.__cause__) is RuntimeError
    layer.double()
    assert process(mean=lambda t: layer(t[..., None])[..., 0]).log_likelihood(Y).isfinite()


def test_a_mean_that_runs_out_of_memory():
    def mean(t):
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        process(mean=mean).predict(Y)


def test_a_kernel_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        gp.Kernel()

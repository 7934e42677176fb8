"""Kernels in GPyTorch: the checks of linear_operator, the training of models, and predictions."""

import subprocess
import sys
import unittest

import gpytorch
import pytest
import torch
from linear_operator import operators
from linear_operator.test.linear_operator_test_case import LinearOperatorTestCase, RectangularLinearOperatorTestCase
from linear_operator.utils.errors import NotPSDError

from laplex import gp
from laplex.gp._linear_operator import CrossLinearOperator
from laplex.gp.gpytorch import LaplexKernel, StateLinearOperator
from processes import assert_close, every_kernel, seeded

pytestmark = pytest.mark.filterwarnings("ignore")  # of linear_operator, about its own use of sparse tensors


# --- What linear_operator checks of every operator --------------------------------------------------------------------


def from_loops(operator):
    """The matrix by its definition, entry by entry."""
    steps, p, q, diag, order = operator._args
    n = diag.shape[-1]
    entries = [[None] * n for _ in range(n)]
    for j in range(n):
        state = q[..., j, :]
        entries[j][j] = (p[..., j, :] * state).sum(-1) + diag[..., j]
        for i in range(j + 1, n):
            state = (steps[..., i, :, :] @ state[..., None])[..., 0]
            entries[i][j] = entries[j][i] = (p[..., i, :] * state).sum(-1)
    matrix = torch.stack([torch.stack(row, -1) for row in entries], -2)
    back = order.argsort(-1)
    matrix = matrix.gather(-2, back[..., :, None].expand(matrix.shape))
    return matrix.gather(-1, back[..., None, :].expand(matrix.shape)).to(operator.dtype)


class Square:
    batch = ()
    should_call_cg = False  # solves are exact
    should_test_sample = True

    def create_linear_op(self):
        t = 4 * torch.rand(*self.batch, 9, 1, generator=seeded(0), dtype=torch.float64)
        kernel = LaplexKernel(gp.Matern32(1.0) + gp.SHO(2.0))
        operator = kernel(t).evaluate_kernel().add_diagonal(torch.tensor(0.5))
        return StateLinearOperator(*(arg.detach().clone() for arg in operator._args), precision=torch.float32)

    def evaluate_linear_op(self, operator):
        return from_loops(operator)


class Parted(Square):
    first = True

    def create_linear_op(self):
        return CrossLinearOperator(super().create_linear_op(), 5, self.first)

    def evaluate_linear_op(self, operator):
        matrix = from_loops(operator.operator)
        return matrix[..., :5, 5:] if operator.first else matrix[..., 5:, :5]


class TestSquare(Square, LinearOperatorTestCase, unittest.TestCase):
    """One matrix."""


class TestSquareBatch(Square, LinearOperatorTestCase, unittest.TestCase):
    """Two."""

    batch = (2,)


class TestSquareBatches(Square, LinearOperatorTestCase, unittest.TestCase):
    """Two by three."""

    batch = (2, 3)


class TestParted(Parted, RectangularLinearOperatorTestCase, unittest.TestCase):
    """One matrix."""


class TestPartedBatch(Parted, RectangularLinearOperatorTestCase, unittest.TestCase):
    """Two, of the lower part."""

    batch, first = (2,), False


class TestPartedBatches(Parted, RectangularLinearOperatorTestCase, unittest.TestCase):
    """Two by three."""

    batch = (2, 3)


# --- Operators --------------------------------------------------------------------------------------------------------


def times(n=40, *batch):
    return 10 * torch.rand(*batch, n, 1, generator=seeded(1), dtype=torch.float64)


@every_kernel()
def test_operators_are_the_dense_matrices(case):
    kernel = LaplexKernel(case.kernel())
    x1, x2 = times(13), times(7) + 0.3
    for one, two in ((x1, x1), (x1, x2), (x2, x1)):
        want = case.kernel()(one[:, 0], two[:, 0])
        assert_close(kernel(one, two).to_dense().detach(), want, 1e-11)
    dense = case.kernel()(x1[:, 0])
    assert_close(kernel(x1, diag=True).detach(), dense.diagonal(), 1e-11)


def test_a_diagonal_of_two_inputs():
    x1, x2 = times(13), times(13) + 0.3
    want = gp.Matern32(2.0)(x1[:, 0], x2[:, 0]).diagonal()
    assert_close(LaplexKernel(gp.Matern32(2.0))(x1, x2, diag=True).detach(), want, 1e-12)
    batched = LaplexKernel(gp.Matern32(2.0), batch_shape=(3,))(x1, x2, diag=True).detach()
    assert_close(batched, want.expand(3, 13), 1e-12)


def test_sums_and_multiples_stay_of_their_kind():
    x = times(13)
    one, two = (LaplexKernel(kernel)(x).evaluate_kernel() for kernel in (gp.Matern32(2.0), gp.SHO(3.0)))
    total = 2.5 * one + two + operators.ConstantDiagLinearOperator(torch.tensor([0.2]), 13)
    assert type(total) is StateLinearOperator
    t = x[:, 0]
    want = 2.5 * gp.Matern32(2.0)(t) + gp.SHO(3.0)(t) + 0.2 * torch.eye(13)
    assert_close(total.to_dense().detach(), want, 1e-12)
    assert_close(total.logdet().detach(), torch.logdet(want), 1e-11)


def test_samples_have_the_covariance():
    operator = LaplexKernel(gp.Matern32(2.0))(times(6)).evaluate_kernel().add_jitter(0.1)
    torch.manual_seed(0)
    drawn = operator.zero_mean_mvn_samples(40_000).detach()
    assert (torch.cov(drawn.mT) - operator.to_dense().detach()).abs().max() < 0.05


# --- Models -----------------------------------------------------------------------------------------------------------


class Model(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood, kernel):
        super().__init__(x, y, likelihood)
        self.mean_module, self.covar_module = gpytorch.means.ConstantMean(), kernel

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def model_and_data(kernel, n=60, dtype=torch.float64):
    x = times(n)
    y = torch.sin(x[:, 0]) + 0.1 * torch.randn(n, generator=seeded(2), dtype=torch.float64)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(dtype)
    model = Model(x.to(dtype), y.to(dtype), likelihood, kernel)
    model.mean_module.to(dtype)
    return model, x.to(dtype), y.to(dtype)


def loss_of(model, x, y):
    model.train()
    return -gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)(model(x), y)


def process_of(model, kernel):
    mean = float(model.mean_module.constant.detach())
    x, noise = model.train_inputs[0][:, 0].double(), model.likelihood.noise.detach().double()
    return gp.GaussianProcess(kernel, x, diag=noise, mean=mean)


def test_losses_and_gradients_are_those_of_gpytorch_s_own_kernel():
    own = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(1.5)).double()
    own.base_kernel.lengthscale, own.outputscale = 2.0, 1.7
    ours = LaplexKernel(gp.Matern32(2.0, 1.7**0.5))
    losses, gradients = [], []
    for kernel in (own, ours):
        model, x, y = model_and_data(kernel)
        loss = loss_of(model, x, y)
        losses.append(loss.detach())
        inputs = [model.likelihood.raw_noise, model.mean_module.constant]
        gradients.append(torch.cat([one.flatten() for one in torch.autograd.grad(loss, inputs)]))
    assert_close(losses[1], losses[0], 1e-8)
    assert_close(gradients[1], gradients[0], 1e-6)


@pytest.mark.parametrize("n", [60, 900], ids=["small", "above_max_cholesky_size"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_training_and_predictions(n, dtype):
    kernel = LaplexKernel(gp.Matern32(1.0))
    model, x, y = model_and_data(kernel, n, dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        losses.append(loss_of(model, x, y))
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0]
    process = process_of(model, gp.fixed(kernel.kernel))
    loss = loss_of(model, x, y)
    assert float(loss) == pytest.approx(-float(process.log_likelihood(y.double())) / n, rel=1e-5)
    model.eval()
    new = torch.linspace(-1, 11, 17, dtype=dtype)[:, None]
    with torch.no_grad():
        got = model(new)
        mean, variance = process.predict(y.double(), new[:, 0].double(), return_var=True)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    assert got.mean.dtype == got.variance.dtype == dtype
    assert_close(got.mean.double(), mean, tolerance)
    assert_close(got.variance.double(), variance, tolerance, scale=1.0)


def test_no_cholesky_and_no_conjugate_gradients(monkeypatch):
    """They would be slow, or not exact, for many points."""

    def refused(*_, **__):
        raise AssertionError("not O(n)")

    monkeypatch.setattr("linear_operator.utils.linear_cg", refused)
    monkeypatch.setattr("linear_operator.operators._linear_operator.psd_safe_cholesky", refused)
    kernel = gpytorch.kernels.ScaleKernel(LaplexKernel(gp.Matern32(1.0)) + LaplexKernel(gp.SHO(3.0))).double()
    model, x, y = model_and_data(kernel, 900)
    loss_of(model, x, y).backward()
    model.eval()
    with torch.no_grad(), gpytorch.settings.skip_posterior_variances():
        assert model(x[:5] + 0.1).mean.shape == (5,)
    with torch.no_grad():
        assert model(x[:5] + 0.1).variance.shape == (5,)


def test_many_points():
    kernel = LaplexKernel(gp.Matern32(1.0))
    model, x, y = model_and_data(kernel, 50_000)
    loss_of(model, x, y).backward()
    assert all(one.grad is not None and torch.isfinite(one.grad).all() for one in kernel.parameters())
    model.eval()
    with torch.no_grad(), gpytorch.settings.skip_posterior_variances():
        assert (model(x).mean - torch.sin(x[:, 0])).abs().max() < 0.3


def test_a_noise_for_each_observation():
    x, kernel = times(30), LaplexKernel(gp.Matern32(1.0))
    noise = torch.linspace(0.1, 0.4, 30, dtype=torch.float64)
    model = Model(x, torch.sin(x[:, 0]), gpytorch.likelihoods.FixedNoiseGaussianLikelihood(noise), kernel)
    model.mean_module.double()
    got = loss_of(model, x, torch.sin(x[:, 0]))
    want = gp.GaussianProcess(gp.Matern32(1.0), x[:, 0], diag=noise).log_likelihood(torch.sin(x[:, 0]))
    assert float(got) == pytest.approx(-float(want) / 30, rel=1e-10)


def test_a_batch_of_models():
    x = times(20, 3)
    y = torch.sin(x[..., 0])
    likelihood = gpytorch.likelihoods.GaussianLikelihood(batch_shape=torch.Size([3])).double()
    kernel = LaplexKernel(gp.Matern32(1.0), batch_shape=(3,))
    assert kernel.batch_shape == (3,)
    model = Model(x, y, likelihood, kernel)
    model.mean_module.double()
    want = gp.GaussianProcess(gp.Matern32(1.0), x[..., 0], diag=likelihood.noise.detach()).log_likelihood(y)
    assert_close(loss_of(model, x, y).detach(), -want / 20, 1e-9)
    model.eval()
    assert model(x + 0.1).mean.shape == (3, 20)


def test_columns_are_chosen_by_active_dims():
    x = torch.cat([times(13), torch.randn(13, 1, dtype=torch.float64)], -1)
    kernel = LaplexKernel(gp.Matern32(2.0), active_dims=(0,))
    assert_close(kernel(x).to_dense().detach(), gp.Matern32(2.0)(x[:, 0]), 1e-12)
    assert type(kernel + LaplexKernel(gp.SHO(3.0), active_dims=(0,))) is LaplexKernel
    assert type(kernel + LaplexKernel(gp.SHO(3.0), active_dims=(1,))) is gpytorch.kernels.AdditiveKernel


def test_models_that_are_given_more_data():
    model, x, y = model_and_data(LaplexKernel(gp.Matern32(1.3)))
    new_x, new_y, points = times(3) + 20, torch.tensor([0.3, -0.2, 0.5]).double(), times(4) + 19
    model.eval(), model.likelihood.eval()
    with torch.no_grad():
        model(points)
        got = model.get_fantasy_model(new_x, new_y)(points)
        model.set_train_data(torch.cat([x, new_x]), torch.cat([y, new_y]), strict=False)
        want = model(points)
    assert_close(got.mean, want.mean, 1e-9)
    assert_close(got.variance, want.variance, 1e-9)


def test_sums_and_products_of_kernels_share_their_parameters():
    one, two = LaplexKernel(gp.Matern32(2.0)), LaplexKernel(gp.SHO(3.0))
    x = times(13)
    t = x[:, 0]
    assert_close((one + two)(x).to_dense().detach(), gp.Matern32(2.0)(t) + gp.SHO(3.0)(t), 1e-12)
    assert_close((one * two)(x).to_dense().detach(), gp.Matern32(2.0)(t) * gp.SHO(3.0)(t), 1e-12)
    assert {id(each) for each in (one + two).parameters()} == {
        id(each) for each in (*one.parameters(), *two.parameters())
    }
    other = gpytorch.kernels.RBFKernel().double()
    want = gp.Matern32(2.0)(t) + other(x).to_dense()
    assert_close((one + other)(x).to_dense().detach(), want.detach(), 1e-12)


# --- Errors -----------------------------------------------------------------------------------------------------------


def test_errors():
    with pytest.raises(TypeError, match=r"LaplexKernel: `kernel` must be a kernel of laplex.gp"):
        LaplexKernel(gpytorch.kernels.RBFKernel())
    with pytest.raises(ValueError, match=r"LaplexKernel: `kernel` must be one without bands"):
        LaplexKernel(gp.Bands(gp.Matern32(1.0), torch.ones(2)))
    kernel = LaplexKernel(gp.Matern32(1.0))
    with pytest.raises(ValueError, match=r"inputs must have one column, of times, got shapes \(5, 2\) and \(5, 2\)"):
        kernel(torch.zeros(5, 2)).to_dense()
    operator = kernel(torch.zeros(5, 1)).evaluate_kernel()
    with pytest.raises(NotPSDError, match="the matrix must be positive definite; raise the noise"):
        operator.logdet()
    with pytest.raises(
        ValueError, match=r"`diag` must be a number, or broadcast to the diagonal of \(5, 5\), got \(4,\)"
    ):
        operator.add_diagonal(torch.ones(4))
    with pytest.raises(RuntimeError, match=r"of size \(5, 5\), cannot be multiplied by size \(4,\)"):
        operator.solve(torch.ones(4))
    with pytest.raises(NotImplementedError, match="parts of a batch of kernels are not supported"):
        LaplexKernel(gp.Matern32(1.0), batch_shape=(2,))[0]
    assert kernel[0] is kernel


MISSING = """
import sys
sys.modules["gpytorch"] = None
import laplex.gp
try:
    import laplex.gp.gpytorch
except ImportError as error:
    text = str(error)
assert text.startswith("laplex.gp.gpytorch: needs GPyTorch 1.13 or newer, which could not be imported"), text
assert text.endswith("install it with `pip install 'gpytorch>=1.13'`"), text
"""


def test_without_gpytorch_the_error_says_what_to_install():
    done = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

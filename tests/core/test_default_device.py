"""The default device of torch is not asked: what is made stands on the device of the anchors."""

import contextlib
import pickle

import numpy as np
import pytest
import torch

import laplex
from laplex import LaplaceOperator, Plan
from laplex.nn import LaplexLinear, LaplexProjection


def anchors():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=generator, dtype=torch.float64, device="cpu") for size in (7, 6)]


def gradients(function, *inputs):
    leaves = [value.detach().clone().requires_grad_() for value in inputs]
    firsts = torch.autograd.grad(function(*leaves).sin().sum(), leaves, create_graph=True)
    return torch.autograd.grad(sum(first.square().sum() for first in firsts), leaves)


def symmetric(method):
    a, b = anchors()
    return [method(LaplaceOperator(a)), method(LaplaceOperator(a, b).gram(b.abs())), method(LaplaceOperator(a).gram())]


def fitted():
    dense = torch.nn.Linear(6, 7, device="cpu")
    with torch.no_grad():
        dense.weight.copy_(laplex.reference.kernel(*anchors()))
    return LaplexLinear.from_linear(dense, 2, sweeps=2, progress=lambda done, total: None)


def likelihood(t):
    """A likelihood and its gradients; the times are not in order."""
    leaves = [value.clone().requires_grad_() for value in (t, t.new_tensor(0.7), t.new_tensor(1.3))]
    value = laplex.gp.GaussianProcess(laplex.gp.Matern32(*leaves[1:]), leaves[0], diag=0.1).log_likelihood(t.sin())
    return value.detach(), *torch.autograd.grad(value.sum(), leaves)


def density(a):
    """Fits from every kind of start."""
    examples = laplex.density.Examples((a + torch.arange(5, device="cpu")[:, None]).sin())
    options = {"shape": (1, 7, 1), "rounds": 1, "progress": lambda *_: None}
    models = [laplex.density.fit(examples, 4, places=places, **options)[0] for places in ("tree", "random", "curve")]
    models.append(laplex.density.LaplexGaussian(7, 2, phase=True, device="cpu"))
    models[-1].start_from(examples)
    return [model.log_prob(examples.values).detach() for model in models]


def seeded():
    return torch.Generator("cpu").manual_seed(1)


CALLS = {
    "list": lambda a, b: LaplaceOperator(a, b)[[0, 1], :].to_dense(),
    "int": lambda a, b: LaplaceOperator(a, b)[2, -1].to_dense(),
    "numpy": lambda a, b: LaplaceOperator(a, b)[np.array([1, 3]), np.int64(2)].to_dense(),
    "mask": lambda a, b: LaplaceOperator(a, b)[:, [True, False, True, False, False, True]].to_dense(),
    "scipy": lambda a, b: torch.from_numpy(LaplaceOperator(a, b).aslinearoperator() @ np.ones(6)),
    "scipy_transposed": lambda a, b: torch.from_numpy(LaplaceOperator(a, b).aslinearoperator().T @ np.ones((7, 2))),
    "product": lambda a, b: LaplaceOperator(a, b) @ b,
    "diagonals": lambda a, b: symmetric(lambda matrix: matrix.diagonal()),
    "to_dense": lambda a, b: symmetric(lambda matrix: matrix.to_dense()),
    "solve": lambda a, b: symmetric(lambda matrix: matrix.solve(a, 0.1)),
    "logdet": lambda a, b: symmetric(lambda matrix: matrix.logdet(0.1)),
    "cholesky": lambda a, b: symmetric(lambda matrix: matrix.cholesky(0.1).to_dense()),
    "sample": lambda a, b: symmetric(lambda matrix: matrix.cholesky(0.1).sample(3, generator=seeded())),
    "rank": lambda a, b: laplex.rank(a.expand(2, 7), b.expand(2, 6)),
    "plan": lambda a, b: laplex.linear(b, a, b, plan=Plan(a, b).update(a, b)),
    "fit": lambda a, b: fitted().to_dense().detach(),
    "seriate": lambda a, b: laplex.seriate(a[:, None] * b + a[:, None].cos(), coordinates=1),
    "place": lambda a, b: LaplexProjection(6, 3, device="cpu", generator=seeded()).place(a[:, None] + b).a,
    "likelihood": lambda a, b: likelihood(a),
    "likelihood of series": lambda a, b: likelihood(a.expand(2, 7)),
    "density": lambda a, b: density(a),
    "pickled_plan": lambda a, b: laplex.linear(b, a, b, plan=pickle.loads(pickle.dumps(Plan(a, b)))),
}


@contextlib.contextmanager
def default_device():
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


def same(got, want):
    if isinstance(want, torch.Tensor):
        return got.device == want.device and torch.equal(got, want)
    return len(got) == len(want) and all(map(same, got, want))


@pytest.mark.parametrize("context", [default_device, lambda: torch.device("meta")], ids=["set", "context"])
@pytest.mark.parametrize("call", CALLS)
def test_the_default_device_changes_nothing(call, context):
    want = CALLS[call](*anchors())
    with context():
        got = CALLS[call](*anchors())
    assert same(got, want)


@pytest.mark.parametrize("function", ["linear", "gram"])
def test_the_default_device_changes_no_derivative(function, backend):
    a, b = anchors()

    def called(a, b):
        if function == "linear":
            return laplex.linear(b, a, b, phi=a, psi=b, backend=backend)
        return laplex.gram(a, b, b, phi=a, psi=b, backend=backend)

    want = gradients(called, a, b)
    with torch.device("meta"):
        assert same(gradients(called, a, b), want)

"""Files: torch.load, with its default weights_only=True, gives back what torch.save was given."""

import io
import pickle
import pickletools

import numpy as np
import pytest
import torch

import laplex
from helpers import error, oracle
from laplex import LaplaceOperator, Plan, _backends, _compiled
from systems import normal

INTERPRETED = pytest.mark.skipif(not _backends.interpreted(), reason="with a GPU the kernels are compiled: test_gpu")
PUBLIC = {"laplex Plan", "laplex LaplaceOperator", "laplex GramOperator", "laplex CholeskyFactor"}


def reloaded(value, **how):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **how)


def phased(**arguments):
    return LaplaceOperator(normal(5), normal(6), 0.7, phi=normal(5), psi=normal(6), **arguments)


OPERATORS = {
    "plain": lambda: LaplaceOperator(normal(5), normal(6), 0.7),
    "phased": phased,
    "batched": lambda: LaplaceOperator(normal(2, 5), normal(6), torch.tensor([0.5, 2.0]).double()),
    "symmetric": lambda: LaplaceOperator(normal(5), phi=normal(5)),
    "short_axis": lambda: LaplaceOperator(normal(3), normal(60)),
    "tau_of_numpy": lambda: LaplaceOperator(normal(5), normal(6), np.float64(0.7)),
    "parameters": lambda: LaplaceOperator(torch.nn.Parameter(normal(5)), normal(6)),
}


@pytest.mark.parametrize("kind", OPERATORS)
def test_operators(kind):
    K = OPERATORS[kind]()
    made, x = reloaded(K), normal(K.shape[-1], 2)
    assert type(made) is LaplaceOperator
    assert repr(made) == repr(K)
    assert torch.equal(made @ x, K @ x)
    assert (made.b is made.a) == (K.b is K.a)


@pytest.mark.parametrize("weighted", [False, True])
def test_gram_operators(weighted):
    K = phased()
    M = K.gram(torch.rand(6).double() if weighted else None)
    made, x = reloaded(M), normal(5)
    assert torch.equal(made @ x, M @ x)
    assert torch.equal(made.solve(x, 0.1), M.solve(x, 0.1))


MATRICES = {
    "kernel": lambda: LaplaceOperator(normal(5)),
    "phased_kernel": lambda: LaplaceOperator(normal(5), phi=normal(5)),
    "batched_kernel": lambda: LaplaceOperator(normal(2, 5)),
    "gram": lambda: phased().gram(torch.rand(6).double()),
}


@pytest.mark.parametrize("kind", MATRICES)
def test_factors(kind):
    C = MATRICES[kind]().cholesky(0.3)
    made, x = reloaded(C), normal(5, 2)
    assert torch.equal(made @ x, C @ x)
    assert torch.equal(made.solve(x), C.solve(x))
    assert torch.equal(made.logdet(), C.logdet())
    assert repr(made) == repr(C)


def test_a_factor_is_loaded_without_the_compiled_core(monkeypatch):
    C, x = phased().gram().cholesky(0.3), normal(5)
    monkeypatch.setattr(_compiled, "MISSING", "not built")
    assert error(reloaded(C) @ x, C @ x) <= 1e-13


@pytest.mark.parametrize(("n", "k"), [(9, 8), (2, 60), (60, 2)])
def test_plans(n, k, scan_backend):
    a, b, x = normal(n), normal(k), normal(3, k)
    for plan in (Plan(a, b), Plan(b, a).mT):
        made = reloaded(plan)
        assert repr(made) == repr(plan)
        assert error(laplex.linear(x, a, b, plan=made, backend=scan_backend), oracle(x, a, b)) <= 1e-14


@INTERPRETED
@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
@pytest.mark.parametrize("in_order", [False, True])
def test_plans_of_triton(in_order):
    a, b, x = normal(9), normal(8), normal(3, 8)
    if in_order:
        a, b = a.sort().values, b.sort().values
    plan = Plan(a, b, backend="triton")
    made = reloaded(plan)
    assert repr(made) == repr(plan)
    assert made.backend == "triton"
    assert not made._knows(a, b)
    assert error(laplex.linear(x, a, b, plan=made, backend="triton"), oracle(x, a, b)) <= 1e-14


def test_everything_in_one_file():
    K = phased()
    state = {"plan": K.plan, "operator": K, "gram": K.gram(), "factor": K.gram().cholesky(0.3), "a": K.a}
    made = reloaded(state, map_location="cpu")
    assert made["operator"].plan is made["plan"]
    assert made["gram"].kernel is made["operator"]
    assert made["operator"].a is made["a"]


@pytest.mark.parametrize(
    "value",
    [phased().plan, phased(), phased().gram(), phased().gram().cholesky(0.3)],
    ids=["plan", "operator", "gram", "factor"],
)
def test_files_name_no_private_module(value):
    named = {argument for _, argument, _ in pickletools.genops(pickle.dumps(value, protocol=2)) if argument is not None}
    ours = {name for name in named if isinstance(name, str) and name.startswith("laplex")}
    assert f"laplex {type(value).__name__}" in ours
    assert ours <= PUBLIC


def test_public_classes_are_named_as_users_import_them():
    for name in laplex.__all__:
        value = getattr(laplex, name)
        if isinstance(value, type):
            assert value.__module__ == "laplex"

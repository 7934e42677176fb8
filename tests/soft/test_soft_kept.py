"""What a matrix P computes once is good in every mode, and where a transform differentiates the numbers."""

import dense_soft
import pytest
import torch

from laplex import _backends, _compiled, soft
from laplex.soft import _sort

N = 100
MATRICES = {
    "sort": lambda x: soft.sort(x, tau=0.1).permutation,
    "descending sort": lambda x: soft.sort(x, tau=0.1, descending=True).permutation,
    "argsort": lambda x: soft.argsort(x, tau=0.1),
    "topk": lambda x: soft.topk(x, 3, tau=0.1, largest=False).permutation,
}
USES = {
    "product": lambda P, v: P @ v,
    "transposed product": lambda P, v: P.mT @ v[..., : P.shape[-2]],
    "row sums": lambda P, v: P.row_sums * v[..., : P.shape[-2]],
    "targets": lambda P, v: P.targets * v[..., : P.shape[-2]],
    "diagonal": lambda P, v: P.log_diagonal() * v[..., : P.shape[-2]],
}


def inference(use, v):
    with torch.inference_mode():
        return use(v)


FIRST = {
    "inference mode": inference,
    "grad": lambda use, v: torch.func.grad(lambda v: use(v).sum())(v),
    "vmap": lambda use, v: torch.vmap(use)(torch.stack([v, v])),
    "jvp": lambda use, v: torch.func.jvp(use, (v,), (v,)),
    "hessian": lambda use, v: torch.func.hessian(lambda v: use(v).sum())(v),
}


@pytest.fixture(params=["core", "composed", "torch"])
def backend(request, monkeypatch):
    """Fused sorts, sorts by products, and without the compiled core at all."""
    if request.param != "core":
        monkeypatch.setattr(_sort, "fused_module", lambda *_: None)
    if request.param == "torch":
        monkeypatch.setattr(_compiled, "MISSING", "it was not built")
        assert _backends.planner(torch.device("cpu")) == "torch"


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("mode", FIRST)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("matrix", MATRICES)
def test_ordinary_use_after_another_mode(matrix, use, mode):
    x, v = torch.randn(N, dtype=torch.float64), torch.randn(N, dtype=torch.float64)
    P = MATRICES[matrix](x)
    FIRST[mode](lambda v: USES[use](P, v), v)
    w = v.clone().requires_grad_()
    dense = dense_soft.permutation(x, 0.1, descending="descending" in matrix)[: P.shape[0]]
    torch.testing.assert_close(P @ w, dense @ v)
    torch.testing.assert_close(torch.autograd.grad((P @ w).sum(), w)[0], dense.sum(0))
    torch.testing.assert_close(P.mT @ w[: P.shape[0]], dense.mT @ v[: P.shape[0]])
    torch.testing.assert_close(USES[use](P, w), USES[use](MATRICES[matrix](x), v))


SORTS = {
    "sort": lambda x, tau: soft.sort(x, tau=tau).permutation,
    "argsort": lambda x, tau: soft.argsort(x, tau=tau),
    "topk": lambda x, tau: soft.topk(x, 3, tau=tau).permutation,
}
TAUS = {
    "a number": 0.1,
    "a tensor": torch.tensor([0.1, 0.2], dtype=torch.float64),
    "a tensor in float32": torch.tensor([0.1, 0.2]),
    "auto": "auto",
}
SCORES = {
    "ordinary": lambda x: x,
    "a view": lambda x: torch.stack([x, x])[1],
    "in half precision": lambda x: x.bfloat16(),
    "of inference mode": lambda x: inference(torch.clone, x),
}


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("matrix", SORTS)
def test_a_matrix_that_inference_mode_made(matrix, tau, scores):
    """It multiplies what requires gradients, though autograd cannot save what it was made with."""
    x, v = SCORES[scores](torch.randn(2, N, dtype=torch.float64)), torch.randn(2, N, dtype=torch.float64)
    P = inference(lambda x: SORTS[matrix](x, TAUS[tau]), x)
    same = SORTS[matrix](x.clone(), TAUS[tau])
    for use in USES.values():
        w, ordinary = v.clone().requires_grad_(), v.clone().requires_grad_()
        (bar,) = torch.autograd.grad(use(P, w).square().sum(), w)
        (want,) = torch.autograd.grad(use(same, ordinary).square().sum(), ordinary)
        torch.testing.assert_close(bar, want)


def test_a_matrix_of_a_leaf_that_inference_mode_made():
    x, v = torch.randn(N, dtype=torch.float64, requires_grad=True), torch.randn(N, dtype=torch.float64)
    P = inference(lambda x: soft.argsort(x, tau=0.1), x)
    for use in USES.values():
        (bar,) = torch.autograd.grad(use(P, v).square().sum(), x)
        (want,) = torch.autograd.grad(use(soft.argsort(x, tau=0.1), v).square().sum(), x)
        torch.testing.assert_close(bar, want)


@pytest.mark.parametrize("matrix", MATRICES)
def test_numbers_that_have_a_graph_elsewhere(matrix):
    """What inference mode keeps has no graph of the numbers."""
    x = torch.randn(N, dtype=torch.float64, requires_grad=True)
    P, fresh = MATRICES[matrix](2 * x), MATRICES[matrix](2 * x)
    v = torch.randn(N, dtype=torch.float64)
    with torch.inference_mode():
        P @ v
    bars = [torch.autograd.grad((each @ v).square().sum(), x)[0] for each in (P, fresh)]
    torch.testing.assert_close(*bars)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("matrix", MATRICES)
def test_batches_of_what_is_differentiated(matrix, use):
    """Within vmap a tensor does not say that something around it differentiates it."""
    x, v = torch.randn(3, N, dtype=torch.float64), torch.randn(N, dtype=torch.float64)

    def loss(row):
        return USES[use](MATRICES[matrix](row), v).sin().sum()

    together = torch.func.grad(lambda x: torch.vmap(loss)(x).sum())(x)
    torch.testing.assert_close(together, torch.stack([torch.func.grad(loss)(row) for row in x]))
    leaf = x.clone().requires_grad_()
    (apart,) = torch.autograd.grad(sum(loss(row) for row in leaf), leaf)
    torch.testing.assert_close(together, apart)


@pytest.mark.parametrize("matrix", MATRICES)
def test_the_plan_knows_the_sides_of_the_matrix(matrix):
    P = MATRICES[matrix](torch.randn(N))
    P @ torch.randn(N)
    assert P._plan._knows(*P._sides())
    assert P._plan.mT._knows(*P._sides()[::-1])

"""The matrix of a sort whose numbers, or tau, were written to in place afterwards."""

import copy
import io
import pickle

import dense_soft
import pytest
import torch

from laplex import soft

USES = {
    "product": lambda P: P @ torch.ones(6),
    "transposed product": lambda P: P.mT @ torch.ones(6),
    "row sums": lambda P: P.row_sums,
    "targets": lambda P: P.targets,
    "entry": lambda P: P[0, 1],
    "entry of the transpose": lambda P: P.mT[0, 1],
    "diagonal": lambda P: P.log_diagonal(),
    "matrix": lambda P: P.to_dense(),
    "copy": copy.copy,
    "file": pickle.dumps,
}
SORTS = {
    "sort": lambda x, tau: soft.sort(x, tau=tau).permutation,
    "argsort": lambda x, tau: soft.argsort(x, tau=tau),
    "along another dimension": lambda x, tau: soft.sort(x[:, None], 0, tau=tau).permutation,
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", ["x", "tau"])
@pytest.mark.parametrize("used", [False, True], ids=["unused", "used"])
def test_the_matrix_is_lost(use, name, used):
    x, tau = torch.randn(6), torch.tensor(0.3, dtype=torch.float64)
    P = soft.sort(x, tau=tau).permutation
    order = P.order.clone()
    if used:
        USES[use](P)
    {"x": x, "tau": tau}[name].mul_(3)
    with pytest.raises(RuntimeError, match=f"`{name}` was written to in place since the sort.*{name}.clone"):
        USES[use](P)
    assert P.order.equal(order)


TRANSFORMS = {
    "vmap": lambda use: torch.vmap(use)(torch.ones(1, 6)),
    "grad": lambda use: torch.func.grad(lambda v: use(v).sum())(torch.ones(6)),
    "jvp": lambda use: torch.func.jvp(use, (torch.ones(6),), (torch.ones(6),)),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", ["x", "tau"])
@pytest.mark.parametrize("used", [False, True], ids=["unused", "used"])
def test_the_matrix_is_lost_in_transforms(transform, name, used):
    x, tau = torch.randn(6), torch.tensor(0.3, dtype=torch.float64)
    P = soft.sort(x, tau=tau).permutation
    if used:
        TRANSFORMS[transform](lambda v: P @ v)
    {"x": x, "tau": tau}[name].mul_(3)
    with pytest.raises(RuntimeError, match=f"`{name}` was written to in place since the sort"):
        TRANSFORMS[transform](lambda v: P @ v)


@pytest.mark.parametrize("sort", SORTS)
def test_numbers_next_to_those_that_were_sorted_may_be_written_to(sort):
    data, taus = torch.randn(2, 6), torch.full((2,), 0.3, dtype=torch.float64)
    P = SORTS[sort](data[0], taus[0])
    dense = P.to_dense()
    data[1], taus[1] = 0.0, 0.0
    torch.testing.assert_close(P.to_dense(), dense)
    torch.testing.assert_close(P @ torch.ones(P.shape[:-1]), torch.ones(P.shape[:-1]))
    data[0], taus[0] = 0.0, 0.0  # nor those themselves: P has a copy of a view
    torch.testing.assert_close(P.to_dense(), dense)


@pytest.mark.parametrize("sort", SORTS)
def test_an_optimizer_moves_the_numbers(sort):
    w = torch.nn.Parameter(torch.randn(6))
    P = SORTS[sort](w, 0.3)
    (P @ torch.arange(6.0).view(P.shape[:-1])).sum().backward()
    torch.optim.SGD([w], 1.0).step()
    with torch.no_grad(), pytest.raises(RuntimeError, match="`x` was written to in place"):
        P @ torch.ones(P.shape[:-1])


@pytest.mark.parametrize("used", [False, True], ids=["unused", "used"])
@pytest.mark.parametrize("trained", ["x", "tau"])
def test_a_write_that_torch_does_not_count(trained, used):
    """The rows still add up to 1, and all uses agree: nothing that was computed before is used again."""
    x, tau = torch.randn(6, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64)
    w = torch.nn.Parameter({"x": x, "tau": tau}[trained])
    P = soft.sort(w if trained == "x" else x, tau=w if trained == "tau" else tau).permutation
    v = torch.randn(6, dtype=torch.float64)
    with torch.no_grad():
        if used:
            P @ v
        w.data.mul_(1.5)  # the order stays
        torch.testing.assert_close(P @ torch.ones_like(v), torch.ones_like(v))
        torch.testing.assert_close(P @ v, P.to_dense() @ v)
        torch.testing.assert_close(P.row_sums.log(), -torch.log(P[torch.arange(6), P.order]))


def test_a_tau_or_numbers_that_were_copied_may_be_written_to():
    """Half precision is sorted in float32, and tau is in float64: such copies are nobody else's."""
    x, tau = torch.randn(6, dtype=torch.float16), torch.tensor(0.3)
    P = soft.sort(x, tau=tau).permutation
    dense = P.to_dense()
    x.mul_(2), tau.mul_(2)
    torch.testing.assert_close(P @ torch.eye(6), dense)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes_without_gradients(mode):
    with mode():
        x = torch.randn(6)
        P = soft.sort(x, tau=0.3).permutation
        torch.testing.assert_close(P @ torch.eye(6), dense_soft.permutation(x, 0.3), check_dtype=False)


@pytest.mark.parametrize("sort", SORTS)
def test_numbers_that_inference_mode_made_may_be_written_to(sort):
    """Nothing counts such writes: P has a copy."""
    with torch.inference_mode():
        x, tau = torch.randn(6), torch.tensor(0.3, dtype=torch.float64)
        P = SORTS[sort](x, tau)
        dense = P.to_dense().clone()
        x.mul_(3), tau.mul_(3)
        eye = torch.eye(6).expand(*P.shape[:-2], 6, 6)
        torch.testing.assert_close(P.to_dense(), dense)
        torch.testing.assert_close(P @ eye, dense, check_dtype=False)


@pytest.mark.parametrize("transposed", [False, True])
def test_copies_and_files(transposed):
    x = torch.randn(2, 6)
    x.add_(1)  # the copy starts to count anew
    P = soft.topk(x, 3, tau=0.3).permutation
    P = P.mT if transposed else P
    v = torch.randn(P.shape[:-2] + P.shape[-1:])
    expected = P @ v
    saved = io.BytesIO()
    torch.save(P, saved)
    saved.seek(0)
    for other in (copy.deepcopy(P), pickle.loads(pickle.dumps(P)), torch.load(saved, weights_only=False)):
        assert type(other) is type(P)
        torch.testing.assert_close(other @ v, expected)

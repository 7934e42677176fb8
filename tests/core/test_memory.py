"""The matrix is never formed: no tensor of n * k elements, or a tenth of it, in any order of derivative."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import laplex
from helpers import rows_for
from laplex import _backends
from laplex._gram import ops as gram_ops
from laplex._scan import ops

SIZES = [(1201, 1301), (151, 2503), (2503, 151)]  # merged, short rows, short columns


INSIDE = {
    ops.plan: ops._plan_impl,
    ops.scan: ops._scan_impl,
    ops.pullback: ops._pullback_impl,
    gram_ops.gram: gram_ops._gram,
    gram_ops.gram_pullback: gram_ops._gram_pullback,
}


class NothingAsLargeAs(TorchDispatchMode):
    """Fails when an operation makes a tensor with this many elements, inside laplex's own operators too."""

    def __init__(self, elements):
        super().__init__()
        self.elements = elements

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in INSIDE:
            with self:
                return INSIDE[func](*args, **(kwargs or {}))
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                assert leaf.numel() < self.elements, f"{func} made {leaf.numel()} elements"
        return out


def leaves(n, k, m=2):
    a, b = torch.randn(n), torch.randn(k)
    values = [rows_for(a, b, m), a, b, torch.tensor(0.5), torch.randn(n), torch.randn(k)]
    return [value.requires_grad_() for value in values]


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_every_order_of_derivative(n, k, scan_backend):
    x, a, b, tau, phi, psi = inputs = leaves(n, k)
    with NothingAsLargeAs(n * k // 10):
        y = laplex.linear(x, a, b, tau, phi=phi, psi=psi, backend=scan_backend)
        first = torch.autograd.grad(y.square().sum(), inputs, create_graph=True)
        torch.autograd.grad(sum(value.square().sum() for value in first), inputs)


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_forward_mode(n, k, scan_backend):
    primals = [value.detach() for value in leaves(n, k)]

    def product(x, a, b, tau, phi, psi):
        return laplex.linear(x, a, b, tau, phi=phi, psi=psi, backend=scan_backend)

    with NothingAsLargeAs(n * k // 10):
        torch.func.jvp(product, tuple(primals), tuple(torch.randn_like(value) for value in primals))


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_plans_operators_and_ranks(n, k):
    x, a, b, *_ = (value.detach() for value in leaves(n, k))
    with NothingAsLargeAs(n * k // 10):
        plan = laplex.Plan(a, b)
        plan.update(a + 0.1, b)
        plan.validate(a, b)
        K = laplex.LaplaceOperator(a, b, 0.5)
        assert (K @ x.mT).shape == (n, 2)
        assert (torch.randn(2, n) @ K[:, 1:]).shape == (2, k - 1)
        assert K.diagonal().shape == (min(n, k),)
        assert laplex.rank(a, b) > 0


def test_the_watch_sees_the_dense_backend():
    x, a, b, *_ = leaves(300, 301)
    with NothingAsLargeAs(300 * 301), pytest.raises(AssertionError, match="elements"):
        laplex.linear(x, a, b, backend="dense")


@pytest.mark.parametrize("device", ["cpu", "meta", "cuda"])
@pytest.mark.parametrize(("n", "k"), [(1025, 1025), (10**6, 10**6), (3, 10**6), (10**6, 3)])
def test_large_sizes_never_choose_the_dense_backend(n, k, device):
    assert _backends.choose(torch.device(device), n, k, None).name != "dense"


def test_small_sizes_choose_the_dense_backend():
    assert _backends.choose(torch.device("cuda"), 30, 40, None).name == "dense"
    assert (
        _backends.choose(torch.device("cpu"), 30, 40, None).name == "cpp"
    )  # the compiled scan is faster at every size
    assert _backends.choose(torch.device("cuda"), 30, 40, "torch").name == "torch"

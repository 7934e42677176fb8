"""No n x n or n x m matrix is ever formed: likelihoods, predictions, samples, and derivatives of both orders."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from laplex import _eager, gp
from processes import FEW, KERNEL, named_kernels, observed, seeded, uniform

N, M = 4000, 1500


class NothingAsLargeAs(TorchDispatchMode):
    """Fails when an operation makes a tensor with this many elements.

    It is one of the modes that only watch, so the compiled core still does its work; that has tensors for all results.
    """

    def __init__(self, elements):
        super().__init__()
        self.elements = elements

    def __enter__(self):
        _eager.watching.modes += 1
        return super().__enter__()

    def __exit__(self, *raised):
        _eager.watching.modes -= 1
        return super().__exit__(*raised)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                assert leaf.numel() < self.elements, f"{func} made {leaf.numel()} elements"
        return out


def problem(case):
    t = uniform(seeded(1), N)
    diag, y = observed(t)
    leaves = [part.requires_grad_() for part in (t, diag, y)]
    tensors = {name: value.requires_grad_() for name, value in case.tensors().items()}
    return leaves, tensors


@named_kernels(*FEW)
def test_likelihoods_and_their_derivatives(case, path):
    (t, diag, y), tensors = problem(case)
    inputs = [t, diag, y, *tensors.values()]
    with NothingAsLargeAs(N * M // 10):
        value = gp.GaussianProcess(case.build(**tensors), t, diag=diag).log_likelihood(y)
        bars = torch.autograd.grad(value, inputs, create_graph=path == "core")
        if path == "core":
            torch.autograd.grad(sum(bar.square().sum() for bar in bars), inputs)


@named_kernels(*FEW)
def test_predictions_samples_and_solves(case, chain_path):
    (t, diag, y), tensors = problem(case)
    new = uniform(seeded(2), M).requires_grad_()
    with NothingAsLargeAs(N * M // 10):
        process = gp.GaussianProcess(case.build(**tensors), t, diag=diag)
        given = process.condition(y)
        total = given.mean(new).sum() + given.variance(new).sum() + given.sample(1, new).sum()
        total = total + process.sample().sum() + process.leave_one_out(y).variance.sum()
        total = total + process.apply_inverse(y).sum() + process.dot_tril(y).sum()
        torch.autograd.grad(total, [t, diag, y, new, *tensors.values()])


def test_the_watch_sees_dense_matrices():
    with NothingAsLargeAs(N * M // 10), pytest.raises(AssertionError, match="elements"):
        KERNEL["sum"].kernel()(uniform(seeded(1), N), uniform(seeded(2), M))

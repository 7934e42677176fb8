"""Combinations that once went wrong, each found by reading: the smallest input that showed it."""

import numpy as np
import pytest
import torch
from torch.func import jacrev, jvp, vmap

import laplex
from helpers import error
from laplex import reference


def drawn(*shapes, dtype=torch.float64):
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


def product(backend):
    return lambda x, a, b, **phases: laplex.linear(x, a, b, 0.7, backend=backend, **phases)


def dense(x, a, b, **phases):
    return reference.linear(x, a, b, 0.7, **phases)


@pytest.mark.parametrize("h", [2, 3])
def test_complex_x_with_phases_and_several_matrices(h, backend):
    (x,) = drawn((h, 2, 4), dtype=torch.complex128)
    a, b, phi, psi = drawn((h, 5), (h, 4), (h, 5), (h, 4))
    got, want = (f(x, a, b, phi=phi, psi=psi) for f in (product(backend), dense))
    assert error(got, want) <= 1e-14


def test_vmap_over_x_of_a_batch_in_two_dimensions(backend):
    a, b, x = drawn((2, 3, 5), (2, 3, 4), (2, 3, 1, 4))
    got, want = (jacrev(lambda a, f=f: vmap(f)(x, a, b))(a) for f in (product(backend), dense))
    assert error(got, want) <= 1e-13


def test_vmap_over_each_argument_in_turn(backend):
    x, a, b = drawn((2, 3, 4), (3, 5), (2, 4))
    got, want = (
        vmap(vmap(vmap(f, (None, None, 0)), (None, 0, None)), (0, None, None))(x, a, b)
        for f in (product(backend), dense)
    )
    assert error(got, want) <= 1e-14


@pytest.mark.parametrize(("n", "k"), [(3, 0), (0, 3)])
def test_forward_mode_of_an_empty_side(n, k, backend):
    x, a, b = drawn((2, k), (n,), (k,))
    _, tangent = jvp(product(backend), (x, a, b), (x, a, b))
    assert tangent.shape == (2, n)
    assert not tangent.any()


def test_a_plan_moves_between_devices_only():
    with pytest.raises(TypeError):
        laplex.Plan(*drawn((4,), (4,))).to(torch.float64)


def test_a_target_that_comes_to_lie_on_the_first_source(scan_backend):
    a, b = torch.tensor([0.0]), torch.tensor([1.0])
    plan = laplex.Plan(a, b)
    with pytest.raises(laplex.StalePlanError):
        laplex.linear(b, (a + 1).requires_grad_(), b, plan=plan, backend=scan_backend)


def test_a_batched_tau_wants_a_plan_of_expanded_anchors():
    a, b, x = drawn((5,), (4,), (3, 1, 4))
    tau = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    with pytest.raises(ValueError, match=r"`plan` was built for \(\*H, n, k\) = \(5, 4\), .* here give \(3, 5, 4\)"):
        laplex.linear(x, a.expand(3, 5), b, tau, plan=laplex.Plan(a, b))
    y = laplex.linear(x, a.expand(3, 5), b, tau, plan=laplex.Plan(a.expand(3, 5), b))
    assert error(y, reference.linear(x, a.expand(3, 5), b, tau)) <= 1e-14


def test_a_backward_to_x_alone(backend):
    a, b, x, g = drawn((40,), (50,), (3, 50), (3, 40))
    x.requires_grad_()
    got, want = (torch.autograd.grad(f(x, a, b), x, g)[0] for f in (product(backend), dense))
    assert error(got, want) <= 1e-14


def test_slices_by_numpy():
    a, b = drawn((5,), (6,))
    K = laplex.LaplaceOperator(a, b)
    part = K[np.int64(3), np.array([1, 2])]
    assert torch.equal(part.to_dense(), K.to_dense()[3:4, 1:3])


def test_a_class_that_is_only_called_plan():
    class Plan:
        pass

    with pytest.raises(TypeError, match=r"`plan` must be a laplex.Plan or None, got Plan"):
        laplex.linear(torch.ones(2), torch.ones(3), torch.ones(2), plan=Plan())


def test_more_anchors_than_an_index_can_count():
    huge = torch.empty(1).expand(2**31)
    with pytest.raises(ValueError, match=r"`b` must have fewer than 2\^31 anchors"):
        laplex.Plan(torch.ones(3), huge)


@pytest.mark.parametrize("ties", [False, True])
def test_most_targets_in_one_chunk_of_sources(ties, scan_backend):
    a, b = torch.rand(9000, dtype=torch.float64) + 0.4, torch.rand(2000, dtype=torch.float64) * 0.5
    if ties:
        a, b = (a * 64).round() / 64, (b * 64).round() / 64
    x = torch.randn(2, 2000, dtype=torch.float64)
    inputs = [value.requires_grad_() for value in (x, a, b)]
    g = torch.randn(2, 9000, dtype=torch.float64)
    got, want = (torch.autograd.grad(f(*inputs), inputs, g) for f in (product(scan_backend), dense))
    assert error(product(scan_backend)(*inputs), dense(*inputs)) <= 1e-14
    assert all(error(one, other) <= 1e-13 for one, other in zip(got, want, strict=True))


def test_the_reference_wants_both_phases():
    with pytest.raises(ValueError, match="`phi` and `psi` go together"):
        reference.kernel(*drawn((3,), (4,)), phi=torch.ones(3))


def test_which_of_no_tensors():
    with pytest.raises(TypeError, match=r"laplex.backends.which: `x` must be a torch.Tensor, got int"):
        laplex.backends.which(1, 2, 3)

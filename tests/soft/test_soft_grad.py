"""Gradients, by name, against autograd through the dense definitions in float64; and at ties, from the formula."""

import warnings

import dense_soft
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import jacfwd, jacrev

from laplex import soft


def leaves(n=9, batch=3):
    """Numbers that are not tied, and everything that can be trained with them."""
    inputs = {
        "x": torch.randn(batch, n, dtype=torch.float64),
        "tau": 0.3 + torch.rand(batch, dtype=torch.float64),
        "k": 1 + (n - 2) * torch.rand(batch, dtype=torch.float64),
        "q": 0.1 + 0.8 * torch.rand(batch, dtype=torch.float64),
        "weights": 0.1 + torch.rand(batch, n, dtype=torch.float64),
        "v": torch.randn(batch, n, dtype=torch.float64),
    }
    return {name: value.requires_grad_() for name, value in inputs.items()}


def dense_mask(x, k, tau):
    ones = torch.ones_like(x[0])
    b = torch.stack(
        [dense_soft.differentiable_threshold(row, ones, *rest) for row, *rest in zip(x, k, tau, strict=True)]
    )
    return dense_soft.distribution((x - b[:, None]) / tau[:, None])


def dense_quantile(x, q, tau, weights):
    k = (1 - q) * weights.sum(-1)
    return torch.stack([dense_soft.differentiable_threshold(*row) for row in zip(x, weights, k, tau, strict=True)])


def dense_log_diagonal(x, tau):
    return dense_soft.permutation(x, tau).diagonal(dim1=-2, dim2=-1).log()


PAIRS = {  # arguments, ours, the definition
    "sort": ("x tau", lambda x, tau: soft.sort(x, tau=tau).values, dense_soft.sort),
    "sort down": (
        "x tau",
        lambda x, tau: soft.sort(x, tau=tau, descending=True).values,
        lambda x, tau: dense_soft.sort(x, tau, descending=True),
    ),
    "topk": (
        "x tau",
        lambda x, tau: soft.topk(x, 3, tau=tau).values,
        lambda x, tau: dense_soft.sort(x, tau, descending=True)[..., :3],
    ),
    "rank": ("x tau", lambda x, tau: soft.rank(x, tau=tau), dense_soft.rank),
    "rank down": (
        "x tau",
        lambda x, tau: soft.rank(x, tau=tau, descending=True),
        lambda x, tau: dense_soft.rank(-x, tau),
    ),
    "softsort rank": (
        "x tau",
        lambda x, tau: soft.rank(x, tau=tau, method="softsort"),
        lambda x, tau: (
            torch.softmax(-dense_soft.differences(x, x.sort(-1).values).abs() / tau[..., None, None], -1)
            * torch.arange(1, x.shape[-1] + 1)
        ).sum(-1),
    ),
    "topk_mask": ("x k tau", lambda x, k, tau: soft.topk_mask(x, k, tau=tau), dense_mask),
    "quantile": (
        "x q tau weights",
        lambda x, q, tau, weights: soft.quantile(x, q, tau=tau, weights=weights),
        dense_quantile,
    ),
    "permuted": (
        "x tau v",
        lambda x, tau, v: soft.sort(x, tau=tau).permutation @ v,
        lambda x, tau, v: (dense_soft.permutation(x, tau) @ v[..., None])[..., 0],
    ),
    "permuted back": (
        "x tau v",
        lambda x, tau, v: soft.sort(x, tau=tau).permutation.mT @ v,
        lambda x, tau, v: (dense_soft.permutation(x, tau).mT @ v[..., None])[..., 0],
    ),
    "log_diagonal": ("x tau", lambda x, tau: soft.sort(x, tau=tau).permutation.log_diagonal(), dense_log_diagonal),
    "to_dense": ("x tau", lambda x, tau: soft.sort(x, tau=tau).permutation.to_dense(), dense_soft.permutation),
}


@pytest.fixture(params=PAIRS)
def pair(request):
    names, ours, definition = PAIRS[request.param]
    return names.split(), ours, definition


def gradients(function, inputs, names, direction):
    value = function(*(inputs[name] for name in names))
    bars = torch.autograd.grad((value.double() * direction).sum(), [inputs[name] for name in names])
    return dict(zip(names, bars, strict=True))


def largest_terms(function, inputs, names, direction):
    """What rounding errors of gradients are measured by: a gradient is a sum over results, of a cotangent times a
    derivative; here all terms are positive, and the scale of an input is the largest of its sums."""
    values = tuple(inputs[name].detach() for name in names)
    slopes = torch.autograd.functional.jacobian(function, values)
    sums = (torch.tensordot(direction.abs(), slope.abs(), direction.dim()) for slope in slopes)
    return {name: one.max() for name, one in zip(names, sums, strict=True)}


def test_gradients(pair):
    names, ours, definition = pair
    inputs = leaves()
    direction = torch.randn_like(definition(*(inputs[name] for name in names)))
    expected = gradients(definition, inputs, names, direction)
    for name, bar in gradients(ours, inputs, names, direction).items():
        torch.testing.assert_close(bar, expected[name], rtol=1e-9, atol=1e-10, msg=name)


def test_gradients_in_float32(pair):
    names, ours, definition = pair
    rounded = {name: value.detach().float().requires_grad_() for name, value in leaves().items()}
    exact = {name: value.detach().double().requires_grad_() for name, value in rounded.items()}
    direction = torch.randn_like(definition(*(exact[name] for name in names)))
    expected, scales = (
        gradients(definition, exact, names, direction),
        largest_terms(definition, exact, names, direction),
    )
    for name, bar in gradients(ours, rounded, names, direction).items():
        assert bar.dtype == torch.float32, name
        assert (bar - expected[name]).abs().max() <= 5e-7 * scales[name], name


def test_both_orders_of_derivative(pair):
    names, ours, _ = pair
    inputs = leaves(5, 2)
    assert gradcheck(ours, [inputs[name] for name in names], check_forward_ad=True)
    assert gradgradcheck(ours, [inputs[name] for name in names])


def test_vmap_with_one_k_for_all_does_not_warn():
    """torch warns of tensors that are not in one piece, once in a process."""
    x = torch.randn(3, 6)
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got = torch.func.vmap(lambda row: soft.topk_mask(row, 2, tau=0.1))(x)
    finally:
        torch.set_warn_always(False)
    torch.testing.assert_close(got, soft.topk_mask(x, 2, tau=0.1))


def test_transforms(pair):
    names, ours, _ = pair
    inputs = leaves(6, 4)
    values = [inputs[name].detach() for name in names]
    torch.testing.assert_close(torch.func.vmap(ours)(*values), ours(*values))
    tangents = tuple(torch.randn_like(value) for value in values)
    value, tangent = torch.func.jvp(ours, tuple(values), tangents)
    direction = torch.randn_like(value)
    bars = torch.func.vjp(ours, *values)[1](direction)
    pulled = sum((bar * change).sum() for bar, change in zip(bars, tangents, strict=True))
    torch.testing.assert_close((direction * tangent).sum(), pulled)


def forward_over_forward(loss, values):
    """The second derivatives of a number, by forward mode alone."""
    places = tuple(range(len(values)))
    return jacfwd(jacfwd(loss, places), places)(*values)


def test_forward_mode_over_forward_mode(pair):
    """torch runs a Function's jvp with forward mode off, which alone would make the outer derivative 0."""
    names, ours, _ = pair
    inputs = leaves(5, 2)
    values = tuple(inputs[name].detach() for name in names)
    direction = torch.randn_like(ours(*values))

    def loss(*values):
        return (direction * ours(*values)).sum()

    torch.testing.assert_close(forward_over_forward(loss, values), torch.autograd.functional.hessian(loss, values))


def test_third_derivatives_of_ranks_by_forward_mode_alone():
    x, direction = torch.randn(4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)

    def loss(x):
        return (direction * soft.rank(x, tau=0.5)).sum()

    torch.testing.assert_close(jacfwd(jacfwd(jacfwd(loss)))(x), jacrev(jacrev(jacrev(loss)))(x))


LOSSES = {
    "spearman": lambda x: soft.spearman(x, torch.arange(6.0), tau=0.4),
    "ndcg": lambda x: soft.ndcg(x, torch.arange(6.0), tau=0.4, k=3),
    "cross_entropy": lambda x: soft.cross_entropy(x, torch.arange(6), tau=0.4),
    "quantile_normalize": lambda x: soft.quantile_normalize(x, x[:4].sin(), tau=0.4).square().sum(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_forward_mode_over_forward_mode_of_losses(name):
    x, loss = torch.randn(6, dtype=torch.float64), LOSSES[name]
    torch.testing.assert_close(forward_over_forward(loss, (x,))[0][0], torch.autograd.functional.hessian(loss, x))


def test_ranks_at_ties():
    """dF/du = 1/2 at 0, so tied numbers push each other apart; autograd through abs() gives 0 there."""
    x, tau = torch.tensor([1.0, 2.0, 1.0, 1.0], dtype=torch.float64), 0.5
    jacobian = torch.autograd.functional.jacobian(lambda v: soft.rank(v, tau=tau), x)
    slopes = torch.exp(-dense_soft.differences(x, x).abs() / tau) / (2 * tau)
    torch.testing.assert_close(jacobian, torch.diag(slopes.sum(-1)) - slopes)


def test_masks_at_ties():
    """dp_i = F'(u_i) (dx_i - db), with db the mean of dx weighted by F'(u)."""
    x, tau, k = torch.tensor([1.0, 2.0, 1.0, 1.0], dtype=torch.float64), 0.5, 1.7
    jacobian = torch.autograd.functional.jacobian(lambda v: soft.topk_mask(v, k, tau=tau), x)
    b = soft.quantile(x, 1 - k / 4, tau=tau)
    slopes = torch.exp(-(x - b).abs() / tau) / (2 * tau)
    torch.testing.assert_close(jacobian, torch.diag(slopes) - slopes[:, None] * slopes / slopes.sum())
    assert gradcheck(lambda v: soft.topk_mask(v, k, tau=tau), x.requires_grad_())


def test_all_equal_numbers_have_gradients():
    x = torch.full((5,), 2.0, requires_grad=True)
    for call in (soft.rank, soft.median, lambda v, tau: soft.topk_mask(v, 2, tau=tau)):
        (bar,) = torch.autograd.grad(call(x, tau=0.1).square().sum(), x)
        assert bar.isfinite().all()
    (bar,) = torch.autograd.grad(soft.median(x, tau=0.1), x)
    torch.testing.assert_close(bar, torch.full((5,), 0.2))


def test_a_threshold_at_one_of_the_numbers():
    """The derivative of F at 0 is 1/2, though it is written with an absolute value."""
    x = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64, requires_grad=True)
    b = soft.median(x, tau=0.5)
    assert abs(b) < 1e-15
    torch.testing.assert_close(torch.autograd.grad(b, x)[0], torch.softmax(-x.detach().abs() / 0.5, -1))
    assert gradcheck(lambda v: soft.topk_mask(v, 1.5, tau=0.5), x)


def test_a_median_between_distant_numbers_is_their_mean():
    """The sum is flat between them, and all of its derivatives underflow."""
    x = torch.tensor([0.0, 1e4, 3e4, 4e4], dtype=torch.float64, requires_grad=True)
    b = soft.median(x, tau=1e-3)
    assert b == 2e4
    (bar,) = torch.autograd.grad(b, x)
    torch.testing.assert_close(bar, torch.tensor([0.0, 0.5, 0.5, 0.0], dtype=torch.float64))


def test_k_is_trained():
    """A mask that must have the sum of squares 3.3 finds its k."""
    x, k = torch.randn(20, dtype=torch.float64), torch.tensor(8.0, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([k], lr=0.2)
    for _ in range(200):
        optimizer.zero_grad()
        loss = (soft.topk_mask(x, k, tau=0.2).square().sum() - 3.3).square() / 2
        loss.backward()
        optimizer.step()
    assert loss < 1e-12


def test_hard_values_have_soft_gradients():
    x = torch.randn(3, 8, requires_grad=True)
    direction = torch.randn(3, 8)
    bars = [
        torch.autograd.grad((direction * soft.sort(x, tau=0.3, hard=hard).values).sum(), x)[0] for hard in (False, True)
    ]
    torch.testing.assert_close(*bars)


def test_row_sums_of_a_product_without_gradients_are_not_used_with_them():
    x, v = torch.randn(6, dtype=torch.float64, requires_grad=True), torch.randn(6, dtype=torch.float64)
    permutation = soft.argsort(x, tau=0.4)
    with torch.no_grad():
        permutation @ v
        assert not permutation.row_sums.requires_grad
    (bar,) = torch.autograd.grad((permutation @ v).square().sum(), x)
    (expected,) = torch.autograd.grad((dense_soft.permutation(x, 0.4) @ v).square().sum(), x)
    torch.testing.assert_close(bar, expected)


@pytest.mark.parametrize("name", ["rank", "rank down", "topk_mask"])
def test_hard_ranks_and_masks_have_soft_gradients(name):
    x, direction = torch.randn(3, 8, requires_grad=True), torch.randn(3, 8)
    calls = {
        "rank": lambda hard: soft.rank(x, tau=0.3, hard=hard),
        "rank down": lambda hard: soft.rank(x, tau=0.3, hard=hard, descending=True),
        "topk_mask": lambda hard: soft.topk_mask(x, 3, tau=0.3, hard=hard),
    }
    down = x.detach().argsort(-1, descending=True).argsort(-1) + 1.0
    hard = {"rank": 9 - down, "rank down": down, "topk_mask": (down <= 3).float()}[name]
    torch.testing.assert_close(calls[name](True).detach(), hard)
    bars = [torch.autograd.grad((direction * calls[name](each)).sum(), x)[0] for each in (False, True)]
    torch.testing.assert_close(*bars)


def test_hard_masks_at_ties():
    x = torch.tensor([1.0, 2.0, 1.0, 1.0])
    assert soft.topk_mask(x, 2.4, tau=0.1, hard=True).equal(torch.tensor([1.0, 1.0, 0.0, 0.0]))


def test_every_product_of_one_sort_has_its_own_backward():
    """A graph that was shared would be freed by the first of them."""
    x, tau = torch.randn(9, dtype=torch.float64, requires_grad=True), torch.tensor(0.3, requires_grad=True)
    values, P = soft.sort(x, tau=tau)
    results = [values, P @ x, P @ torch.randn(9).double(), P.mT @ x, P.log_diagonal(), P[0, 3], P.row_sums, P.targets]
    for result in results:
        bars = torch.autograd.grad(result.sum(), (x, tau), allow_unused=True)
        assert bars[0].isfinite().all()


def test_argsort_is_the_matrix_of_sort():
    x = torch.randn(2, 8, dtype=torch.float64)
    for descending in (False, True):
        P = soft.argsort(x, tau=0.3, descending=descending)
        assert P.order.equal(x.argsort(-1, descending=descending))
        assert P.to_dense().equal(soft.sort(x, tau=0.3, descending=descending).permutation.to_dense())
    assert soft.argsort(x.mT, 0, tau=0.3).to_dense().equal(soft.argsort(x, tau=0.3).to_dense())

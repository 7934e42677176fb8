"""laplex.gram against K diag(weight) K^T in dense float64: values, shapes, dtypes, plans, memory."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import laplex
from cases import CASES, every, named
from helpers import error, phases_for, wide
from laplex import Plan, StalePlanError, reference
from laplex._gram import sums
from laplex._gram import torch as torch_gram
from test_memory import INSIDE, NothingAsLargeAs

# Errors in the max norm, over the largest entry of the Gram of |weight|: what the terms of the sums amount to.
POSITIVE = {torch.float32: 3e-7, torch.float64: 1e-14}
SIGNED = {torch.float32: 1e-6, torch.float64: 1e-14}


def dense(a, b, weight, tau=1.0, phi=None, psi=None):
    """The definition in float64, over slices of the columns: one long product rounds more than what it judges."""
    a, b, weight, tau, phi, psi = map(wide, (a, b, weight, tau, phi, psi))

    def term(cols):
        some_weight, some_psi = (None if value is None else value[..., cols] for value in (weight, psi))
        return reference.gram(a, b[..., cols], some_weight, tau, phi=phi, psi=some_psi)

    return torch.stack([term(slice(start, start + 256)) for start in range(0, b.shape[-1], 256)]).sum(0)


def largest_term(a, b, weight, tau):
    """The largest entry of the Gram of |weight|, which is one of its diagonal."""
    squares = reference.kernel(wide(a), wide(b), wide(tau)).square()
    if weight is None:
        return float(squares.sum(-1).max())
    weight = wide(weight).abs()
    return float((squares @ (weight if weight.dim() == 1 else weight.mT)).max())


def assert_gram(a, b, weight, tau, backend, phi=None, psi=None, bars=SIGNED, **others):
    """Close to the dense one, symmetric to the bit; returned."""
    got = laplex.gram(a, b, weight, tau, phi=phi, psi=psi, backend=backend, **others)
    want = dense(a, b, weight, tau, phi, psi)
    assert got.shape == want.shape
    assert got.dtype == (a.dtype if weight is None else weight.dtype)
    assert torch.equal(got, got.mT)
    error, scale = float((wide(got) - want).abs().max()), largest_term(a, b, weight, tau)
    assert error <= bars[got.dtype] * scale, error / scale
    return got


def weights_for(b, m=None):
    lead = () if m is None else (*b.shape[:-1], m)
    return torch.randn(*lead, b.shape[-1], dtype=b.dtype)


# --- the whole catalogue, but for the one case whose dense Gram is gigabytes ------------------------------------------

CATALOGUE = [case for case in CASES if case()[0].shape[-1] < 1000]


@every(CATALOGUE)
def test_positive_weights(case, backend, dtype):
    a, b, tau = case(dtype)
    assert_gram(a, b, weights_for(b).abs(), tau, backend, bars=POSITIVE)


@every(CATALOGUE)
def test_signed_weights(case, backend, dtype):
    a, b, tau = case(dtype)
    assert_gram(a, b, weights_for(b, 2), tau, backend)


@every(CATALOGUE)
def test_phased(case, backend, dtype):
    a, b, tau = case(dtype)
    assert_gram(a, b, weights_for(b), tau, backend, *phases_for(a, b))


# --- where a float32 difference of cumulative sums fails, and where a float64 one does --------------------------------


def assert_every_entry(a, b, weight, tau, backend):
    """Positive weights: no entry is lost beside a larger one, unless it underflows."""
    got, want = assert_gram(a, b, weight, tau, backend, bars=POSITIVE), dense(a, b, weight, tau)
    seen = want > 1e-30
    bar = {torch.float32: 3e-7, torch.float64: 2e-12}[got.dtype]  # an exponent of 70 is rounded to 70 eps
    assert bool(seen.any())
    assert float(((wide(got) - want).abs() / want)[seen].max()) <= bar


def test_anchors_spread_over_a_thousand_tau(backend, dtype):
    a, b = torch.rand(200, dtype=dtype) * 1000, torch.rand(20_000, dtype=dtype) * 1000
    assert_every_entry(a, b, torch.rand(20_000, dtype=dtype), 1.0, backend)


@pytest.mark.parametrize("spread", [1.0, 1000.0])
def test_weights_over_ten_orders_of_magnitude(spread, backend, dtype):
    a, b = torch.rand(100, dtype=dtype) * spread, torch.rand(4000, dtype=dtype) * spread
    assert_every_entry(a, b, 10 ** (torch.rand(4000, dtype=dtype) * 10 - 5), 1.0, backend)


@pytest.mark.parametrize(("n", "k"), [(40, 50), (20, 700), (700, 20)])
@pytest.mark.parametrize("distance", [0.5, 20.0])
def test_every_column_outside_the_range_of_the_rows(n, k, distance, backend, dtype):
    a, b = torch.rand(n, dtype=dtype), torch.rand(k, dtype=dtype) + 1 + distance
    b[: k // 2] -= 3 + 2 * distance
    assert_every_entry(a, b, torch.rand(k, dtype=dtype), 1.0, backend)


def test_all_ties(backend, dtype):
    a, b, weight = torch.full((6,), 2.5, dtype=dtype), torch.full((9,), 2.5, dtype=dtype), torch.rand(9, dtype=dtype)
    got = laplex.gram(a, b, weight, 0.1, backend=backend)
    assert got.unique().numel() == 1
    assert float((wide(got[0, 0]) - wide(weight).sum()).abs()) <= POSITIVE[dtype] * float(weight.sum())


def test_a_heavy_column_far_away_does_not_show(backend):
    """The sums between two anchors are exact: what lies elsewhere cannot change them."""
    a, b, weight = torch.rand(30).double(), torch.rand(500).double(), torch.rand(500).double()
    far, heavy = torch.cat([b, torch.tensor([-900.0]).double()]), torch.cat([weight, torch.tensor([1e9]).double()])
    got, want = laplex.gram(a, far, heavy, backend=backend), dense(a, b, weight)
    assert float(((got - want) / want).abs().max()) <= 1e-12


@pytest.mark.parametrize("k", [1, 3, 1000, 1 << 17])
def test_parts_of_the_weights_have_exact_sums(k):
    weight = 10 ** (torch.rand(k).double() * 10 - 5) * torch.randn(k).double().sign()
    parts = sums.exact_parts(weight)
    assert float((parts.sum(0) - weight).abs().max()) <= 16 * k**2 * 2.0**-104 * float(weight.abs().max())
    for part in parts:
        shuffled = part[torch.randperm(k)]
        assert torch.equal(part.cumsum(0)[-1], shuffled.flip(0).cumsum(0)[-1])
        assert torch.equal(part[: k // 2].sum() + part[k // 2 :].sum(), shuffled.sum())


@pytest.mark.parametrize("k", [1, 3, 1000, 1 << 17])
@pytest.mark.parametrize("total", [2.0**1023, 2.0**-940])
def test_parts_of_weights_near_the_ends_of_float64(k, total):
    """Whatever the unit of the weights, as long as their sum is a number."""
    unit = total / k
    weight = (2 * torch.rand(k).double() - 1) * unit
    parts = sums.exact_parts(weight)
    assert float((parts.sum(0) - weight).abs().max()) <= 16 * k**2 * 2.0**-104 * unit
    for part in parts:
        assert torch.equal(part.cumsum(0)[-1], part.flip(0).cumsum(0)[-1])


@pytest.mark.parametrize("phased", [False, True])
def test_the_unit_of_the_weights_does_not_show(phased, backend):
    a, b, weight = torch.randn(9).double(), torch.randn(40).double(), torch.randn(40).double()
    phases = {"phi": torch.randn(9).double(), "psi": torch.randn(40).double()} if phased else {}
    want = laplex.gram(a, b, weight, 0.7, backend=backend, **phases)
    for unit in (2.0**-700, 2.0**900, 2.0**1017):
        assert torch.equal(laplex.gram(a, b, weight * unit, 0.7, backend=backend, **phases), want * unit)


# --- shapes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [(7,), (1, 7), (3, 7), (2, 3, 7)], ids=str)
def test_shapes_of_weights(weight, backend):
    a, b = torch.randn(5).double(), torch.randn(7).double()
    got = assert_gram(a, b, torch.randn(weight).double(), 0.7, backend)
    assert got.shape == (*weight[:-1], 5, 5)


@pytest.mark.parametrize("weight", [(7,), (1, 7), (3, 7), (4, 1, 7), (2, 4, 3, 7), (5, 2, 1, 2, 7)], ids=str)
def test_shapes_of_batched_anchors(weight, backend):
    a, b, tau = torch.randn(2, 1, 5).double(), torch.randn(4, 7).double(), torch.rand(2, 4).double() + 0.5
    got = assert_gram(a, b, torch.randn(weight).double(), tau, backend)
    lead = torch.broadcast_shapes(weight[:-2], (2, 4))
    assert got.shape == (*lead, *weight[-2:-1], 5, 5)


def test_no_weight_is_ones(backend, dtype):
    for a, b in ((torch.randn(6), torch.randn(4)), (torch.randn(2, 6), torch.randn(2, 4))):
        a, b = a.to(dtype), b.to(dtype)
        assert_gram(a, b, None, 1.0, backend)
        ones = torch.ones(4, dtype=dtype)
        assert torch.equal(laplex.gram(a, b, backend=backend), laplex.gram(a, b, ones, backend=backend))


@pytest.mark.parametrize(("n", "k", "m"), [(0, 3, 2), (3, 0, 2), (3, 4, 0), (0, 0, 1)])
def test_nothing(n, k, m, backend):
    a, b, phi, psi = torch.randn(n), torch.randn(k), torch.randn(n), torch.randn(k)
    for phases in ({}, {"phi": phi, "psi": psi}):
        leaves = [value.clone().requires_grad_() for value in (a, b, torch.randn(m, k))]
        got = laplex.gram(*leaves, **phases, backend=backend)
        assert torch.equal(got, torch.zeros(m, n, n))
        got.sum().backward()
        assert all(torch.equal(leaf.grad, torch.zeros_like(leaf)) for leaf in leaves)


def test_weights_and_anchors_of_two_dtypes(backend, dtype):
    a, b = torch.randn(9, dtype=dtype), torch.randn(11, dtype=dtype)
    for other in (torch.float32, torch.float64):
        assert_gram(a, b, torch.rand(11, dtype=other), 0.5, backend)


def test_strided_inputs(backend):
    a, b, weight = (
        torch.randn(9, 2).double()[:, 1],
        torch.randn(13).double().flip(0)[::2],
        torch.randn(7, 3).double().mT,
    )
    assert_gram(a, b, weight, 0.5, backend)


def test_one_tensor_as_rows_and_columns(backend):
    a = torch.randn(15).double()
    assert_gram(a, a, torch.randn(15).double(), 0.7, backend)


def test_weights_that_are_not_finite_show(backend):
    weight = torch.rand(5)
    weight[2] = torch.nan
    assert bool(laplex.gram(torch.randn(4), torch.randn(5), weight, backend=backend).isnan().all())


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_sizes_of_several_tiles_and_threads(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for n in (63, 64, 65, 193, 300):
            a, b, weight = torch.randn(n), torch.randn(50), torch.randn(2, 50)
            assert_gram(a, b, weight, 0.7, "cpp")
            assert_gram(a, b, weight, 0.7, "cpp", *phases_for(a, b))
    finally:
        torch.set_num_threads(before)


# --- plans ------------------------------------------------------------------------------------------------------------


@named("generic", "ties_everywhere", "short_rows_ties", "short_cols_ties", "batched")
def test_a_plan_kept_gives_the_same_bits(case, backend, dtype):
    a, b, tau = case(dtype)
    weight, plan = weights_for(b, 2), Plan(a, b)
    with_plan = laplex.gram(a, b, weight, tau, plan=plan, backend=backend)
    assert torch.equal(with_plan, laplex.gram(a, b, weight, tau, backend=backend))


@pytest.mark.parametrize(("n", "k"), [(12, 13), (3, 80), (80, 3)])
def test_a_stale_plan_raises(n, k, scan_backend):
    a, b = torch.randn(n), torch.randn(k)
    plan = Plan(a, b)
    with pytest.raises(StalePlanError, match=r"laplex\.gram: `plan` does not describe the order of these anchors"):
        laplex.gram(-a, b, torch.rand(k), plan=plan, backend=scan_backend)


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phased", [False, True])
def test_nothing_of_size_n_times_k(phased, scan_backend):
    n, k = 60, 40_000
    a, b, weight = torch.randn(n), torch.randn(k), torch.rand(k)
    phases = dict(zip(("phi", "psi"), phases_for(a, b))) if phased else {}
    leaves = [value.requires_grad_() for value in (a, b, weight)]
    with NothingAsLargeAs(n * k // 3):  # the pulls of three channels at b are 12 vectors
        first = torch.autograd.grad(laplex.gram(*leaves, **phases, backend=scan_backend).sum(), leaves)
        got = laplex.gram(*leaves, **phases, backend=scan_backend)
        first = torch.autograd.grad(got.sum(), leaves, create_graph=True)
        torch.autograd.grad(sum(value.square().sum() for value in first), leaves)


class TensorSizes(TorchDispatchMode):
    """The sizes of the tensors made under it, inside the operators too; views are not."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in INSIDE:
            with self:
                return INSIDE[func](*args, **(kwargs or {}))
        out = func(*args, **(kwargs or {}))
        if all(returned.alias_info is None for returned in func._schema.returns):
            self.sizes += [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        return out


@pytest.mark.parametrize("phased", [False, True])
def test_nothing_of_size_n_times_n_but_the_matrix(phased, scan_backend, monkeypatch):
    monkeypatch.setattr(torch_gram, "BLOCK", 1 << 13)
    n, k = 700, 40
    a, b, weight = (torch.randn(size).requires_grad_() for size in (n, k, k))
    phases = dict(zip(("phi", "psi"), phases_for(a.detach(), b.detach()))) if phased else {}
    with TensorSizes() as forward:
        got = laplex.gram(a, b, weight, **phases, backend=scan_backend)
    g = torch.randn_like(got)
    with TensorSizes() as backward:
        torch.autograd.grad(got, (a, b, weight), g)
    assert [size for size in forward.sizes if size > n * n // 4] == [n * n]
    assert max(backward.sizes) <= n * n // 4


def test_anchors_near_the_largest_number(backend):
    a, b = (torch.tensor(side, dtype=torch.float64) * 1e290 for side in ([0.0, 1.0, 2.5], [0.5, 1.5]))
    got, want = laplex.gram(a, b, None, 1e290, backend=backend), laplex.reference.gram(a, b, None, 1e290)
    assert error(got, want) <= 1e-14

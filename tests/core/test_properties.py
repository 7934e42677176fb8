"""What holds for any anchors, on examples that hypothesis looks for."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import laplex
from helpers import LAYOUTS, error, make_order, odd_kernel, oracle, scan
from laplex import _backends, reference

settings.register_profile("laplex", max_examples=40, deadline=None, database=None, derandomize=True)
settings.load_profile("laplex")

COORDINATES = st.one_of(st.integers(-4, 4).map(float), st.floats(-50, 50, width=32))
TAUS = st.floats(0.05, 50)


def vector(values):
    return torch.tensor(values, dtype=torch.float64)


def sides(min_size=1, max_size=40):
    """Two sets of anchors, often tied, of sizes that need not be alike."""
    side = st.lists(COORDINATES, min_size=min_size, max_size=max_size).map(vector)
    return st.tuples(side, side)


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SEEDS = st.integers(0, 2**31)


@given(sides(), TAUS, SEEDS)
def test_values(backend, anchors, tau, seed):
    a, b = anchors
    x = normal(seed, 2, len(b))
    mass = oracle(x.abs(), a, b, tau)
    # An exponent is rounded here and in the oracle, and what is smaller than the smallest normal number may become 0.
    exponents, limits = (a[:, None] - b).abs() / tau, torch.finfo(torch.float64)
    rounding = limits.eps * x.abs() @ (exponents * reference.kernel(a, b, tau)).mT + limits.tiny
    difference = (laplex.linear(x, a, b, tau, backend=backend) - oracle(x, a, b, tau)).abs()
    assert bool((difference <= 1e-14 * mass + rounding).all())


@given(sides(), TAUS, SEEDS)
def test_adjointness(backend, anchors, tau, seed):
    a, b = anchors
    x, y = normal(seed, len(b)), normal(seed + 1, len(a))
    left = laplex.linear(x, a, b, tau, backend=backend) @ y
    right = x @ laplex.linear(y, b, a, tau, backend=backend)
    scale = oracle(x.abs(), a, b, tau) @ y.abs()
    assert float((left - right).abs()) <= 1e-14 * float(scale)


@given(sides(), TAUS, SEEDS, st.floats(-9, 9))
def test_linearity(backend, anchors, tau, seed, factor):
    a, b = anchors
    x, z = normal(seed, len(b)), normal(seed + 1, len(b))

    def apply(v):
        return laplex.linear(v, a, b, tau, backend=backend)

    scale = apply(x.abs()) + abs(factor) * apply(z.abs())
    assert bool(((apply(x + factor * z) - apply(x) - factor * apply(z)).abs() <= 1e-14 * scale).all())


@given(sides(), TAUS, SEEDS, st.integers(-1000, 1000))
def test_shift_invariance(backend, anchors, tau, seed, shift):
    a, b = ((side * 64).round() / 64 for side in anchors)  # so that the shift rounds nothing
    x = normal(seed, len(b))
    still, moved = (laplex.linear(x, a + d, b + d, tau, backend=backend) for d in (0, shift))
    assert torch.equal(still, moved)


@given(sides(), TAUS, SEEDS)
def test_permutation_equivariance(backend, anchors, tau, seed):
    a, b = anchors
    x = normal(seed, len(b))
    rows, cols = normal(seed + 1, len(a)).argsort(), normal(seed + 2, len(b)).argsort()
    y = laplex.linear(x, a, b, tau, backend=backend)
    permuted = laplex.linear(x[cols], a[rows], b[cols], tau, backend=backend)
    assert bool(((permuted - y[rows]).abs() <= 1e-14 * oracle(x.abs(), a[rows], b, tau)).all())


@given(sides(), TAUS, SEEDS)
def test_the_symmetric_kernel_is_positive_semidefinite(backend, anchors, tau, seed):
    a, _ = anchors
    x, phi = normal(seed, len(a)), normal(seed + 1, len(a))
    y = laplex.linear(x, a, a, tau, phi=phi, psi=phi, backend=backend)
    assert float(x @ y) >= -1e-14 * float(oracle(x.abs(), a, a, tau) @ x.abs())


@given(sides(), SEEDS)
def test_limits_of_tau(backend, anchors, seed):
    a, b = ((side * 64).round() / 64 for side in anchors)
    x = normal(seed, len(b))
    ties = (a[:, None] == b).double()
    assert error(laplex.linear(x, a, b, 1e-12, backend=backend), ties @ x) <= 1e-14
    total = x.sum().expand(len(a))
    assert float((laplex.linear(x, a, b, 1e12, backend=backend) - total).abs().max()) <= 1e-9 * float(x.abs().sum())


@given(sides(), TAUS, SEEDS)
def test_all_layouts_agree(scan_backend, anchors, tau, seed):
    a, b = (side[None] for side in anchors)
    x, tau = normal(seed, 1, 2, b.shape[1]), vector([tau])
    mass = oracle(x.abs(), a, b, tau)
    results = []
    for layout in LAYOUTS:
        order = make_order(a, b, layout, scan_backend)
        results.append(scan(x, a, b, tau, order, True, scan_backend))
    for even, odd in results[1:]:
        assert bool(((even - results[0][0]).abs() <= 1e-14 * mass).all())
        assert bool(((odd - results[0][1]).abs() <= 1e-14 * mass).all())


@pytest.mark.parametrize("layout", LAYOUTS)
@given(sides(), st.sampled_from([0.0, 1e-3, 1.0, 30.0]), SEEDS)
def test_an_updated_plan_is_as_good_as_a_new_one(scan_backend, layout, anchors, step, seed):
    a, b = (side[None] for side in anchors)
    old = make_order(a, b, layout, scan_backend)
    copies = [tensor.clone() for tensor in old.tensors]
    moved = [side + step * normal(seed, *side.shape).round(decimals=1) for side in (a, b)]
    update = _backends.load(scan_backend, "cpu").update
    new = make_order(*moved, layout, scan_backend) if update is None else update(*moved, old)
    assert all(torch.equal(now, before) for now, before in zip(old.tensors, copies))
    x, tau = normal(seed, 1, 1, b.shape[1]), vector([1.0])
    fresh = make_order(*moved, layout, scan_backend)
    even, odd = scan(x, *moved, tau, new, True, scan_backend)
    fresh_even, fresh_odd = scan(x, *moved, tau, fresh, True, scan_backend)
    mass = oracle(x.abs(), *moved)
    assert bool(((even - fresh_even).abs() <= 1e-14 * mass).all())
    assert bool(((odd - fresh_odd).abs() <= 1e-14 * mass).all())


GRID = st.lists(st.integers(0, 2).map(float), min_size=1, max_size=4).map(vector)
MOVES = st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.5, -0.5, 1.0, -1.0]), min_size=8, max_size=8).map(vector)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("odd", [False, True])
@settings(max_examples=300)
@given(GRID, GRID, MOVES, SEEDS)
def test_a_kept_plan_raises_or_answers_rightly(scan_backend, layout, odd, a, b, moves, seed):
    a, b = a[None], b[None]
    order = make_order(a, b, layout, scan_backend)
    a, b = a + moves[: a.shape[1]], b + moves[-b.shape[1] :]
    x, tau = normal(seed, 1, 1, b.shape[1]), vector([1.0])
    try:
        got = scan(x, a, b, tau, order, odd, scan_backend)
    except laplex.StalePlanError:
        return
    mass = oracle(x.abs(), a, b)
    assert bool(((got[0] - oracle(x, a, b)).abs() <= 1e-14 * mass).all())
    if odd:
        assert bool(((got[1] - x @ odd_kernel(a, b).mT).abs() <= 1e-14 * mass).all())


@given(sides(max_size=12), SEEDS)
def test_plan_update(backend, anchors, seed):
    a, b = anchors
    plan = laplex.Plan(a, b)
    x = normal(seed, len(b))
    for step in (1e-6, 0.5, 20.0):
        a, b = a + step * normal(seed, len(a)), b + step * normal(seed + 1, len(b))
        plan = plan.update(a, b)
        y = laplex.linear(x, a, b, plan=plan, backend=backend)
        assert bool(((y - oracle(x, a, b)).abs() <= 1e-14 * oracle(x.abs(), a, b)).all())


SMALL_INTEGERS = st.lists(st.integers(0, 12).map(float), min_size=1, max_size=9).map(vector)


@settings(max_examples=150)
@given(SMALL_INTEGERS, SMALL_INTEGERS)
def test_rank_is_the_numeric_rank(a, b):
    dense = reference.kernel(a, b, 1.0)
    assert laplex.rank(a, b) == int(torch.linalg.matrix_rank(dense, rtol=1e-10))

"""Routing: anchors of permutations, selections and sketches are exact to the bit, and hardening keeps its bound."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import laplex
from laplex import _backends, reference
from laplex.nn.routing import Routing, count_sketch, gather, permutation, routing_of, scatter, universal

BACKENDS = pytest.mark.parametrize("backend", ["torch", "cpp", "formed", "dense", None])


def apply(x, anchors, backend=None):
    return laplex.linear(x, **anchors._asdict(), backend=backend)


def dyadic(*shape, dtype=torch.float32):
    """Multiples of 1/8 whose sums are exact, so that results do not depend on the order of a sum."""
    return torch.randint(-64, 65, shape).to(dtype) / 8


def sketch_matrix(buckets, signs, n, dtype):
    matrix = torch.zeros(n, len(buckets), dtype=dtype)
    matrix[buckets, torch.arange(len(buckets))] = signs.to(dtype)
    return matrix


@BACKENDS
@pytest.mark.parametrize("n", [1, 2, 57, 1500])
def test_a_permutation_is_exact(n, backend, dtype):
    order, x = torch.randperm(n), torch.randn(3, n, dtype=dtype)
    assert torch.equal(apply(x, permutation(order, dtype=dtype), backend), x[:, order])


@BACKENDS
def test_a_permutation_of_half_precision_is_exact(backend):
    order, x = torch.randperm(40), torch.randn(3, 40).half()
    assert torch.equal(apply(x, permutation(order), backend), x[:, order])


@BACKENDS
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("n", "k"), [(1, 30), (7, 30), (3, 2000), (50, 20)])
def test_a_selection_is_exact(n, k, signed, backend, dtype):
    index, x = torch.randint(k, (n,)), torch.randn(2, k, dtype=dtype)
    signs = torch.randint(2, (n,)) * 2 - 1
    got = apply(x, gather(index, k, signs if signed else None, dtype=dtype), backend)
    assert torch.equal(got, x[:, index] * signs if signed else x[:, index])


@BACKENDS
@pytest.mark.parametrize(("n", "k"), [(1, 30), (7, 30), (3, 2000), (50, 20), (40, 0)])
def test_a_count_sketch_is_exact(n, k, backend, dtype):
    buckets, signs = torch.randint(n, (k,)), torch.randint(2, (k,)) * 2 - 1
    anchors, x = count_sketch(buckets, signs, n, dtype=dtype), dyadic(2, k, dtype=dtype)
    matrix = sketch_matrix(buckets, signs, n, dtype)
    assert torch.equal(apply(x, anchors, backend), x @ matrix.mT)
    assert torch.equal(apply(torch.eye(k, dtype=dtype), anchors, backend), matrix.mT)  # every entry, one at a time
    unsigned = apply(x, count_sketch(buckets, None, n, dtype=dtype), backend)
    assert torch.equal(unsigned, x @ matrix.abs().mT)


@pytest.mark.skipif(not _backends.interpreted(), reason="with a GPU the kernels are compiled")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("n", "k"), [(7, 30), (20, 20), (2, 300)])
def test_the_programs_of_triton_are_exact(n, k, dtype):
    buckets, signs = torch.randint(n, (k,)), torch.randint(2, (k,)) * 2 - 1
    x, matrix = dyadic(2, k, dtype=dtype), sketch_matrix(buckets, signs, n, dtype)
    assert torch.equal(apply(x, count_sketch(buckets, signs, n, dtype=dtype), "triton"), x @ matrix.mT)
    assert torch.equal(apply(x, count_sketch(buckets, None, n, dtype=dtype), "triton"), x @ matrix.abs().mT)
    order = torch.randperm(k)
    assert torch.equal(apply(x, permutation(order, dtype=dtype), "triton"), x[:, order])


def test_anchors_of_float32_are_exact_for_inputs_of_float64():
    buckets, signs, x = torch.randint(9, (50,)), torch.randint(2, (50,)) * 2 - 1, dyadic(2, 50, dtype=torch.float64)
    want = x @ sketch_matrix(buckets, signs, 9, torch.float64).mT
    assert torch.equal(apply(x, count_sketch(buckets, signs, 9)), want)


def test_a_count_sketch_of_any_numbers_is_the_float64_sum_rounded():
    buckets, signs, x = torch.randint(9, (500,)), torch.randint(2, (500,)) * 2 - 1, torch.randn(4, 500)
    want = x.double() @ sketch_matrix(buckets, signs, 9, torch.float64).mT
    assert torch.equal(apply(x, count_sketch(buckets, signs, 9), "cpp"), want.float())


@BACKENDS
def test_any_matrix_is_a_routing_of_replicas(backend, dtype):
    weight = dyadic(5, 8, dtype=dtype) * (torch.rand(5, 8) < 0.6)
    replicas, x = universal(weight), dyadic(3, 8, dtype=dtype)
    assert len(replicas.source) == int((weight != 0).sum())
    assert torch.equal(replicas.linear(x), x @ weight.mT)
    assert torch.equal(apply(x[:, replicas.source] * replicas.scale, replicas.anchors, backend), x @ weight.mT)


def test_replicas_carry_the_gradient_of_the_matrix():
    weight, x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True), torch.randn(2, 3, dtype=torch.float64)
    (got,) = torch.autograd.grad(universal(weight).linear(x).sin().sum(), weight)
    (want,) = torch.autograd.grad((x @ weight.mT).sin().sum(), weight)
    torch.testing.assert_close(got, want)


def test_a_larger_tau_softens():
    anchors = permutation(torch.tensor([2, 0, 1]), dtype=torch.float64)._replace(tau=0.5)
    want = reference.kernel(anchors.a, anchors.b, 0.5)
    torch.testing.assert_close(apply(torch.eye(3, dtype=torch.float64), anchors).mT, want)


# --- Hardening -------------------------------------------------------------------------------------------------------


def dense(routing: Routing):
    return sketch_matrix(routing.target, routing.sign, routing.out_features, torch.float64)


def test_routing_is_read_back():
    buckets, signs = torch.randint(9, (40,)), torch.randint(2, (40,)) * 2 - 1
    routing = routing_of(*count_sketch(buckets, signs, 9))
    assert torch.equal(routing.target, buckets)
    assert torch.equal(routing.sign, signs.double())
    assert torch.equal(routing.bound, torch.zeros(40).double())
    x = dyadic(3, 40)
    assert torch.equal(routing.linear(x), apply(x, count_sketch(buckets, signs, 9)))
    assert torch.equal(routing.linear(x.half()), routing.linear(x).half())


PLACES = st.one_of(st.integers(-3, 3).map(float), st.floats(-4, 4, width=32))
SIDE = st.lists(PLACES, min_size=1, max_size=12).map(lambda values: torch.tensor(values, dtype=torch.float64))
ROUNDING = 2.0**-50  # of entries and bounds of at most 1, each a few roundings of float64 off


@settings(max_examples=150, deadline=None, database=None, derandomize=True)
@given(SIDE, SIDE, st.floats(0.02, 20), st.integers(0, 2**31), st.booleans())
def test_every_entry_is_within_the_bound(a, b, tau, seed, phased):
    generator = torch.Generator().manual_seed(seed)
    phase = (9 * torch.rand(len(side), generator=generator, dtype=torch.float64) for side in (a, b))
    phi, psi = phase if phased else (None, None)
    routing = routing_of(a, b, tau, phi, psi)
    off = (reference.kernel(a, b, tau, phi=phi, psi=psi) - dense(routing)).abs()
    assert bool((off <= routing.bound + ROUNDING).all())
    if not phased:
        torch.testing.assert_close(off.amax(0), routing.bound, rtol=0, atol=ROUNDING)


@settings(max_examples=60, deadline=None, database=None, derandomize=True)
@given(SIDE, SIDE, st.floats(0.02, 20))
def test_without_phases_no_routing_is_nearer(a, b, tau):
    matrix = reference.kernel(a, b, tau)
    routing = routing_of(a, b, tau)
    options = torch.cat([torch.zeros(1, len(a)), torch.eye(len(a)), -torch.eye(len(a))]).double()  # of one column
    off = (matrix.mT[:, None, :] - options).abs()  # (k, options, n)
    ours = (matrix - dense(routing)).abs()
    assert bool((ours.amax(0) <= off.amax(2).amin(1) + ROUNDING).all())
    assert bool((ours.square().sum(0) <= off.square().sum(2).amin(1) + 16 * ROUNDING).all())


def test_a_column_far_from_all_rows_is_dropped():
    routing = routing_of(torch.tensor([0.0, 1.0]), torch.tensor([0.1, 9.0]), 0.25)
    assert routing.sign.tolist() == [1.0, 0.0]
    assert routing.target[0] == 0
    assert float(routing.bound[1]) == pytest.approx(torch.tensor(-32.0).double().exp().item())


def test_half_precision_is_summed_in_float32():
    x = torch.full((4097,), 1.0, dtype=torch.float16)
    assert scatter(x, torch.zeros(4097, dtype=torch.int64), 1).item() == 4096  # in float16 the sum stops at 2048


# --- Errors ----------------------------------------------------------------------------------------------------------

INDEX, SIDES = torch.tensor([0, 1]), (torch.zeros(2), torch.zeros(3))
WRONG = {
    "list": (TypeError, r"permutation: `order` must be a torch.Tensor, got list", lambda: permutation([0, 1])),
    "float": (TypeError, r"gather: `index` must be int64, got torch.float32; call", lambda: gather(INDEX.float(), 2)),
    "two": (ValueError, r"gather: `index` must be \(n,\), got shape \(1, 2\); use", lambda: gather(INDEX[None], 2)),
    "twice": (
        ValueError,
        r"permutation: `order` must hold each of 0 to 1 once, got others; .* use laplex.nn.routing.gather",
        lambda: permutation(torch.tensor([0, 0])),
    ),
    "beyond": (
        ValueError,
        r"count_sketch: `buckets` must be from 0 to 0, got 0 to 1; count",
        lambda: count_sketch(INDEX, None, 1),
    ),
    "count": (
        TypeError,
        r"count_sketch: `out_features` must be a whole number, got 2.0; use int",
        lambda: count_sketch(INDEX, None, 2.0),
    ),
    "signs": (
        ValueError,
        r"count_sketch: `signs` must be one sign for each label, shape \(2,\), got \(3,\); use None",
        lambda: count_sketch(INDEX, torch.ones(3), 2),
    ),
    "zeros": (
        ValueError,
        r"gather: `signs` must be 1 or -1, got others; use signs.sign\(\)",
        lambda: gather(INDEX, 2, torch.zeros(2)),
    ),
    "booleans": (
        TypeError,
        r"gather: `signs` must be real numbers, 1 or -1, got torch.bool; use 1 - 2 \* negative",
        lambda: gather(INDEX, 2, torch.ones(2).bool()),
    ),
    "one feature": (
        ValueError,
        r"Routing.linear: `x` must have 3 features in its last dimension, got \(5, 1\); use .reshape",
        lambda: routing_of(*SIDES).linear(torch.ones(5, 1)),
    ),
    "half": (
        TypeError,
        r"gather: `dtype` must be torch.float32 or torch.float64, got torch.float16; use",
        lambda: gather(INDEX, 2, dtype=torch.float16),
    ),
    "many": (
        ValueError,
        r"gather: `dtype` must hold whole numbers up to 16777216 exactly, got torch.float32, .* use torch.float64",
        lambda: gather(INDEX, 2**24 + 1),
    ),
    "vector": (
        ValueError,
        r"universal: `weight` must be \(m, k\), got shape \(2,\); use .reshape",
        lambda: universal(torch.zeros(2)),
    ),
    "whole": (
        TypeError,
        r"universal: `weight` must be float32 or float64, got torch.int64; call .float\(\)",
        lambda: universal(INDEX[None]),
    ),
    "batch": (
        ValueError,
        r"routing_of: `a` and `b` must be \(n,\) and \(k,\), got \(1, 2\) and \(3,\); take one",
        lambda: routing_of(SIDES[0][None], SIDES[1]),
    ),
    "no rows": (
        ValueError,
        r"routing_of: `a` must have at least one row, got none; a routing",
        lambda: routing_of(SIDES[0][:0], SIDES[1]),
    ),
    "tau": (ValueError, r"routing_of: `tau` must be positive and finite, got 0", lambda: routing_of(*SIDES, 0.0)),
    "nan": (ValueError, r"routing_of: `b` must be finite", lambda: routing_of(SIDES[0], SIDES[1] * torch.nan)),
    "phase": (
        ValueError,
        r"routing_of: `psi` must be finite",
        lambda: routing_of(*SIDES, 1.0, SIDES[0], SIDES[1] * torch.nan),
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_errors(kind):
    error, text, call = WRONG[kind]
    with pytest.raises(error, match=r"^laplex\.nn\.routing\." + text):
        call()

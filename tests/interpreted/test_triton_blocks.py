"""Many rows of x on the GPU, by pairs within blocks: sums and gradients are those of the dense definition."""

import pytest
import torch

from cases import in_turn, named
from helpers import (
    TOLERANCE,
    all_nan,
    assert_pullback,
    assert_sums,
    error,
    flat,
    make_order,
    oracle,
    pullback,
    scan,
    table,
)
from laplex._scan.order import Matrix
from laplex._triton import tuning
from laplex._triton.scan import block

pytestmark = pytest.mark.usefixtures("tiles")


def drawn(h, m, size, dtype=torch.float32):
    return torch.randn(h, m, size, dtype=dtype)


# Points of a block, blocks of a tile, whether rows are copied to be adjacent, and whether products are float64.
WAYS = {
    "alone": (16, 1, False, False),
    "split": (16, 4, False, True),
    "lines": (16, 2, True, False),
    "large": (32, 2, True, True),
}


@pytest.fixture(params=WAYS, ids=str)
def blocks(request, tiles, monkeypatch):
    points, number, lines, doubles = WAYS[request.param]
    tiles(points, 32, carried=1024, adjacent=lines, blocks=number)
    monkeypatch.setattr(block, "multiplies_doubles", lambda device: doubles)
    return tiles


NAMES = (
    *("generic", "offset", "tiny_tau", "tiny_tau_ties", "huge_tau", "clustered", "batched", "batched_ties", "all_tied"),
    *("ties_everywhere", "ties_across_sides", "one_point", "one_row", "one_column", "rows_left_of_columns"),
    *("duplicates_within_a_side", "denormal_gaps", "neighbouring_floats", "largest_floats", "signed_zeros"),
)


@named(*NAMES)
def test_sums_both_ways(case, blocks):
    a, b, tau = flat(*case(torch.float32))
    order = make_order(a, b, "joined", "triton")
    assert_sums(drawn(len(a), 3, b.shape[1]), a, b, tau, order, "triton")
    assert_sums(drawn(len(a), 3, a.shape[1]), b, a, tau, order.mT, "triton")


@named("generic", "tiny_tau_ties", "clustered", "batched_ties", "ties_everywhere", "one_point")
def test_the_fused_pullback(case, blocks):
    a, b, tau = flat(*case(torch.float32))
    g, x = (drawn(len(a), 3, side.shape[1]) for side in (a, b))
    assert_pullback(g, x, a, b, tau, make_order(a, b, "joined", "triton"), "triton")


@pytest.mark.parametrize("m", [1, 16, 17, 37])
def test_any_number_of_rows(m, blocks):
    a, b, tau = flat(torch.rand(2, 25), torch.rand(2, 20).mul(20).round() / 20, torch.tensor([0.3, 2.0]))
    order, x = make_order(a, b, "joined", "triton"), drawn(2, m, 20)
    assert_sums(x, a, b, tau, order, "triton")
    assert_pullback(drawn(2, m, 25), x, a, b, tau, order, "triton")


@pytest.mark.parametrize(("spread", "tau", "ties"), in_turn([1e-3, 1.0, 1e3], [0.3, 1e6], [False, True]))
def test_many_tiles(spread, tau, ties, blocks):
    sides = [torch.rand(1, 300) * spread for _ in "ab"]
    a, b, tau = flat(*((side / spread * 9).round() * spread if ties else side for side in sides), tau)
    order = make_order(a, b, "joined", "triton")
    assert_sums(drawn(1, 2, 300), a, b, tau, order, "triton")
    assert_sums(drawn(1, 2, 300), b, a, tau, order.mT, "triton")


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e30])
def test_operands_of_any_size_where_decays_underflow(scale, blocks):
    """Every target is further from all sources than the smallest float32 decay, and its sum is right all the same."""
    a, b = torch.arange(20.0)[None] * 1000, torch.arange(20.0)[None] * 1000 + 95.0
    a, b, tau = flat(a, b, 1.0)
    order, x = make_order(a, b, "joined", "triton"), drawn(1, 2, 20) * scale * 1e38 ** (scale < 1)
    want = oracle(x, a, b, tau)
    got = scan(x, a, b, tau, order, False, "triton")[0]
    assert float(want.abs().max()) == 0 or error(got, want) <= 1e-6


def test_terms_are_as_exact_as_float32_allows(blocks):
    """Of positive sums, each by itself: within a few roundings."""
    a, b, tau = flat(torch.rand(1, 700), torch.rand(1, 700), 0.1)
    x = torch.rand(1, 2, 700)
    even, _ = scan(x, a, b, tau, make_order(a, b, "joined", "triton"), False, "triton")
    want = oracle(x, a, b, tau)
    assert float(((even - want) / want).abs().max()) <= 5e-7


def test_columns_and_half_precision(blocks):
    a, b, tau = flat(torch.rand(1, 90), torch.rand(1, 80), 0.5)
    order = make_order(a, b, "joined", "triton")
    columns = torch.randn(80, 6).to(torch.float16).mT[None]
    even, _ = scan(columns, a, b, tau, order, False, "triton")
    assert even.stride() == (540, 1, 6)
    assert error(even, oracle(columns, a, b, tau)) <= 1e-3
    assert torch.equal(scan(columns.contiguous(), a, b, tau, order, False, "triton")[0], even)


def test_float64_anchors(blocks):
    a, b, tau = flat(torch.rand(1, 90).double() + 1e6, torch.rand(1, 80).double() + 1e6, 0.5)
    assert_sums(drawn(1, 3, 80), a, b, tau, make_order(a, b, "joined", "triton"), "triton")


def test_anchors_in_order(blocks):
    a, b, tau = flat(torch.rand(1, 90).sort().values, torch.rand(1, 80).sort().values, 0.5)
    order = make_order(a, b, "in_order", "triton")
    assert_sums(drawn(1, 3, 80), a, b, tau, order, "triton")
    assert_sums(drawn(1, 3, 90), b, a, tau, order.mT, "triton")


def test_anchors_that_moved_and_faults(blocks):
    a, b, tau = flat(torch.rand(1, 90), torch.rand(1, 80), 0.5)
    checked, x, g = make_order(a, b, "joined", "triton").unchecked(), drawn(1, 4, 80), drawn(1, 4, 90)
    assert error(scan(x, a * 2, b * 2, tau, checked, False, "triton")[0], oracle(x, a * 2, b * 2, tau)) <= 2e-7
    swapped = a.clone()
    swapped[0, [3, 50]] = a[0, [50, 3]]
    for moved, scale in ((swapped, tau), (a.index_fill(1, torch.tensor([5]), torch.nan), tau), (a, tau * 0)):
        even, odd = scan(x, moved, b, scale, checked, True, "triton")
        matrix = Matrix(moved, b, scale, checked, table("triton"))
        x_bar, _, s_bar, _ = pullback(g, x, odd, matrix, False)
        assert all_nan(even, odd, x_bar, s_bar)


@pytest.mark.parametrize("groups", [(2, 8), (2, 0)], ids=["some_groups", "many_groups"])
def test_carried_in_groups(groups, tiles, monkeypatch):
    tiles(16, 16, carried=groups[0], blocks=2)
    monkeypatch.setattr(tuning, "GROUPS_BY_TILES", groups[1])
    a, b, tau = flat(torch.rand(1, 90), torch.rand(1, 80).mul(30).round() / 30, 0.5)
    assert_sums(drawn(1, 2, 80), a, b, tau, make_order(a, b, "joined", "triton"), "triton")


def test_sizes_of_tiles(monkeypatch):
    monkeypatch.undo()  # the sizes that are
    for merged, m in ((2, 8), (8192, 64), (32768, 64), (1 << 21, 8), (1 << 21, 64)):
        tile, points, *rows = block.block_tiling(merged, m, 1)
        assert tile % points == 0
        assert all(16 <= number <= 64 for number in rows)


def test_rows_are_the_same_alone(blocks):
    """A row's sums do not depend on the rows next to it."""
    a, b, tau = flat(torch.rand(1, 60), torch.rand(1, 50), 0.5)
    order, x = make_order(a, b, "joined", "triton"), drawn(1, 20, 50)
    together = scan(x, a, b, tau, order, True, "triton")
    for got, want in zip(scan(x[:, 17:], a, b, tau, order, True, "triton"), together, strict=True):
        assert error(got, want[:, 17:]) <= TOLERANCE[torch.float32]

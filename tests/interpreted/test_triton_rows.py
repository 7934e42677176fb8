"""Rows of x side by side on the GPU, several an access: the sums are those of rows one by one."""

import pytest
import torch

from cases import named
from helpers import TOLERANCE, assert_pullback, assert_sums, error, flat, make_order, oracle, scan

pytestmark = pytest.mark.usefixtures("tiles")


def drawn(h, m, size, dtype=torch.float32):
    return torch.randn(h, m, size, dtype=dtype)


@pytest.fixture
def turned(tiles):
    tiles(32, 8, adjacent=True)
    return tiles


@named("generic", "offset", "tiny_tau_ties", "clustered", "batched_ties", "ties_everywhere")
def test_sums_both_ways(case, dtype, turned):
    a, b, tau = flat(*case(dtype))
    order = make_order(a, b, "joined", "triton")
    assert_sums(drawn(len(a), 4, b.shape[1], dtype), a, b, tau, order, "triton")
    assert_sums(drawn(len(a), 4, a.shape[1], dtype), b, a, tau, order.mT, "triton")


@named("generic", "tiny_tau_ties", "clustered", "batched_ties", "ties_everywhere")
def test_the_fused_pullback(case, turned):
    a, b, tau = flat(*case(torch.float32))
    g, x = (drawn(len(a), 4, side.shape[1]) for side in (a, b))
    assert_pullback(g, x, a, b, tau, make_order(a, b, "joined", "triton"), "triton")


@pytest.mark.parametrize("m", [5, 13])
def test_any_number_of_rows(m, tiles):
    """More than a program takes, and numbers that are no multiple of those of an access."""
    a, b, tau = flat(torch.rand(2, 25), torch.rand(2, 20).mul(20).round() / 20, torch.tensor([0.3, 2.0]))
    order = make_order(a, b, "joined", "triton")
    g, x = drawn(2, m, 25), drawn(2, m, 20)
    alone = [*scan(x, a, b, tau, order, True, "triton"), *pulled(g, x, a, b, tau, order)]
    tiles(32, 8, adjacent=True)
    for got, want in zip(
        [*scan(x, a, b, tau, order, True, "triton"), *pulled(g, x, a, b, tau, order)], alone, strict=True
    ):
        assert error(got, want.double()) <= TOLERANCE[torch.float32]


def pulled(g, x, a, b, tau, order):
    _, odd = scan(x, a, b, tau, order, True, "triton")
    return torch.ops.laplex.pullback(g, x, odd, a, b, tau, *order.tensors, order.layout, "triton", False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_columns_and_other_widths(dtype, turned):
    a, b, tau = flat(torch.rand(1, 90), torch.rand(1, 80), 0.5)
    order = make_order(a, b, "joined", "triton")
    columns = torch.randn(80, 6, dtype=torch.float64).to(dtype).mT[None]
    even, _ = scan(columns, a, b, tau, order, False, "triton")
    assert even.stride() == (540, 1, 6)
    assert error(even, oracle(columns, a, b, tau)) <= (1e-3 if dtype == torch.float16 else 2e-7)
    assert torch.equal(scan(columns.contiguous(), a, b, tau, order, False, "triton")[0], even)


def test_anchors_that_moved_and_a_fault(turned):
    a, b, tau = flat(torch.rand(1, 90), torch.rand(1, 80), 0.5)
    checked = make_order(a, b, "joined", "triton").unchecked()
    x = drawn(1, 4, 80)
    assert error(scan(x, a * 2, b * 2, tau, checked, False, "triton")[0], oracle(x, a * 2, b * 2, tau)) <= 2e-7
    a[0, 5] = torch.nan
    assert scan(x, a, b, tau, checked, False, "triton")[0].isnan().all()

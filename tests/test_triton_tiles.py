"""Tiles of the Triton backend: many of them, carried by a launch of their own, and x put into their order."""

import pytest
import torch

from cases import named
from helpers import TOLERANCE, assert_sums, error, flat, make_order, scan
from laplex._kernels import triton_scan

if not triton_scan.interpreted():
    pytest.skip("with a GPU the kernels are compiled, and test_gpu has the same", allow_module_level=True)

pytestmark = [
    pytest.mark.usefixtures("tiles"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),  # of overflows, which the kernels mean to make
]


def drawn(h, m, size, dtype):
    return torch.randn(h, m, size, dtype=dtype)


MANY = {  # points enough for float32 powers and sums within a tile
    "normal": lambda: torch.randn(2, 1, 1100),
    "ties": lambda: torch.randint(0, 40, (2, 1, 1100)).float(),
    "clustered": lambda: torch.randn(2, 1, 1100) * 1e-3 + torch.randint(0, 4, (2, 1, 1100)),
    "spread": lambda: torch.rand(2, 1, 1100) * 1000,
}


@pytest.mark.parametrize("carried", [0, 1024], ids=["all_spans", "narrow_and_wide_apart"])
@pytest.mark.parametrize("tau", [0.5, 1e6], ids=str)
@pytest.mark.parametrize("name", MANY)
def test_float32_sums_within_many_tiles(name, tau, carried, tiles):
    tiles(32, carried=carried)
    a, b = MANY[name]()
    assert (a.shape[1] + b.shape[1]) // 32 >= triton_scan.PRECISE_TILES
    a, b, tau = flat(a, b, tau)
    assert_sums(drawn(1, 1, b.shape[1], torch.float32), a, b, tau, make_order(a, b, "joined", "triton"), "triton")


@pytest.mark.parametrize(
    ("carried", "by_tiles"), [(1024, 8), (4, 8), (4, 0)], ids=["one_group", "groups", "two_launches"]
)
@pytest.mark.parametrize("tau", [1e3, 1.0, 0.02, 2e-3], ids=str)
def test_sums_carried_by_a_launch_of_their_own(carried, by_tiles, tau, dtype, tiles, monkeypatch):
    tiles(32, 2, carried=carried)
    monkeypatch.setattr(triton_scan, "GROUPS_BY_TILES", by_tiles)
    a, b, tau = flat(torch.rand(1, 120, dtype=dtype), torch.rand(1, 110, dtype=dtype) * 2, tau)
    order, x = make_order(a, b, "joined", "triton"), drawn(1, 2, 110, dtype)
    assert_sums(x, a, b, tau, order, "triton")
    alone, _ = scan(x, a, b, tau, order, False, "triton")
    tiles(32, 2)
    assert error(alone, scan(x, a, b, tau, order, False, "triton")[0]) <= TOLERANCE[dtype]


@named("generic", "ties_everywhere", "batched_ties")
def test_x_put_into_the_merged_order_changes_no_bit(case, tiles):
    a, b, tau = flat(*case(torch.float32))
    order, x = make_order(a, b, "joined", "triton"), drawn(len(a), 3, b.shape[1], torch.float32)
    gathered = scan(x, a, b, tau, order, True, "triton")
    tiles(32, 1, staged=True)
    for got, want in zip(scan(x, a, b, tau, order, True, "triton"), gathered, strict=True):
        assert torch.equal(got, want)

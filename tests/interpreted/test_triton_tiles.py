"""Tiles of the Triton backend: many of them, carried by a launch of their own, and x put into their order."""

import pytest
import torch

from cases import in_turn, named
from helpers import TOLERANCE, assert_sums, error, flat, make_order, oracle, scan
from laplex._triton import tuning
from laplex._triton.scan import schedule

pytestmark = pytest.mark.usefixtures("tiles")


def drawn(h, m, size, dtype):
    return torch.randn(h, m, size, dtype=dtype)


MANY = {  # points enough for float32 powers and sums within a tile
    "normal": lambda: torch.randn(2, 1, 1100),
    "ties": lambda: torch.randint(0, 40, (2, 1, 1100)).float(),
    "clustered": lambda: torch.randn(2, 1, 1100) * 1e-3 + torch.randint(0, 4, (2, 1, 1100)),
    "spread": lambda: torch.rand(2, 1, 1100) * 1000,
}


@pytest.mark.parametrize(("name", "tau", "spans"), in_turn(MANY, [0.5, 1e6], ["together", "narrow_and_wide_apart"]))
def test_float32_sums_within_many_tiles(name, tau, spans, tiles):
    tiles(32, carried=0 if spans == "together" else 1024)
    a, b = MANY[name]()
    assert (a.shape[1] + b.shape[1]) // 32 >= schedule.PRECISE_TILES
    a, b, tau = flat(a, b, tau)
    assert_sums(drawn(1, 1, b.shape[1], torch.float32), a, b, tau, make_order(a, b, "joined", "triton"), "triton")


@pytest.mark.parametrize("scale", [1e-12, 1e-20, 1e-30, 1e30])
def test_float32_operands_of_any_size_in_wide_tiles(scale, tiles):
    """Within a window of a wide tile decays are as small as 2^-100: a small operand must not be lost there."""
    tiles(32)
    a, b, tau = flat(*MANY["spread"](), 0.3)
    assert (a.shape[1] + b.shape[1]) // 32 >= schedule.PRECISE_TILES
    x, order = scale * drawn(1, 1, b.shape[1], torch.float32), make_order(a, b, "joined", "triton")
    even, _ = scan(x, a, b, tau, order, False, "triton")
    assert error(even, oracle(x, a, b, tau)) <= TOLERANCE[torch.float32]


LAUNCHES = {
    "one_group": (1024, 8),
    "some_groups": (2, 8),
    "many_groups": (2, 0),
}  # tiles of a group, and groups by tiles
DTYPES = [torch.float32, torch.float64]


@pytest.mark.parametrize(("launch", "tau", "dtype"), in_turn(LAUNCHES, [1e3, 1.0, 0.02, 2e-3], DTYPES))
def test_sums_carried_by_a_launch_of_their_own(launch, tau, dtype, tiles, monkeypatch):
    carried, by_tiles = LAUNCHES[launch]
    tiles(32, 2, carried=carried)
    monkeypatch.setattr(tuning, "GROUPS_BY_TILES", by_tiles)
    a, b, tau = flat(torch.rand(1, 90, dtype=dtype), torch.rand(1, 80, dtype=dtype) * 2, tau)
    order, x = make_order(a, b, "joined", "triton"), drawn(1, 2, 80, dtype)
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


def test_no_more_programs_than_an_axis_of_a_launch_holds(monkeypatch):
    monkeypatch.undo()  # the sizes that are
    for m in (1, 7, 65536, 300_000, 600_000, 10_000_000):
        side = 4 if schedule.worth_adjacent_rows((1, m, 512, 512), False) else 1
        _tile, rows, _warps = schedule.tiling(1 << 10, m, 1, False, side)
        assert -(-m // rows) <= 65535

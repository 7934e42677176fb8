"""Rows so long that a GPU would need most of its memory, under Triton's interpreter: one tile of them is computed."""

import pytest
import torch

from laplex._triton.soft import launch, programs_rank, programs_sort
from laplex._triton.soft.tiles import ROOM

TILE = 64


@pytest.fixture
def sparse(tmp_path):
    """A function that makes room for numbers, all 0, of which only those that are written to take memory."""

    def make_room(name, size, dtype):
        return torch.from_file(str(tmp_path / name), shared=True, size=size, dtype=dtype)

    return make_room


@pytest.fixture
def row(sparse):
    """A function that makes a row of n numbers: of its first tile all are given, and all others are 0."""

    def make_row(n, numbers):
        position, order = sparse("position", n, numbers.dtype), sparse("order", n, torch.int64)
        position[:TILE], order[:TILE] = numbers, torch.arange(TILE)
        tiles = -(-n // TILE)
        return position, order, sparse("scratch", ROOM.value * tiles, torch.float64), tiles

    return make_row


def test_offsets_of_2_31_and_more(sparse, row):
    """What other tiles carry is 0, so that results are those of a row that has these numbers alone."""
    n, numbers, tau = 2**30 + 1, torch.randn(TILE).sort().values, torch.tensor([0.3], dtype=torch.float64)
    position, order, scratch, tiles = row(n, numbers)
    factors, values, x_bar = sparse("factors", 3 * n, torch.float32), torch.empty(TILE), sparse("bar", n, torch.float32)
    g, flags = torch.randn(TILE), (False, False, False)  # neither descending, nor exact, nor alone
    tensors = position, position, order, tau, scratch, values, factors
    programs_sort.values_program[(1,)](*tensors, n, tiles, TILE, *flags, False, "all", TILE)
    tensors = position, order, tau, g, factors, scratch, x_bar
    programs_sort.pull_sort_program[(1,)](*tensors, n, tiles, TILE, *flags, "all", TILE)
    want, *_, want_factors = launch.values("", numbers, tau, False, TILE)
    (want_bar,) = launch.pull_values(g, numbers, torch.arange(TILE), want_factors, tau, False)
    torch.testing.assert_close(values, want)
    torch.testing.assert_close(factors.view(3, n)[:, :TILE], want_factors[0])
    torch.testing.assert_close(x_bar[:TILE], want_bar)


def test_descending_ranks_beyond_2_24_keep_their_digits(sparse, row):
    """A number of numbers has more digits than float32."""
    n, tau = 2**25 + 2, torch.tensor([1e-3], dtype=torch.float64)
    position, order, scratch, tiles = row(n, torch.arange(TILE, dtype=torch.float64) - TILE)
    ranks, flags = sparse("ranks", n, torch.float64), (True, True, False, False)  # descending and exact
    tensors = position, position, order, tau, scratch, ranks
    programs_rank.ranks_program[(1,)](*tensors, n, tiles, *flags, "wide", TILE)
    assert ranks[:TILE].tolist() == list(range(n, n - TILE, -1))

"""Triton's soft ranks, sorts and masks in the interpreter, in tiles so small that few numbers cross many."""

import pytest
import torch
from fused_cases import ERRORS, WHERE, assert_mask, assert_ranks, assert_values, lengths, rows_of

from laplex._triton import tuning
from laplex._triton.soft import launch

CASES = ("one", "ties", "equal", "clustered", "normal", "far")
WAYS = {  # numbers sorted by the program, numbers of a row that is one tile, tiles carried at a step, spans apart from
    "sorted in the program": (64, 64, 64, 1 << 40),
    "one tile": (0, 64, 64, 1 << 40),
    "tiles": (0, 0, 64, 1 << 40),
    "tiles in groups, near and wide apart": (0, 0, 2, 1),
}


@pytest.fixture(params=WAYS, autouse=True)
def way(request, monkeypatch):
    names = "SOFT_SORTED", "SOFT_ALONE", "SOFT_CARRIED", "SOFT_SPANS_APART"
    for name, value in zip(names, WAYS[request.param], strict=True):
        monkeypatch.setattr(tuning, name, value)
    monkeypatch.setattr(tuning, "SOFT_PARTS", WAYS[request.param][2])
    monkeypatch.setattr(tuning, "SOFT_TILE", 16)
    monkeypatch.setattr(tuning, "SOFT_ELEMENTS", 64 if WAYS[request.param][1] else 16)


@pytest.fixture(params=CASES)
def case(request):
    return request.param


@pytest.fixture(params=ERRORS, ids=str)
def dtype(request):
    return request.param


@pytest.mark.parametrize("softness", [1e-3, 0.3, 1e4])
def test_ranks_and_values(case, dtype, softness):
    x = rows_of(case, dtype)
    descending = softness == 0.3
    assert_ranks(launch, x, lengths(x, softness), descending)
    assert_values(launch, x, lengths(x, softness), descending)


@pytest.mark.parametrize("share", [1e-3, 0.3, 0.999])
def test_masks(case, dtype, share):
    x = rows_of(case, dtype)
    for softness in (1e-3, 0.3, 1e4):
        assert_mask(launch, x, lengths(x, softness), share)


def test_masks_of_none_and_all(dtype):
    x, tau = torch.randn(3, 20, dtype=dtype), torch.full((3,), 0.3, dtype=torch.float64)
    k = torch.tensor([0.0, 7.5, 20.0], dtype=torch.float64)
    mask, threshold = launch.mask(WHERE, x, k, tau)
    assert mask[0].equal(torch.zeros_like(mask[0]))
    assert mask[2].equal(torch.ones_like(mask[2]))
    x_bar, k_bar, tau_bar = launch.pull_mask(torch.randn_like(x), x, k, tau, threshold)
    assert x_bar[1].abs().min() > 0
    for bar in (x_bar[::2], k_bar[::2], tau_bar[::2]):
        assert bar.equal(torch.zeros_like(bar))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_gives_nan_in_its_row(dtype, value):
    x, tau = torch.randn(2, 40, dtype=dtype), torch.full((2,), 0.3, dtype=torch.float64)
    x[1, 17] = value
    k = torch.full((2,), 10.0, dtype=torch.float64)
    for result in (
        launch.ranks(WHERE, x, tau, False)[0],
        launch.values(WHERE, x, tau, False, x.shape[-1])[0],
        launch.mask(WHERE, x, k, tau)[0],
    ):
        assert result[0].isfinite().all()
        assert result[1].isnan().all()


def test_a_tau_that_is_not_positive_gives_nan(dtype):
    x, tau = torch.randn(2, 40, dtype=dtype), torch.tensor([0.3, 0.0], dtype=torch.float64)
    for result in (launch.ranks(WHERE, x, tau, False)[0], launch.values(WHERE, x, tau, False, x.shape[-1])[0]):
        assert result[0].isfinite().all()
        assert result[1].isnan().all()


def test_an_outlier_does_not_blur_its_tile():
    """A mask value of -1e10 in the scores is in one tile with numbers 1e12 tau away, which are close to each other."""
    x = torch.cat([torch.tensor([-1e10]), torch.randn(20)])[None]
    tau = torch.full((1,), 0.01, dtype=torch.float64)
    g = torch.randn_like(x)
    ranks, position, order = launch.ranks(WHERE, x, tau, False)
    alone = launch.ranks(WHERE, x[:, 1:].contiguous(), tau, False)
    torch.testing.assert_close(ranks[:, 1:], 1 + alone[0], rtol=2e-7, atol=0)
    bars = launch.pull_ranks(g, position, order, tau, False)[0][:, 1:]
    torch.testing.assert_close(
        bars, launch.pull_ranks(g[:, 1:].contiguous(), *alone[1:], tau, False)[0], rtol=1e-6, atol=1e-6
    )

"""Calls that a launch does not take at once: recorded in parts, or with more rows or series than an axis has."""

import pytest
import torch

import laplex
from helpers import error
from laplex._scan import weighted
from laplex._scan.results import LAUNCH_AXIS
from laplex._triton import tuning
from laplex._triton.distance import launch as distance
from laplex._triton.recording import recorded
from laplex._triton.states import carry

SHAPES = {"few sources": (4, 320, 5), "few targets": (4, 5, 320), "alike": (4, 70, 60)}  # matrices, rows, columns


@pytest.mark.parametrize("phased", [False, True], ids=["plain", "phased"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("together", [1, 2, 4])
def test_parts_of_a_batch_share_no_results_of_anchors(shape, phased, together, monkeypatch):
    """A sum of many matrices is recorded in parts, whose anchors differ. They once took those of the first part."""
    h, n, k = SHAPES[shape]
    for name, value in {"TABLE_FROM": 1, "GATHERED_TWICE": 0, "ROWS_STAGED": 2, "PLACES_FROM": 1 << 40}.items():
        monkeypatch.setattr(tuning, name, value)
    monkeypatch.setattr(weighted, "MOST_NUMBERS", together * 2 * max(n, k))
    a, b, weight, x = torch.randn(h, n), torch.randn(h, k), torch.randn(h), torch.randn(2, k)
    phases = {"phi": torch.randn(h, n), "psi": torch.randn(h, k)} if phased else {}
    plan, shared = laplex.Plan(a, b, backend="triton"), {}
    wide = {name: value.double() for name, value in phases.items()}
    want = laplex.linear(x.double(), a.double(), b.double(), 0.7, weight=weight.double(), backend="dense", **wide)
    with torch.no_grad():
        for _ in range(2):  # the second recording finds the results of the first
            with recorded((a, b, *plan._order.tensors), shared):
                y = laplex.linear(x, a, b, 0.7, weight=weight, plan=plan, backend="triton", **phases)
            assert error(y, want) <= 2e-6


def grids(monkeypatch, module):
    """The grids of a module's launches."""
    seen, launch = [], module.launch

    def noted(program, grid, *rest):
        seen.append(grid)
        launch(program, grid, *rest)

    monkeypatch.setattr(module, "launch", noted)
    return seen


def test_any_number_of_series_has_totals(monkeypatch):
    """Only the first axis of a launch has room for them."""
    sums = torch.randn(4, 3 * 5, dtype=torch.float64)
    sums[3] = torch.inf
    sums[3, 7] = 2.0
    seen = grids(monkeypatch, carry)
    totals = carry.total(sums, 3, smallest=3)
    torch.testing.assert_close(totals[:3], sums[:3].view(3, 3, 5).sum(-1))
    assert totals[3].tolist() == [-1.0, 2.0, -1.0]
    assert seen == [(3, 4, 1)]


@pytest.mark.parametrize("m", [1, 5, 4 * LAUNCH_AXIS, 4 * LAUNCH_AXIS + 1, 10**7])
def test_blocks_of_rows_fit_an_axis_of_a_launch(m):
    rows = distance._rows(m)
    assert -(-m // rows) <= LAUNCH_AXIS
    assert rows & (rows - 1) == 0


def test_the_gradient_of_tau_for_more_rows_than_an_axis_has(monkeypatch, tiles):
    monkeypatch.setattr(distance, "LAUNCH_AXIS", 2)
    seen = grids(monkeypatch, distance)
    a, b, x = torch.randn(30), torch.randn(40), torch.randn(19, 40)
    tau = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    g = torch.randn(19, 30)
    (bar,) = torch.autograd.grad(laplex.linear(x, a, b, tau, backend="triton"), tau, g)
    dense = laplex.linear(x.double(), a.double(), b.double(), tau, backend="dense")
    (want,) = torch.autograd.grad(dense, tau, g.double())
    assert float(bar) == pytest.approx(float(want), rel=1e-5)
    assert seen
    assert all(blocks <= 2 for _, blocks, _ in seen)

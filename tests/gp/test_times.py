"""The order of times: by the compiled core and by torch, against torch's stable sort."""

import pytest
import torch

from laplex._states import order
from processes import as_tensor, seeded

SIZES = (1, 2, 49, 300, 5000, 70_000)


def spread(n):
    return torch.rand(n, generator=seeded(n), dtype=torch.float64)


TIMES = {
    "uniform": lambda n: spread(n) * n,
    "reversed": lambda n: spread(n).sort(descending=True).values,
    "in_order": lambda n: spread(n).sort().values,
    "ties": lambda n: (spread(n) * 50).floor(),
    "all_equal": lambda n: torch.full((n,), 2.5, dtype=torch.float64),
    "zeros_of_both_signs": lambda n: torch.where(spread(n) < 0.5, -0.0, 0.0).double(),
    "all_magnitudes": lambda n: torch.exp(1400 * (spread(n) - 0.5)) * (1 - 2 * (spread(n + 1)[1:] < 0.5).double()),
    "clusters": lambda n: torch.cat([1e-9 * spread(n)[: n // 2], 1e9 + spread(n)[n // 2 :]]),
    "nights": lambda n: (300 * spread(n)).floor() + 0.3 * spread(n + 1)[1:],
    "the_largest_numbers": lambda n: (2 * spread(n) - 1) * 1.79e308,
    "subnormal": lambda n: 1e-310 * spread(n),
    "neighbours": lambda n: as_tensor(1.0) + 2.0**-52 * (spread(n) * 7).floor(),
}


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", TIMES)
def test_the_order_is_stable(name, n, threads):
    t = TIMES[name](n)[None]
    want = torch.sort(t, dim=-1, stable=True)
    places, times = order.sort_times(t, None)
    assert torch.equal(times, want.values)
    assert places is None or torch.equal(places, want.indices)


def test_more_threads_than_a_busy_machine_gets():
    """Many threads share one sort, whatever the size."""
    t = TIMES["nights"](600_000)[None]
    want = torch.sort(t, dim=-1, stable=True)
    torch.set_num_threads(3)
    places, times = order.sort_times(t, None)
    torch.set_num_threads(1)
    assert torch.equal(times, want.values)
    assert torch.equal(places, want.indices)


def test_times_in_order_are_not_copied():
    t = TIMES["in_order"](100)[None]
    places, times = order.sort_times(t, None)
    assert places is None
    assert times.data_ptr() == t.data_ptr()


@pytest.mark.parametrize("compiled", [True, False])
def test_series_of_different_sizes_end_with_infinity(compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(order, "core", None)
    t, counts = as_tensor([[3.0, 1.0, 2.0, 9.0], [5.0, 4.0, 5.0, 5.0]]), torch.tensor([3, 2])
    places, times = order.sort_times(t, counts)
    assert times.tolist() == [[1.0, 2.0, 3.0, torch.inf], [4.0, 5.0, torch.inf, torch.inf]]
    assert places.tolist() == [[1, 2, 0, 3], [1, 0, 2, 3]]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_not_finite_are_left_to_torch(value):
    """Times that an optimizer has moved may be anything."""
    t = TIMES["uniform"](500)[None]
    t[0, 77] = value
    places, _ = order.sort_times(t, None)
    assert torch.equal(places, torch.argsort(t, dim=-1, stable=True))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("n", [1, 3, 16, 100])
def test_extremes(n, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(order, "core", None)
    x = spread(n) - 0.5
    assert order.extremes(x) == (float(x.min()), float(x.max()))
    x[n // 2] = torch.nan
    assert all(one != one for one in order.extremes(x))
    x[n // 2] = torch.inf
    assert order.extremes(x)[1] == torch.inf

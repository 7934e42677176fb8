"""Far away, isolated, nearly equal, huge and tiny: where the formulas as they are written lose everything."""

import math

import dense_stats as dense
import mpmath
import pytest
import torch

from laplex import stats
from laplex._states import chain
from laplex.stats import _order


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_far_points(dtype):
    """log f = -distance / tau + log of the sum relative to the nearest sample, however far."""
    x = torch.tensor([0.0, 1.0, 3.0], dtype=dtype)
    for distance in (1e2, 1e4, 1e6):
        right = stats.kde(x, torch.tensor([distance], dtype=dtype), tau=1.0)
        left = stats.kde(x, torch.tensor([-distance], dtype=dtype), tau=1.0)
        want_right = -(distance - 3) + math.log((1 + math.exp(-2) + math.exp(-3)) / 6)
        want_left = -distance + math.log((1 + math.exp(-1) + math.exp(-3)) / 6)
        assert float(right) == pytest.approx(want_right, rel=5e-7 if dtype == torch.float32 else 1e-14)
        assert float(left) == pytest.approx(want_left, rel=5e-7 if dtype == torch.float32 else 1e-14)


def test_an_isolated_sample_is_left_out():
    """K 1 - 1 would be 0; the answer is of the size of -gap / tau."""
    x = torch.tensor([0.0, 0.5, 1e6], dtype=torch.float64)
    got = stats.kde(x, tau=1.0)
    assert float(got[2]) == pytest.approx(-(1e6 - 0.5) + math.log((1 + math.exp(-0.5)) / 4), rel=1e-15)
    torch.testing.assert_close(got, dense.kde_left_out(x, 1.0, dense.ones(x)), rtol=1e-14, atol=0)


def test_a_heavy_sample_is_left_out():
    """Of weights 1e20 times as large as those of all others nothing remains."""
    x = torch.tensor([0.0, 1e-3, 2e-3, 3e-3], dtype=torch.float64)
    w = torch.tensor([1e-20, 1.0, 1e-20, 2e-20], dtype=torch.float64)
    got = stats.kde(x, tau=1.0, weights=w)
    torch.testing.assert_close(got, dense.kde_left_out(x, 1.0, w), rtol=1e-13, atol=0)
    y = torch.tensor([1.0, 1e6, 3.0, 4.0], dtype=torch.float64)
    got = stats.nadaraya_watson(x, y, tau=1.0, weights=w)
    torch.testing.assert_close(got, dense.nadaraya_watson(x, y, x, 1.0, w, left_out=True), rtol=1e-13, atol=0)


PAIRS = {  # a function of x, y and the weights of x, how far apart it counts samples to be, and a factor
    "energy_distance": (lambda x, y, w: stats.energy_distance(x, y, weights_x=w, unbiased=True), lambda x: x, 1.0),
    "mmd": (lambda x, y, w: stats.mmd(x, y, tau=1.0, weights_x=w, unbiased=True), lambda x: 1 - torch.exp(-x), 1.0),
    "crps": (lambda x, y, w: stats.crps(y[0], x, weights=w, unbiased=True), lambda x: x, 0.5),
}


@pytest.mark.parametrize("light", [1e-4, 1e-12, 1e-20, 1e-100])
@pytest.mark.parametrize("name", PAIRS)
def test_an_unbiased_distance_with_a_heavy_sample(name, light):
    """The only pair of samples counts fully, however little one of them weighs: w is its share, and d its distance."""
    function, distance, factor = PAIRS[name]
    place = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([1.0, light], dtype=torch.float64, requires_grad=True)
    x, y = torch.stack([torch.zeros_like(place), place]), torch.zeros(2, dtype=torch.float64)
    share = weights[1] / weights.sum()
    want = factor * (2 * share * distance(place) - distance(place))
    got = function(x, y, weights)
    torch.testing.assert_close(got, want, rtol=1e-14, atol=0)
    bars, wanted = (torch.autograd.grad(value, (place, weights)) for value in (got, want))
    torch.testing.assert_close(bars[0], wanted[0], rtol=1e-13, atol=0)
    torch.testing.assert_close(weights * bars[1], weights * wanted[1], rtol=0, atol=1e-15)


def test_weights_of_zero_are_as_if_missing():
    x, p = torch.randn(40).double(), 3 * torch.randn(60).double()
    x[30:] += 1e5  # far from all others, with weights of 0 between
    w = torch.rand(40).double()
    w[5:32] = 0
    rest = w > 0
    p = torch.cat([p, x, torch.tensor([5e4, 1e5 - 20]).double()])
    for tau in (1e-3, 1.0, 1e3):
        for got, want in (
            (stats.kde(x, p, tau=tau, weights=w), stats.kde(x[rest], p, tau=tau, weights=w[rest])),
            (
                stats.local_linear(x, x.sin(), p, tau=tau, weights=w),
                stats.local_linear(x[rest], x[rest].sin(), p, tau=tau, weights=w[rest]),
            ),
            (stats.kde(x, tau=tau, weights=w)[rest], stats.kde(x[rest], tau=tau, weights=w[rest])),
        ):
            torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_means_far_away_are_those_of_the_nearest():
    x, y = torch.tensor([0.0, 1.0, 3.0]).double(), torch.tensor([5.0, 7.0, 9.0]).double()
    far = torch.tensor([-1e6, 1e6]).double()
    got = stats.nadaraya_watson(x, y, far, tau=1e-3)
    assert got.tolist() == pytest.approx([5.0, 9.0])
    got = stats.local_linear(x, y, far, tau=1.0)
    slopes = (got - got.new_tensor([5.0, 9.0])) / (far - far.new_tensor([0.0, 3.0]))
    assert 1.0 < float(slopes[1]) < float(slopes[0]) < 2.0  # between those of the last two pairs


def line_of_best_fit(x, y, w, p, tau, left_out=None):
    """The local line by its definition, with so many digits that weights of e^-2500 count."""
    with mpmath.workdps(3000):
        sums = [mpmath.mpf(0)] * 5
        for j, (place, value, weight) in enumerate(zip(x.tolist(), y.tolist(), w.tolist(), strict=True)):
            if j != left_out:
                d = mpmath.mpf(place) - mpmath.mpf(p)
                mass = weight * mpmath.exp(-abs(d) / mpmath.mpf(tau))
                terms = (1, d, d * d, value, d * value)
                sums = [total + mass * term for total, term in zip(sums, terms, strict=True)]
        w0, w1, w2, y0, y1 = sums
        determinant = w0 * w2 - w1 * w1
        return float((w2 * y0 - w1 * y1) / determinant if determinant else y0 / w0)


@pytest.mark.parametrize("tau", [1e-3, 3e-3])
@pytest.mark.parametrize("samples", ["apart", "tied", "of weight 0"])
def test_local_lines_between_samples_far_apart(samples, tau):
    """A line is decided by the samples beyond the nearest, however little they weigh."""
    random = torch.Generator().manual_seed(1)
    x, y, w = (torch.rand(7, generator=random, dtype=torch.float64) for _ in range(3))
    if samples == "tied":
        x = (3 * x).round() / 3
    if samples == "of weight 0":
        w[::3] = 0
    p = torch.cat([2 * torch.rand(4, generator=random, dtype=torch.float64) - 0.5, x[:2]])
    got = stats.local_linear(x, y, p, tau=tau, weights=w)
    want = torch.tensor([line_of_best_fit(x, y, w, place, tau) for place in p.tolist()], dtype=torch.float64)
    torch.testing.assert_close(got, want, rtol=1e-13, atol=1e-13)
    got = stats.local_linear(x, y, tau=tau, weights=w)
    want = [line_of_best_fit(x, y, w, place, tau, left_out=j) for j, place in enumerate(x.tolist())]
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), rtol=1e-13, atol=1e-13)


def test_gradients_of_local_lines_between_samples_far_apart():
    x = torch.tensor([0.0, 1.0, 2.5, 2.5], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([1.0, 3.0, 0.0, 2.0], dtype=torch.float64, requires_grad=True)
    p = torch.tensor([-3.0, 0.2, 0.9, 1.8, 7.0], dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda *given: stats.local_linear(*given, tau=1e-3), (x[:3], y[:3], p))
    straight = stats.local_linear(x, 2 * x + 1, p, tau=1e-3)
    torch.testing.assert_close(straight, 2 * p + 1)
    (slopes,) = torch.autograd.grad(straight.sum(), p)
    torch.testing.assert_close(slopes, torch.full_like(p, 2))


def test_one_sample():
    x, p = torch.tensor([2.0]), torch.tensor([-1.0, 2.0, 1e6])
    torch.testing.assert_close(stats.kde(x, p, tau=0.5), -(p - 2).abs() / 0.5)
    assert stats.nadaraya_watson(x, torch.tensor([7.0]), p, tau=0.5).tolist() == [7.0] * 3
    assert stats.local_linear(x, torch.tensor([7.0]), p, tau=0.5).tolist() == [7.0] * 3
    assert float(stats.crps(torch.tensor(5.0), x)) == 3.0


@pytest.mark.parametrize("move", [1e-3, 1e-6, 1e-9, 1e-12])
def test_nearly_equal_samples(move):
    """Samples that are moved a little have an MMD^2 of 2 move / (n tau), whose digits the three sums do not have."""
    x = torch.arange(100.0, dtype=torch.float64)
    moved = x + move
    exact = float((moved - x).mean())  # as rounded
    assert float(stats.energy_distance(x, moved)) == pytest.approx(2 * exact / 100, rel=1e-3)
    got = float(stats.mmd(x, moved, tau=0.01))  # the samples are 100 tau apart: each pair is on its own
    assert got == pytest.approx(2 * -math.expm1(-exact / 0.01) / 100, rel=1e-3)


def test_equal_samples():
    x = torch.randn(100)
    x[50:60] = x[0]
    order = torch.randperm(100)
    for tau in (1e-3, 1.0, 1e3):
        assert float(stats.mmd(x, x[order], tau=tau)) == 0.0
    assert float(stats.energy_distance(x, x[order])) == 0.0
    weights = torch.rand(100)
    assert abs(float(stats.mmd(x, x[order], tau=1.0, weights_x=weights, weights_y=weights[order]))) < 1e-25


def test_the_energy_distance_is_the_limit_of_the_mmd():
    x, y = torch.randn(50).double(), torch.randn(40).double() + 1
    tau = 1e9
    assert float(tau * stats.mmd(x, y, tau=tau)) == pytest.approx(float(stats.energy_distance(x, y)), rel=1e-6)
    unbiased = float(tau * stats.mmd(x, y, tau=tau, unbiased=True))
    assert unbiased == pytest.approx(float(stats.energy_distance(x, y, unbiased=True)), rel=1e-6)


def test_the_crps_is_half_an_energy_distance():
    x, y = torch.randn(50).double(), torch.tensor(0.3).double()
    assert float(stats.crps(y, x)) == pytest.approx(float(stats.energy_distance(x, y[None])) / 2)


def test_the_density_integrates_to_one():
    x = torch.randn(30).double()
    t = torch.linspace(-30, 30, 600_001).double()
    for options in ({"tau": 0.3}, {"tau": 1.0, "weights": dense.weights_with_zeros(30)}):
        assert float(torch.trapezoid(stats.kde(x, t, **options).exp(), t)) == pytest.approx(1.0, abs=1e-6)


def test_many_samples_in_a_short_span():
    """Decays between neighbours are all but 1: their products are still those of the span."""
    n = 100_000
    x = torch.linspace(0, 1e-2, n, dtype=torch.float64)
    p = torch.tensor([0.0, 5e-3, 1.0]).double()
    got = stats.kde(x, p, tau=1.0)
    want = torch.stack([torch.logsumexp(-(x - each).abs(), 0) for each in p]) - math.log(2 * n)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_without_the_compiled_core(monkeypatch):
    """Plain torch sorts and scans, as on a GPU."""
    x, p, w = torch.randn(2, 70).double(), torch.randn(2, 50).double(), dense.weights_with_zeros(70)
    calls = {
        "kde": lambda: stats.kde(x, p, tau=0.3, weights=w),
        "kde left out": lambda: stats.kde(x, tau=0.3),
        "local_linear": lambda: stats.local_linear(x, x.sin(), p, tau=0.3, weights=w),
        "mmd": lambda: stats.mmd(x, p, tau=0.3, unbiased=True),
        "energy_distance": lambda: stats.energy_distance(x, p),
        "bandwidth": lambda: stats.bandwidth(x),
    }
    compiled = {name: call() for name, call in calls.items()}
    monkeypatch.setattr(_order, "_in_core", lambda *tensors: False)
    monkeypatch.setattr(chain, "module_for", lambda *tensors: None)
    for name, call in calls.items():
        torch.testing.assert_close(call(), compiled[name], rtol=1e-11, atol=1e-11, msg=name)

"""Values against the definitions, dense and in float64: every case, scale, weight and dtype."""

import dense_stats as dense
import pytest
import torch

from laplex import stats


@pytest.fixture(params=dense.CASES)
def case(request):
    return dense.CASES[request.param]


@pytest.fixture(params=[False, True], ids=["equal weights", "weights with zeros"])
def weighted(request):
    return request.param


def prepared(case, dtype, weighted):
    """Both samples in a dtype, the same in float64, and weights or ones for both."""
    given = [sample.to(dtype) for sample in case]
    make = dense.weights_with_zeros if weighted else lambda n: torch.ones(n, dtype=torch.float64)
    return given, [sample.double() for sample in given], [make(sample.shape[-1]) for sample in given]


def assert_close(got, want, dtype, scale=1.0):
    """Within 5e-7 of the largest value in float32, within rounding errors in float64."""
    assert got.dtype == dtype
    bound = 5e-7 if dtype == torch.float32 else 1e-12
    size = torch.maximum(want.abs(), torch.as_tensor(scale, dtype=torch.float64))
    assert ((got - want).abs() <= bound * size).all(), ((got - want).abs() / size).max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
class TestEveryCase:
    def test_kde(self, case, weighted, dtype):
        (x, p), (wide, wide_p), (w, _) = prepared(case, dtype, weighted)
        for length in dense.LENGTHS:
            tau = length * dense.spread(x)
            far = torch.tensor([-1e6, 1e6], dtype=dtype) * tau + x.mean()
            points, wide_points = torch.cat([p, x, far]), torch.cat([wide_p, wide, far.double()])
            got = stats.kde(x, points, tau=tau, weights=w if weighted else None)
            assert_close(got, dense.kde(wide, wide_points, tau, w), dtype)

    def test_kde_leave_one_out(self, case, weighted, dtype):
        (x, _), (wide, _), (w, _) = prepared(case, dtype, weighted)
        if len(x) < 3:
            return
        for length in dense.LENGTHS:
            tau = length * dense.spread(x)
            got = stats.kde(x, tau=tau, weights=w if weighted else None)
            assert_close(got, dense.kde_left_out(wide, tau, w), dtype)

    @pytest.mark.parametrize("left_out", [False, True])
    @pytest.mark.parametrize("name", ["nadaraya_watson", "local_linear"])
    def test_regression(self, name, case, weighted, left_out, dtype):
        (x, p), (wide, wide_p), (w, _) = prepared(case, dtype, weighted)
        if left_out and len(x) < 3:
            return
        y, p = torch.sin(torch.arange(len(x)).to(dtype)), None if left_out else torch.cat([p, x])
        wide_p = wide if left_out else torch.cat([wide_p, wide])
        for length in dense.LENGTHS:
            tau = length * dense.spread(x)
            got = getattr(stats, name)(x, y, p, tau=tau, weights=w if weighted else None)
            arguments = {"tau": tau, "w": w, "left_out": left_out}
            want = getattr(dense, name)(wide, y.double(), wide_p, **arguments)
            if name == "local_linear":  # where one sample has almost all the weight, the definition divides 0 by 0
                clear = dense.local_variance(wide, wide_p, **arguments) > 1e-4
                assert got.isfinite().all()
                got, want = got[clear], want[clear]
            assert_close(got, want, dtype)

    @pytest.mark.parametrize("unbiased", [False, True])
    def test_mmd(self, case, weighted, unbiased, dtype):
        (x, y), (wide, wide_y), (w, v) = prepared(case, dtype, weighted)
        if unbiased and min((w > 0).sum(), (v > 0).sum()) < 2:
            return
        for length in dense.LENGTHS:
            tau = length * dense.spread(x)
            weights = {"weights_x": w, "weights_y": v} if weighted else {}
            got = stats.mmd(x, y, tau=tau, unbiased=unbiased, **weights)
            assert_close(
                got,
                dense.mmd(wide, wide_y, tau, w, v, unbiased=unbiased),
                dtype,
                1e-3 if dtype == torch.float32 else 1e-2,
            )

    @pytest.mark.parametrize("unbiased", [False, True])
    def test_energy_distance(self, case, weighted, unbiased, dtype):
        (x, y), (wide, wide_y), (w, v) = prepared(case, dtype, weighted)
        if unbiased and min((w > 0).sum(), (v > 0).sum()) < 2:
            return
        weights = {"weights_x": w, "weights_y": v} if weighted else {}
        got = stats.energy_distance(x, y, unbiased=unbiased, **weights)
        scale = 1e-3 * dense.spread(torch.cat([x, y]))
        assert_close(got, dense.energy_distance(wide, wide_y, w, v, unbiased=unbiased), dtype, scale)

    @pytest.mark.parametrize("unbiased", [False, True])
    def test_crps(self, case, weighted, unbiased, dtype):
        (x, y), (wide, wide_y), (w, _) = prepared(case, dtype, weighted)
        if unbiased and (w > 0).sum() < 2:
            return
        observations, wide_o = torch.cat([y, x]), torch.cat([wide_y, wide])
        got = stats.crps(observations, x, weights=w if weighted else None, unbiased=unbiased)
        want = torch.stack([dense.crps(one, wide, w, unbiased=unbiased) for one in wide_o])
        assert_close(got, want, dtype, 1e-3 * dense.spread(torch.cat([x, y])))


def loop_kde(x, points, tau):
    from math import exp, log

    return [log(sum(exp(-abs(p - each) / tau) for each in x) / (2 * tau * len(x))) for p in points]


def test_definitions_themselves():
    """The dense oracle against loops from the formulas."""
    x, y, tau = [0.5, -1.0, 2.0, 0.5], [1.0, 0.0, 3.0], 0.7
    wide, other = torch.tensor(x).double(), torch.tensor(y).double()
    got = dense.kde(wide, other, tau, dense.ones(wide))
    torch.testing.assert_close(got, torch.tensor(loop_kde(x, y, tau), dtype=torch.float64))
    distance = 2 * sum(abs(a - b) for a in x for b in y) / 12
    distance -= sum(abs(a - b) for a in x for b in x) / 16 + sum(abs(a - b) for a in y for b in y) / 9
    assert float(dense.energy_distance(wide, other, dense.ones(wide), dense.ones(other))) == pytest.approx(distance)
    distance = 2 * sum(abs(a - b) for a in x for b in y) / 12
    distance -= sum(abs(a - b) for a in x for b in x) / 12 + sum(abs(a - b) for a in y for b in y) / 6
    unbiased = dense.energy_distance(wide, other, dense.ones(wide), dense.ones(other), unbiased=True)
    assert float(unbiased) == pytest.approx(distance)


def test_regression_exactly():
    """A line is reproduced wherever two samples count, from 1e-6 to 1e6, near the samples and far away."""
    for scale in (1e-6, 1.0, 1e6):
        x = scale * dense.normal(200, 0).double()
        y = 3.0 + 2.0 * x / scale
        points = scale * torch.tensor([-1e5, -4.0, 0.0, 0.1, 4.0, 1e5]).double()
        for tau in (0.1, 1.0, 1e3):
            got = stats.local_linear(x, y, points, tau=tau * scale)
            torch.testing.assert_close(got, 3.0 + 2.0 * points / scale, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(stats.local_linear(x, y, tau=tau * scale), y, rtol=1e-9, atol=1e-9)


def test_batches_broadcast():
    x, p, tau = torch.randn(3, 1, 20).double(), torch.randn(4, 11).double(), torch.tensor([[0.5], [1.0], [2.0]])
    w = torch.rand(20).double()
    together = stats.kde(x, p, tau=tau, weights=w)
    assert together.shape == (3, 4, 11)
    for i in range(3):
        for j in range(4):
            torch.testing.assert_close(together[i, j], stats.kde(x[i, 0], p[j], tau=float(tau[i]), weights=w))
    y = torch.randn(4, 30).double()
    together = stats.mmd(x, y, tau=tau, unbiased=True)
    assert together.shape == (3, 4)
    assert together[1, 2] == pytest.approx(float(stats.mmd(x[1, 0], y[2], tau=1.0, unbiased=True)))
    assert stats.energy_distance(x, y).shape == stats.crps(y[:, 0], x).shape == (3, 4)
    assert stats.local_linear(x, torch.randn(20).double(), p, tau=1.0).shape == (3, 4, 11)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_rounded_once(dtype):
    x, y, p = torch.randn(30).to(dtype), torch.randn(30).to(dtype), torch.randn(10).to(dtype)
    wide = [each.double() for each in (x, y, p)]
    for name, got, want in (
        ("kde", stats.kde(x, p, tau=0.5), stats.kde(wide[0], wide[2], tau=0.5)),
        ("mean", stats.nadaraya_watson(x, y, p, tau=0.5), stats.nadaraya_watson(*wide, tau=0.5)),
        ("mmd", stats.mmd(x, y, tau=0.5), stats.mmd(wide[0], wide[1], tau=0.5)),
        ("energy", stats.energy_distance(x, y), stats.energy_distance(wide[0], wide[1])),
    ):
        assert got.dtype == dtype, name
        torch.testing.assert_close(got, want.to(dtype), msg=name, rtol=0, atol=0)


MIXED = {  # of two or three tensors of samples, values and points
    "kde": lambda x, p: stats.kde(x, p, tau=0.5),
    "nadaraya_watson": lambda x, y, p: stats.nadaraya_watson(x, y, p, tau=0.5),
    "local_linear": lambda x, y, p: stats.local_linear(x, y, p, tau=0.5),
    "nadaraya_watson left out": lambda x, y: stats.nadaraya_watson(x, y, tau=0.5),
    "bandwidth": lambda x, y: stats.bandwidth(x, y, kind="constant"),
    "mmd": lambda x, y: stats.mmd(x, y, tau=0.5),
    "energy_distance": lambda x, y: stats.energy_distance(x, y),
    "crps": lambda y, x: stats.crps(y[0], x),
    "permutation_test": lambda x, y: stats.permutation_test(x, y, tau=0.5, permutations=9).statistic,
    "sliced_mmd": lambda x, y: stats.sliced_mmd(x[:, None], y[:, None], tau=0.5, projections=torch.ones(1, 1)),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_dtypes(name):
    """Results have the dtype that samples, values and points promote to, whichever of them is the widest."""
    call = MIXED[name]
    given = [torch.randn(20) for _ in range(call.__code__.co_argcount)]
    want = call(*(each.double() for each in given))
    for wide in range(len(given)):
        got = call(*(each.double() if place == wide else each for place, each in enumerate(given)))
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
        halves = [each.bfloat16() if place == wide else each for place, each in enumerate(given)]
        assert (got.dtype, call(*halves).dtype) == (torch.float64, torch.float32)


def test_weights_and_tau_do_not_change_the_dtype():
    x, w, tau = torch.randn(20), torch.rand(20).double(), torch.tensor(0.5).double()
    for got in (
        stats.kde(x, x, tau=tau, weights=w),
        stats.local_linear(x, x, x, tau=tau, weights=w),
        stats.kde_sample(x, 3, tau=tau, weights=w),
        stats.mmd(x, x, tau=tau, weights_x=w),
        stats.crps(x[0], x, weights=w),
        stats.bandwidth(x, weights=w),
    ):
        assert got.dtype == torch.float32

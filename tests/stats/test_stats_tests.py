"""Permutation tests, bandwidths, draws and sliced distances: what they are made of, and what they promise."""

import math

import dense_stats as dense
import numpy as np
import pytest
import torch

from laplex import stats
from laplex.stats import _permutations
from laplex.stats._sliced import mean_projection


def seeded(number=0):
    return torch.Generator().manual_seed(number)


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("name", ["mmd", "energy_distance"])
def test_named_statistics_are_the_functions(name, unbiased, monkeypatch):
    """The same permutations through the function itself, in blocks of another size."""
    x, y = torch.randn(2, 13).double(), torch.randn(2, 9).double()
    x[:, 3] = y[:, 2]
    options = {"tau": 0.7} if name == "mmd" else {}
    named = stats.permutation_test(
        x, y, statistic=name, permutations=50, unbiased=unbiased, generator=seeded(), **options
    )
    monkeypatch.setattr(_permutations, "BLOCK", 200)

    def function(a, b):
        return getattr(stats, name)(a, b, unbiased=unbiased, **options)

    blocks = stats.permutation_test(
        x, y, statistic=name, permutations=50, unbiased=unbiased, generator=seeded(), **options
    )
    torch.testing.assert_close(named.statistic, function(x, y))
    assert named.null.shape == blocks.null.shape == (2, 50)
    assert named.p_value.shape == (2,)
    monkeypatch.setattr(_permutations, "BLOCK", 1 << 18)
    again = stats.permutation_test(x, y, statistic=function, permutations=50, generator=seeded())
    torch.testing.assert_close(again.null, named.null)
    assert torch.equal(again.p_value, named.p_value)


def test_all_permutations_of_few():
    """With two samples of two there are six splits: the null has their values only."""
    x, y = torch.tensor([0.0, 1.0]).double(), torch.tensor([5.0, 7.0]).double()
    test = stats.permutation_test(x, y, tau=1.0, permutations=600, generator=seeded())
    pool, values = torch.cat([x, y]), []
    for i in range(4):
        for j in range(i):
            rest = [k for k in range(4) if k not in (i, j)]
            values.append(float(stats.mmd(pool[[i, j]], pool[rest], tau=1.0)))
    assert all(min(abs(float(value) - each) for each in values) < 1e-12 for value in test.null)
    assert float(test.p_value) == pytest.approx(2 / 6, abs=0.06)  # the split and its mirror image


def test_rounding_of_a_callers_statistic_makes_no_difference():
    """The same few samples in another order are as extreme, however their sum in float32 is rounded."""
    x, y = torch.tensor([0.1, 0.3, 0.7, 1.1]), torch.tensor([1.3, 1.6, 1.7, 1.9])

    def means_apart(a, b):
        return (a.mean(-1) - b.mean(-1)).abs()

    for first, second in ((x, y), (100 + x, 100 + y), (x[::2], y[1:])):
        single, double = (
            stats.permutation_test(a, b, statistic=means_apart, generator=seeded())
            for a, b in ((first, second), (first.double(), second.double()))
        )
        assert float(single.p_value) == pytest.approx(float(double.p_value))


def test_p_values_are_uniform_under_the_hypothesis():
    tests = stats.permutation_test(
        torch.randn(400, 12, generator=seeded(1)),
        torch.randn(400, 10, generator=seeded(2)),
        tau=1.0,
        permutations=99,
        generator=seeded(3),
    )
    for level in (0.05, 0.2, 0.5):
        share = float((tests.p_value <= level).double().mean())
        assert share == pytest.approx(level, abs=3 * math.sqrt(level / 400))


def test_p_values_find_a_difference():
    x = torch.randn(200, generator=seeded(1))
    y = torch.randn(150, generator=seeded(2)) * 2  # the same mean
    for options in ({"tau": 1.0}, {"statistic": "energy_distance"}):
        test = stats.permutation_test(x, y, generator=seeded(), **options)
        assert float(test.p_value) == pytest.approx(0.001)  # the least that 999 permutations have
        assert float(test.null.max()) < float(test.statistic)


def test_equal_samples_are_no_evidence():
    x = torch.randn(30)
    assert float(stats.permutation_test(x, x, tau=1.0, permutations=99).p_value) == 1.0


def test_an_infinite_statistic_is_as_extreme_as_any_other():
    """One in 20 splits of these numbers has all 4s in the second sample, whose variance is then 0."""
    x, y = torch.tensor([1.0, 2.0, 3.0]), torch.full((3,), 4.0)
    test = stats.permutation_test(x, y, statistic=lambda a, b: a.var(-1) / b.var(-1), generator=seeded())
    reached = int((test.null == math.inf).sum())
    assert test.statistic == math.inf
    assert 20 < reached < 80
    assert float(test.p_value) == pytest.approx((1 + reached) / 1000)
    lowest = stats.permutation_test(x, y, statistic=lambda a, b: b.var(-1).log(), generator=seeded())
    assert lowest.statistic == -math.inf
    assert lowest.p_value == 1


@pytest.mark.parametrize("weighted", [False, True])
def test_bandwidth_is_the_best_on_a_fine_grid(weighted):
    x = torch.randn(2, 300, generator=seeded()).double()
    w = dense.weights_with_zeros(300) if weighted else None
    taus = torch.logspace(-1.5, 0, 300).double()
    scores = torch.stack([((1 if w is None else w) * stats.kde(x, tau=float(tau), weights=w)).sum(-1) for tau in taus])
    best = taus[scores.argmax(0)]
    torch.testing.assert_close(stats.bandwidth(x, weights=w), best, rtol=1e-2, atol=0)


def test_bandwidth_of_equal_samples_is_the_lower_bound():
    x, y = torch.full((20,), 3.0), torch.randn(20)
    for options in ({}, {"y": y, "kind": "constant"}, {"y": y, "kind": "linear"}):
        assert stats.bandwidth(x, **options).item() == pytest.approx(1 / 20, rel=1e-3)
        assert stats.bandwidth(x, bounds=(0.3, 2.0), **options).item() == pytest.approx(0.3, rel=1e-3)


@pytest.mark.parametrize(("kind", "estimate"), [("constant", stats.nadaraya_watson), ("linear", stats.local_linear)])
def test_bandwidth_of_regressions(kind, estimate):
    x = torch.rand(400, generator=seeded()).double()
    y = torch.sin(12 * x) + 0.3 * torch.randn(400, generator=seeded(1)).double()
    taus = torch.logspace(-3, 0, 200).double()
    errors = torch.stack([(y - estimate(x, y, tau=float(tau))).square().mean() for tau in taus])
    tau = stats.bandwidth(x, y, kind=kind)
    got = (y - estimate(x, y, tau=tau)).square().mean()
    assert float(got) <= float(errors.min()) * (1 + 1e-3)
    assert stats.bandwidth(x, y, kind=kind, bounds=(0.5, 0.7)) >= 0.5


def test_bandwidth_agrees_with_the_gradient():
    """At the best tau the likelihood is flat."""
    x = torch.randn(1000, generator=seeded()).double()
    tau = stats.bandwidth(x, rtol=1e-6).requires_grad_()
    (slope,) = torch.autograd.grad(stats.kde(x, tau=tau).mean(), tau)
    assert abs(float(slope)) < 1e-5


def test_bandwidth_of_repeated_samples_is_the_bound():
    x = torch.randn(50).double().repeat(2)
    assert float(stats.bandwidth(x, bounds=(1e-3, 10.0))) == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("unit", [1e-280, 1e-100, 1.0, 1e280])
def test_bandwidth_of_the_smallest_tolerance(unit):
    """Neighbours among the logarithms of tau are up to 1.1e-13 apart: a narrower search would never end."""
    x = torch.randn(3, 20, generator=seeded()).double()
    torch.testing.assert_close(
        stats.bandwidth(x * unit, rtol=1e-13) / unit, stats.bandwidth(x, rtol=1e-7), rtol=1e-6, atol=0
    )


TYPES = {
    "integers": (1, 2),
    "a list": [1.0, 2.0],
    "NumPy's numbers": (np.float32(1), np.int64(2)),
    "tensors": (torch.tensor(1.0), torch.tensor(2)),
    "an array": np.array([1.0, 2.0]),
    "a tensor": torch.tensor([1.0, 2.0]),
}


@pytest.mark.parametrize("bounds", TYPES.values(), ids=TYPES)
def test_bounds_of_all_types(bounds):
    x = torch.randn(50, generator=seeded())
    assert stats.bandwidth(x, bounds=bounds).equal(stats.bandwidth(x, bounds=(1.0, 2.0)))


def test_draws():
    x = torch.tensor([[0.0, 100.0], [-100.0, 300.0]])
    w = torch.tensor([3.0, 1.0])
    drawn = stats.kde_sample(x, 20_000, tau=torch.tensor([1.0, 2.0]), weights=w, generator=seeded())
    assert drawn.shape == (2, 20_000)
    assert drawn.dtype == torch.float32
    for row, place, tau in zip(drawn, x[:, 0], (1.0, 2.0), strict=True):
        near = (row - place).abs() < 50
        assert float(near.float().mean()) == pytest.approx(0.75, abs=0.02)
        assert float((row[near] - place).abs().mean()) == pytest.approx(tau, rel=0.05)
        assert float((row[near] - place).mean()) == pytest.approx(0.0, abs=0.1)
    assert stats.kde_sample(x, 0, tau=1.0).shape == (2, 0)
    assert torch.equal(drawn, stats.kde_sample(x, 20_000, tau=torch.tensor([1.0, 2.0]), weights=w, generator=seeded()))


def test_sliced_distances_are_means_over_projections():
    x, y = torch.randn(4, 30, 3).double(), torch.randn(20, 3).double() + 0.5
    w = torch.rand(30).double()
    directions = torch.nn.functional.normalize(torch.randn(7, 3).double(), dim=-1)
    lines = [(x @ each, y @ each) for each in directions]
    got = stats.sliced_mmd(x, y, tau=0.5, projections=directions, weights_x=w, unbiased=True)
    want = sum(stats.mmd(a, b, tau=0.5, weights_x=w, unbiased=True) for a, b in lines) / 7
    torch.testing.assert_close(got, want)
    got = stats.sliced_energy_distance(x, y, projections=directions, weights_x=w)
    torch.testing.assert_close(got, sum(stats.energy_distance(a, b, weights_x=w) for a, b in lines) / 7 / 0.5)
    tau = torch.tensor([0.5, 1.0, 2.0, 4.0])
    got = stats.sliced_mmd(x, y, tau=tau, projections=directions)
    want = sum(stats.mmd(a, b, tau=tau) for a, b in lines) / 7
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_sliced_distances_far_from_0_keep_their_digits(dtype):
    x, y = ((100 + torch.randn(n, 3, generator=seeded(n)) / 10).to(dtype) for n in (300, 200))
    for name, options in (("sliced_mmd", {"tau": 0.1}), ("sliced_energy_distance", {})):
        got, want = (
            getattr(stats, name)(a, b, projections=20, generator=seeded(), **options)
            for a, b in ((x, y), (x.double(), y.double()))
        )
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), want, rtol=torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("d", [1, 2, 3, 10, 100])
def test_the_factor_of_projections(d):
    known = {1: 1.0, 2: 2 / math.pi, 3: 0.5}
    assert mean_projection(d) == pytest.approx(known.get(d, mean_projection(d)))
    drawn = torch.nn.functional.normalize(torch.randn(40_000, d, generator=seeded()).double(), dim=-1)
    assert float(drawn[:, 0].abs().mean()) == pytest.approx(mean_projection(d), rel=0.02)


def test_the_sliced_energy_distance_is_that_of_vectors():
    x, y = torch.randn(60, 5, generator=seeded()).double(), torch.randn(50, 5, generator=seeded(1)).double() + 1
    want = 2 * torch.cdist(x, y).mean() - torch.cdist(x, x).mean() - torch.cdist(y, y).mean()
    got = stats.sliced_energy_distance(x, y, projections=4000, generator=seeded(2))
    assert float(got) == pytest.approx(float(want), rel=0.04)


def test_the_sliced_kernel_is_not_that_of_vectors():
    """The figures that the documentation has: the mean of e^-|<xi, z>| at |z| = 1."""
    for d, want in ((2, 0.556), (10, 0.784), (100, 0.925)):
        x, y = torch.zeros(1, d).double(), torch.nn.functional.one_hot(torch.tensor([0]), d).double()
        value = stats.sliced_mmd(x, y, tau=1.0, projections=20_000, generator=seeded())
        assert 1 - float(value) / 2 == pytest.approx(want, abs=5e-3)

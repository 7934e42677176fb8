"""Properties of every function, for numbers that Hypothesis chooses."""

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from laplex import stats

numbers = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=30)
several = st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=30)
lengths = st.floats(1e-2, 100)
few = hypothesis.settings(max_examples=40, deadline=None)
DISTANCES = {
    "mmd": (0, lambda x, y, tau: stats.mmd(x, y, tau=tau)),
    "mmd unbiased": (0, lambda x, y, tau: stats.mmd(x, y, tau=tau, unbiased=True)),
    "energy_distance": (1, lambda x, y, tau: stats.energy_distance(x, y)),
    "energy_distance unbiased": (1, lambda x, y, tau: stats.energy_distance(x, y, unbiased=True)),
}


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("name", DISTANCES)
class TestDistances:
    @few
    @hypothesis.given(several, several, lengths)
    def test_symmetric(self, name, x, y, tau):
        _, distance = DISTANCES[name]
        x, y = tensor(x), tensor(y)
        torch.testing.assert_close(distance(x, y, tau), distance(y, x, tau), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(distance(x, y, tau), distance(-x, -y, tau), rtol=1e-12, atol=1e-12)

    @few
    @hypothesis.given(several, several, lengths, st.floats(-1000, 1000, width=16), st.integers(-40, 40))
    def test_moved_and_scaled(self, name, x, y, tau, shift, power):
        degree, distance = DISTANCES[name]
        x, y, scale = tensor(x), tensor(y), 2.0**power
        value = distance(x, y, tau)
        torch.testing.assert_close(distance(x + shift, y + shift, tau), value, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(
            distance(scale * x, scale * y, scale * tau), scale**degree * value, rtol=1e-12, atol=1e-12 * scale**degree
        )

    @few
    @hypothesis.given(several, several, lengths, st.randoms(use_true_random=False))
    def test_permuted(self, name, x, y, tau, random):
        _, distance = DISTANCES[name]
        value = distance(tensor(x), tensor(y), tau)
        random.shuffle(x)
        torch.testing.assert_close(distance(tensor(x), tensor(y), tau), value, rtol=1e-12, atol=1e-12)


@few
@hypothesis.given(numbers, numbers, lengths)
def test_distances_are_positive(x, y, tau):
    equal = sorted(x * len(y)) == sorted(y * len(x))  # the same distribution
    x, y = tensor(x), tensor(y)
    assert float(stats.mmd(x, y, tau=tau)) >= 0
    assert (float(stats.energy_distance(x, y)) == 0) == equal


@few
@hypothesis.given(numbers, numbers, numbers, lengths)
def test_triangles(x, y, z, tau):
    """The roots of both distances are metrics."""
    x, y, z = tensor(x), tensor(y), tensor(z)
    for distance in (lambda a, b: stats.mmd(a, b, tau=tau).sqrt(), lambda a, b: stats.energy_distance(a, b).sqrt()):
        assert float(distance(x, z)) <= float(distance(x, y) + distance(y, z)) * (1 + 1e-9) + 1e-9


@few
@hypothesis.given(several, numbers, lengths, st.integers(1, 3))
def test_repetitions_are_weights(x, y, tau, count):
    x, y = tensor(x), tensor(y)
    w = torch.ones_like(x)
    w[0] = count + 1
    repeated = torch.cat([x, x[:1].expand(count)])
    for got, want in (
        (stats.kde(x, y, tau=tau, weights=w), stats.kde(repeated, y, tau=tau)),
        (stats.mmd(x, y, tau=tau, weights_x=w), stats.mmd(repeated, y, tau=tau)),
        (stats.energy_distance(x, y, weights_x=w), stats.energy_distance(repeated, y)),
        (stats.crps(y, x, weights=w), stats.crps(y, repeated)),
    ):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@few
@hypothesis.given(several, numbers, lengths)
def test_means_are_between_the_values(x, p, tau):
    x, p = tensor(x), tensor(p)
    y = x.sin()
    got = stats.nadaraya_watson(x, y, p, tau=tau)
    assert float(got.min()) >= float(y.min()) - 1e-12
    assert float(got.max()) <= float(y.max()) + 1e-12


@few
@hypothesis.given(several, numbers, lengths, st.floats(-1000, 1000, width=16), st.integers(-40, 40))
def test_densities_move_and_scale(x, p, tau, shift, power):
    x, p, scale = tensor(x), tensor(p), 2.0**power
    value = stats.kde(x, p, tau=tau)
    torch.testing.assert_close(stats.kde(x + shift, p + shift, tau=tau), value, rtol=1e-7, atol=1e-7)
    scaled = stats.kde(scale * x, scale * p, tau=scale * tau)
    torch.testing.assert_close(scaled + torch.tensor(scale).double().log(), value, rtol=1e-12, atol=1e-9)

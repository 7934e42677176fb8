"""Properties of every function, for numbers that Hypothesis chooses."""

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from laplex import soft

numbers = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=40)
softness = st.floats(1e-2, 100)
FUNCTIONS = {
    "sort": lambda x, tau: soft.sort(x, tau=tau).values,
    "topk": lambda x, tau: soft.topk(x, 1 + len(x) // 3, tau=tau).values,
    "rank": lambda x, tau: soft.rank(x, tau=tau),
    "topk_mask": lambda x, tau: soft.topk_mask(x, 0.3 * len(x), tau=tau),
    "quantile": lambda x, tau: soft.quantile(x, 0.3, tau=tau),
}
VALUES = ("sort", "topk", "quantile")  # move with x
PLACES = ("rank", "topk_mask")  # are permuted with x
few = hypothesis.settings(max_examples=40, deadline=None)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("name", FUNCTIONS)
class TestEveryFunction:
    @few
    @hypothesis.given(numbers, softness, st.randoms(use_true_random=False))
    def test_permuted(self, name, values, tau, random):
        order = random.sample(range(len(values)), len(values))
        x = tensor(values)
        result, permuted = FUNCTIONS[name](x, tau), FUNCTIONS[name](x[order], tau)
        torch.testing.assert_close(permuted, result[order] if name in PLACES else result, rtol=0, atol=1e-10)

    @few
    @hypothesis.given(numbers, softness, st.floats(-1000, 1000, width=16))
    def test_shifted(self, name, values, tau, shift):
        x = tensor(values)
        result, shifted = FUNCTIONS[name](x, tau), FUNCTIONS[name](x + shift, tau)
        torch.testing.assert_close(shifted, result + shift if name in VALUES else result, rtol=0, atol=1e-8)

    @few
    @hypothesis.given(numbers, softness, st.integers(-40, 40))
    def test_scaled(self, name, values, tau, power):
        x, scale = tensor(values), 2.0**power
        result, scaled = FUNCTIONS[name](x, tau), FUNCTIONS[name](scale * x, scale * tau)
        torch.testing.assert_close(scaled, scale * result if name in VALUES else result, rtol=1e-12, atol=1e-10 * scale)


@few
@hypothesis.given(numbers, softness)
def test_ranks_and_masks_are_monotone(values, tau):
    x = tensor(sorted(values))
    assert (soft.rank(x, tau=tau).diff() >= -1e-12).all()
    assert (soft.topk_mask(x, 0.3 * len(x), tau=tau).diff() >= -1e-12).all()
    assert (soft.sort(x, tau=tau).values.diff() >= -1e-10).all()


@few
@pytest.mark.filterwarnings("ignore::laplex.ShapeWarning")
@hypothesis.given(numbers, softness)
def test_quantiles_are_monotone(values, tau):
    q = torch.linspace(0.01, 0.99, 15, dtype=torch.float64)
    b = soft.quantile(tensor(values).expand(15, -1), q, tau=tau)
    assert (b.diff() >= -1e-10).all()


@few
@hypothesis.given(numbers, softness)
def test_the_same_in_both_directions(values, tau):
    x, n = tensor(values), len(values)
    torch.testing.assert_close(
        soft.sort(x, tau=tau).values, -soft.sort(-x, tau=tau, descending=True).values, rtol=0, atol=1e-10
    )
    torch.testing.assert_close(soft.rank(x, tau=tau), n + 1 - soft.rank(-x, tau=tau), rtol=0, atol=1e-10)
    torch.testing.assert_close(
        soft.topk_mask(x, 0.3 * n, tau=tau), 1 - soft.topk_mask(-x, 0.7 * n, tau=tau), rtol=0, atol=1e-10
    )


@few
@hypothesis.given(numbers, softness)
def test_ranks_have_the_right_sum(values, tau):
    n = len(values)
    assert float(soft.rank(tensor(values), tau=tau).sum()) == pytest.approx(n * (n + 1) / 2, rel=1e-12)

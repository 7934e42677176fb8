"""Where a number is asked for, one of NumPy will do: shapes, ranges and settings often come from there."""

import numpy
import pytest
import torch

import laplex
from laplex import gp, soft, stats

HALF, TWO = numpy.float32(0.5), numpy.int64(2)
X = torch.linspace(-1, 1, 12).reshape(2, 6)
T = torch.linspace(0, 1, 6).double()


def process(**options):
    return gp.GaussianProcess(gp.Matern32(scale=0.5), T, **{"diag": 0.5, **options})


CASES = {
    "linear": lambda half, two: laplex.linear(X, T[:3].float(), T.float(), half),
    "layer": lambda half, two: laplex.nn.LaplexLinear(two, two, kernels=two, tau=half).tau,
    "soft.sort": lambda half, two: soft.sort(X, two - 1, tau=half).values,
    "soft.topk": lambda half, two: soft.topk(X, two, tau=half).values,
    "soft.topk_mask": lambda half, two: soft.topk_mask(X, two, tau=half),
    "soft.rank": lambda half, two: soft.rank(X, two - 1, tau=half),
    "soft.quantile": lambda half, two: soft.quantile(X, half, tau=half),
    "soft.ndcg": lambda half, two: soft.ndcg(X, X.abs(), tau=half, k=two),
    "stats.kde": lambda half, two: stats.kde(X, tau=half),
    "stats.mmd": lambda half, two: stats.mmd(X, X.flip(0), tau=two),
    "stats.bandwidth": lambda half, two: stats.bandwidth(X, bounds=(half / 2, half), rtol=half / 8),
    "attention": lambda half, two: laplex.nn.laplace_attention(*3 * [X[..., None]], scale=half),
    "kernel": lambda half, two: (half * gp.Matern32(scale=half, sigma=two) * two)(T),
    "sum of kernels": lambda half, two: sum([gp.Matern32(scale=half)], half - half)(T),
    "mean": lambda half, two: process(mean=half, diag=half).log_likelihood(T),
    "exposure": lambda half, two: process(exposure=half).log_likelihood(T),
    "sample": lambda half, two: process().sample(two, generator=torch.Generator().manual_seed(0)),
    "fit": lambda half, two: gp.fit(process(mean=half), T, noise=half).log_likelihood,
}


@pytest.mark.parametrize("name", CASES)
def test_a_number_of_numpy_is_a_number(name):
    def result(half, two):
        torch.manual_seed(0)
        return CASES[name](half, two)

    torch.testing.assert_close(result(HALF, TWO), result(0.5, 2), rtol=0, atol=0)


@pytest.mark.parametrize("value", [True, numpy.True_, "1", None, [1.0], 1j], ids=repr)
def test_what_is_no_number_is_refused(value):
    calls = (
        lambda: soft.rank(X, tau=value),
        lambda: stats.kde(X, tau=value),
        lambda: soft.topk(X, value, tau=1.0),
        lambda: gp.Matern32(scale=value),
        lambda: laplex.nn.laplace_attention(*3 * [X[..., None]], scale=value),
    )
    for call in calls:
        with pytest.raises((TypeError, ValueError), match="must be"):
            call()

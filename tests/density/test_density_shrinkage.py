"""Shrinkage: what a fit to few examples makes of the latent covariance, and of samples."""

import math
from typing import NamedTuple

import pytest
import torch

from helpers import error
from laplex import density
from laplex.density._em import em_round
from laplex.density._places import Line
from laplex.density._shrinkage import EXAMPLES_OF_A_PATTERN, shrinkage, shrunk
from laplex.reference import kernel
from test_density_em import smooth

pytestmark = pytest.mark.usefixtures("one_thread")
FEW, MANY = EXAMPLES_OF_A_PATTERN - 1, 10**6  # examples: for no pattern at all, and for the most
LINES = {  # functions, knots, tau in distances of neighbouring knots
    "one_function": (1, 30, 3.0),
    "two_functions": (2, 20, 3.0),
    "three_functions_before_annealing": (3, 12, 16.0),
    "four_functions": (4, 10, 3.0),
    "two_knots": (2, 2, 3.0),
    "knots_far_closer_than_tau": (2, 20, 1000.0),
    "knots_far_apart": (2, 20, 0.01),
}
lines = pytest.mark.parametrize("line", LINES.values(), ids=LINES)


class Latent(NamedTuple):
    """T (qK, qK), its K T K^T (K, K, q, q), and the line."""

    moments: torch.Tensor
    spread: torch.Tensor
    knots: torch.Tensor
    tau: float

    def shrunk(self, part, count):
        covariance = shrunk(*self, part=part, count=count)
        return covariance, Line(self.knots, self.tau, covariance, self.spread.shape[-1]).spread


def latent_of(values, knots, tau):
    """Of functions with these values (N, q, K) at the knots."""
    y = torch.linalg.solve(kernel(knots.double(), knots.double(), tau), values.mT).mT.flatten(1)
    moments = y.mT @ y / len(y)
    return Latent(moments, Line(knots, tau, moments, values.shape[1]).spread, knots, tau)


def drawn(line, examples=400, length=None):
    """Functions that follow a kernel of some length from knot to knot, mixed at each: (N, q, K), knots, tau."""
    functions, count, lengths = line
    generator = torch.Generator().manual_seed(0)
    knots, tau = torch.linspace(0, 1, count), lengths / (count - 1)
    root = torch.linalg.cholesky(kernel(knots.double(), knots.double(), length or tau))
    mixed = torch.randn(functions, functions, generator=generator, dtype=torch.float64)
    z = torch.randn(examples, functions, count, generator=generator, dtype=torch.float64)
    return mixed @ z @ root.mT, knots, tau


# --- the target -------------------------------------------------------------------------------------------------------


@lines
@pytest.mark.parametrize("count", [FEW, MANY])
def test_neighbours_vary_as_before(line, count):
    latent = latent_of(*drawn(line, length=0.3))
    covariance, spread = latent.shrunk(1.0, count)
    for offset in (-1, 0, 1):
        got, want = (one.diagonal(offset, dim1=0, dim2=1) for one in (spread, latent.spread))
        assert error(got, want) <= 1e-5  # a ridge of 1e-6
    torch.linalg.cholesky(covariance + 1e-12 * covariance.diagonal().mean() * torch.eye(len(covariance)))


@lines
def test_far_knots_follow_from_neighbours(line):
    latent = latent_of(*drawn(line, length=0.3))
    _, spread = latent.shrunk(1.0, FEW)
    for knot in range(line[1] - 2):
        step = torch.linalg.solve(spread[knot + 1, knot + 1], spread[knot + 1, knot])
        assert error(spread[knot + 2, knot], spread[knot + 2, knot + 1] @ step) <= 1e-5


@lines
def test_functions_that_follow_the_kernel_stay_as_they_are(line):
    functions, count, _ = line
    _, knots, tau = drawn(line, 1)
    along = kernel(knots.double(), knots.double(), tau)
    mixed = torch.eye(functions, dtype=torch.float64) + 0.5
    moments = torch.einsum("cd,ij->cidj", mixed, torch.linalg.inv(along)).reshape(functions * count, -1)
    latent = Latent(moments, torch.einsum("cd,ij->ijcd", mixed, along), knots, tau)
    assert error(latent.shrunk(1.0, FEW)[1], latent.spread) <= 1e-5


def test_patterns_across_the_line_are_kept():
    values, knots, tau = drawn((2, 20, 3.0), 4000)
    generator = torch.Generator().manual_seed(1)
    pattern = torch.randn(3, 2, 20, generator=generator, dtype=torch.float64)
    values += 10 * torch.einsum("nm,mck->nck", torch.randn(4000, 3, generator=generator, dtype=torch.float64), pattern)
    latent = latent_of(values, knots, tau)
    errors = [error(latent.shrunk(1.0, count)[1], latent.spread) for count in (FEW, 3 * EXAMPLES_OF_A_PATTERN)]
    assert errors[0] > 0.5
    assert errors[1] < 0.01


def test_a_part_is_a_mixture():
    latent = latent_of(*drawn((2, 20, 3.0)))
    target, _ = latent.shrunk(1.0, 400)
    assert error(latent.shrunk(0.25, 400)[0], 0.75 * latent.moments + 0.25 * target) <= 1e-14
    assert latent.shrunk(0.0, 400)[0] is latent.moments


def test_the_part_is_that_of_a_covariance_seen_in_as_many_examples_as_variables():
    assert shrinkage(1000, 3000) == pytest.approx(0.25)
    assert shrinkage(10, 10**9) == pytest.approx(1e-8)
    assert shrinkage(10**9, 10) == pytest.approx(1, abs=1e-6)


# --- in fits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("functions", [1, 2, 3, 4])
@pytest.mark.parametrize("part", [0.1, 1.0])
def test_a_round_changes_the_variance_of_no_feature(functions, part):
    examples = density.Examples(smooth(60))
    state = density.start(examples, 24, functions=functions)
    for _ in range(4):
        before = state
        state, _ = em_round(examples, before, shrinkage=part)
    plain, _ = em_round(examples, before)
    got, want = (one.model(examples.mean).distribution().variance.detach() for one in (state, plain))
    assert error(got, want) <= 1e-5


def test_examples_that_are_almost_copies_stay_definite():
    examples = density.Examples(smooth(examples=5, dim=40).repeat(40, 1) + 1e-9)
    state = density.start(examples, 60, functions=2)
    for _ in range(15):
        state, likelihood = em_round(examples, state, shrinkage=0.5)
        assert math.isfinite(likelihood)


def colour(images):
    """The mean variance of what each channel has beyond the mean of its pixel's, of images (N, n)."""
    pixels = images.reshape(len(images), -1, 3)
    return (pixels - pixels.mean(-1, keepdim=True)).var(0).mean()


@pytest.mark.parametrize(("count", "rank"), [(60, 200), (120, 240)])
def test_samples_are_as_wild_and_as_colourful_as_photographs(count, rank):
    train, _ = density.images.bundled()
    images = train.values[:count].reshape(count, 64, 64, 3)[:, ::2, ::2].flatten(1)
    examples = density.Examples(images)
    model = density.fit(examples, rank, functions=4, rounds=12, progress=lambda done, total: None).model
    torch.manual_seed(0)
    samples, images = model.sample(2000, noise=False), images / 255
    noise = model.distribution().noise.detach().square().mean()
    assert 0.9 <= float((samples.var(0).mean() + noise) / images.var(0).mean()) <= 1.1
    assert 0.7 <= float(colour(samples) / colour(images)) <= 1.3

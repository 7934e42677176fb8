"""A whole fit in one call, and what a model is worth on other examples."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import torch
from torch import Tensor

from laplex import _progress
from laplex._checks.counts import whole
from laplex.density._anneal import annealed
from laplex.density._em import em_round, inflation
from laplex.density._examples import Examples, examples_of
from laplex.density._factor import FactorGaussian
from laplex.density._gaussian import PlacedGaussian
from laplex.density._module import Density
from laplex.density._shrinkage import shrinkage
from laplex.density._starts import start as start_state


class Round(NamedTuple):
    """What was known before a round."""

    round: int
    seconds: float  # since the fit began
    log_likelihood: float  # the mean over the examples


class Fitted(NamedTuple):
    """What :func:`fit` returns."""

    model: PlacedGaussian
    history: list[Round]


def fit(
    examples: Examples,
    rank: int,
    *,
    functions: int = 2,
    start: str | Tensor = "tree",
    shape: tuple[int, ...] | None = None,
    rounds: int = 40,
    jump: bool = True,
    seed: int = 0,
    told: _progress.Told | None = None,
) -> Fitted:
    """Fit a :class:`laplex.density.PlacedGaussian` by rounds of EM in which features jump to their best places.

    With jumps the first half of the rounds is annealed (:func:`laplex.density.annealed`). The latent covariance is
    shrunk where examples are few (:func:`laplex.density.shrinkage`), and the noise is inflated
    (:func:`laplex.density.inflation`).

    Args:
        examples: what is fitted.
        rank: of the covariance without its diagonal; a multiple of ``functions``.
        functions: how many functions a place has.
        start, shape, seed: see ``places`` and the others of :func:`laplex.density.start`.
        rounds: of EM.
        jump: whether features may leave the places where they start.
        told: told how many rounds are done, and of how many; None shows a bar.

    Example:
        >>> examples = laplex.density.Examples(images.flatten(1))
        >>> model, history = laplex.density.fit(examples, rank=100)
        >>> model.log_prob(images.flatten(1))
    """
    whole("laplex.density.fit", "rounds", rounds)
    began, history = time.perf_counter(), []
    state = start_state(examples, rank, functions=functions, places=start, shape=shape, seed=seed)
    part = shrinkage(rank, len(examples))
    factor = inflation(len(state.knots) if jump else 1, functions, len(examples))
    with _progress.shown("EM", told) as tell:
        for number in range(rounds):
            seconds = time.perf_counter() - began
            state = annealed(state, rounds) if jump else state
            state, likelihood = em_round(examples, state, jump=jump, shrinkage=part, inflation=factor)
            history.append(Round(number, seconds, likelihood))
            tell(number + 1, rounds)
    return Fitted(state.model(examples.mean), history)


class Evaluation(NamedTuple):
    """What a density is worth on examples."""

    log_likelihood: float  # the mean over the examples, of values in units of 1
    standard_error: float  # of that mean
    bits_per_dim: float  # what it costs to store a feature to a step of 1/255 for uint8, of 1 for other examples
    rmse: float  # of reconstructions


@torch.no_grad()
def evaluate(density: Density | FactorGaussian, examples: Examples) -> Evaluation:
    """The likelihood of examples and the error of their reconstructions, read in parts.

    Args:
        density: a module of ``laplex.density``, or a distribution.
        examples: of as many features as the density has.
    """
    examples_of("laplex.density.evaluate", examples)
    gaussian = density.distribution() if isinstance(density, Density) else density
    if examples.dim != len(gaussian.mean):
        raise ValueError(
            f"laplex.density.evaluate: `examples` must have the {len(gaussian.mean)} features of the density, got "
            f"{examples.dim}; resize them"
        )
    capacitance = gaussian.capacitance()
    found, squares = [], 0.0
    for part in examples.row_parts():
        x = examples.some(part)
        known = gaussian.statistics(x)
        found.append(known.whole - capacitance.quadratic(known.pulled))
        z = capacitance.solve(known.pulled).to(gaussian.mean.dtype)
        squares += float((gaussian.mean + gaussian.spread(z) - x).square_().sum(dtype=torch.float64))
    constant = gaussian.volume(capacitance) + examples.dim * math.log(2 * math.pi)
    likelihoods = -0.5 * (torch.cat(found) + constant)
    mean = float(likelihoods.mean())
    error = float(likelihoods.std() / math.sqrt(len(examples))) if len(examples) > 1 else math.nan
    return Evaluation(mean, error, examples.bits_per_dim(mean), math.sqrt(squares / len(examples) / examples.dim))

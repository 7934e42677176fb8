"""A fit in one call, and the evaluation of a model on other examples."""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex import _progress
from laplex._checks.counts import integer
from laplex._checks.renamed import renamed
from laplex.density._examples import Examples, check_examples
from laplex.density._factor import FactorGaussian
from laplex.density._gaussian import PlacedGaussian
from laplex.density._module import Density
from laplex.density._rounds import EM, Round
from laplex.density._starts import start, start_terms
from laplex.distributed._agreement import agree_if_spread, ranks_in, run_on_all


class Fitted(NamedTuple):
    """What :func:`fit` returns."""

    model: PlacedGaussian
    history: list[Round]


@renamed("laplex.density.fit", start="places", told="progress")
def fit(
    examples: Examples,
    rank: int,
    *,
    functions: int = 2,
    places: str | Tensor = "tree",
    shape: tuple[int, ...] | None = None,
    rounds: int = 40,
    jump: bool = True,
    seed: int = 0,
    progress: _progress.Progress | None = None,
    group: Any = None,
) -> Fitted:
    """Fit a :class:`laplex.density.PlacedGaussian` by rounds of EM in which features jump to their best places.

    :class:`laplex.density.EM` describes what a fit does, and runs one round by round.

    Args:
        examples: the examples to fit.
        rank: the rank of the covariance without its diagonal; a multiple of ``functions``.
        functions: how many functions each place has.
        places, shape, seed: where features start; see :func:`laplex.density.start`.
        rounds: the number of rounds of EM.
        jump: whether features may leave the places where they start.
        progress: called with the number of rounds done so far and the total; None shows a bar.
        group: a torch.distributed.ProcessGroup whose processes share the rounds, as in :class:`laplex.density.EM`.
            Not needed if ``examples`` have a ``group``: then its processes share them.

    Example:
        >>> examples = laplex.density.Examples(images.flatten(1))
        >>> model, history = laplex.density.fit(examples, rank=100)
        >>> model.log_prob(images.flatten(1))
    """
    where = "laplex.density.fit"

    def check() -> dict[str, Any]:
        integer(where, "rounds", rounds)
        _progress.check_progress(where, progress)
        return start_terms(examples, rank, functions, places, shape, seed)

    spread = examples.ranks if isinstance(examples, Examples) else None
    agree_if_spread(where, ranks_in(where, group) if spread is None and group is not None else spread, check)
    start_time, history = time.perf_counter(), []
    state = start(examples, rank, functions=functions, places=places, shape=shape, seed=seed)
    em = EM(examples, state, rounds, jump=jump, start_time=start_time, group=group)
    with _progress.bar("EM", progress) as report:
        for done in em:
            history.append(done)
            report(done.round + 1, rounds)
    return Fitted(em.model(), history)


class Evaluation(NamedTuple):
    """How well a density describes examples."""

    log_likelihood: float  # the mean over the examples, with values in units of 1
    standard_error: float  # of that mean
    bits_per_dim: float  # bits to store a feature with a precision of 1/255 for uint8, of 1 for other examples
    rmse: float  # of reconstructions


@torch.no_grad()
def evaluate(density: Density | FactorGaussian, examples: Examples) -> Evaluation:
    """The likelihood of examples and the error of their reconstructions, read in parts.

    If the examples are spread over processes, all of them count, and the processes must call this together.

    Args:
        density: a module of ``laplex.density``, or a distribution.
        examples: with as many features as the density has.
    """
    where = "laplex.density.evaluate"

    def evaluate_own() -> tuple[Tensor, float]:
        check_examples(where, examples)
        return _own_fit(where, density, examples)

    ranks = examples.ranks if isinstance(examples, Examples) else None
    mean, variance, squares = _over_ranks(examples, *run_on_all(where, ranks, evaluate_own))
    count = examples.count
    error = math.sqrt(variance / (count - 1)) if count > 1 else math.nan
    return Evaluation(mean, error, examples.bits_per_dim(mean), math.sqrt(squares / count / examples.dim))


def _own_fit(where: str, density: Density | FactorGaussian, examples: Examples) -> tuple[Tensor, float]:
    """The likelihoods of this process's examples, and the sum of squares of the errors of their reconstructions."""
    gaussian = density.distribution() if isinstance(density, Density) else density
    if examples.dim != len(gaussian.mean):
        raise ValueError(
            f"{where}: `examples` must have the {len(gaussian.mean)} features of the density, got {examples.dim}; "
            "resize them"
        )
    capacitance = gaussian.capacitance()
    distances, squares = [], 0.0
    for part in examples.row_parts():
        x = examples.some(part)
        known = gaussian.statistics(x)
        distances.append(known.squares - capacitance.quadratic(known.pulled))
        z = capacitance.solve(known.pulled).to(gaussian.mean.dtype)
        squares += float((gaussian.mean + gaussian.spread(z) - x).square_().sum(dtype=torch.float64))
    constant = gaussian.volume(capacitance) + examples.dim * math.log(2 * math.pi)
    return (-0.5 * (torch.cat(distances) + constant)).double(), squares


def _over_ranks(examples: Examples, likelihoods: Tensor, squares: float) -> tuple[float, float, float]:
    """The mean and the variance of the likelihoods, and the sum of squares, over all processes."""
    ranks = examples.ranks
    sums = torch.stack([likelihoods.sum(), likelihoods.new_tensor(squares)])
    sums = sums if ranks is None else ranks.total(sums)
    mean = sums[0] / examples.count
    apart = (likelihoods - mean).square().sum()
    return float(mean), float((apart if ranks is None else ranks.total(apart)) / examples.count), float(sums[1])

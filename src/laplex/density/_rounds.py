"""A fit by EM, round by round."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from laplex._checks import counts
from laplex.density._anneal import annealed
from laplex.density._em import State, em_round, inflation
from laplex.density._examples import Examples, check_examples
from laplex.density._gaussian import PlacedGaussian
from laplex.density._sharing import Sharing, sharing
from laplex.density._shrinkage import shrinkage


class Round(NamedTuple):
    """A report of one round: what was known when it began."""

    round: int  # from 0
    seconds: float  # since the fit began
    log_likelihood: float  # the mean over the examples
    tau: float  # the length scale, which annealing shortens
    levelled: bool  # whether annealing spread features evenly over the line; this once the likelihood is then lower


class EM:
    """Rounds of EM in which features jump to their best places: what :func:`laplex.density.fit` runs.

    Iterating yields a :class:`Round` after each round; ``state`` is then the state that it reached. A round uses no
    random numbers, so a later ``EM`` from a saved ``state`` does what this one would have done.

    With jumps, the first half of the rounds is annealed: tau falls from many knots to a few, and features that crowd
    are spread evenly again a few times. With few examples the latent covariance is shrunk and the noise is inflated.

    Args:
        examples: the examples to fit.
        state: from :func:`laplex.density.start`, or from an earlier fit.
        rounds: rounds of the whole fit, including those that came before ``state``.
        schedule: the number of rounds that annealing is planned for; ``rounds`` if not given.
        jump: whether features may leave the places where they start.
        start_time: when the fit began, by ``time.perf_counter()``; now if not given.
        group: a torch.distributed.ProcessGroup whose processes share the work of every round. All must have the same
            examples, and iterate together; the state is that of the first. None: this process works alone, or with
            those that each have a part of the examples (``group=`` of :class:`laplex.density.Examples`).

    Attributes:
        state: after the last round.
        entered: what the last round began with, after annealing: the last state whose likelihood is known. None before
            the first round.
        shrinkage, inflation: how cautious the fit is with few examples; 0 and 1 for maximum likelihood.

    Example:
        >>> em = laplex.density.EM(examples, laplex.density.start(examples, rank=100), rounds=40)
        >>> for done in em:
        ...     print(done.round, done.log_likelihood)
        >>> model = em.model()
    """

    def __init__(
        self,
        examples: Examples,
        state: State,
        rounds: int = 40,
        *,
        schedule: int | None = None,
        jump: bool = True,
        start_time: float | None = None,
        group: Any = None,
    ) -> None:
        where = "laplex.density.EM"

        def check() -> dict[str, Any]:
            check_examples(where, examples)
            _refuse_two_groups(where, examples, group)
            _check_state(where, state, examples.dim)
            counts.integer(where, "rounds", rounds, 0)
            counts.integer(where, "schedule", rounds if schedule is None else schedule, 0)
            return _shared_terms(examples, state, (rounds, schedule, jump))

        parted = examples.ranks if isinstance(examples, Examples) else None
        self._sharing = sharing(where, parted.group if parted else group, check, apart=parted is not None)
        self.rounds, self._schedule = rounds, rounds if schedule is None else schedule
        self.examples, self.state = examples, _from_first(state, self._sharing)
        self.entered: State | None = None
        self.shrinkage = shrinkage(len(state.root), examples.count)
        self.inflation = inflation(len(state.knots) if jump else 1, len(state.weight), examples.count)
        self._jump = jump
        self._start_time = time.perf_counter() if start_time is None else start_time

    def __iter__(self) -> Iterator[Round]:
        """Run the rounds that are left."""
        while self.state.round < self.rounds:
            seconds = time.perf_counter() - self._start_time
            state = annealed(self.state, self._schedule) if self._jump else self.state
            levelled = state.a is not self.state.a
            reached, likelihood = em_round(
                self.examples,
                state,
                jump=self._jump,
                shrinkage=self.shrinkage,
                inflation=self.inflation,
                sharing=self._sharing,
            )
            self.entered, self.state = state, reached
            yield Round(state.round, seconds, likelihood, state.tau, levelled)

    def model(self) -> PlacedGaussian:
        """The model that was reached."""
        return self.state.model(self.examples.mean)


def _shared_terms(examples: Examples, state: State, settings: tuple[Any, ...]) -> dict[str, Any]:
    """What must be the same on all processes that share the work."""
    totals = [float(one.double().sum()) for one in (examples.mean, examples.variance)]
    return {
        "the shape of the examples": (examples.count, examples.dim),
        "the mean and variance of the examples, summed,": ", ".join(f"{total:.6g}" for total in totals),
        "the shape of `state`": [tuple(one.shape) for one in (state.weight, state.knots, state.root)],
        "`state.round` and `state.tau`": (state.round, state.tau),
        "`rounds`, `schedule` and `jump`": settings,
    }


def _refuse_two_groups(where: str, examples: Examples, group: Any) -> None:
    if examples.ranks is not None and group is not None:
        raise ValueError(
            f"{where}: `group` must be None where `examples` have a group of their own, which works together; leave it "
            "out"
        )


def _from_first(state: State, work: Sharing) -> State:
    """The state of the first process."""
    if work.ranks is None:
        return state
    tensors: dict[str, Any] = {name: work.same(one) for name, one in vars(state).items() if isinstance(one, Tensor)}
    return replace(state, **tensors)


def _check_state(where: str, state: object, dim: int) -> None:
    """Raise unless this is a state for examples of ``dim`` features."""
    if not isinstance(state, State):
        raise TypeError(
            f"{where}: `state` must be a laplex.density.State, got {type(state).__name__}; use "
            "laplex.density.start(examples, rank), or `state` of an earlier EM"
        )
    if len(state.a) != dim:
        raise ValueError(
            f"{where}: `state` must have the {dim} features of the examples, got {len(state.a)}; use "
            "laplex.density.start(examples, rank)"
        )

"""The fit itself: rounds of EM, then epochs of Adam, each stage continuing from a checkpoint if there is one."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from laplex import _progress
from laplex.cli.checkpoint import Checkpoint, Keeper
from laplex.cli.density_commands import evaluations
from laplex.cli.density_data import FitData
from laplex.cli.team import Team
from laplex.density import EM, LaplexGaussian, PlacedGaussian, Round, State, Trainer, start
from laplex.density.files import Model

# From a matrix that is not definite, or from an argument check of parameters that are not finite or a tau of 0.
FAILURES = (FloatingPointError, torch.linalg.LinAlgError, ValueError)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Settings:
    """Everything besides the data that determines the result."""

    rank: int
    functions: int | None  # None with components
    components: int | None  # None with functions
    rounds: int
    schedule: int  # rounds that annealing is planned for: those of the first command; later ones may add more
    places: str
    jump: bool
    epochs: int
    lr: float
    batch: int
    seed: int
    device: str
    processes: int
    apart: bool = False  # whether each process has a part of the examples


@dataclass(frozen=True)
class Job:
    """Everything that a fit needs."""

    data: FitData
    settings: Settings
    keeper: Keeper
    team: Team


@dataclass(frozen=True)
class FitResult:
    """The model, and the places (n,) that its features had at the start."""

    model: Model
    start: Tensor


class DivergedError(ArithmeticError):
    """A likelihood is NaN or infinite; ``model`` is the last one with a finite likelihood, or None."""

    def __init__(self, message: str, model: Model | None) -> None:
        super().__init__(message)
        self.model = model


def fitted(job: Job, point: Checkpoint | None) -> FitResult:
    """Fit, continuing from ``point`` if it is given."""
    if point is not None and point.stage == "adam":
        return _adam(job, FitResult(_blank(job), point.tree["before"]), point.tree)
    if job.settings.components is None:
        result = _em(job, None if point is None else point.tree)
    else:
        model = _blank(job)
        result = FitResult(model, model.a.detach().clone())
    return _adam(job, result, None) if job.settings.epochs else result


def _blank(job: Job) -> Model:
    """An untrained model with the mean of the data."""
    settings, train = job.settings, job.data.train
    like: dict[str, Any] = {"device": train.device, "dtype": train.dtype}
    with torch.random.fork_rng(devices=[train.device] if train.device.type == "cuda" else []):
        torch.manual_seed(settings.seed)
        if settings.components is not None:
            model: Model = LaplexGaussian(train.dim, settings.rank, settings.components, **like)
        else:
            model = PlacedGaussian(train.dim, settings.rank, settings.functions or 1, **like)
    model.mean.copy_(train.mean)
    if isinstance(model, LaplexGaussian):  # not in the trainer: this scales the places, which are drawn later
        model.start_from(train, seed=settings.seed)
    return model


# --- EM ---------------------------------------------------------------------------------------------------------------


def _em(job: Job, tree: dict[str, Any] | None) -> FitResult:
    settings, keeper, train = job.settings, job.keeper, job.data.train
    start_time = time.perf_counter() - keeper.seconds()
    if tree is None:
        options: dict[str, Any] = {"functions": settings.functions, "seed": settings.seed, "shape": job.data.shape}
        state = start(train, settings.rank, places=settings.places, **options)
        places = state.a.clone()
        _hold(job, state, places)
    else:
        state, places = State(**tree["state"]).to(train.device), tree["before"]
    more: dict[str, Any] = {"schedule": settings.schedule, "jump": settings.jump}
    more["group"] = None if settings.apart else job.team.group  # otherwise the examples have the group
    em = EM(train, state, settings.rounds, start_time=start_time, **more)
    with _progress_bar(job, "EM") as show:
        show(state.round, settings.rounds, "")
        for done in _rounds(em):
            levelled = {"levelled": True} if done.levelled else {}
            entry = {"stage": "em", "round": done.round, "seconds": round(done.seconds, 3)}
            note = _log(job, entry, done.log_likelihood, tau=done.tau, **levelled)
            _hold(job, em.state, places)
            show(em.state.round, settings.rounds, note + (", places levelled" if done.levelled else ""))
            if keeper.due() or em.state.round == settings.rounds:
                keeper.save()
    result = FitResult(em.model(), places)
    if settings.rounds:
        _finish(job, "em", settings.rounds, result.model)
    return result


def _rounds(em: EM) -> Iterator[Round]:
    try:
        yield from em
    except FAILURES as error:
        model = None if em.entered is None else em.entered.model(em.examples.mean)
        raise DivergedError(f"round {em.state.round + 1} of EM failed: {error}", model) from None


def _hold(job: Job, state: State, places: Tensor) -> None:
    progress = f"{state.round} of {job.settings.rounds} rounds"
    job.keeper.reached("em", {"state": dict(vars(state)), "before": places}, progress)


# --- Adam -------------------------------------------------------------------------------------------------------------


def _adam(job: Job, result: FitResult, tree: dict[str, Any] | None) -> FitResult:
    settings, keeper, model = job.settings, job.keeper, result.model
    trainer = _trainer(job, model, tree)
    good = _copy_if_finite(job, model, None)
    with _progress_bar(job, "Adam") as show:
        show(trainer.epochs, settings.epochs, "")
        for epoch in range(trainer.epochs + 1, settings.epochs + 1):
            try:
                likelihood = job.team.mean(trainer.epoch())
            except FAILURES as error:
                raise DivergedError(f"epoch {epoch} of Adam failed: {error}", good) from None
            note = _log(job, {"stage": "adam", "epoch": epoch, "seconds": keeper.seconds()}, likelihood)
            good = _copy_if_finite(job, model, good)
            show(epoch, settings.epochs, note)
            state = {"model": dict(model.state_dict()), "trainer": trainer.state_dict(), "before": result.start}
            state["order"] = _parameter_names(model)
            keeper.reached("adam", state, f"{epoch} of {settings.epochs} epochs", copied=True)
            if keeper.due() or epoch == settings.epochs:
                keeper.save()
    _finish(job, "adam", settings.epochs, model)
    return result


def _trainer(job: Job, model: Model, tree: dict[str, Any] | None) -> Trainer:
    """The trainer, continuing from the checkpoint if there is one; each process takes its share of every batch."""
    settings, team = job.settings, job.team
    if tree is not None:
        if tree["order"] != _parameter_names(model):  # Adam identifies parameters by their indices
            raise ValueError("--out: the checkpoint is of a laplex with other parameters; --fresh starts over")
        model.load_state_dict(tree["model"])
    share: dict[str, Any] = {} if settings.apart else {"share": (team.rank, team.size)}
    options: dict[str, Any] = {"lr": settings.lr, "batch": settings.batch, "seed": settings.seed}
    trainer = Trainer(team.together(model), job.data.train, **options, **share)
    if tree is not None:
        trainer.load_state_dict(tree["trainer"])
    return trainer


def _parameter_names(model: Model) -> list[str]:
    return [name for name, _ in model.named_parameters()]


@torch.no_grad()
def _copy_if_finite(job: Job, model: Model, other: Model | None) -> Model | None:
    """A copy of the model if its likelihood of some examples is finite; otherwise ``other``."""
    train = job.data.train
    try:
        likelihoods = model.log_prob(train.some(slice(0, job.settings.batch)))
    except FAILURES:
        return other
    return copy.deepcopy(model) if bool(likelihoods.isfinite().all()) else other


# --- what is shown and logged -----------------------------------------------------------------------------------------


@contextmanager
def _progress_bar(job: Job, title: str) -> Iterator[_progress.NotedProgress]:
    if job.team.leads:
        with _progress.timed_bar(title) as show:
            yield show
    else:
        yield lambda done, total, note: None


def _log(job: Job, entry: dict[str, Any], likelihood: float, **more: Any) -> str:
    """Add a line to the log, and return the likelihood in words."""
    bits = job.data.train.bits_per_dim(likelihood)
    job.keeper.note(**entry, log_likelihood=likelihood, bits_per_dim=bits, **more)
    return f"{bits:.3f} bits per dimension"


def _finish(job: Job, stage: str, count: int, model: Model) -> None:
    """Evaluate the model at the end of a stage, on all processes if each has a part of the examples."""
    if job.team.leads or job.settings.apart:
        seconds = job.keeper.seconds()
        validation = job.data.validation if job.team.leads else None
        figures = evaluations(model, {"train": job.data.train, "validation": validation})
        job.keeper.note(stage=stage, finished=count, seconds=seconds, **figures)

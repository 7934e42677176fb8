"""`python -m paper experiment networks`: LAPLEX as the linear maps inside a network, and rivals of equal parameters.

A budget is a number of kernels: every method gets about the parameters that the blocks of a network have whose maps are
LAPLEX with so many kernels. The learning rate of each method and budget is the best of three at seed 0, by validation;
then further seeds are run with it. What is compared is validated on the same data that choose the rate, for all methods
alike. In the end each network is timed alone.

Runs are short and many: --seconds N begins no new run after N seconds, and the same command resumes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from paper.experiments import jobs, network_tables, record
from paper.experiments.network_images import image_task
from paper.experiments.network_models import METHODS, Candidate, block_parameters, candidate_within, multiply_adds
from paper.experiments.network_tables import best_rate, figure_text
from paper.experiments.network_tasks import Task, text_task
from paper.experiments.network_training import PRECISIONS, Recipe, time_steps, train
from paper.experiments.options import among, at_least_one, option, words
from paper.experiments.record import Target
from paper.experiments.training import seeded

ABOUT = "LAPLEX as the linear maps inside a network, compared at equal parameters: text or images."
TASKS = ("text", "images")
BUDGETS, QUICK_BUDGETS = (8, 16, 32), (2,)
SEEDS, QUICK_SEEDS = 3, 1
STEPS = {"text": 5000, "images": 3000}
QUICK_STEPS = 12
# The best rate of dense layers falls as they widen; kernels are made to want about the rates of dense layers. Where
# the best of three lay at the end of a grid at 16 kernels, the grid was moved.
RATES = (4e-3, 8e-3, 1.6e-2)
OTHER_RATES = {
    "dense": (1e-3, 2e-3, 4e-3),
    "laplex": (2e-3, 4e-3, 8e-3),
    "dense-narrow": (8e-3, 1.6e-2, 3.2e-2),
    "laplex-phased": (8e-3, 1.6e-2, 3.2e-2),
    "low-rank": (1e-3, 2e-3, 4e-3),
    "kronecker": (1e-3, 2e-3, 4e-3),
}
QUICK_RATES = (4e-3,)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `networks` can be asked."""

    task: str = option("text (the next byte) or images (their class)", metavar="TASK")
    text: str = option("a file of text to learn; the standard library of this Python if not given", "", metavar="FILE")
    images: str = option("a packed file, or a folder with train and validation images", "", metavar="PATH")
    pack: str = option("write the data of the task into a file for another machine, and end", "", metavar="FILE")
    methods: tuple[str, ...] = option("linear maps that are compared", METHODS, metavar="M")
    budgets: tuple[int, ...] = option(f"kernels of LAPLEX; {words(BUDGETS)} if not given", (), metavar="R")
    rates: tuple[float, ...] = option(
        f"learning rates to choose from; {words(RATES)} if not given, and others for some methods",
        (),
        metavar="RATE",
    )
    seeds: int | None = option(f"runs at the best rate; {SEEDS} if not given", None, metavar="N")
    steps: int | None = option("of each run; those of the task if not given", None, metavar="N")
    precision: str = option("bf16 (autocast), high (TF32) or highest (float32)", "bf16")
    jobs: int = option("processes that share the device", 1, metavar="N")
    seconds: int | None = option("begin no new run after so many; the same command resumes", None, metavar="N")
    quick: bool = option("a tiny network and few steps: to see that it works", False)

    def rates_for(self, method: str) -> tuple[float, ...]:
        """The learning rates to choose from."""
        if self.rates:
            return self.rates
        if self.quick:
            return QUICK_RATES
        return OTHER_RATES.get(method, RATES)


class Trial(NamedTuple):
    """One run of a candidate, or the time of its steps where there is no seed."""

    candidate: Candidate
    lr: float
    seed: int | None


class TrialResult(NamedTuple):
    """A trial, and what it gave."""

    trial: Trial
    result: dict[str, Any]

    @property
    def line(self) -> str:
        """What is printed when it is measured."""
        candidate, lr, seed = self.trial
        if seed is None:
            return f"{candidate}: {1e3 * self.result['seconds_per_step']:.2f} ms per step"
        return f"{candidate}, lr {lr:g}, seed {seed}: {figure_text(self.result)}"


Experiment = record.Experiment[Options, Task]


def prepare(options: Options, target: Target) -> Experiment:
    """Check the options and read the data; ValueError where something is wrong, and nothing is written."""
    for name, known in (("task", TASKS), ("precision", PRECISIONS)):
        if getattr(options, name) not in known:
            raise ValueError(f"--{name} must be one of {words(known)}, got {getattr(options, name)!r}")
    at_least_one(options, "budgets", "seeds", "steps", "jobs", "seconds")
    among("methods", options.methods, METHODS)
    if min(options.rates, default=1.0) <= 0:
        raise ValueError(f"--rates must be positive, got {min(options.rates):g}")
    options = replace(
        options,
        budgets=tuple(sorted(set(options.budgets or (QUICK_BUDGETS if options.quick else BUDGETS)))),
        seeds=options.seeds or (QUICK_SEEDS if options.quick else SEEDS),
        steps=options.steps or (QUICK_STEPS if options.quick else STEPS[options.task]),
    )
    results = target.record("networks", f"networks-{options.task}" + ("-quick" if options.quick else ""))
    load, source = (text_task, options.text) if options.task == "text" else (image_task, options.images)
    return Experiment(options, load(source, target.device, quick=options.quick), results)


# --- Runs ------------------------------------------------------------------------------------------------------------


def run(experiment: Experiment) -> int:
    """Every run that the record lacks, as far as the time allows; then the tables and the plots."""
    options = experiment.options
    if options.pack:
        experiment.data.pack(Path(options.pack))
        print(f"wrote {options.pack}")
        return 0
    end = None if options.seconds is None else time.time() + options.seconds  # the same clock in all processes
    candidates = list(_candidates(experiment))
    trials = [Trial(one, lr, 0) for one in candidates for lr in options.rates_for(one.method)]
    finished = _measure_all(experiment, trials, end, options.jobs)
    seeds = range(1, options.seeds or SEEDS)
    further = [Trial(one, lr, seed) for one, lr in _chosen(trials, finished) for seed in seeds]
    _measure_all(experiment, further, end, options.jobs)
    _measure_all(experiment, [Trial(one, 0.0, None) for one in candidates], end, 1)
    network_tables.write(experiment.record.path, options.task, quick=options.quick)
    return 0


def _candidates(experiment: Experiment) -> Iterator[Candidate]:
    """What to measure, by budget; what cannot be measured is named."""
    methods, shape = experiment.options.methods, experiment.data.shape
    if "dense" in methods:
        yield Candidate("dense", None, 0)
    for budget in experiment.options.budgets:
        for method in (one for one in METHODS if one in methods and one != "dense"):
            try:
                yield candidate_within(method, budget, shape)
            except ValueError as error:
                print(f"skipped: {method}, budget of {budget} kernels: {error}", file=sys.stderr)


def _measure_all(
    experiment: Experiment, trials: Sequence[Trial], end: float | None, count: int
) -> list[TrialResult | None]:
    """The results of trials; None for those that the time does not allow, which are counted."""
    missing = sum(experiment.record.get(_settings(experiment, trial)) is None for trial in trials)
    late = end is not None and time.time() >= end
    results = jobs.measure_all(experiment, partial(measure, end), trials, 1 if late else min(count, max(missing, 1)))
    skipped = sum(result is None for result in results)
    if skipped:
        print(f"out of time: {skipped} of {len(trials)} runs are missing; the same command resumes", file=sys.stderr)
    return results


def _chosen(trials: Sequence[Trial], results: Sequence[TrialResult | None]) -> Iterator[tuple[Candidate, float]]:
    """Each candidate all of whose rates were tried, and its best rate."""
    by_candidate: dict[Candidate, list[TrialResult | None]] = {}
    for trial, result in zip(trials, results, strict=True):
        by_candidate.setdefault(trial.candidate, []).append(result)
    for candidate, tried in by_candidate.items():
        known = [one for one in tried if one is not None]
        if len(known) == len(tried):
            yield candidate, best_rate({one.trial.lr: one.result for one in known})


def measure(end: float | None, experiment: Experiment, trial: Trial) -> TrialResult | None:
    """A run of the record, or one that is made; None where it would begin after the end."""
    settings = _settings(experiment, trial)
    if experiment.record.get(settings) is None and end is not None and time.time() >= end:
        return None
    compute = partial(_time if trial.seed is None else _train, experiment, trial)
    return TrialResult(trial, experiment.record.run(settings, compute))


def _settings(experiment: Experiment, trial: Trial) -> dict[str, Any]:
    candidate, lr, seed = trial
    options, data = experiment.options, experiment.data
    settings = {"data": data.digest, **candidate._asdict(), "precision": options.precision, **asdict(data.shape)}
    if seed is None:
        return settings | {"timed": True}
    return settings | {"lr": lr, "steps": options.steps, "seed": seed}


def _train(experiment: Experiment, trial: Trial) -> dict[str, Any]:
    options, task, candidate = experiment.options, experiment.data, trial.candidate
    recipe = Recipe(trial.lr, options.steps or STEPS[options.task], options.precision)
    with seeded(trial.seed or 0):
        net = task.network(candidate)
    parameters = {
        "blocks": block_parameters(candidate, task.shape),
        "all": sum(one.numel() for one in net.parameters()),
    }
    work = multiply_adds(candidate, task.shape, task.ends)
    facts = {"parameters": parameters, "multiply_adds": work, "data": task.facts, "jobs": options.jobs}
    return train(net, task, recipe, trial.seed or 0, str(candidate)) | facts


def _time(experiment: Experiment, trial: Trial) -> dict[str, Any]:
    options, task = experiment.options, experiment.data
    recipe = Recipe(min(options.rates_for(trial.candidate.method)), options.steps or 1, options.precision)
    with seeded(0):
        net = task.network(trial.candidate)
    return time_steps(net, task, recipe, str(trial.candidate))

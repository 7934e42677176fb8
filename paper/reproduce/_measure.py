"""The measurements: which points each has, and what is computed at a point.

A point is a dictionary of settings, which is its key in the JSON. Its result is

    {"measured": {method: {way: {"seconds", "p20", "p80", "turns", "peak_bytes", "error", "largest_error"}}},
     "left_out": {"method, way": why}, "others": part of the CPU that other processes used meanwhile}

Errors come first: a method that is wrong is left out, and no time of it is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import laplex
from paper.methods import rff
from paper.reproduce import _problems, _trials
from paper.reproduce._problems import Problem
from paper.reproduce._rivals import (
    BOTH,
    DENSE,
    FFT,
    FORWARD,
    GRAM,
    KEPT,
    LAPLEX,
    LOGS,
    SCANNED,
    TOEPLITZ,
    judge,
    make,
    too_large,
)
from paper.reproduce._timing import Others, interleaved, peak_bytes

QUICK, USUAL, FULL = "quick", "usual", "full"
SECONDS = {QUICK: 0.02, USUAL: 0.6, FULL: 0.4}  # of all turns of a point; a full look has more points
RIGHT = {LAPLEX: 1e-6, KEPT: 1e-6}  # the largest error at which a method is timed
NEAR = 1e-2  # the same for rivals: farther off they compute something else
SHORT = 1024  # the side of asymmetric problems and of Gram matrices
RANDOM = "random features"
RFF_SIZE = {"cpu": 1 << 12, "cuda": 1 << 16}

Settings = dict[str, Any]
Result = dict[str, Any]
Pair = tuple[str, str]  # method and way


@dataclass(frozen=True)
class Effort:
    """Where, how long, and from which seed."""

    device: str  # "cpu", "cuda" or "cuda:INDEX"
    level: str = USUAL
    seed: int = 0

    @property
    def kind(self) -> str:
        """ "cpu" or "cuda"."""
        return torch.device(self.device).type


@dataclass(frozen=True)
class Measurement:
    """The points of an effort, and the result at one of them."""

    points: Callable[[Effort], list[Settings]]
    compute: Callable[[Settings, Effort], Result]


def compared(problem: Problem, pairs: Sequence[Pair], effort: Effort) -> Result:
    """Check all pairs of method and way, then time those that are right, in turns."""
    measured: dict[str, dict[str, dict[str, float | None]]] = {}
    left_out: dict[str, str] = {}
    calls = {}
    others = Others()
    for method, way in pairs:
        try:
            why, found = _checked(problem, method, way, effort)
        except RuntimeError as error:  # most often: out of memory. The other methods still count
            why, found = str(error).partition("\n")[0] or type(error).__name__, {}
        if why:
            left_out[f"{method}, {way}"] = why
        else:
            measured.setdefault(method, {})[way] = found
            calls[method, way] = make(method, way, problem)
    for (method, way), times in interleaved(calls, effort.device, SECONDS[effort.level]).items():
        measured[method][way] |= times
    return {"measured": measured, "left_out": left_out, "others": others.share()}


def _checked(problem: Problem, method: str, way: str, effort: Effort) -> tuple[str, dict[str, float | None]]:
    """Why a method is left out, if it is; else its errors and its peak memory."""
    why = too_large(method, way, problem)
    if why:
        return why, {}
    found = judge(method, way, problem, make(method, way, problem)(), everything=False) or {}
    if not found.get("error", 0.0) <= RIGHT.get(method, NEAR):
        return f"wrong: its relative error is {found['error']:.1e}", {}
    peak = peak_bytes(lambda: make(method, way, problem), problem.bytes, effort.device)
    return "", {**found, "peak_bytes": peak}


# --- Times -----------------------------------------------------------------------------------------------------------


def _powers(low: int, high: int, step: int = 1) -> list[int]:
    return [1 << power for power in range(low, high + 1, step)]


def _up_to(effort: Effort, quick: int, cpu: int, cuda: int, full: int | None = None) -> list[int]:
    """Powers of two from 2^10 on."""
    usual = cpu if effort.kind == "cpu" else cuda
    most = full if effort.level == FULL and full is not None and effort.kind == "cuda" else usual
    return _powers(10, quick if effort.level == QUICK else most)


def _square(sizes: list[int], batch: int, effort: Effort) -> list[Settings]:
    return [{"n": n, "k": n, "batch": batch, "seed": effort.seed} for n in sizes]


def _problem(settings: Settings, effort: Effort) -> Problem:
    return _problems.draw(settings["n"], settings["k"], settings["batch"], settings["seed"], effort.device)


def _timed(*pairs: Pair) -> Callable[[Settings, Effort], Result]:
    return lambda settings, effort: compared(_problem(settings, effort), pairs, effort)


def _batches(effort: Effort) -> list[Settings]:
    n = 1 << (10 if effort.level == QUICK else 12 if effort.kind == "cpu" else 14)
    batches = (1, 8) if effort.level == QUICK else _powers(0, 8)
    return [{"n": n, "k": n, "batch": batch, "seed": effort.seed} for batch in batches]


def _asymmetric(effort: Effort) -> list[Settings]:
    sizes = _up_to(effort, 11, 20, 20)
    pairs = [*((SHORT, size) for size in sizes), *((size, SHORT) for size in sizes[1:])]
    return [{"n": n, "k": k, "batch": 8, "seed": effort.seed} for n, k in pairs]


def _grams(effort: Effort) -> list[Settings]:
    n = 64 if effort.level == QUICK else SHORT
    return [{"n": n, "k": k, "batch": 1, "seed": effort.seed} for k in _up_to(effort, 11, 20, 20)]


def _gram(settings: Settings, effort: Effort) -> Result:
    problem = _problem(settings, effort)
    weighted = Problem(problem.x.abs(), problem.a, problem.b, problem.tau)
    found = compared(weighted, [(method, GRAM) for method in (LAPLEX, KEPT, DENSE)], effort)
    return found | {"measured": {method: {FORWARD: ways[GRAM]} for method, ways in found["measured"].items()}}


# --- Errors ----------------------------------------------------------------------------------------------------------


def _accuracy(settings: Settings, effort: Effort) -> Result:
    return _errors(_problem(settings, effort), (LAPLEX, SCANNED, DENSE, LOGS))


def _grid_accuracy(settings: Settings, effort: Effort) -> Result:
    return _errors(_problems.on_grid(_problem(settings, effort)), (LAPLEX, SCANNED, DENSE, TOEPLITZ))


def _errors(problem: Problem, methods: Sequence[str]) -> Result:
    """Errors over all rows."""
    found = {}
    for method in methods:
        found[method] = {FORWARD: judge(method, FORWARD, problem, make(method, FORWARD, problem)(), everything=True)}
    return {"measured": found, "left_out": {}}


def _spans(effort: Effort) -> list[Settings]:
    n = 256 if effort.level == QUICK else 4096
    return [{"n": n, "span": float(span), "seed": effort.seed} for span in (1, 10, 100, 1000, 10_000)]


def _rounding(settings: Settings, effort: Effort) -> Result:
    n, span = settings["n"], settings["span"]
    problem = _problems.draw(n, n, 1, settings["seed"], effort.device, spread=span)
    return _errors(problem, (LAPLEX, LOGS))


# --- Random features -------------------------------------------------------------------------------------------------


def _features(effort: Effort) -> list[Settings]:
    n = 256 if effort.level == QUICK else RFF_SIZE[effort.kind]
    counts = (1, 16) if effort.level == QUICK else _powers(0, 11)
    return [{"n": n, "features": count, "seed": effort.seed} for count in counts]


def _feature_times(settings: Settings, effort: Effort) -> Result:
    """Both in float32; the errors are those of `python -m paper experiment rff`."""
    n, seed = settings["n"], settings["seed"]
    problem = _problems.draw(n, n, 1, seed, effort.device)
    generator = torch.Generator().manual_seed(seed)
    drawn = rff.draw(settings["features"], generator=generator, device=problem.a.device, dtype=torch.float32)
    calls = {
        LAPLEX: lambda: laplex.linear(problem.x, problem.a, problem.b),
        RANDOM: lambda: drawn.linear(problem.x, problem.a, problem.b),
    }
    found = _problems.product_errors(problem, calls[LAPLEX]())
    if not found["error"] <= RIGHT[LAPLEX]:
        return {"measured": {}, "left_out": {LAPLEX: f"wrong: its relative error is {found['error']:.1e}"}}
    calls[RANDOM]()
    others = Others()
    times = interleaved(calls, effort.device, SECONDS[effort.level])
    measured = {method: {FORWARD: one} for method, one in times.items()}
    return {"measured": measured, "left_out": {}, "others": others.share()}


# --- All of them -----------------------------------------------------------------------------------------------------

_FORWARD = tuple((method, FORWARD) for method in (LAPLEX, KEPT, DENSE))
_WAYS = (*_FORWARD, (LAPLEX, BOTH), (DENSE, BOTH))

MEASUREMENTS: dict[str, Measurement] = {
    "sizes": Measurement(
        lambda effort: _square(_up_to(effort, 11, 20, 24, 29), 1, effort),
        _timed(*_FORWARD, (LOGS, FORWARD), (TOEPLITZ, FORWARD), (FFT, FORWARD)),
    ),
    "batch8": Measurement(lambda effort: _square(_up_to(effort, 11, 20, 20), 8, effort), _timed(*_WAYS)),
    "batches": Measurement(_batches, _timed(*_WAYS)),
    "asymmetric": Measurement(_asymmetric, _timed(*_FORWARD)),
    "gram": Measurement(_grams, _gram),
    "accuracy": Measurement(lambda effort: _square(_up_to(effort, 11, 14, 14), 8, effort), _accuracy),
    "grid-accuracy": Measurement(lambda effort: _square(_up_to(effort, 11, 14, 14), 8, effort), _grid_accuracy),
    "rounding": Measurement(_spans, _rounding),
    "rff-times": Measurement(_features, _feature_times),
    "gradients": Measurement(
        lambda effort: [asked | {"seed": effort.seed} for asked in _trials.ASKED],
        lambda settings, effort: _trials.tried(settings, effort.device),
    ),
    "theorem": Measurement(
        lambda effort: [{"n": 8, "draws": 5 if effort.level == QUICK else 100, "seed": effort.seed}],
        lambda settings, effort: _trials.theorem(settings["n"], settings["draws"], settings["seed"]),
    ),
    "rank": Measurement(
        lambda effort: [{"n": n, "draws": 5 if effort.level == QUICK else 50, "seed": effort.seed} for n in (64, 4096)],
        lambda settings, effort: _trials.ranks(settings["n"], settings["draws"], settings["seed"]),
    ),
}

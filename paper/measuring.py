"""Products of laplex and of its rivals, side by side: first errors, then times and peak memory.

A whole call starts from x and the anchors: laplex sorts, dense forms its matrix, and a Toeplitz product transforms its
kernel. With its plan kept, laplex does not sort; asked to scan, it forms no matrix, however small. One FFT of x is
no product; it shows how fast the machine is. The result at a point is

    {"measured": {method: {way: {"seconds", "p20", "p80", "turns", "peak_bytes", "error", "largest_error"}}},
     "left_out": {"method, way": why}, "others": part of the CPU that other processes used meanwhile}

Errors come first: a method that is wrong is left out, and no time of it is taken. Times are those of calls one after
another, as the paper takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

import laplex
from laplex import testing
from laplex._backends import planner
from laplex.testing import Problem
from paper.methods.products import dense, logcumsumexp, toeplitz
from paper.running import FULL, QUICK, USUAL, Request, Result, Settings

LAPLEX, PLANNED, SCANNED, DENSE = "laplex", "laplex, plan kept", "laplex, asked to scan", "dense"
FFT, TOEPLITZ, LOGS = "fft", "toeplitz", "logcumsumexp"
FORWARD, BOTH, GRAM = "forward", "forward and backward", "gram"
TITLES = {
    LAPLEX: "laplex, whole call",
    PLANNED: "laplex, plan kept",
    SCANNED: "laplex, asked to scan",
    DENSE: "dense matrix, formed and multiplied",
    LOGS: "the paper's portable path, by logcumsumexp",
    TOEPLITZ: "Toeplitz product by FFT, uniform grid",
    FFT: "one FFT, no product",
}
# The most entries of K, or numbers of x, that a rival gets; dense forms 1 matrix forward, and holds 4 both ways.
MOST = {
    ("cpu", DENSE, FORWARD): 1 << 28,
    ("cpu", DENSE, BOTH): 1 << 26,
    ("cpu", DENSE, GRAM): 1 << 25,
    ("cuda", DENSE, FORWARD): 1 << 32,
    ("cuda", DENSE, BOTH): 1 << 30,
    ("cuda", DENSE, GRAM): 1 << 30,
    ("cpu", LOGS, FORWARD): 1 << 20,
    ("cuda", LOGS, FORWARD): 1 << 24,
}
RIVALS = {DENSE: dense.prepare, TOEPLITZ: toeplitz.prepare, LOGS: logcumsumexp.prepare}  # whole calls, forward
SECONDS = {QUICK: 0.02, USUAL: 0.6, FULL: 0.4}  # of all turns of a point; a full look has more points
RIGHT = {LAPLEX: 1e-6, PLANNED: 1e-6}  # the largest error at which a method is timed
NEAR = 1e-2  # the same for rivals: with a larger one they compute something else
CHECKED_ENTRIES, FEWEST_ROWS, MOST_ROWS = 1 << 25, 8, 256  # of K, that a sample of rows has, about
GRAM_ROWS = 16

Product = Callable[[], tuple[Tensor, ...]]
Pair = tuple[str, str]  # method and way
Key = TypeVar("Key")


# --- Problems --------------------------------------------------------------------------------------------------------


def powers(low: int, high: int) -> list[int]:
    """Powers of two."""
    return [1 << power for power in range(low, high + 1)]


def sizes(request: Request, quick: int, cpu: int, cuda: int, full: int | None = None) -> list[int]:
    """Powers of two from 2^10 on, up to the one of the device; a full look may have more on a GPU."""
    usual = cpu if request.kind == "cpu" else cuda
    most = full if request.level == FULL and full is not None and request.kind == "cuda" else usual
    return powers(10, quick if request.quick else most)


def squares(lengths: Sequence[int], batch: int, request: Request) -> list[Settings]:
    """Points with n = k."""
    return [{"n": n, "k": n, "batch": batch, "seed": request.seed} for n in lengths]


def draw(settings: Settings, request: Request) -> Problem:
    """The problem of a point."""
    n: int = settings["n"]
    rows, seed = settings.get("batch", 1), settings["seed"]
    return testing.draw(n, settings.get("k") or n, rows=rows, seed=seed, device=request.device)


def on_grid(problem: Problem) -> Problem:
    """The same with the anchors i / n, i = 0 ... n - 1, on both sides."""
    n = len(problem.a)
    grid = torch.arange(n, dtype=torch.float32, device=problem.a.device) / n
    return replace(problem, a=grid, b=grid)


# --- Methods ---------------------------------------------------------------------------------------------------------


def make(method: str, way: str, problem: Problem) -> Product:
    """The call of a method; what it keeps between calls is made now."""
    return {FORWARD: _forward, BOTH: _both_ways, GRAM: _gram}[way](method, problem)


def _forward(method: str, problem: Problem) -> Product:
    x, a, b, tau = problem.x, problem.a, problem.b, float(problem.tau)
    if method == FFT:
        return lambda: (torch.fft.fft(x),)
    if method in RIVALS:
        anchors = (on_grid(problem).a,) * 2 if method == TOEPLITZ else (a, b)
        return lambda: (RIVALS[method](*anchors, tau)(x),)
    plan = laplex.Plan(a, b) if method == PLANNED else None
    backend = planner(a.device) if method == SCANNED else None
    return lambda: (laplex.linear(x, a, b, tau, plan=plan, backend=backend),)


def _both_ways(method: str, problem: Problem) -> Product:
    """Gradients of sum(y) in x and both anchors, as the paper takes them."""
    leaves = [leaf.detach().requires_grad_() for leaf in (problem.x, problem.a, problem.b)]
    x, a, b = leaves
    tau = float(problem.tau)

    def forward() -> Tensor:
        return dense.prepare_differentiable(a, b, tau)(x) if method == DENSE else laplex.linear(x, a, b, tau)

    return lambda: torch.autograd.grad(forward().sum(), leaves)


def _gram(method: str, problem: Problem) -> Product:
    """The weight is x (1, k)."""
    a, b, tau, weight = problem.a, problem.b, float(problem.tau), problem.x[0]
    if method == DENSE:
        return lambda: (dense.prepare_gram(a, b, tau)(problem.x)[0],)
    plan = laplex.Plan(a, b) if method == PLANNED else None
    return lambda: (laplex.gram(a, b, weight, tau, plan=plan),)


# --- Errors ----------------------------------------------------------------------------------------------------------


def errors(got: Tensor, truth: Tensor) -> dict[str, float]:
    """Relative errors in the Euclidean norm, and of the largest component."""
    return {"error": testing.relative_error(got, truth), "largest_error": testing.largest_error(got, truth)}


def check(method: str, way: str, problem: Problem, got: tuple[Tensor, ...], *, all_rows: bool) -> dict[str, float]:
    """Errors of what a call returned, at some rows or at all; none for one FFT, which computes something else."""
    if method == FFT:
        return {}
    solved = on_grid(problem) if method == TOEPLITZ else problem
    n, k = len(solved.a), len(solved.b)
    if way == GRAM:
        rows = torch.arange(0, n, max(1, n // GRAM_ROWS), device=solved.a.device)
        return errors(got[0][rows], testing.gram(solved, rows)[0])
    rows = torch.arange(n, device=solved.a.device) if all_rows else _sample(n, k, solved)
    if way == FORWARD:
        return errors(got[0][..., rows], testing.product(solved, rows))
    cols = _sample(k, n, solved)
    summed = replace(solved, cotangent=torch.ones_like(solved.cotangent))
    truth = testing.gradients(summed, rows, cols)
    parts = {"x": got[0][:, cols], "a": got[1][rows], "b": got[2][cols]}
    each = [errors(part, truth[name]) for name, part in parts.items()]
    return {key: max(one[key] for one in each) for key in each[0]}


def _sample(size: int, other: int, problem: Problem) -> Tensor:
    """Some rows, fewer where they are long."""
    count = max(FEWEST_ROWS, min(MOST_ROWS, CHECKED_ENTRIES // max(other, 1)))
    return testing.sample(size, count, problem.a.device)


def error_result(problem: Problem, methods: Sequence[str]) -> Result:
    """The errors of methods over all rows, as a result."""
    measured = {
        method: {FORWARD: check(method, FORWARD, problem, make(method, FORWARD, problem)(), all_rows=True)}
        for method in methods
    }
    return {"measured": measured, "left_out": {}}


# --- Times -----------------------------------------------------------------------------------------------------------


def time_pairs(*pairs: Pair) -> Callable[[Settings, Request], Result]:
    """What a measurement computes at a point: :func:`compare` of these pairs."""
    return lambda settings, request: compare(draw(settings, request), pairs, request)


def compare(problem: Problem, pairs: Sequence[Pair], request: Request) -> Result:
    """Check all pairs of method and way, then time those that are right, in turns."""
    measured: dict[str, dict[str, dict[str, float | None]]] = {}
    left_out: dict[str, str] = {}
    calls = {}
    others = testing.OtherProcesses()
    for method, way in pairs:
        try:
            why, numbers = _check_pair(problem, method, way, request)
        except RuntimeError as error:  # most often: out of memory. The other methods still count
            why, numbers = str(error).partition("\n")[0] or type(error).__name__, {}
        if why:
            left_out[f"{method}, {way}"] = why
        else:
            measured.setdefault(method, {})[way] = numbers
            calls[method, way] = make(method, way, problem)
    for (method, way), times in time_calls(calls, request).items():
        measured[method][way] |= times
    return {"measured": measured, "left_out": left_out, "others": others.share()}


def time_calls(calls: Mapping[Key, Callable[[], object]], request: Request) -> dict[Key, dict[str, float | None]]:
    """Seconds of each call, in turns: the median, the 20th and the 80th percentile, and the number of turns."""
    budget = testing.Budget(min_s=SECONDS[request.level] / max(len(calls), 1))
    return {
        key: {"seconds": times.median, "p20": times.p20, "p80": times.p80, "turns": times.samples}
        for key, times in testing.interleave(calls, request.device, budget).items()
    }


def _check_pair(problem: Problem, method: str, way: str, request: Request) -> tuple[str, dict[str, float | None]]:
    """Why a method is left out, if it is; else its errors and its peak memory, with the inputs counted."""
    why = _too_large(method, way, problem)
    if why:
        return why, {}
    numbers = check(method, way, problem, make(method, way, problem)(), all_rows=False)
    if not numbers.get("error", 0.0) <= RIGHT.get(method, NEAR):
        return f"wrong: its relative error is {numbers['error']:.1e}", {}
    peak = None
    if request.kind == "cuda":
        inputs = sum(tensor.numel() * tensor.element_size() for tensor in (problem.x, problem.a, problem.b))
        peak = inputs + testing.peak_bytes(lambda: make(method, way, problem)(), request.device)
    return "", {**numbers, "peak_bytes": peak}


def _too_large(method: str, way: str, problem: Problem) -> str:
    """Why a rival is left out; nothing where it is not."""
    most = MOST.get((problem.a.device.type, method, way))
    size = problem.x.numel() if method == LOGS else len(problem.a) * len(problem.b)
    if most is None or size <= most:
        return ""
    return f"{size:,} {'numbers' if method == LOGS else 'entries'}, more than the {most:,} that it gets here"

"""Gradients of every argument: what a method has, and whether it is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import laplex
from laplex import reference, testing
from laplex.testing import Problem
from paper.entry import Entry, Figure, Outcome, TextTable
from paper.judging import claim_verdict, condition, machine_name, outcome
from paper.measuring import FFT, LAPLEX, TITLES, TOEPLITZ, on_grid
from paper.methods.products import toeplitz
from paper.results import Archive, Run
from paper.running import Measurement, Request, Result, Settings

SIZE, BATCH = 257, 3
RIGHT = 1e-5  # the largest relative error of a float32 answer that counts as right

# Cells of the paper's table; those that it does not have are None.
IRREGULAR, FOR_X, FOR_ANCHORS = "irregular anchors", "gradient for x", "gradients for anchors"
FOR_TAU, FOR_PHASES, SECOND = "gradient for tau", "gradients for phases", "second derivatives"
CELLS: list[Settings] = [
    *(
        {"method": method, "asked": question, "paper": method == LAPLEX or question == FOR_X}
        for method in (FFT, TOEPLITZ, LAPLEX)
        for question in (IRREGULAR, FOR_X, FOR_ANCHORS)
    ),
    *({"method": LAPLEX, "asked": question, "paper": None} for question in (FOR_TAU, FOR_PHASES, SECOND)),
]

Gradients = Callable[[Any, Tensor, Tensor, Tensor], tuple[Tensor, ...]]  # of a product that takes x, a, b


# --- Measurement -----------------------------------------------------------------------------------------------------


def _try(settings: Settings, request: Request) -> Result:
    """Whether a method has what is asked, the error of its answer, and what it is compared with, in words."""
    method, question = settings["method"], settings["asked"]
    problem = testing.draw(SIZE, SIZE, rows=BATCH, seed=settings["seed"], device=request.device)
    if method == FFT and question != FOR_X:
        return _answer(None, "a Fourier transform of x has no anchors")
    if method == FFT:
        return _try_fft(problem)
    if method == TOEPLITZ:
        return _try_toeplitz(problem, question)
    return _try_laplex(problem, question)


def _answer(error: float | None, words: str) -> Result:
    return {"has": error is not None and error <= RIGHT, "error": error, "words": words}


def _try_fft(problem: Problem) -> Result:
    """The gradient of the real part of sum(w F x): it is the real part of F w, since F is symmetric."""
    x = problem.x.detach().requires_grad_()
    weight = problem.a.expand_as(x)
    (got,) = torch.autograd.grad((torch.fft.fft(x).real * weight).sum(), x)
    truth = torch.fft.fft(weight.double()).real
    return _answer(testing.relative_error(got, truth), "autograd through torch.fft, against the transform in float64")


def _try_toeplitz(problem: Problem, question: str) -> Result:
    if question == IRREGULAR:
        y = toeplitz.prepare(problem.a, problem.b, float(problem.tau))(problem.x)
        return _answer(testing.relative_error(y, testing.product(problem)), "the product with irregular anchors")
    grid = on_grid(problem)
    leaves = [leaf.clone().requires_grad_() for leaf in (grid.x, grid.a, grid.b)]
    x, a, b = leaves
    y = toeplitz.prepare(a, b, float(grid.tau))(x)
    got: tuple[Tensor | None, ...] = torch.autograd.grad(y.square().sum(), leaves, allow_unused=True)
    truth = _first(reference.linear, *(leaf.detach().double() for leaf in leaves))
    pairs = zip("xab", got, truth, strict=True)
    errors = {name: None if one is None else testing.relative_error(one, other) for name, one, other in pairs}
    if question == FOR_X:
        return _answer(errors["x"], "autograd on a uniform grid")
    words = [f"{name}: {'none' if errors[name] is None else f'off by {errors[name]:.0e}'}" for name in "ab"]
    known = [error for error in (errors["a"], errors["b"]) if error is not None]
    return _answer(max(known) if len(known) == 2 else None, f"autograd on a uniform grid; {', '.join(words)}")


def _try_laplex(problem: Problem, question: str) -> Result:
    if question == IRREGULAR:
        y = laplex.linear(problem.x, problem.a, problem.b)
        return _answer(testing.relative_error(y, testing.product(problem)), "the product with irregular anchors")
    gradients: dict[str, tuple[Gradients, slice]] = {
        FOR_X: (_first, slice(0, 1)),
        FOR_ANCHORS: (_first, slice(1, 3)),
        FOR_TAU: (_for_tau, slice(None)),
        FOR_PHASES: (_for_phases, slice(None)),
        SECOND: (_second, slice(None)),
    }
    compute, chosen = gradients[question]
    got = compute(laplex.linear, problem.x, problem.a, problem.b)
    truth = compute(reference.linear, *(one.double() for one in (problem.x, problem.a, problem.b)))
    pairs = list(zip(got, truth, strict=True))[chosen]
    worst = max(testing.relative_error(one, other) for one, other in pairs)
    return _answer(worst, "autograd, against the definition in float64")


def _first(linear: Any, x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    leaves = [leaf.clone().requires_grad_() for leaf in (x, a, b)]
    return torch.autograd.grad(linear(*leaves).square().sum(), leaves)


def _for_tau(linear: Any, x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    tau = torch.tensor(0.7, dtype=a.dtype, device=a.device, requires_grad=True)
    return torch.autograd.grad(linear(x, a, b, tau).square().sum(), (tau,))


def _for_phases(linear: Any, x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    phi, psi = (anchors.flip(0).clone().requires_grad_() for anchors in (a, b))
    return torch.autograd.grad(linear(x, a, b, phi=phi, psi=psi).square().sum(), (phi, psi))


def _second(linear: Any, x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    leaves = [leaf.clone().requires_grad_() for leaf in (x, a, b)]
    first = torch.autograd.grad(linear(*leaves).square().sum(), leaves, create_graph=True)
    return torch.autograd.grad(torch.stack([gradient.square().sum() for gradient in first]).sum(), leaves)


# --- Judge -----------------------------------------------------------------------------------------------------------


def _judge(entry: Entry, archive: Archive) -> Outcome | None:
    by_device = archive.measurement(GRADIENTS.name)
    if not by_device:
        return None
    rows: list[list[str]] = []
    agree: list[bool] = []
    more: list[bool] = []
    for results in by_device.values():
        for run in results.runs:
            ours, theirs, error = _has(run), run.settings["paper"], run.result["error"]
            (more if theirs is None else agree).append(ours if theirs is None else ours == theirs)
            cells = [machine_name(results), TITLES[run.settings["method"]], run.settings["asked"]]
            cells += ["" if theirs is None else _yes_or_no(theirs), _yes_or_no(ours)]
            rows.append([*cells, "" if error is None else f"{error:.1e}", run.result["words"]])
    label, counts = "cells that come out as in the paper", (float(len(agree)), float(sum(agree)))
    figures = [condition(label, *counts, "cells", "higher", all(agree))]
    if more:
        label = "exact beyond the paper: gradients for tau and phases, second derivatives"
        figures.append(Figure(label, None, float(sum(more)), "cells", "higher", claim_verdict(True, all(more))))
    reason = f"{sum(agree)} of {len(agree)} cells came out as in the paper"
    reason += "; laplex also has exact gradients for tau and phases, and second derivatives." if all(more) else "."
    columns = ["machine", "method", "asked", "paper", "here", "relative error", "what was found"]
    tables = [TextTable("What was tried, against float64", columns, rows)]
    return outcome(entry, reason, list(by_device.values()), figures=figures, tables=tables)


def _has(run: Run) -> bool:
    """Whether what was asked for is there and right: a file that says so must have the error that shows it."""
    error = run.result["error"]
    return bool(run.result["has"]) and error is not None and 0 <= error <= RIGHT


def _yes_or_no(answer: bool) -> str:
    return "yes" if answer else "no"


GRADIENTS = Measurement("gradients", lambda request: [cell | {"seed": request.seed} for cell in CELLS], _try)
ENTRIES = (
    Entry(
        name="differentiability",
        title="Which arguments have gradients",
        section="Gradients",
        source="Table 3",
        claim="LAPLEX takes irregular anchors and has gradients for x and both anchors; FFT products have them for x "
        "alone, and a Toeplitz product is right on a grid only.",
        criterion="Every cell is tried and compared with float64. Reproduced if all come out as in the table; exceeded "
        "if laplex also has exact gradients for tau and phases, and second derivatives.",
        minutes={"cuda": 0.2, "cpu": 0.2},
        measure=(GRADIENTS,),
        judge=_judge,
    ),
)

"""`laplex doctor`: what is installed, which backends can run, and whether their answers are right."""

import argparse
from itertools import product

import torch

import laplex
from laplex import testing
from laplex.cli.tables import Table, show

SHAPES = ((300, 200, 3), (2000, 50, 2), (1500, 1500, 1))  # (n, k, batch): for both ways to scan, with no power of two
TAU = 1.0
BOUNDS = {torch.float32: 1e-6, torch.float64: 1e-13}
HEADER = ("backend", "device", "dtype", "worst relative error", "verdict")


def run(options: argparse.Namespace) -> int:
    """Check everything, which takes a few seconds, and show it. Returns 1 if a check failed."""
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    about = testing.describe(devices[-1])
    answers = laplex.backends.available()
    able = [(name, device) for name, device in product(answers, devices) if _runs(name, device)]
    checks = [_check(name, device, dtype) for (name, device), dtype in product(able, BOUNDS)]
    for table in (
        Table("This machine", ("what", "is"), [(name, str(value)) for name, value in about.items()]),
        Table("Backends", ("backend", "available"), list(answers.items())),
        Table("Products and gradients, against the definition in float64", HEADER, checks),
    ):
        show(table)
        print()
    return int(any(verdict != "pass" for *_, verdict in checks))


def _runs(backend: str, device: str) -> bool:
    """Whether laplex would run the backend on the device: a backend that cannot raises RuntimeError."""
    if backend == "triton" and device != "cuda":
        return False  # Triton's interpreter would run it, but only for tests
    probe = torch.zeros(1, device=device)
    try:
        return laplex.backends.which(probe, probe, probe, backend=backend) == backend
    except RuntimeError:
        return False


def _check(backend: str, device: str, dtype: torch.dtype) -> tuple[str, ...]:
    """One line of the table, with the worst error over all shapes."""
    worst = float(torch.tensor([_error(shape, backend, device, dtype) for shape in SHAPES]).max())
    verdict = "pass" if worst <= BOUNDS[dtype] else "wrong"
    return backend, device, str(dtype).removeprefix("torch."), f"{worst:.1e}", verdict


def _error(shape: tuple[int, int, int], backend: str, device: str, dtype: torch.dtype) -> float:
    """The worst relative l2 error of y and of the gradients for x, a and b."""
    n, k, rows = shape
    problem = testing.draw(n, k, rows=rows, tau=TAU, device=device, dtype=dtype)
    x, a, b = leaves = tuple(tensor.requires_grad_() for tensor in (problem.x, problem.a, problem.b))
    y = laplex.linear(x, a, b, TAU, plan=laplex.Plan(a, b), backend=backend)
    gradients = dict(zip(("x", "a", "b"), torch.autograd.grad(y, leaves, problem.cotangent)))
    truth = testing.gradients(problem)
    errors = [testing.relative_error(gradients[name], truth[name]) for name in gradients]
    errors.append(testing.relative_error(y, testing.product(problem)))
    return float(torch.tensor(errors).max())  # a NaN anywhere is a NaN here

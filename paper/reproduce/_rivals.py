"""What is timed side by side: laplex and its rivals, each as a call without arguments on one problem.

A whole call starts from x and the anchors: laplex sorts, dense forms its matrix, and a Toeplitz product transforms its
kernel. With its plan kept, laplex does not sort; asked to scan, it forms no matrix, however small. One FFT of x is no
product; it shows how fast the machine is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import laplex
from laplex._backends import planner
from paper.methods.products import logcumsumexp, toeplitz
from paper.reproduce._problems import Problem, gradient_errors, gram_errors, on_grid, product_errors

LAPLEX, KEPT, SCANNED, DENSE = "laplex", "laplex, plan kept", "laplex, asked to scan", "dense"
FFT, TOEPLITZ, LOGS = "fft", "toeplitz", "logcumsumexp"
FORWARD, BOTH, GRAM = "forward", "forward and backward", "gram"
TITLES = {
    LAPLEX: "laplex, whole call",
    KEPT: "laplex, plan kept",
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

Call = Callable[[], tuple[Tensor, ...]]


def form(a: Tensor, b: Tensor, tau: float) -> Tensor:
    """K (n, k), in place where it can be, which is the fastest way that torch has."""
    return (a[:, None] - b[None, :]).abs_().mul_(-1 / tau).exp_()


def too_large(method: str, way: str, problem: Problem) -> str:
    """Why a rival is left out; nothing where it is not."""
    most = MOST.get((problem.a.device.type, method, way))
    size = problem.x.numel() if method == LOGS else len(problem.a) * len(problem.b)
    if most is None or size <= most:
        return ""
    return f"{size:,} {'numbers' if method == LOGS else 'entries'}, more than the {most:,} that it gets here"


def make(method: str, way: str, problem: Problem) -> Call:
    """The call of a method; what it keeps between calls is made now."""
    return {FORWARD: _forward, BOTH: _both, GRAM: _gram}[way](method, problem)


def judge(
    method: str, way: str, problem: Problem, got: tuple[Tensor, ...], everything: bool
) -> dict[str, float] | None:
    """Errors of what a call returned; None for one FFT, which computes something else."""
    if method == FFT:
        return None
    solved = on_grid(problem) if method == TOEPLITZ else problem
    if way == GRAM:
        return gram_errors(solved, got[0])
    return product_errors(solved, got[0], everything) if way == FORWARD else gradient_errors(solved, got)


def _forward(method: str, problem: Problem) -> Call:
    x, a, b, tau = problem.x, problem.a, problem.b, problem.tau
    if method == KEPT:
        plan = laplex.Plan(a, b)
        return lambda: (laplex.linear(x, a, b, tau, plan=plan),)
    if method == SCANNED:
        return lambda: (laplex.linear(x, a, b, tau, backend=planner(a.device)),)
    if method == TOEPLITZ:
        grid = on_grid(problem).a
        return lambda: (toeplitz.prepare(grid, grid, tau)(x),)
    if method == FFT:
        return lambda: (torch.fft.fft(x),)
    if method == LOGS:
        return lambda: (logcumsumexp.prepare(a, b, tau)(x),)
    if method == DENSE:
        return lambda: (x @ form(a, b, tau).mT,)
    return lambda: (laplex.linear(x, a, b, tau),)


def _both(method: str, problem: Problem) -> Call:
    """Gradients of sum(y) in x and both anchors, as the paper takes them."""
    leaves = [one.detach().requires_grad_() for one in (problem.x, problem.a, problem.b)]
    x, a, b = leaves
    tau = problem.tau

    def forward() -> Tensor:
        if method == DENSE:
            return x @ torch.exp(-(a[:, None] - b[None, :]).abs() / tau).mT  # nothing in place: autograd needs it
        return laplex.linear(x, a, b, tau)

    return lambda: torch.autograd.grad(forward().sum(), leaves)


def _gram(method: str, problem: Problem) -> Call:
    a, b, tau, weight = problem.a, problem.b, problem.tau, problem.x[0]
    if method == DENSE:

        def dense() -> tuple[Tensor, ...]:
            kernel = form(a, b, tau)
            return ((kernel * weight) @ kernel.mT,)

        return dense
    if method == KEPT:
        plan = laplex.Plan(a, b)
        return lambda: (laplex.gram(a, b, weight, tau, plan=plan),)
    return lambda: (laplex.gram(a, b, weight, tau),)

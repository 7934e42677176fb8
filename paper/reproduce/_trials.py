"""What is tried and not timed: gradients of every argument, the printed theorem, and ranks of random matrices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import laplex
from laplex import reference
from paper.methods.products import toeplitz
from paper.reproduce._problems import Problem, draw, errors, on_grid
from paper.reproduce._rivals import FFT, LAPLEX, TOEPLITZ

IRREGULAR, OF_X, OF_ANCHORS = "irregular anchors", "gradient for x", "gradients for anchors"
MORE = ("gradient for tau", "gradients for phases", "second derivatives")
# Cells of the paper's table; those that it does not have are None.
ASKED: list[dict[str, Any]] = [
    *({"method": FFT, "asked": asked, "paper": asked == OF_X} for asked in (IRREGULAR, OF_X, OF_ANCHORS)),
    *({"method": TOEPLITZ, "asked": asked, "paper": asked == OF_X} for asked in (IRREGULAR, OF_X, OF_ANCHORS)),
    *({"method": LAPLEX, "asked": asked, "paper": True} for asked in (IRREGULAR, OF_X, OF_ANCHORS)),
    *({"method": LAPLEX, "asked": asked, "paper": None} for asked in MORE),
]
SIZE, BATCH = 257, 3
RIGHT = 1e-5  # the largest relative error of a float32 answer that counts as right
NUMERICAL_SIZE = 64  # up to which the rank is also found from singular values


# --- Gradients -------------------------------------------------------------------------------------------------------


def tried(settings: dict[str, Any], device: str) -> dict[str, Any]:
    """Whether a method has what is asked, the error of its answer, and what was found in words."""
    method, asked = settings["method"], settings["asked"]
    problem = draw(SIZE, SIZE, BATCH, settings["seed"], device)
    if method == FFT and asked != OF_X:
        return _found(None, "a Fourier transform of x has no anchors")
    if method == FFT:
        return _of_fft(problem)
    if method == TOEPLITZ:
        return _of_toeplitz(problem, asked)
    return _of_laplex(problem, asked)


def _found(error: float | None, words: str) -> dict[str, Any]:
    return {"has": error is not None and error <= RIGHT, "error": error, "words": words}


def _of_fft(problem: Problem) -> dict[str, Any]:
    """The gradient of the real part of sum(w F x): it is the real part of F w, since F is symmetric."""
    x = problem.x.detach().requires_grad_()
    weight = problem.a.expand_as(x)
    (got,) = torch.autograd.grad((torch.fft.fft(x).real * weight).sum(), x)
    want = torch.fft.fft(weight.double()).real
    return _found(errors(got, want)["error"], "autograd through torch.fft, against the transform in float64")


def _of_toeplitz(problem: Problem, asked: str) -> dict[str, Any]:
    if asked == IRREGULAR:
        y = toeplitz.prepare(problem.a, problem.b, problem.tau)(problem.x)
        return _found(errors(y, _defined(problem))["error"], "the product with irregular anchors")
    grid = on_grid(problem)
    x, a, b = (one.clone().requires_grad_() for one in (grid.x, grid.a, grid.b))
    y = toeplitz.prepare(a, b, grid.tau)(x)
    got: tuple[Tensor | None, ...] = torch.autograd.grad(y.square().sum(), (x, a, b), allow_unused=True)
    want = _gradients(grid)
    answers = {name: None if one is None else errors(one, other)["error"] for name, one, other in zip("xab", got, want)}
    if asked == OF_X:
        return _found(answers["x"], "autograd on a uniform grid")
    words = [f"{name}: {'none' if answers[name] is None else f'off by {answers[name]:.0e}'}" for name in "ab"]
    right = [error for error in (answers["a"], answers["b"]) if error is not None]
    return _found(max(right) if len(right) == 2 else None, f"autograd on a uniform grid; {', '.join(words)}")


def _of_laplex(problem: Problem, asked: str) -> dict[str, Any]:
    if asked == IRREGULAR:
        got = laplex.linear(problem.x, problem.a, problem.b, problem.tau)
        return _found(errors(got, _defined(problem))["error"], "the product with irregular anchors")
    if asked in (OF_X, OF_ANCHORS):
        return _compared(_simple, problem, (0,) if asked == OF_X else (1, 2))
    names = {MORE[0]: _of_tau, MORE[1]: _of_phases, MORE[2]: _second}
    return _compared(names[asked], problem, None)


def _compared(way: Any, problem: Problem, chosen: tuple[int, ...] | None) -> dict[str, Any]:
    """Gradients by laplex.linear in float32, against the definition in float64; the worst error of those chosen."""
    got = way(laplex.linear, problem.x, problem.a, problem.b)
    want = way(reference.linear, *(one.double() for one in (problem.x, problem.a, problem.b)))
    pairs = list(zip(got, want, strict=True))
    wanted = pairs if chosen is None else [pairs[index] for index in chosen]
    worst = max(errors(one, other)["error"] for one, other in wanted)
    return _found(worst, "autograd, against the definition in float64")


def _simple(linear: Any, x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    leaves = [one.clone().requires_grad_() for one in (x, a, b)]
    return torch.autograd.grad(linear(*leaves).square().sum(), leaves)


def _of_tau(linear: Any, x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    tau = torch.tensor(0.7, dtype=a.dtype, device=a.device, requires_grad=True)
    return torch.autograd.grad(linear(x, a, b, tau).square().sum(), (tau,))


def _of_phases(linear: Any, x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    phi, psi = (one.flip(0).clone().requires_grad_() for one in (a, b))
    return torch.autograd.grad(linear(x, a, b, phi=phi, psi=psi).square().sum(), (phi, psi))


def _second(linear: Any, x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    leaves = [one.clone().requires_grad_() for one in (x, a, b)]
    first = torch.autograd.grad(linear(*leaves).square().sum(), leaves, create_graph=True)
    return torch.autograd.grad(torch.stack([one.square().sum() for one in first]).sum(), leaves)


def _defined(problem: Problem) -> Tensor:
    return reference.linear(problem.x.double(), problem.a.double(), problem.b.double(), problem.tau)


def _gradients(problem: Problem) -> tuple[Tensor, ...]:
    return _simple(reference.linear, *(one.double() for one in (problem.x, problem.a, problem.b)))


# --- Theory ----------------------------------------------------------------------------------------------------------


def theorem(n: int, draws: int, seed: int) -> dict[str, Any]:
    """Relative errors, a number a draw: of the theorem as it is printed, with a strict upper triangle, and mended."""
    found: dict[str, list[float]] = {"printed": [], "strict": [], "mended": [], "laplex": []}
    generator = torch.Generator().manual_seed(seed)
    for _ in range(draws):
        x, a, b = torch.randn(3, n, generator=generator, dtype=torch.float64)
        a = a.sort().values
        want = reference.linear(x, a, b)
        for name, got in (*_by_theorem(x, a, b).items(), ("laplex", laplex.linear(x, a, b))):
            found[name].append(errors(got, want)["error"])
    return found


def _by_theorem(x: Tensor, a: Tensor, b: Tensor) -> dict[str, Tensor]:
    """K x by sums over intervals; a (n,) ascends.

    Interval i has the b_j from a_{i-1} up to a_i. The printed sums u, v (n,) have no place for b_j >= a_n, and its
    upper triangle has a diagonal, which counts the b_j just below a_i twice.
    """
    n = len(a)
    interval = torch.searchsorted(a, b, right=True)  # n: beyond the last row anchor
    inside = interval < n
    u, v, beyond = (torch.zeros(n, dtype=a.dtype) for _ in range(3))
    at = interval[inside]
    u.index_add_(0, at, x[inside] * torch.exp(a[at] - b[inside]))
    v.index_add_(0, at, x[inside] * torch.exp(b[inside] - a[at]))
    kernel = reference.kernel(a, a)
    strict = kernel.triu(1) @ u + kernel.tril() @ v
    beyond[-1] = (x[~inside] * torch.exp(a[-1] - b[~inside])).sum()
    return {"printed": kernel.triu() @ u + kernel.tril() @ v, "strict": strict, "mended": strict + kernel @ beyond}


def ranks(n: int, draws: int, seed: int) -> dict[str, Any]:
    """Ranks of K with n random anchors on each side, a number a draw; numerical ones where n is small."""
    generator = torch.Generator().manual_seed(seed)
    exact, numerical = [], []
    for _ in range(draws):
        a, b = torch.randn(2, n, generator=generator, dtype=torch.float64)
        exact.append(int(laplex.rank(a, b)))
        if n <= NUMERICAL_SIZE:
            numerical.append(int(torch.linalg.matrix_rank(reference.kernel(a, b))))
    return {"rank": exact, "numerical": numerical}

"""Problems to measure on, and the truth about them: sums over the definition in float64, for some rows or for all.

A slice of the matrix is all that is ever formed, so a row of a matrix with 2^29 columns can be checked, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laplex import reference

DRAWN_ON_CPU = 1 << 24  # numbers; more are drawn where they are used
SLICE = 1 << 24  # entries of K formed at once
LOOKED_AT = 1 << 25  # entries of K that a sample of rows has, about
FEWEST, MOST = 8, 256  # rows of a sample


@dataclass(frozen=True)
class Problem:
    """y = x K(a, b)^T. For a Gram matrix x (1, k) is the weight."""

    x: Tensor  # (batch, k)
    a: Tensor  # (n,)
    b: Tensor  # (k,)
    tau: float = 1.0

    @property
    def bytes(self) -> int:
        """Of all inputs."""
        return sum(one.numel() * one.element_size() for one in (self.x, self.a, self.b))


def draw(n: int, k: int, batch: int, seed: int, device: str, spread: float = 1.0) -> Problem:
    """Standard normal numbers, the same on every device up to a size; anchors are multiplied by ``spread``."""
    where = "cpu" if batch * max(n, k) <= DRAWN_ON_CPU else device
    generator = torch.Generator(where).manual_seed(seed)
    drawn = [torch.randn(*size, generator=generator, device=where) for size in ((batch, k), (n,), (k,))]
    x, a, b = (one.to(device) for one in drawn)
    return Problem(x, spread * a, spread * b)


def on_grid(problem: Problem) -> Problem:
    """The same with the anchors i / n, i = 0 ... n - 1, on both sides."""
    n = len(problem.a)
    grid = torch.arange(n, dtype=torch.float32, device=problem.a.device) / n
    return Problem(problem.x, grid, grid, problem.tau)


def swapped(problem: Problem) -> Problem:
    """The problem whose product is the gradient of sum(y) in x: K(b, a) times ones."""
    ones = torch.ones(1, len(problem.a), device=problem.a.device)
    return Problem(ones.expand(len(problem.x), -1), problem.b, problem.a, problem.tau)


def sample(size: int, other: int, device: torch.device | str, everything: bool = False) -> Tensor:
    """Some of ``size`` rows, fewer where they are long; the same ones every time."""
    count = max(FEWEST, min(MOST, LOOKED_AT // max(other, 1)))
    if everything or size <= count:
        return torch.arange(size, device=device)
    drawn = torch.randint(size, (count,), generator=torch.Generator().manual_seed(0))
    return torch.unique(drawn).to(device)  # type: ignore[no-any-return]


# --- The truth -------------------------------------------------------------------------------------------------------


def product(problem: Problem, rows: Tensor) -> Tensor:
    """y at these rows, float64: (batch, rows)."""
    a = problem.a[rows].double()
    total = torch.zeros(len(problem.x), len(rows), dtype=torch.float64, device=a.device)
    cols = max(1, SLICE // len(rows)) if len(rows) <= MOST else len(problem.b)
    for b, x in zip(problem.b.split(cols), problem.x.split(cols, dim=-1), strict=True):
        parts = a.split(max(1, SLICE // len(b)))
        total += torch.cat([x.double() @ reference.kernel(part, b.double(), problem.tau).mT for part in parts], -1)
    return total


def gram(problem: Problem, rows: Tensor) -> Tensor:
    """K diag(x) K^T at these rows, float64: (rows, n)."""
    a = problem.a.double()
    total = torch.zeros(len(rows), len(a), dtype=torch.float64, device=a.device)
    cols = max(1, SLICE // len(a))
    for b, weight in zip(problem.b.split(cols), problem.x[0].split(cols), strict=True):
        kernel = reference.kernel(a, b.double(), problem.tau)
        total += (kernel[rows] * weight.double()) @ kernel.mT
    return total


def row_gradient(problem: Problem, rows: Tensor, cotangent: Tensor) -> Tensor:
    """The gradient of sum(cotangent * y) in the row anchors at these rows, float64; cotangent is (batch, rows)."""
    b, x = problem.b.double(), problem.x.double()
    step = max(1, SLICE // len(b))
    found = []
    for part, weight in zip(problem.a[rows].double().split(step), cotangent.double().split(step, -1), strict=True):
        leaf = part.clone().requires_grad_()
        found.append(torch.autograd.grad(x @ reference.kernel(leaf, b, problem.tau).mT, leaf, weight)[0])
    return torch.cat(found)


# --- Errors ----------------------------------------------------------------------------------------------------------


def errors(got: Tensor, truth: Tensor) -> dict[str, float]:
    """Relative errors in the Euclidean norm, and of the largest component."""
    off = got.double() - truth
    return {
        "error": float(off.norm() / truth.norm()),
        "largest_error": float(off.abs().max() / truth.abs().max()),
    }


def product_errors(problem: Problem, y: Tensor, everything: bool = False) -> dict[str, float]:
    """Errors of a product."""
    rows = sample(len(problem.a), len(problem.b), problem.a.device, everything)
    return errors(y[..., rows], product(problem, rows))


def gram_errors(problem: Problem, matrix: Tensor) -> dict[str, float]:
    """Errors of a Gram matrix."""
    rows = torch.arange(0, len(problem.a), max(1, len(problem.a) // 16), device=problem.a.device)
    return errors(matrix[rows], gram(problem, rows))


def gradient_errors(problem: Problem, gradients: tuple[Tensor, ...]) -> dict[str, float]:
    """Errors of the gradients of sum(y) in x, a and b: those of the worst of them."""
    n, k, device = len(problem.a), len(problem.b), problem.a.device
    rows, cols = sample(n, k, device), sample(k, n, device)
    turned = swapped(problem)
    of_x, of_a, of_b = gradients
    ones = torch.ones(len(problem.x), len(rows), device=device)
    found = [
        errors(of_x[:, cols], product(turned, cols)),
        errors(of_a[rows], row_gradient(problem, rows, ones)),
        errors(of_b[cols], row_gradient(turned, cols, problem.x[:, cols])),
    ]
    return {key: max(one[key] for one in found) for key in found[0]}

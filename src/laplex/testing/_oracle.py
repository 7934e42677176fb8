"""The truth: the dense definition in float64, summed in slices, for all rows of the matrix or some of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from laplex import reference
from laplex.testing._problem import Problem

SLICE = 1 << 22  # entries of K that exist at once: 32 MB
BLOCK = 256  # columns summed by one product


@torch.no_grad()
def product(problem: Problem, rows: Tensor | None = None) -> Tensor:
    """y in float64 at these rows of the matrix, by default at all rows: (rows of x, rows).

    >>> from laplex import testing
    >>> testing.product(testing.draw(1 << 20, 1 << 20), testing.sample(1 << 20, 4)).shape
    torch.Size([1, 4])
    """
    return torch.cat([sum(_terms(problem, part), problem.x.new_zeros(())) for part in _parts(problem, rows)], -1)


def sizes(problem: Problem, rows: Tensor | None = None) -> Tensor:
    """The sums of the absolute values of the terms of :func:`product`, by which :func:`term_error` divides."""
    weight = None if problem.weight is None else problem.weight.abs()
    return product(replace(problem, x=problem.x.abs(), weight=weight, phi=None, psi=None), rows)


@torch.no_grad()
def gram(problem: Problem, rows: Tensor | None = None) -> Tensor:
    """K diag(x) K^T in float64 at these rows, by default at all rows: (rows of x, rows, n)."""
    total = torch.zeros((), dtype=torch.float64, device=problem.a.device)
    for cols in _columns(problem, max(1, SLICE // max(1, problem.a.numel()))):
        kernel = _kernel(problem, slice(None), cols)
        chosen = kernel if rows is None else kernel[rows]
        total = total + (chosen * problem.x[:, None, cols].double()) @ kernel.mT
    return total


def gradients(problem: Problem, rows: Tensor | None = None, cols: Tensor | None = None) -> dict[str, Tensor]:
    """The gradients of sum(cotangent * y) in float64, by name: for a and phi at ``rows``, for x, b, psi at ``cols``.

    >>> from laplex import testing
    >>> sorted(testing.gradients(testing.draw(5, 3, phases=True)))
    ['a', 'b', 'phi', 'psi', 'x']
    """
    transposed = problem.mT
    named = {"x": product(transposed, cols), **_row_gradients(problem, rows)}
    swapped = {"a": "b", "phi": "psi"}
    return named | {swapped[name]: value for name, value in _row_gradients(transposed, cols).items()}


def relative_error(got: Tensor, truth: Tensor) -> float:
    """|got - truth| / |truth| in the Euclidean norm; absolute if the truth is 0."""
    scale = float(truth.norm())
    return float((got.detach().double() - truth).norm()) / (scale if scale != 0 else 1.0)


def largest_error(got: Tensor, truth: Tensor) -> float:
    """The largest difference, divided by the largest entry of the truth.

    If all entries are near the smallest normal number of ``got``'s dtype, or are 0, the format has no digits left for
    them. The divisor is therefore at least that number over eps, so that what cannot be represented does not count.
    """
    kind = torch.finfo(got.dtype)
    least = kind.tiny / (kind.eps if kind.bits > 16 else 1.0)  # in float16 tiny / eps = 0.06 is an ordinary number
    return float((got.detach().double() - truth).abs().max() / truth.abs().max().clamp_min(least))


def term_error(got: Tensor, truth: Tensor, sizes: Tensor) -> float:
    """The largest difference relative to the sum of the sizes of the terms: cancellation does not count as an error.

    If the terms themselves are too small for float32, the difference does not count, unless it is NaN.
    """
    error = (got.detach().double() - truth).abs() / sizes.clamp_min(1e-300)
    error = torch.where((sizes > 1e-30) | error.isnan(), error, torch.zeros_like(error))
    return float(error.max()) if error.numel() else 0.0


@torch.enable_grad()
def _row_gradients(problem: Problem, rows: Tensor | None) -> dict[str, Tensor]:
    """The gradients for a, and for phi if there is one, by autograd through the definition: a_i moves only row i."""
    names = ("a",) if problem.phi is None else ("a", "phi")
    parts = []
    for part in _parts(problem, rows):
        leaves = {name: getattr(problem, name).detach()[..., part].double().requires_grad_() for name in names}
        cotangent = problem.cotangent[:, part].double()
        terms = _terms(replace(problem, **leaves), slice(None))
        each = [torch.autograd.grad(y, tuple(leaves.values()), cotangent) for y in terms]
        parts.append([torch.stack(values).sum(0) for values in zip(*each)])
    return {name: torch.cat(values, -1) for name, values in zip(names, zip(*parts))}


def _parts(problem: Problem, rows: Tensor | None) -> tuple[Tensor, ...]:
    """The rows, split into parts whose slices of the matrix are small."""
    every = torch.arange(problem.a.shape[-1], device=problem.a.device) if rows is None else rows
    return every.split(max(1, SLICE // max(1, problem.b.numel())))  # type: ignore[no-any-return]


def _columns(problem: Problem, step: int) -> list[slice]:
    """Slices of the columns; one empty slice if there are none, so that a sum over it has a shape."""
    return [slice(start, start + step) for start in range(0, max(1, problem.b.shape[-1]), step)]


def _terms(problem: Problem, rows: Tensor | slice) -> Iterator[Tensor]:
    """What the columns contribute to y at these rows, a slice of columns at a time."""
    matrices = problem.b[..., :1].numel()
    for cols in _columns(problem, max(1, SLICE // max(1, matrices))):
        yield _sum(_kernel(problem, rows, cols), problem.x[:, cols].double())


def _kernel(problem: Problem, rows: Tensor | slice, cols: Tensor | slice) -> Tensor:
    """A slice of the matrix (rows, cols); the sum over all matrices if there is a weight."""
    a, b = problem.a[..., rows].double(), problem.b[..., cols].double()
    phi = None if problem.phi is None else problem.phi[..., rows].double()
    psi = None if problem.psi is None else problem.psi[..., cols].double()
    tau = problem.tau.double() if isinstance(problem.tau, Tensor) else problem.tau
    kernel = reference.kernel(a, b, tau, phi=phi, psi=psi)
    return kernel if problem.weight is None else torch.einsum("hrc,h->rc", kernel, problem.weight.double())


def _sum(kernel: Tensor, x: Tensor) -> Tensor:
    """x K^T by short products and torch's pairwise sum over them: (rows of x, rows).

    One long product would round by about sqrt(k) eps, which at k = 2^20 is more than the error that it should judge.
    """
    pad = -x.shape[-1] % BLOCK
    kernel = functional.pad(kernel, (0, pad)).unflatten(-1, (-1, BLOCK))  # (rows, blocks, BLOCK)
    x = functional.pad(x, (0, pad)).unflatten(-1, (-1, BLOCK))  # (rows of x, blocks, BLOCK)
    return torch.einsum("rjc,bjc->brj", kernel, x).sum(-1)

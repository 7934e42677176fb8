"""The truth: the dense definition in float64, summed in slices, for all rows or for a random sample of them.

A slice of `laplex.reference.kernel` is all that is ever held, so a row of a 2^20 x 2^20 matrix can be checked too.
"""

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.inputs import Inputs
from laplex import reference

SLICE = 1 << 22  # entries of K held at once: 32 MB
COLUMNS = 1 << 26  # of K looked at together
BLOCK = 256  # columns summed by one product


def rows_to_check(n: int, sample: int, device: torch.device) -> Tensor:
    """All n rows where they are no more than `sample`, else about as many random ones; the same ones every time."""
    if n <= sample:
        return torch.arange(n, device=device)
    rows = torch.randint(n, (sample,), generator=torch.Generator().manual_seed(0))
    found: Tensor = torch.unique(rows)
    return found.to(device)


def product(inputs: Inputs, rows: Tensor) -> Tensor:
    """(K x) at the given rows, float64: (batch, rows)."""
    a, total = inputs.a[rows].double(), torch.zeros((), dtype=torch.float64, device=inputs.a.device)
    for b, x in zip(inputs.b.split(COLUMNS), inputs.x.split(COLUMNS, dim=-1), strict=True):
        b, x = b.double(), x.double()
        parts = a.split(_rows_per_slice(b))
        total = total + torch.cat([_sum(reference.kernel(part, b, inputs.tau), x) for part in parts], dim=-1)
    return total


def gram(inputs: Inputs, rows: Tensor) -> Tensor:
    """K diag(x) K^T at the given rows, float64: (batch, rows, n)."""
    a, some = inputs.a.double(), inputs.a[rows].double()
    total = torch.zeros((), dtype=torch.float64, device=a.device)
    step = max(1, SLICE // a.shape[0])
    for b, x in zip(inputs.b.split(step), inputs.x.split(step, dim=-1), strict=True):
        kernel, of_rows = (reference.kernel(side, b.double(), inputs.tau) for side in (a, some))
        total = total + (of_rows * x.double()[:, None, :]) @ kernel.mT
    return total


def gradients(inputs: Inputs, rows: Tensor, cols: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of (cotangent * K x).sum(): for x at `cols`, for a at `rows`, for b at `cols`."""
    # K(a, b)^T = K(b, a): columns are the rows of the problem with a and b, x and cotangent swapped.
    swapped = Inputs(inputs.cotangent, inputs.b, inputs.a, inputs.tau, inputs.x)
    return product(swapped, cols), _row_gradient(inputs, rows), _row_gradient(swapped, cols)


def relative_error(got: Tensor, truth: Tensor) -> float:
    """||got - truth|| / ||truth||, in float64."""
    return float((got.double() - truth).norm() / truth.norm())


def _row_gradient(inputs: Inputs, rows: Tensor) -> Tensor:
    """The gradient for a at the given rows, by autograd through the definition: a_i moves row i alone."""
    a, b, x, cotangent = (t.double() for t in (inputs.a[rows], inputs.b, inputs.x, inputs.cotangent[:, rows]))
    step = _rows_per_slice(b)
    grads = []
    for part, weight in zip(a.split(step), cotangent.split(step, dim=-1), strict=True):
        leaf = part.detach().requires_grad_()
        y = _sum(reference.kernel(leaf, b, inputs.tau), x)
        grads.append(torch.autograd.grad(y, leaf, weight)[0])
    return torch.cat(grads)


def _rows_per_slice(b: Tensor) -> int:
    return max(1, SLICE // b.shape[0])


def _sum(kernel: Tensor, x: Tensor) -> Tensor:
    """x K^T (batch, rows) by short products and torch's pairwise sum over them.

    One long product would round by about sqrt(k) eps, which at k = 2^20 is more than the error it is to judge.
    """
    pad = -x.shape[-1] % BLOCK
    kernel = functional.pad(kernel, (0, pad)).unflatten(-1, (-1, BLOCK))  # (rows, blocks, BLOCK)
    x = functional.pad(x, (0, pad)).unflatten(-1, (-1, BLOCK))  # (batch, blocks, BLOCK)
    return torch.einsum("rjc,bjc->brj", kernel, x).sum(-1)

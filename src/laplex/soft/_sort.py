r"""Soft sorting: SoftSort's matrix, which is a kernel matrix divided by its row sums, never formed.

    P = softmax over j of -|a_i - x_j| / tau = K(a, x) / (K(a, x) 1),        a: x sorted

so that P v is two rows of one product, K v and K 1. A sum of row i is at least 1, because a_i is one of the x_j.

    S. Prillo, J. Eisenschlos, SoftSort: a continuous relaxation for the argsort operator, ICML (2020),
        arXiv:2006.16038.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex._functional import linear
from laplex._plan import Plan
from laplex._scan.autograd import differentiates
from laplex.soft._rows import rows_along, softness


class SoftPermutation:
    """P (*batch, m, n): row i says which of n numbers are at place i, as weights that add up to 1.

    ``P @ v`` permutes any values softly, ``P.mT @ v`` goes back, ``P[rows, cols]`` are single entries.
    """

    __module__ = "laplex.soft"

    def __init__(self, targets: Tensor, scores: Tensor, tau: Tensor) -> None:
        """Targets (*batch, m), scores (*batch, n) and tau (*batch)."""
        self.targets, self.scores, self.tau = targets, scores, tau
        self._plan = Plan(targets.detach(), scores.detach())
        self._sums: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.targets.shape, self.scores.shape[-1]))

    @property
    def row_sums(self) -> Tensor:
        """K 1, (*batch, m); at least 1."""
        if not self._has_sums():
            self._sums = self._product(torch.ones_like(self.scores)[..., None, :])[..., 0, :]
        sums: Any = self._sums
        return sums  # type: ignore[no-any-return]

    def _has_sums(self) -> bool:
        """Whether the sums are known, with their derivatives if these are wanted now."""
        if self._sums is None:
            return False
        return self._sums.requires_grad or not differentiates(self.targets, self.scores, self.tau)

    def __matmul__(self, v: Tensor) -> Tensor:
        """P v for v (*batch, n), or for columns (*batch, n, c)."""
        columns, vector = self._columns("P @ v", v, self.scores)
        rows = columns.mT
        if self._has_sums() or rows.dtype != self.scores.dtype:
            product = self._product(rows)
        else:  # one product for both
            ones = torch.ones_like(rows[..., :1, :])
            both = self._product(torch.cat([rows, ones], -2))
            product, self._sums = both[..., :-1, :], both[..., -1, :]
        result = (product / self.row_sums[..., None, :]).mT
        return result[..., 0] if vector else result

    @property
    def mT(self) -> TransposedPermutation:
        """The transpose, to multiply by."""
        return TransposedPermutation(self)

    def __getitem__(self, key: tuple[Any, Any]) -> Tensor:
        """Single entries: P[rows, cols], with indices that broadcast against each other."""
        if not isinstance(key, tuple) or len(key) != 2:
            raise TypeError("laplex.soft: entries are P[rows, cols], with a tensor of indices, or a number, for each")
        rows, cols = (torch.as_tensor(part, device=self.scores.device) for part in key)
        rows, cols = torch.broadcast_tensors(rows, cols)
        return torch.exp(self._logarithms(rows, cols))

    def log_diagonal(self) -> Tensor:
        """log P[i, i], (*batch, min(m, n)): how sure it is that every number is in its place."""
        index = torch.arange(min(self.shape[-2:]), device=self.scores.device)
        return self._logarithms(index, index)

    def to_dense(self) -> Tensor:
        """The matrix, m * n numbers: to look at."""
        distance = (self.targets[..., :, None] - self.scores[..., None, :]).abs()
        return torch.softmax(-distance / self.tau[..., None, None], -1).to(distance.dtype)  # tau is in float64

    def _logarithms(self, rows: Tensor, cols: Tensor) -> Tensor:
        distance = (self.targets[..., rows] - self.scores[..., cols]).abs()
        tau = self.tau[(..., *(None,) * rows.dim())]  # in float64: in float32 a tiny one would be 0
        return (-distance / tau).to(distance.dtype) - self.row_sums[..., rows].log()

    def _product(self, rows: Tensor) -> Tensor:
        return linear(rows, self.targets, self.scores, self.tau, plan=self._plan)

    def _columns(self, what: str, v: Any, side: Tensor) -> tuple[Tensor, bool]:
        if not isinstance(v, Tensor):
            raise TypeError(f"laplex.soft: {what} needs a tensor, got {type(v).__name__}")
        vector = v.dim() == side.dim()
        columns = v[..., None] if vector else v
        fits = columns.dim() == side.dim() + 1 and columns.shape[-2] == side.shape[-1]
        if not fits or any(size not in (1, most) for size, most in zip(v.shape, side.shape[:-1], strict=False)):
            shape = ", ".join(map(str, side.shape))
            raise ValueError(f"laplex.soft: in {what} v must be ({shape}) or ({shape}, columns), got {tuple(v.shape)}")
        return columns, vector

    def __repr__(self) -> str:
        return f"SoftPermutation({' x '.join(map(str, self.shape))}, {self.scores.dtype}, device={self.scores.device})"


class TransposedPermutation(NamedTuple):
    """P^T, to multiply by."""

    permutation: SoftPermutation

    def __matmul__(self, v: Tensor) -> Tensor:
        """P^T v for v (*batch, m), or for columns (*batch, m, c)."""
        p = self.permutation
        columns, vector = p._columns("P.mT @ v", v, p.targets)
        rows = columns.mT / p.row_sums[..., None, :]
        result = linear(rows, p.scores, p.targets, p.tau, plan=p._plan.mT).mT
        return result[..., 0] if vector else result


class Sorted(NamedTuple):
    """Softly sorted numbers, and the matrix that sorts."""

    values: Tensor
    permutation: SoftPermutation


def sort(x: Tensor, dim: int = -1, *, tau: Any, descending: bool = False, hard: bool = False) -> Sorted:
    """Sort softly: every value is a mean of all numbers, weighted by exp(-distance / tau) from the sorted number.

    Args:
        x: numbers, of any shape.
        dim: the dimension along which they are sorted.
        tau: how soft, in the units of x: a positive number, a tensor with the shape of x without ``dim``, or "auto",
            the median distance of neighbours. As tau goes to 0 the result is ``torch.sort``.
        descending: the largest first.
        hard: values as ``torch.sort`` gives them, with the gradients of the soft ones (straight-through).

    Returns:
        ``(values, permutation)``: values with the shape of x, and the matrix P (*batch, n, n) as a lazy
        :class:`SoftPermutation` of the last dimension; ``P @ v`` permutes other values alike.

    Example:
        >>> x = torch.tensor([3.0, 1.0, 2.0])
        >>> laplex.soft.sort(x, tau=0.01).values
        tensor([1., 2., 3.])
    """
    where = "laplex.soft.sort"
    rows = rows_along(where, x, dim)
    tau = softness(where, tau, rows)
    targets = rows.sort(-1, descending=descending).values
    return _sorted(x, dim, targets, SoftPermutation(targets, rows, tau), hard)


def topk(x: Tensor, k: int, dim: int = -1, *, tau: Any, largest: bool = True, hard: bool = False) -> Sorted:
    """The k largest numbers, softly, the largest first: the first k rows of a soft sort.

    Arguments and results are those of :func:`sort`; with ``largest=False`` the smallest, the smallest first.
    """
    where = "laplex.soft.topk"
    rows = rows_along(where, x, dim)
    if isinstance(k, bool) or not isinstance(k, int) or not 0 < k <= rows.shape[-1]:
        raise ValueError(f"{where}: `k` must be an integer from 1 to {rows.shape[-1]}, got {k!r}")
    tau = softness(where, tau, rows)
    targets = rows.topk(k, -1, largest=largest).values
    return _sorted(x, dim, targets, SoftPermutation(targets, rows, tau), hard)


def _sorted(x: Tensor, dim: int, targets: Tensor, permutation: SoftPermutation, hard: bool) -> Sorted:
    rows = permutation.scores
    center = rows.detach().mean(-1, keepdim=True)  # numbers around 0 lose fewer digits in sums
    values = center + permutation.__matmul__(rows - center)  # torch.compile does not trace the sign
    if hard:
        values = targets.detach() + (values - values.detach())
    return Sorted(values.to(x.dtype).movedim(-1, dim), permutation)

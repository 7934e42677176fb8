r"""SoftSort's matrix, which is a kernel matrix divided by its row sums, never formed.

    P = softmax over j of -|a_i - x_j| / tau = K(a, x) / (K(a, x) 1),        a: x sorted

so that P v takes two rows of one product, K v and K 1. The sum of row i is at least 1, because a_i is one of the x_j.

The order of x is known. So v is put into that order, and K is that of sorted numbers with themselves: nothing is sorted
again. With few rows that costs more than it saves on the CPU: there v stays as it is, and only the rows are sorted.

    S. Prillo, J. Eisenschlos, SoftSort: a continuous relaxation for the argsort operator, ICML (2020),
        arXiv:2006.16038.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor

from laplex import _autocast
from laplex._eager import is_trained, normal_mode, plain, plainly_eager, savable
from laplex._functional import linear
from laplex._plan import Plan
from laplex._scan.autograd import differentiates
from laplex._scan.order import layout_of_sides


class SoftPermutation:
    """P (*batch, m, n): row i says which of n numbers are at place i, as weights that add up to 1.

    ``P @ v`` permutes any values softly, ``P.mT @ v`` goes back, ``P[rows, cols]`` are single entries.

    P is computed when it is used, from tau and the numbers that were sorted. If they have been written to in place
    since the sort, as an optimizer does, using P raises RuntimeError, as a backward would; ``P.order`` still works.
    What was copied keeps its values: numbers in half precision, a tau that is not float64, and views without a graph,
    such as a row of a matrix. (torch does not count writes by fused optimizers or through ``.data``: use P before
    them.)
    """

    __module__ = "laplex.soft"

    def __init__(
        self,
        scores: Tensor,
        order: Tensor,
        tau: Tensor,
        *,
        descending: bool = False,
        rows: int | None = None,
        factors: Tensor | None = None,
    ) -> None:
        """Scores (*batch, n), their ascending order (*batch, n) as indices, and tau (*batch).

        P has the places in this order or, with ``descending``, in the opposite one; it has only the first ``rows``.
        ``factors`` (h, 3, n) are those of ``laplex._sorted``: the first are the inverse row sums in ascending order.
        """
        self.scores, self.tau = scores, savable(tau)
        self._ascending, self._descending = order, descending
        self._rows = scores.shape[-1] if rows is None else rows
        self._known: dict[str, Any] = {}  # what was computed once, and has no graph
        self._factors = factors
        self._is_short = scores.device.type == "cpu" and layout_of_sides(self._rows, scores.shape[-1]) == "short_rows"
        self._versions = self._count_writes()

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.scores.shape[:-1], self._rows, self.scores.shape[-1]))

    @property
    def order(self) -> Tensor:
        """The hard argsort, (*batch, m): the index of the number at every place."""
        index: Tensor = self._keep("order", lambda: savable(self._placed(self._first(self._ascending)).long()))
        return index

    @property
    def targets(self) -> Tensor:
        """The sorted scores, (*batch, m). Not cached: each use gets its own graph, so that one backward does not free
        the graph of another."""
        self._check_unwritten()
        return self.scores.gather(-1, self.order)

    @property
    def row_sums(self) -> Tensor:
        """K 1, (*batch, m); at least 1."""
        self._check_unwritten()
        if not self._remembers():
            return self._row_sums()
        sums: Tensor = self._keep("sums", self._row_sums)
        return sums

    def _row_sums(self) -> Tensor:
        if self._factors is not None and self._remembers():
            weights = self._factors[:, 0].reshape(self.scores.shape)
            return self._placed(self._first(weights)).reciprocal()
        return self._product(torch.ones_like(self.scores)[..., None, :])[..., 0, :]

    def __matmul__(self, v: Tensor) -> Tensor:
        """P v for v (*batch, n), or for columns (*batch, n, c), in the dtype that v and the scores promote to."""
        columns, vector = self._columns("P @ v", v, self.scores.shape)
        columns = columns.to(torch.promote_types(v.dtype, self.scores.dtype))  # P v fits into float16, K v may not
        rows = columns.mT if self._is_short else torch.take_along_dim(columns.mT, self._index[..., None, :], -1)
        known = ("sums" in self._known or self._factors is not None) and self._remembers()
        if known or rows.dtype != self.scores.dtype:
            product, sums = self._product(rows), self.row_sums
        else:  # one product for both
            ones = rows.new_ones((*rows.shape[:-2], 1, rows.shape[-1]))
            both = self._product(torch.cat([rows, ones], -2))
            product, sums = both[..., :-1, :], both[..., -1, :]
        result = (product / sums[..., None, :]).mT
        return result[..., 0] if vector else result

    @property
    def mT(self) -> TransposedPermutation:
        """The transpose."""
        return TransposedPermutation(self)

    def __getitem__(self, key: tuple[Any, Any]) -> Tensor:
        """Single entries: P[rows, cols], with indices that broadcast against each other."""
        if not isinstance(key, tuple) or len(key) != 2:
            raise TypeError(_not_indices(key))
        if not all(isinstance(part, int | list | Tensor | numpy.ndarray | numpy.generic) for part in key):
            raise TypeError(_not_indices(key))
        rows, cols = (torch.as_tensor(part, device=self.scores.device) for part in key)
        rows, cols = torch.broadcast_tensors(rows, cols)
        return torch.exp(self._logarithms(rows, cols))

    def log_diagonal(self) -> Tensor:
        """log P[i, i], (*batch, min(m, n)): how sure it is that every number is in its place."""
        index = torch.arange(min(self.shape[-2:]), device=self.scores.device)
        return self._logarithms(index, index)

    def to_dense(self) -> Tensor:
        """The dense matrix, m * n numbers, to look at."""
        distance = (self.targets[..., :, None] - self.scores[..., None, :]).abs()
        return torch.softmax(-distance / self.tau[..., None, None], -1).to(distance.dtype)  # tau is in float64

    def _logarithms(self, rows: Tensor, cols: Tensor) -> Tensor:
        distance = (self.targets[..., rows] - self.scores[..., cols]).abs()
        tau = self.tau[(..., *(None,) * rows.dim())]  # in float64: in float32 a tiny one would be 0
        return (-distance / tau).to(distance.dtype) - self.row_sums[..., rows].log()

    @property
    def _plan(self) -> Plan:
        """The plan of K between both sides, built at the first product without sorting all scores."""
        plan: Plan = self._keep("plan", lambda: Plan(*self._sides()))  # it recognises the sides, if they are kept
        return plan

    @property
    def _index(self) -> Tensor:
        """The ascending order, in the dtype that torch takes for an index."""
        index: Tensor = self._keep("index", lambda: savable(self._ascending.long()))
        return index

    def _keep(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what was computed before, or compute it now. What a graph, a transform or a captured CUDA graph
        makes is valid only there, and what inference mode makes cannot be saved for a backward."""
        if name in self._known:
            return self._known[name]
        if not plainly_eager() or (self.scores.is_cuda and torch.cuda.is_current_stream_capturing()):
            return make()
        with normal_mode(), torch.no_grad():
            value = self._known[name] = make()
        return value

    def _count_writes(self) -> tuple[int | None, ...]:
        """How often the scores and tau were written to in place; None where that is not known."""
        if torch.compiler.is_compiling():
            return None, None
        return tuple(t._version if plain(t) and not t.is_inference() else None for t in (self.scores, self.tau))

    def _check_unwritten(self) -> None:
        for name, before, now in zip(("x", "tau"), self._versions, self._count_writes(), strict=True):
            if None not in (before, now) and before != now:
                raise RuntimeError(
                    f"laplex.soft: `{name}` was written to in place since the sort, so that the matrix of the sort is "
                    f"lost; use the matrix before that, sort again, or sort with {name}.clone()"
                )

    def _remembers(self) -> bool:
        """Whether what was computed from the numbers may be used again. It has no graph, but in a transform a tensor
        may need one without showing it; and fused optimizers write to their parameters without raising the counter."""
        if torch.compiler.is_compiling() or not (plain(self.scores) and plain(self.tau)):
            return False
        return not (differentiates(self.scores, self.tau) or is_trained(self.scores) or is_trained(self.tau))

    def __getstate__(self) -> dict[str, Any]:
        self._check_unwritten()
        return {**self.__dict__, "_known": {}, "_versions": (None, None)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._versions = self._count_writes()  # these are other tensors

    def _sides(self) -> tuple[Tensor, Tensor]:
        """The targets in ascending order, and the scores, in ascending order unless the rows are few."""
        self._check_unwritten()
        if not self._remembers():
            return self._gathered(self.scores)
        sides: tuple[Tensor, Tensor] = self._keep("sides", self._fixed_sides)
        return sides

    def _fixed_sides(self) -> tuple[Tensor, Tensor]:
        """The sides without a graph: the same tensors for all products, so that a plan recognises them."""
        targets, sources = self._gathered(self.scores.detach())
        return targets.contiguous(), savable(sources)

    def _gathered(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        if self._is_short:
            return scores.gather(-1, self._first(self._index)), scores
        sources = scores.gather(-1, self._index)
        return self._first(sources), sources

    def _first(self, ascending: Tensor) -> Tensor:
        """The part of an ascending tensor that belongs to the first ``rows`` places."""
        n, m = ascending.shape[-1], self._rows
        return ascending if m == n else ascending[..., n - m :] if self._descending else ascending[..., :m]

    def _placed(self, ascending: Tensor) -> Tensor:
        """Go from ascending order to places, or back: a flip if descending."""
        return ascending.flip(-1) if self._descending else ascending

    def _product(self, rows: Tensor) -> Tensor:
        """K times rows whose columns are in the order of the sources, in full precision under autocast, too."""
        with _autocast.off(rows.device):
            return self._placed(linear(rows, *self._sides(), self.tau, plan=self._plan))

    def _transposed_product(self, rows: Tensor) -> Tensor:
        """K^T times rows whose columns are places, for the scores as they are."""
        targets, sources = self._sides()
        with _autocast.off(rows.device):
            product = linear(self._placed(rows), sources, targets, self.tau, plan=self._plan.mT)
        if self._is_short:
            return product
        return torch.zeros_like(product).scatter(-1, self._index[..., None, :].expand(product.shape), product)

    def _columns(self, what: str, v: Any, side: torch.Size) -> tuple[Tensor, bool]:
        if not isinstance(v, Tensor):
            raise TypeError(f"laplex.soft: {what} needs a tensor, got {type(v).__name__}")
        if not (v.is_floating_point() or v.is_complex()):
            raise TypeError(f"laplex.soft: {what} needs a floating-point tensor, got {v.dtype}; use v.float()")
        vector = v.dim() == len(side)
        columns = v[..., None] if vector else v
        fits = columns.dim() == len(side) + 1 and columns.shape[-2] == side[-1]
        if not fits or any(size not in (1, most) for size, most in zip(v.shape, side[:-1], strict=False)):
            shape = ", ".join(map(str, side))
            raise ValueError(
                f"laplex.soft: for {what}, v must be ({shape}) or ({shape}, columns), got {tuple(v.shape)}"
            )
        return columns, vector

    def __repr__(self) -> str:
        return f"SoftPermutation({_described(self.shape, self.scores)})"


class TransposedPermutation:
    """P^T (*batch, n, m), for products, for single entries, and to look at."""

    __module__ = "laplex.soft"

    def __init__(self, permutation: SoftPermutation) -> None:
        self.mT = permutation

    @property
    def shape(self) -> torch.Size:
        *batch, m, n = self.mT.shape
        return torch.Size((*batch, n, m))

    def __matmul__(self, v: Tensor) -> Tensor:
        """P^T v for v (*batch, m), or for columns (*batch, m, c)."""
        p = self.mT
        columns, vector = p._columns("P.mT @ v", v, p.shape[:-1])
        result = p._transposed_product(columns.mT / p.row_sums[..., None, :]).mT
        return result[..., 0] if vector else result

    def __getitem__(self, key: tuple[Any, Any]) -> Tensor:
        """Single entries: P.mT[rows, cols] = P[cols, rows]."""
        return self.mT[key[::-1] if isinstance(key, tuple) else key]

    def log_diagonal(self) -> Tensor:
        """log P[i, i], (*batch, min(m, n))."""
        return self.mT.log_diagonal()

    def to_dense(self) -> Tensor:
        """The dense matrix, n * m numbers, to look at."""
        return self.mT.to_dense().mT

    def __repr__(self) -> str:
        return f"TransposedPermutation({_described(self.shape, self.mT.scores)})"


def _not_indices(key: Any) -> str:
    got = ", ".join(type(part).__name__ for part in (key if isinstance(key, tuple) else (key,)))
    return (
        f"laplex.soft: entries are P[rows, cols], with a tensor of indices, or a number, for each, got P[{got}]; for "
        "whole rows use P.mT @ v with v = 1 there and 0 elsewhere, or P[rows[:, None], torch.arange(n)]"
    )


def _described(shape: torch.Size, scores: Tensor) -> str:
    return f"{' x '.join(map(str, shape))}, {scores.dtype}, device={scores.device}"

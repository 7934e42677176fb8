r"""K(a, a) + diag over ranks: solves, log determinants and Gaussian likelihoods, with one exchange of a few numbers.

After sorting, rank r owns the points first_r .. last_r, and B_r is its own diagonal block of A = K + diag. Distances
add up, so the block of K between two ranks r < s has rank one:

    K_rs = exp(-(last_r - t_i) / tau) exp(-(first_s - last_r) / tau) exp(-(t_j - first_s) / tau)

With V = blockdiag(V_r), V_r = [exp(-(t - first_r) / tau), exp(-(last_r - t) / tau)], and H the 2w x 2w matrix of the
middle factors, whose diagonal blocks are 0,

    A = B + V H V^T,      S = I + H Q,      Q = V^T B^-1 V = blockdiag(Q_r)
    A^-1 y = B^-1 y - B^-1 V S^-1 H V^T B^-1 y,      log det A = sum of log det B_r + log det S

(M. A. Woodbury, Inverting modified matrices, 1950). Each rank factors its B_r and solves for V_r and y as on one
device (``laplex._quasisep``), and all ranks exchange Q_r, of 2 x 2 numbers, and V_r^T B_r^-1 y. With phases, K_rs has
the factor e_i^T e_j, e = (cos phi, sin phi): each column of V_r becomes two, one for each component of e, and each
entry of H is multiplied by the 2 x 2 identity.

Equal points have one owner. So |a_i - a_j| is smooth between ranks, and differentiating each of the three factors by
itself gives the right gradients. If equal points were on two ranks, the gradient of their distance would have to be 0,
but no single factor can tell that they are equal.

No exponent is positive. The price is that S has rounding errors of eps, and comes close to singular where points at the
borders between ranks are nearly tied and have little noise. So a log determinant has errors of about eps over the
smallest diag, more than on one device.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex import _checks
from laplex._eager import outside_graphs
from laplex._errors import frozen
from laplex._operator import LaplaceOperator
from laplex._quasisep.systems import System
from laplex._shapes import flat_tau
from laplex.distributed._agreement import agree, plain_arguments, ranks_in, resolved, run_on_all, trained
from laplex.distributed._moves import Share, in_arrival_order, in_line_order, replicated, to_holders, to_owners, total
from laplex.distributed._ranks import Ranks
from laplex.distributed._sorting import shared


class Block(NamedTuple):
    """What this rank owns, in order: its block of A, and how that couples to the other ranks."""

    points: Tensor  # (n,)
    system: System
    ends: Tensor  # V_r (n, 2 c)
    solved: Tensor  # B_r^-1 V_r


class KernelSystem:
    """A = K(a, a) + diag, factored, with the points a spread over the ranks of a group, in O(n / ranks) and O(ranks^3).

    K[i, j] = exp(-|a_i - a_j| / tau) cos(phi_i - phi_j). A is the covariance of a Gaussian process with an exponential
    kernel, observed with noise. Every rank passes its shards, which may have any sizes and any order. All ranks must
    make the system, and use it, together.

    Computations are in float64 inside. Gradients are those of the sum of all ranks' losses. For a, diag, phi and y each
    rank gets the gradient of its own shard; for tau (and a diag that is one number), the whole gradient.
    :meth:`logdet` and :meth:`log_likelihood` are the same on all ranks, so divide a loss made of them by the number of
    ranks.

    Args:
        a (n of this rank): points, float32 or float64.
        tau: positive length scale, a number or a tensor of one element, the same on all ranks.
        diag: positive, one number that is the same on all ranks, or (n of this rank). Below about 1e-8, log
            determinants lose digits if points on two ranks are close to each other.
        phi (n of this rank): phases, or None.
        group: a torch.distributed.ProcessGroup; None for all processes.
    """

    __setattr__ = frozen
    _ranks: Ranks
    _share: Share
    _block: Block | None  # None where this rank owns nothing
    _nothing: Tensor  # 0, as a function of everything that is differentiated
    _coupling: Tensor  # H (2 c w, 2 c w)
    _small: Tensor  # S
    _logdet: Tensor
    _size: int
    _dtype: torch.dtype

    @outside_graphs
    def __init__(
        self, a: Tensor, tau: float | Tensor, diag: float | Tensor, *, phi: Tensor | None = None, group: Any = None
    ) -> None:
        where = "laplex.distributed.KernelSystem"
        a, tau, diag, phi = map(resolved, (a, tau, diag, phi))
        ranks = ranks_in(where, group)
        agree(where, ranks, lambda: _terms(where, a, tau, diag, phi))
        share, _ = shared(a.detach()[None], a.detach().new_empty((1, 0)), ranks, together=True)
        scale = replicated(flat_tau(tau, (), a.device).reshape(()), ranks)
        columns = _own_columns(a, diag, phi, share, ranks)
        block = run_on_all(where, ranks, lambda: _block(*columns, scale) if columns[0].numel() > 0 else None)
        nothing = _nothing(*columns, scale)
        channels = 1 if phi is None else 2
        borders, ends = _everyone(block, nothing, channels, ranks)
        coupling = _coupling(borders, scale, channels)
        small = torch.eye(coupling.shape[0], dtype=torch.float64, device=a.device) + coupling @ torch.block_diag(*ends)
        sign, between = torch.linalg.slogdet(small)
        if not bool(sign > 0):  # the same on all ranks
            raise ValueError(f"{where}: the matrix is not positive definite in float64; raise `diag`")
        # Exchanged separately: it is differentiable once, while solves are differentiable to any order.
        logdet = total(nothing if block is None else block.system.logdet().reshape(()), ranks)
        self.__dict__.update(
            _ranks=ranks,
            _share=share,
            _block=block,
            _nothing=nothing,
            _coupling=coupling,
            _small=small,
            _logdet=logdet + between,
            _size=int(ranks.total(torch.tensor(a.numel(), device=ranks.device))),
            _dtype=a.dtype,
        )

    def __repr__(self) -> str:
        ranks = self._ranks
        return f"KernelSystem({self.size} points, {self._share.size} of them on rank {ranks.rank} of {ranks.size})"

    @property
    def size(self) -> int:
        """How many points there are on all ranks."""
        return self._size

    @property
    def shape(self) -> torch.Size:
        """(size, size): that of A, over all ranks."""
        return torch.Size((self._size, self._size))

    @property
    def dtype(self) -> torch.dtype:
        """That of the points."""
        return self._dtype

    @property
    def device(self) -> torch.device:
        """Where the points of this rank are."""
        return self._small.device

    @outside_graphs
    def solve(self, y: Tensor) -> Tensor:
        """A^-1 y for the shard y (..., n of this rank), shaped like y. Differentiable to any order."""
        where, y = "laplex.distributed.KernelSystem.solve", resolved(y)
        agree(where, self._ranks, lambda: self._terms(where, y))
        held = self._held(y)
        solved = self._solved(held)
        at_owners = in_arrival_order(solved, self._share)[None]
        return to_holders(at_owners, self._share, self._ranks)[0].reshape(y.shape).to(y.dtype)

    def logdet(self) -> Tensor:
        """log det A, the same on all ranks, in the dtype of the points. Differentiable once."""
        return self._logdet.to(self.dtype)

    @outside_graphs
    def log_likelihood(self, y: Tensor) -> Tensor:
        """log N(y; 0, A) for the shard y (..., n of this rank): (...), the same on all ranks. Differentiable once."""
        where, y = "laplex.distributed.KernelSystem.log_likelihood", resolved(y)
        agree(where, self._ranks, lambda: self._terms(where, y))
        held = self._held(y)
        square = total((held * self._solved(held)).sum(-1), self._ranks)
        likelihood = -0.5 * (square + self._logdet + self._size * math.log(2 * math.pi))
        return likelihood.reshape(y.shape[:-1]).to(y.dtype)

    def _held(self, y: Tensor) -> Tensor:
        """y (..., n of this rank), moved to its owners: (m, owned), in order, in float64."""
        rows = y.double().reshape(1, math.prod(y.shape[:-1]), y.shape[-1])
        at_owners = to_owners(rows, self._share, self._ranks)[0]
        return in_line_order(at_owners, self._share)[:, : self._share.counts[0]]

    def _solved(self, y: Tensor) -> Tensor:
        """A^-1 y for y (m, owned), in order."""
        m = y.shape[0]
        size = self._small.shape[0] // self._ranks.size
        block = self._block
        if block is None:
            own = y.new_zeros((size, m)) + _nothing(y, self._nothing)
        else:
            local = block.system.solve(y.mT).mT
            own = block.ends.mT @ local.mT
        everyone = _gathered(own, self._ranks).flatten(0, 1)  # (2 c w, m)
        between = torch.linalg.solve(self._small, self._coupling @ everyone)
        mine = between[self._ranks.rank * size : (self._ranks.rank + 1) * size]
        return y + _nothing(mine) if block is None else local - (block.solved @ mine).mT

    def _terms(self, where: str, y: Any) -> dict[str, Any]:
        _checks.check_tensor(where, "y", y)
        if not y.is_floating_point() or y.dim() == 0 or y.shape[-1] != self._share.size:
            raise ValueError(
                f"{where}: `y` must be real floating point and have size n = {self._share.size} in its last dimension, "
                f"as the points of this rank, got {y.dtype} of shape {tuple(y.shape)}"
            )
        if y.device != self.device:
            raise ValueError(f"{where}: `y` must be on {self.device}, where the points are, got {y.device}; use .to()")
        plain_arguments(where, [y])
        return {
            "the shape of `y` but for its last dimension": tuple(y.shape[:-1]),
            "the dtype of `y`": y.dtype,
            "the set of arguments that require gradients": trained({"y": y}),
        }


def _terms(where: str, a: Any, tau: Any, diag: Any, phi: Any) -> dict[str, Any]:
    _checks.anchor_pair(where, a, a)
    arguments = {"a": a, "tau": tau, "diag": diag, "phi": phi}
    plain_arguments(where, arguments.values())
    if a.dim() != 1:
        raise ValueError(f"{where}: `a` must be (n,), the points of this rank, got shape {tuple(a.shape)}")
    _checks.length_scale(where, tau, a)
    _checks.batch_shape(where, a, a, tau)
    _checks.positive_on_cpu(where, tau, ())
    _checks.phases(where, a, a, phi, phi)
    _checks.diagonal(where, diag, a, (), optional=False)
    if _sharded(diag) and diag.shape != a.shape:
        raise ValueError(
            f"{where}: `diag` must be a number, or ({a.numel()},) as the points of this rank, got shape "
            f"{tuple(diag.shape)}; for one number give diag.reshape(())"
        )
    for name, value in (("a", a), ("phi", phi)):
        if value is not None and not bool(torch.isfinite(value).all()):
            raise ValueError(_checks.not_finite(where, name))
    return {
        "the dtype of `a`": a.dtype,
        "`tau`": tau.detach().flatten().tolist() if isinstance(tau, Tensor) else [float(tau)],
        "`diag` (its value, or that it is sharded)": "a shard"
        if _sharded(diag)
        else float(diag.detach() if isinstance(diag, Tensor) else diag),
        "whether phases are given": phi is not None,
        "the set of arguments that require gradients": trained(arguments),
    }


def _sharded(diag: float | Tensor) -> bool:
    return isinstance(diag, Tensor) and diag.dim() > 0


def _own_columns(
    a: Tensor, diag: float | Tensor, phi: Tensor | None, share: Share, ranks: Ranks
) -> tuple[Tensor, Tensor, Tensor | None]:
    """This rank's points, diag and phases, (owned,) each, in order, in float64."""
    shard = diag if isinstance(diag, Tensor) and diag.dim() > 0 else None
    rows = [side.double().expand(a.shape) for side in (a, shard, phi) if side is not None]
    at_owners = to_owners(torch.stack(rows)[None], share, ranks)[0]
    points, *others = in_line_order(at_owners, share)[:, : share.counts[0]].unbind(0)
    turn = None if phi is None else others.pop()
    if others:
        return points, others[0], turn
    noise = torch.as_tensor(diag, dtype=torch.float64, device=a.device)
    return points, replicated(noise, ranks).expand(points.shape), turn


def _block(t: Tensor, diag: Tensor, phi: Tensor | None, tau: Tensor) -> Block:
    """The block of points t (n,), in order."""
    where = "laplex.distributed.KernelSystem"
    system = LaplaceOperator(t, tau=tau, phi=phi)._system(where, diag)
    decays = torch.stack([torch.exp(-(t - t[0]) / tau), torch.exp(-(t[-1] - t) / tau)], -1)  # (n, 2)
    if phi is not None:
        decays = (decays[..., None] * torch.stack([phi.cos(), phi.sin()], -1)[:, None]).flatten(1)
    return Block(t, system, decays, system.solve(decays))


def _nothing(*tensors: Tensor | None) -> Tensor:
    """0, as a function of the tensors: ranks that own nothing must join the exchanges of backward, too."""
    return 0 * torch.stack([tensor.sum() for tensor in tensors if tensor is not None]).sum()


def _everyone(block: Block | None, nothing: Tensor, channels: int, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """From all ranks: first, last, and 1 if the rank has points, (w, 3); and Q_r (w, 2 c, 2 c)."""
    size = 2 * channels
    if block is None:
        numbers = nothing.expand(3 + size * size)
    else:
        t = block.points
        inner = block.ends.mT @ block.solved
        inner = (inner + inner.mT) / 2
        border = torch.stack([t[0], t[-1], torch.ones_like(t[0])])
        numbers = torch.cat([border, inner.flatten()])
    everyone = _gathered(numbers, ranks)
    return everyone[:, :3], everyone[:, 3:].unflatten(-1, (size, size))


def _coupling(borders: Tensor, tau: Tensor, channels: int) -> Tensor:
    """H: couples (first, last) of every rank to those of every other."""
    first, last, present = borders.unbind(-1)
    before = torch.ones_like(borders[:, :1] * borders[:, 0]).triu(1) * (present[:, None] * present)
    gap = torch.where(before > 0, first - last[:, None], 0.0)
    across = before * torch.exp(-gap / tau)  # (r, s): last of r with first of s
    nothing = torch.zeros_like(across)
    coupling = torch.stack([torch.stack([nothing, across.mT], -1), torch.stack([across, nothing], -1)], 1)
    flat = coupling.flatten(2).flatten(0, 1)  # (w, 2) x (w, 2)
    return torch.kron(flat, torch.eye(channels, dtype=flat.dtype, device=flat.device))


def _gathered(numbers: Tensor, ranks: Ranks) -> Tensor:
    """(ranks, *shape): the numbers of all ranks. Differentiable."""
    mine = torch.arange(ranks.size, device=numbers.device) == ranks.rank
    return total(mine.view(-1, *(1,) * numbers.dim()) * numbers, ranks)

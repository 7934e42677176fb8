"""Products with phases on a GPU, and their gradients: which way they take.

    spread     few sources, many targets    the targets read a table of the sources' sums; nothing long is kept
    collect    few targets, many sources    the sources are summed into the targets' intervals; the sums are kept
    tiles      anything else                both channels are stacked and go through the scan in tiles; sums are kept

The gradients of one side follow from the sums there (``laplex._phase``). On the long side they are found in the pass
that reads the table of the short side's sums, on the short side they follow from what was collected. Those of the
targets need the sums of x, those of the sources the sums of g: a product that spreads x collects g, and the other way
round. Nothing as long as the long side is written but y and its like, and one copy of what is collected.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from laplex._scan.order import Matrix
from laplex._scan.results import even_like
from laplex._shapes import flat_rows
from laplex._triton.phase.collect import collect
from laplex._triton.phase.spread import spread, table
from laplex._triton.phase.stacks import PhasedSide, Pulled, Stacks, pulled, stack, unstack
from laplex._triton.recording import call
from laplex._triton.replay import replayed
from laplex._triton.scan.launch import pull_once, scan_once
from laplex._triton.short.launch import reads_table


class Needed(NamedTuple):
    """Which gradients are wanted."""

    x: bool
    phi: bool
    psi: bool
    target: bool
    source: bool
    tau: bool


class _Backward(NamedTuple):
    """A backward with contiguous anchors and phases, and operands (h, m, size)."""

    g: Tensor
    x: Tensor
    x_bar: Tensor | None  # to be filled
    matrix: Matrix
    targets: PhasedSide
    sources: PhasedSide
    needs: Needed


@replayed(lambda x, phi, psi, matrix: ((x, phi, psi, *matrix.tensors), matrix.order.layout))
def product(x: Tensor, phi: Tensor, psi: Tensor, matrix: Matrix, *, keep: bool) -> tuple[Tensor, ...]:
    """y (*X, n) for x (*X, k) and phases (*H, n), (*H, k); with ``keep`` also the sums that :func:`pullback` takes."""
    matrix, targets, sources = _contiguous(matrix, phi, psi)
    y = even_like(x, phi.shape[-1], matrix)
    rows, out = flat_rows(x, matrix.tau), flat_rows(y, matrix.tau)
    k, n = rows.shape[-1], out.shape[-1]
    if _is_short(k, n, out.numel()):
        spread(table(rows, sources.angle, matrix), targets, out)
        return (y,)
    if _is_short(n, k, rows.numel()):
        sums = collect(rows, sources.angle, matrix, to_tau=keep)
        unstack(sums[0], targets.angle, out)
        return (y, sums) if keep else (y,)
    even, odd = scan_once(stack(rows, sources.angle, _stacked_in(x)), matrix, odd=keep)
    unstack(even, targets.angle, out)
    return (y, even, odd) if keep else (y,)


@replayed(lambda g, x, phi, psi, matrix, *sums: ((g, x, phi, psi, *matrix.tensors, *sums), matrix.order.layout))
def pullback(
    g: Tensor, x: Tensor, phi: Tensor, psi: Tensor, matrix: Matrix, *sums: Tensor, needs: tuple[bool, ...]
) -> tuple[Tensor, ...]:
    """The gradients of x, phi, psi, targets, sources and tau, each empty unless it is needed."""
    matrix, targets, sources = _contiguous(matrix, phi, psi)
    needed, tau = Needed(*needs), matrix.tau
    x_bar = even_like(x, x.shape[-1], matrix) if needed.x else None
    out = None if x_bar is None else flat_rows(x_bar, tau)
    backward = _Backward(flat_rows(g, tau), flat_rows(x, tau), out, matrix, targets, sources, needed)
    if _is_short(x.shape[-1], g.shape[-1], g.numel()):
        at_targets, at_sources, tau_bar = _pull_spread(backward)
    elif _is_short(g.shape[-1], x.shape[-1], x.numel()):
        at_targets, at_sources, tau_bar = _pull_collect(backward, *sums)
    else:
        at_targets, at_sources, tau_bar = _pull_tiles(backward, *sums)
    return (
        x.new_empty(0) if x_bar is None else x_bar,
        _as(at_targets.turn, phi, needed.phi),
        _as(at_sources.turn, psi, needed.psi),
        _as(at_targets.pull, matrix.target, needed.target),
        _as(at_sources.pull, matrix.source, needed.source),
        _as(tau_bar, tau, needed.tau),
    )


def _pull_spread(backward: _Backward) -> tuple[Pulled, Pulled, Tensor | None]:
    """The gradients if x was spread: g is collected."""
    g, x, x_bar, matrix, targets, sources, needs = backward
    at_targets, at_sources = Pulled(), Pulled()
    if needs.phi or needs.target:
        at_targets = spread(table(x, sources.angle, matrix), targets, None, g)
    if needs.x or needs.psi or needs.source or needs.tau:
        sums = collect(g, targets.angle, matrix.mT, to_tau=needs.tau)
        at_sources = pulled(Stacks(*sums), sources, x, matrix.tau, x_bar)
    return at_targets, at_sources, _tau_bar(at_sources, matrix.tau)


def _pull_collect(backward: _Backward, *sums: Tensor) -> tuple[Pulled, Pulled, Tensor | None]:
    """The gradients if x was collected: g is spread."""
    g, x, x_bar, matrix, targets, sources, needs = backward
    at_targets, at_sources = Pulled(), Pulled()
    if needs.phi or needs.target or needs.tau:
        at_targets = pulled(Stacks(*sums[0]), targets, g, matrix.tau)
    if needs.psi or needs.source:
        at_sources = spread(table(g, targets.angle, matrix.mT), sources, x_bar, x)
    elif needs.x:
        spread(table(g, targets.angle, matrix.mT), sources, x_bar)
    return at_targets, at_sources, _tau_bar(at_targets, matrix.tau)


def _pull_tiles(backward: _Backward, *sums: Tensor) -> tuple[Pulled, Pulled, Tensor | None]:
    """The gradients if even and odd sums of x were kept: those of g are scanned."""
    g, x, x_bar, matrix, targets, sources, needs = backward
    at_targets, at_sources = Pulled(), Pulled()
    tau_bar = pull = None
    if needs.phi or needs.target:
        at_targets = pulled(Stacks(*sums), targets, g, matrix.tau)
    if not (needs.x or needs.psi or needs.source or needs.tau):
        return at_targets, at_sources, None
    stacked = stack(g, targets.angle, _stacked_in(x))
    if needs.source or needs.tau:
        x_stacked = stack(x, sources.angle, stacked.dtype)
        nothing = stacked.new_empty((*stacked.shape[:2], 0))
        even, _, pull, tau_bar = pull_once(stacked, x_stacked, nothing, matrix, to_tau=needs.tau)
    else:
        even, _ = scan_once(stacked, matrix.mT, odd=False)
    at_sources = pulled(Stacks(even), sources, x, matrix.tau, x_bar)
    return at_targets, at_sources._replace(pull=pull), tau_bar


def _tau_bar(side: Pulled, tau: Tensor) -> Tensor | None:
    """The gradient of tau, from its parts."""
    if side.stretch is None:
        return None
    tau_bar = tau.new_empty(tau.shape)
    call(torch.sum, side.stretch, out=(tau_bar.view(-1),), dim=1)
    return tau_bar


def _is_short(short: int, long: int, numbers: int) -> bool:
    """Whether a side is short enough for a table. A long side whose places pass 32 bits goes through tiles."""
    return reads_table(short, long, numbers) and long < 1 << 30


def _stacked_in(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _contiguous(matrix: Matrix, phi: Tensor, psi: Tensor) -> tuple[Matrix, PhasedSide, PhasedSide]:
    """The matrix and its two sides, in memory as programs read them."""
    target, source, tau = (tensor.contiguous() for tensor in matrix[:3])
    matrix = matrix._replace(target=target, source=source, tau=tau)
    return matrix, PhasedSide(target, phi.contiguous()), PhasedSide(source, psi.contiguous())


def _as(bar: Tensor | None, value: Tensor, needed: bool) -> Tensor:
    return value.new_empty(0) if bar is None or not needed else bar.view(value.shape)

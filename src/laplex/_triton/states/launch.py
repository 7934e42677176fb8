"""The likelihood of a sum of blocks, and its pullback. The module has the names of ``laplex._states.cpp``."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex._triton import tuning
from laplex._triton.launch import launch
from laplex._triton.program import by_name
from laplex._triton.recording import Results
from laplex._triton.replay import replayed
from laplex._triton.states import programs, programs_pull
from laplex._triton.states.carry import ROUNDS, gather, launch_lanes, map_fields, spread, state_fields, total
from laplex._triton.states.chain import factor as factor
from laplex._triton.states.chain import scan as scan
from laplex._triton.states.chain import scan_matrices as scan_matrices

MAX_STATES = MAX_CHAIN = 5  # with six a program takes a minute to compile


class Layout(NamedTuple):
    """The blocks of a kernel as flags of the programs."""

    LAYOUT: int  # a byte for every block: its kind plus four times its first state
    BLOCKS: int
    SIZE: int  # states
    MASK: int  # which entries of Phi may differ from 0
    READ: int  # which states are observed

    @property
    def staged(self) -> int:
        """Numbers of a point: the parts of Phi, diag and y."""
        return max(self.SIZE, 2) + 2


@functools.cache
def layout_of(kinds: tuple[int, ...]) -> Layout:
    """The layout of blocks of these kinds."""
    size = sum(kinds)
    layout = mask = read = first = 0
    for block, kind in enumerate(kinds):
        layout |= (kind | first << 2) << (8 * block)
        read |= 1 << first
        for row in range(kind):
            for col in range(0 if kind == 2 else row, kind):
                mask |= 1 << ((first + row) * size + first + col)
        first += kind
    return Layout(layout, len(kinds), size, mask, read)


class Walk(NamedTuple):
    """A kernel and its points, as lanes walk over them."""

    tensors: tuple[Tensor, ...]  # gaps, rates, squares, g, diag, y, in one piece each
    order: Tensor | None
    counts: Tensor | None
    layout: Layout
    chunk: int

    @property
    def chunks(self) -> int:
        """The chunks of every series."""
        return -(-self.tensors[0].shape[1] // self.chunk)

    @property
    def lanes(self) -> int:
        """The chunks of all series."""
        return self.tensors[0].shape[0] * self.chunks

    def values(self) -> dict[str, Any]:
        """All that programs ask for by name."""
        n = self.tensors[0].shape[1]
        given = {"ORDERED": self.order is not None, "COUNTED": self.counts is not None, "CHUNK": self.chunk}
        return {"n": n, "chunks": self.chunks, **given, **self.layout._asdict()}

    def empty(self, *shape: int) -> Tensor:
        """Room for float64 numbers."""
        return self.tensors[0].new_empty(shape)


def likelihood(
    tensors: list[Tensor], kinds: tuple[int, ...], order: Tensor | None, counts: Tensor | None, *, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
    """quad, logdet, loss and failed, (h,) each, and if asked for what the pullback starts from."""
    totals, *saved = _filter(tensors, kinds, order, counts, keep=keep)
    quad, logdet, loss, failed = totals.unbind(0)
    return quad, logdet, loss, failed, saved


def _inputs(
    tensors: list[Tensor], kinds: tuple[int, ...], order: Tensor | None, counts: Tensor | None, *more: Tensor
) -> tuple[Results, Any]:
    """The tensors among the operands of a likelihood or its pullback, and all that its launches depend on besides."""
    given = [one for one in (order, counts) if one is not None]
    return (*tensors, *given, *more), (kinds, order is None, counts is None)


@replayed(_inputs)
def _filter(
    tensors: list[Tensor], kinds: tuple[int, ...], order: Tensor | None, counts: Tensor | None, *, keep: bool
) -> Results:
    """The totals (4, h), and if asked for what the pullback starts from."""
    walk = Walk(tuple(tensors), order, counts, layout_of(kinds), tuning.STATE_CHUNK)
    staged = _stage(walk)
    size, h = walk.layout.SIZE, tensors[0].shape[0]
    entries, maps = walk.empty(state_fields(size), walk.lanes), walk.empty(map_fields(size), walk.lanes)
    for number in range(ROUNDS):
        _walk(walk, staged, entries, maps, maps, START=number == 0, MAPS=True, SUMS=False)
        spread(maps, entries, size, h, add=True)
    sums = walk.empty(4, walk.lanes)
    _walk(walk, staged, entries, maps, sums, START=False, MAPS=keep, SUMS=True)
    totals = total(sums, h, smallest=3)
    return (totals, entries, maps) if keep else (totals,)


def pullback(
    tensors: list[Tensor],
    kinds: tuple[int, ...],
    order: Tensor | None,
    counts: Tensor | None,
    saved: list[Tensor],
    quad_bar: Tensor,
    logdet_bar: Tensor,
) -> list[Tensor]:
    """The gradients of all tensors."""
    *bars, sums = _pull(tensors, kinds, order, counts, *saved, quad_bar, logdet_bar)
    layout = layout_of(kinds)
    parts = sums.mT.split([layout.BLOCKS, layout.BLOCKS, layout.SIZE], -1)
    return [bars[0], *parts, *bars[1:]]


@replayed(_inputs)
def _pull(
    tensors: list[Tensor],
    kinds: tuple[int, ...],
    order: Tensor | None,
    counts: Tensor | None,
    *others: Tensor,
) -> Results:
    """The gradients of gaps, diag and y, and those of rates, squares and g for all series, (2 BLOCKS + SIZE, h).

    The others are what the likelihood saved, entries and maps, and the cotangents of quad and logdet.
    """
    entries, maps, quad_bar, logdet_bar = others
    walk = Walk(tuple(tensors), order, counts, layout_of(kinds), tuning.STATE_CHUNK)
    staged, layout, h = _stage(walk), walk.layout, tensors[0].shape[0]
    gaps, rates, squares, g, diag, y = tensors
    later = walk.empty(state_fields(layout.SIZE), walk.lanes)
    gather(maps, later, layout.SIZE, h)
    fresh = torch.empty_like if counts is None else torch.zeros_like
    bars = [fresh(one) for one in (gaps, diag, y)]
    scratch = walk.empty(state_fields(layout.SIZE), walk.chunk, walk.lanes)
    sums = walk.empty(2 * layout.BLOCKS + layout.SIZE, walk.lanes)
    given = staged, gaps, _or(order, gaps), _or(counts, gaps), rates, squares, g, quad_bar, logdet_bar
    given = *given, entries, later, scratch, *bars, sums
    launch_lanes(programs_pull.pull_program, walk.lanes, given, **walk.values())
    return *bars, total(sums, h)


def _stage(walk: Walk) -> Tensor:
    """The staged points, (field, CHUNK, lanes)."""
    gaps, rates, squares, _g, diag, y = walk.tensors
    staged = walk.empty(walk.layout.staged, walk.chunk, walk.lanes)
    tensors = gaps, _or(walk.order, gaps), _or(walk.counts, gaps), diag, y, rates, squares, staged
    width = max(tuning.STATE_STAGED // walk.chunk, 1)
    program, values = programs.stage_program, {**walk.values(), "lanes": walk.lanes, "LANES": width}
    numbers, flags = by_name(program, **{name: values[name] for name in (*program.numbers, *program.flags)})
    launch(program, (-(-walk.lanes // width), 1, 1), tensors, numbers, flags, 4)
    return staged


def _walk(walk: Walk, staged: Tensor, entries: Tensor, maps: Tensor, sums: Tensor, **flags: bool) -> None:
    _gaps, rates, squares, g = walk.tensors[:4]
    tensors = staged, rates, squares, g, entries, maps, sums
    launch_lanes(programs.walk_program, walk.lanes, tensors, **walk.values(), **flags)


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """A tensor, or one that stands in for it where a program does not read it."""
    return other if tensor is None else tensor

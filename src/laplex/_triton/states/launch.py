"""The likelihood of a sum of blocks, and its pullback: the same functions as in ``laplex._states.cpp``."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex._triton import tuning
from laplex._triton.launch import launch
from laplex._triton.program import by_name
from laplex._triton.states import programs, programs_carry, programs_pull

MAX_STATES = 6  # of a lane; more would not fit into its registers
ROUNDS = 2  # a bound on accuracy: the first is as exact as composed maps are, each further one squares their error


class Layout(NamedTuple):
    """The blocks of a kernel as flags of the programs."""

    LAYOUT: int  # of every block a byte: its kind, and four times its first state
    BLOCKS: int
    SIZE: int  # states
    MASK: int  # which entries of Phi may differ from 0
    READ: int  # which states are observed

    @property
    def triangle(self) -> int:
        """Numbers of a symmetric matrix."""
        return self.SIZE * (self.SIZE + 1) // 2

    @property
    def state(self) -> int:
        """Numbers of a state: S and f, or N and r."""
        return self.triangle + self.SIZE

    @property
    def map(self) -> int:
        """Numbers of a map: J, N, X, r and b."""
        return self.SIZE * self.SIZE + 2 * self.state

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
        """Of every series."""
        return -(-self.tensors[0].shape[1] // self.chunk)

    @property
    def lanes(self) -> int:
        """Chunks of all series."""
        return self.tensors[0].shape[0] * self.chunks

    def flags(self) -> dict[str, Any]:
        """All that programs ask for by name."""
        n = self.tensors[0].shape[1]
        given = {"ORDERED": self.order is not None, "COUNTED": self.counts is not None, "CHUNK": self.chunk}
        return {"n": n, "chunks": self.chunks, "lanes": self.lanes, **given, **self.layout._asdict()}

    def empty(self, *shape: int) -> Tensor:
        """Room for float64 numbers."""
        return self.tensors[0].new_empty(shape)


def likelihood(
    tensors: list[Tensor], kinds: tuple[int, ...], order: Tensor | None, counts: Tensor | None, *, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
    """quad, logdet, loss and failed, (h,) each, and if asked for what the pullback starts from."""
    walk = Walk(tuple(tensors), order, counts, layout_of(kinds), tuning.STATE_CHUNK)
    staged = _stage(walk)
    entries, maps = walk.empty(walk.layout.state, walk.lanes), walk.empty(walk.layout.map, walk.lanes)
    for number in range(ROUNDS):
        _walk(walk, staged, entries, maps, maps, START=number == 0, MAPS=True, SUMS=False)
        _correct(walk, maps, entries)
    sums = walk.empty(4, walk.lanes)
    _walk(walk, staged, entries, maps, sums, START=False, MAPS=keep, SUMS=True)
    quad, logdet, loss, failed = _total(walk, sums, smallest=3).unbind(0)
    return quad, logdet, loss, failed.long(), [entries, maps] if keep else []


def pullback(
    tensors: list[Tensor],
    kinds: tuple[int, ...],
    order: Tensor | None,
    counts: Tensor | None,
    kept: list[Tensor],
    quad_bar: Tensor,
    logdet_bar: Tensor,
) -> list[Tensor]:
    """The gradients of all tensors."""
    entries, maps = kept
    walk = Walk(tuple(tensors), order, counts, layout_of(kinds), tuning.STATE_CHUNK)
    later = walk.empty(walk.layout.state, walk.lanes)
    _gather(walk, maps, later)
    staged, layout = _stage(walk), walk.layout
    gaps, rates, squares, g, diag, y = tensors
    fresh = torch.empty_like if counts is None else torch.zeros_like
    bars = [fresh(one) for one in (gaps, diag, y)]
    scratch = walk.empty(layout.state, walk.chunk, walk.lanes)
    sums = walk.empty(2 * layout.BLOCKS + layout.SIZE, walk.lanes)
    given = staged, gaps, _or(order, gaps), _or(counts, gaps), rates, squares, g, quad_bar, logdet_bar
    _launch(programs_pull.pull_program, walk, (*given, entries, later, scratch, *bars, sums))
    parts = _total(walk, sums, smallest=-1).mT.split([layout.BLOCKS, layout.BLOCKS, layout.SIZE], -1)
    return [bars[0], *parts, *bars[1:]]


def _stage(walk: Walk) -> Tensor:
    """(field, CHUNK, lanes)."""
    gaps, rates, squares, _g, diag, y = walk.tensors
    staged = walk.empty(walk.layout.staged, walk.chunk, walk.lanes)
    tensors = gaps, _or(walk.order, gaps), _or(walk.counts, gaps), diag, y, rates, squares, staged
    width = max(tuning.STATE_STAGED // walk.chunk, 1)
    numbers, flags = _named(programs.stage_program, walk, LANES=width)
    launch(programs.stage_program, (-(-walk.lanes // width), 1, 1), tensors, numbers, flags, 4)
    return staged


def _walk(walk: Walk, staged: Tensor, entries: Tensor, maps: Tensor, sums: Tensor, **flags: bool) -> None:
    _gaps, rates, squares, g = walk.tensors[:4]
    _launch(programs.walk_program, walk, (staged, rates, squares, g, entries, maps, sums), **flags)


def _correct(walk: Walk, maps: Tensor, entries: Tensor) -> None:
    """Add to the states that enter all chunks what their maps say."""
    levels = _composed(walk, maps, back=False)
    incoming = None
    for level, own in reversed(list(enumerate(levels))):
        to = entries if level == 0 else walk.empty(walk.layout.state, own.shape[1])
        _down(programs_carry.spread_program, walk, own, incoming, to, ADD=level == 0)
        incoming = to


def _gather(walk: Walk, maps: Tensor, later: Tensor) -> None:
    """N and r of all that follows every chunk."""
    levels = _composed(walk, maps, back=True)
    incoming = None
    for level, own in reversed(list(enumerate(levels))):
        to = later if level == 0 else walk.empty(walk.layout.state, own.shape[1])
        _down(programs_carry.gather_program, walk, own, incoming, to)
        incoming = to


def _composed(walk: Walk, maps: Tensor, *, back: bool) -> list[Tensor]:
    """The maps of chunks, of groups of chunks, and so on, until a series has one group."""
    levels, series = [maps], walk.tensors[0].shape[0]
    while (count := levels[-1].shape[1] // series) > tuning.STATE_GROUP:
        groups = -(-count // tuning.STATE_GROUP)
        levels.append(walk.empty(walk.layout.map, series * groups))
        sizes = {"count": count, "groups": groups, "lanes": series * groups, "GROUP": tuning.STATE_GROUP}
        _launch(programs_carry.compose_program, walk, (levels[-2], levels[-1]), BACK=back, **sizes)
    return levels


def _down(program: Any, walk: Walk, maps: Tensor, incoming: Tensor | None, to: Tensor, **flags: bool) -> None:
    """One level of maps (fields, lanes), from what enters its groups, or from the top."""
    series = walk.tensors[0].shape[0]
    count = maps.shape[1] // series
    group = tuning.STATE_GROUP
    groups = -(-count // group)
    sizes = {"count": count, "groups": groups, "lanes": series * groups, "GROUP": group, "TOP": incoming is None}
    _launch(program, walk, (maps, _or(incoming, maps), to), **sizes, **flags)


def _total(walk: Walk, sums: Tensor, *, smallest: int) -> Tensor:
    """Sums (fields, h) over chunks, of (fields, lanes)."""
    fields, h = sums.shape[0], walk.tensors[0].shape[0]
    totals = walk.empty(fields, h)
    numbers = walk.chunks, smallest
    launch(programs_carry.total_program, (fields, h, 1), (sums, totals), numbers, (tuning.STATE_SUMMED,), 4)
    return totals


def _launch(program: Any, walk: Walk, tensors: tuple[Tensor, ...], **more: Any) -> None:
    """Launch a program with a lane for each of its ``lanes``."""
    lanes, warps, unroll = tuning.STATE_LANES
    numbers, flags = _named(program, walk, **{"LANES": lanes, "UNROLL": unroll, **more})
    count = more.get("lanes", walk.lanes)
    launch(program, (-(-count // lanes), 1, 1), tensors, numbers, flags, warps)


def _named(program: Any, walk: Walk, **more: Any) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """Numbers and flags of a program, which takes what it knows."""
    values = {**walk.flags(), **more}
    return by_name(program, **{name: values[name] for name in (*program.numbers, *program.flags)})


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """A tensor, or one that stands in for it where a program does not read it."""
    return other if tensor is None else tensor

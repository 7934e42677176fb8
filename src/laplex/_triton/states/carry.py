"""Launches between the walks: states that enter chunks from the maps of chunks, and sums over chunks."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from laplex._triton import tuning
from laplex._triton.launch import launch
from laplex._triton.program import by_name
from laplex._triton.states import programs_carry

ROUNDS = 2  # a bound on accuracy: the first is as exact as composed maps are, each further one squares their error


def state_fields(size: int) -> int:
    """Numbers of a state: S and f, or N and r."""
    return size * (size + 1) // 2 + size


def map_fields(size: int) -> int:
    """Numbers of a map: J, N, X, r and b."""
    return size * size + 2 * state_fields(size)


def spread(maps: Tensor, entries: Tensor, size: int, series: int, *, add: bool) -> None:
    """What enters every chunk, (fields, lanes), written to ``entries`` or added; nothing enters the first."""
    incoming = None
    for level, own in reversed(list(enumerate(_composed(maps, size, series, back=False)))):
        to = entries if level == 0 else maps.new_empty(state_fields(size), own.shape[1])
        _down(programs_carry.spread_program, own, incoming, to, size, series, ADD=add and level == 0)
        incoming = to


def gather(maps: Tensor, later: Tensor, size: int, series: int) -> None:
    """N and r of all that follows every chunk, (fields, lanes)."""
    incoming = None
    for level, own in reversed(list(enumerate(_composed(maps, size, series, back=True)))):
        to = later if level == 0 else maps.new_empty(state_fields(size), own.shape[1])
        _down(programs_carry.gather_program, own, incoming, to, size, series)
        incoming = to


def total(sums: Tensor, series: int, *, smallest: int = -1) -> Tensor:
    """Sums (fields, series) over the chunks of (fields, lanes); for the field ``smallest`` the least one, or -1."""
    totals = sums.new_empty(sums.shape[0], series)
    numbers = sums.shape[1] // series, smallest
    flags = (tuning.STATE_SUMMED,)
    launch(programs_carry.total_program, (series, sums.shape[0], 1), (sums, totals), numbers, flags, 4)
    return totals


def launch_lanes(program: Any, lanes: int, tensors: tuple[Tensor, ...], **values: Any) -> None:
    """Launch a program of lanes, with those of the named values that are among its parameters."""
    width, warps, unroll = tuning.STATE_LANES
    values |= {"lanes": lanes, "LANES": width, "UNROLL": unroll if values["SIZE"] <= tuning.STATE_UNROLLED else 1}
    numbers, flags = by_name(program, **{name: values[name] for name in (*program.numbers, *program.flags)})
    launch(program, (-(-lanes // width), 1, 1), tensors, numbers, flags, warps)


def _composed(maps: Tensor, size: int, series: int, *, back: bool) -> list[Tensor]:
    """The maps of chunks, of groups of chunks, and so on, until a series has one group."""
    levels = [maps]
    while (count := levels[-1].shape[1] // series) > tuning.STATE_GROUP:
        sizes = _sizes(count, size, series)
        levels.append(maps.new_empty(map_fields(size), sizes["lanes"]))
        launch_lanes(programs_carry.compose_program, tensors=(levels[-2], levels[-1]), BACK=back, **sizes)
    return levels


def _down(
    program: Any, maps: Tensor, incoming: Tensor | None, to: Tensor, size: int, series: int, **flags: bool
) -> None:
    """One level of maps (fields, lanes), from what enters its groups, or from the top."""
    sizes = _sizes(maps.shape[1] // series, size, series)
    tensors = maps, maps if incoming is None else incoming, to
    launch_lanes(program, tensors=tensors, TOP=incoming is None, **sizes, **flags)


def _sizes(count: int, size: int, series: int) -> dict[str, int]:
    """The sizes of a level with ``count`` maps in every series; each lane has a group."""
    groups = -(-count // tuning.STATE_GROUP)
    return {"count": count, "groups": groups, "lanes": series * groups, "SIZE": size, "GROUP": tuning.STATE_GROUP}

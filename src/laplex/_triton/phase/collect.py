"""Launches for a long side that is collected into a short one, with phases."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from laplex._scan.order import Matrix, padded
from laplex._triton import tuning
from laplex._triton.launch import launch, power
from laplex._triton.order.launch import Joined, joined, places
from laplex._triton.phase import programs_collect as programs
from laplex._triton.recording import call, from_anchors
from laplex._triton.short.launch import stage


class Pieces(NamedTuple):
    """How the short points cut the long side: see ``programs_collect``."""

    of_long: Tensor  # (h, size of the long side): their places
    position: Tensor  # (h, k): the short points in the order of their places
    border: Tensor  # (h, k), int32: these places
    starts: Tensor  # (h, k + 2), int32: the first piece of every interval, and the number of pieces


def collect(x: Tensor, angle: Tensor, matrix: Matrix, *, to_tau: bool) -> Tensor:
    """E, O and, with ``to_tau``, P of x (h, m, many) and its phases at few targets: (2 or 3, h, 2 m, few)."""
    h, m, size = x.shape
    order = joined(matrix.order)
    cut = Pieces(*from_anchors("pieces", order.entry, lambda: _pieces(matrix, order, h)))
    k = cut.position.shape[-1]
    merged, length, search = size + k, padded(size + k), k.bit_length() + 1
    exact, long_first = x.dtype == torch.float64, not order.first
    merged_x = x.new_empty((h, length, m))
    stage(x, cut.of_long, merged_x, 0)
    pieces = -(-size // tuning.PIECE) + k + 1
    fields = (programs.FIELDS_TO_TAU if to_tau else programs.FIELDS).value
    parts = x.new_empty((h, pieces, fields * 2 * m), dtype=torch.float64)
    faults, fault = parts.new_empty((h, pieces)), parts.new_empty((h,))
    rows = min(power(m), tuning.COLLECT_TILE[1])
    source = matrix.source.reshape(h, size).contiguous()
    tensors: tuple[Tensor, ...] = merged_x, source, angle, matrix.tau, order.entry, *cut[1:], parts, faults
    sizes: tuple[int, ...] = m, merged, length, k, pieces, search
    flags = exact, to_tau, long_first, order.in_order, tuning.PIECE, tuning.COLLECT_TILE[0], rows
    launch(programs.collect_program, (pieces * -(-m // rows), h, 1), tensors, sizes, flags, 4)
    call(torch.sum, faults, out=(fault,), dim=1)
    return _settled(parts, fault, matrix, cut, (exact, to_tau, long_first))


def _settled(parts: Tensor, fault: Tensor, matrix: Matrix, cut: Pieces, flags: tuple[bool, bool, bool]) -> Tensor:
    """The sums at the short points, from those of the pieces."""
    exact, to_tau, long_first = flags
    (h, pieces, numbers), k = parts.shape, cut.position.shape[-1]
    m = numbers // (2 * (programs.FIELDS_TO_TAU if to_tau else programs.FIELDS).value)
    mass = parts.new_empty((h, k + 1, numbers))
    together, width = tuning.GATHER_TILE
    grid = (k + 1) * -(-numbers // width), h, 1
    launch(programs.gather_program, grid, (parts, cut.starts, mass), (k, pieces, numbers), (together, width), 4)
    sides = parts.new_empty((h, 2, 2 if to_tau else 1, 2 * m, k))
    short = max(power(k), 16)
    tensors: tuple[Tensor, ...] = mass, cut.position, matrix.tau, fault, sides
    flags_of_settle = exact, to_tau, long_first, short
    launch(programs.settle_program, (4 * m, h, 1), tensors, (m, k, numbers), flags_of_settle, max(short // 128, 1))
    sums = parts.new_empty((3 if to_tau else 2, h, 2 * m, k))
    target = matrix.target.reshape(h, k).contiguous()
    points, most_rows = tuning.STACK_TILE
    rows = min(most_rows, power(2 * m))
    grid = -(-k // points) * -(-2 * m // rows), h, 1
    tensors, sizes = (sides, mass, target, cut.position, sums), (m, k, numbers, k.bit_length() + 1, h)
    launch(programs.read_program, grid, tensors, sizes, (to_tau, long_first, points, rows), 4)
    return sums


def _pieces(matrix: Matrix, order: Joined, h: int) -> tuple[Tensor, ...]:
    """The ``Pieces`` into which the targets, which are the short side, cut the long one."""
    target = matrix.target.reshape(h, -1)
    k, size = target.shape[-1], matrix.source.shape[-1]
    place_of = order.place_of
    if place_of.shape[-1] == 0:
        place_of = places(order.entry, *((k, size) if order.first else (size, k)))
    place_of = place_of.view(h, -1)
    of_rows, of_cols = place_of.split([k, size] if order.first else [size, k], dim=-1)
    of_short, of_long = (of_rows, of_cols) if order.first else (of_cols, of_rows)
    border, index = of_short.sort(dim=-1)
    ends = torch.nn.functional.pad(border, (0, 1), value=size + k)
    counts = ends.diff(dim=-1, prepend=ends.new_full((h, 1), -1)) - 1  # sources between neighbouring short points
    pieces = (counts + (tuning.PIECE - 1)) // tuning.PIECE
    starts = torch.nn.functional.pad(pieces.cumsum(-1), (1, 0)).to(torch.int32)
    return of_long, target.gather(-1, index), border.contiguous(), starts

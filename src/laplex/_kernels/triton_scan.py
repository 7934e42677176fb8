"""The ordered scan on the GPU in Triton: this file owns shapes, scratch memory and launches.

No launch waits for the device, none is tuned at run time, none uses atomics: bits repeat, and graphs can be captured.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex import _ops
from laplex._shapes import flat_rows

MISSING = (
    "" if importlib.util.find_spec("triton") else "Triton is not installed; it comes with torch's builds for CUDA on Linux"
)
MERGE_TILE = 1024
SORTED_AT_ONCE = 1 << 28  # a sort holds nine times its keys: more are sorted in runs, and the runs merged
CARRIED_AT_ONCE = 1024  # tiles; more are carried in groups
PRECISE_TILES = 64  # float32 sums within a tile do not show in the result where there are at least so many tiles


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on any device: for tests without a GPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _kernels() -> Any:
    from laplex._kernels import triton_merged  # imports triton: not before it is needed

    return triton_merged


def _order() -> Any:
    from laplex._kernels import triton_order

    return triton_order


_compiled: dict[Any, Any] = {}


def _launch(kernel: Any, grid: tuple[int, ...], arguments: list[Any], constants: dict[str, Any], warps: int) -> None:
    """Launch a kernel that was compiled before for such arguments with less Python than Triton's own look-up takes.

    The key repeats what Triton specialises on: dtypes and alignment of pointers, and of numbers 1, multiples of 16 and
    more than 32 bits. Under Triton's interpreter nothing is compiled.
    """
    key: list[Any] = [kernel, warps, torch.cuda.current_device() if torch.cuda.is_available() else None]
    for value in arguments:
        if isinstance(value, int):
            key.append((value == 1, value % 16 == 0, value >= 2**31))
        else:
            key.append((value.dtype, value.data_ptr() % 16 == 0))
    key += constants.values()
    found = _compiled.get(name := tuple(key))
    if found is not None:
        found[(*grid, 1, 1)[:3]](*arguments, *constants.values())
        return
    made = kernel[grid](*arguments, **constants, num_warps=warps)
    if made is not None:
        _compiled[name] = made


class Run(NamedTuple):
    """A sorted run: positions and entries (h, padded) of ``size`` points."""

    position: Tensor
    entry: Tensor
    size: int


def plan(a: Tensor, b: Tensor, layout: str) -> _ops.Planned:
    """The order of a (h, n) and b (h, k), as ``_ops`` describes it."""
    if layout == "in_order":
        joined = _merged(Run(a.contiguous(), a, a.shape[1]), Run(b.contiguous(), b, b.shape[1]), words=True)
    elif a.shape[1] + b.shape[1] <= SORTED_AT_ONCE:
        joined = _sorted(torch.cat([a, b], 1), a.shape[1], 0, 0)
    else:
        rows = [_sorted(part, part.shape[1], at, 0) for at, part in _parts(a)]
        cols = [_sorted(part, 0, 0, at) for at, part in _parts(b)]
        joined = _merged(_all_merged(rows), _all_merged(cols), words=False)
    position, entry, _ = joined
    nothing = position.new_empty((a.shape[0], 1, 0))
    return entry[:, None], position[:, None], nothing.to(torch.int32), nothing


def replan(a: Tensor, b: Tensor, layout: str, old: _ops.Planned) -> _ops.Planned:
    """The plan for anchors that moved."""
    del old  # sorted from scratch
    return plan(a, b, layout)


def _parts(side: Tensor) -> list[tuple[int, Tensor]]:
    """What is sorted at once, and where it starts: half of it is memory enough for the sort beside what is kept."""
    step = SORTED_AT_ONCE // 2
    return [(at, side[:, at : at + step]) for at in range(0, side.shape[1], step)]


def _sorted(anchors: Tensor, rows: int, first_row: int, first_col: int) -> Run:
    """Anchors in order, of which the first ``rows`` are rows."""
    h, size = anchors.shape
    values, order = anchors.sort(dim=-1, stable=True)
    padded = _ops.padded(size)
    position, entry = values.new_empty((h, padded)), order.new_empty((h, padded), dtype=torch.int32)
    arguments = [values, order, position, entry, rows, size, padded, first_row, first_col]
    _launch(_order().encode_kernel, (-(-padded // MERGE_TILE), h), arguments, {"WIDTH": MERGE_TILE}, 4)
    return Run(position, entry, size)


def _all_merged(runs: list[Run]) -> Run:
    while len(runs) > 1:
        runs = [_merged(*runs[i : i + 2], words=False) if i + 1 < len(runs) else runs[i] for i in range(0, len(runs), 2)]
    return runs[0]


def _merged(one: Run, two: Run, *, words: bool) -> Run:
    """Two runs as one, the first before the second where they tie; as words: laplex._kernels.triton_merged."""
    h, size = one.position.shape[0], one.size + two.size
    padded, pieces = _ops.padded(size), -(-size // MERGE_TILE)
    splits = one.position.new_empty((h, pieces + 1), dtype=torch.int64)
    position = one.position.new_empty((h, padded))
    entry = one.position.new_empty((h, padded // _ops.WORD * 2 if words else padded), dtype=torch.int32)
    lengths = one.position.shape[1], two.position.shape[1]
    steps = max(one.size, two.size).bit_length() + 1
    arguments = [one.position, two.position, splits, one.size, two.size, *lengths, pieces, steps]
    constants = {"TILE": MERGE_TILE, "LANES": 128}
    _launch(_order().split_kernel, (-(-(pieces + 1) // 128), h), arguments, constants, 4)
    arguments = [one.position, two.position, one.entry, two.entry, splits, position, entry]
    arguments += [one.size, two.size, *lengths, padded, pieces, MERGE_TILE.bit_length()]
    constants = {"WORDS": words, "TILE": MERGE_TILE}
    _launch(_order().merge_kernel, (-(-padded // MERGE_TILE), h), arguments, constants, 4)
    return Run(position, entry, size)


def scan(
    x: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    target_index: Tensor,
    target_values: Tensor,
    source_index: Tensor,
    source_values: Tensor,
    *,
    odd: bool,
) -> tuple[Tensor, Tensor]:
    """(E x, S x) for K(target, source): x (*X, k) -> (*X, n), and the second (*X, 0) unless ``odd``."""
    order = target_index, target_values, source_index, source_values
    n = target.shape[-1]
    even, odd_part = _ops.empty_even(x, n, "triton"), _ops.empty_odd(x, n if odd else 0)
    _run(x, target, source, tau, order, even, odd_part if odd else None, None)
    return even, odd_part


def pullback(
    g: Tensor,
    x: Tensor,
    odd_x: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    target_index: Tensor,
    target_values: Tensor,
    source_index: Tensor,
    source_values: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """x_bar, t_bar, s_bar for the cotangent g of E x, in one swapped scan; t_bar is (*H, 0) without ``odd_x``."""
    order = source_index, source_values, target_index, target_values
    x_bar = _ops.empty_even(x, x.shape[-1], "triton")
    s_bar = _run(g, source, target, tau, order, x_bar, None, x).to(source.dtype).view(source.shape)
    t_bar = target.new_empty((*target.shape[:-1], odd_x.shape[-1]))
    if odd_x.shape[-1] > 0:
        _row_dot(g, odd_x, tau, t_bar)
    return x_bar, t_bar, s_bar


def _row_dot(g: Tensor, odd_x: Tensor, tau: Tensor, t_bar: Tensor) -> None:
    """t_bar = 1/tau sum over rows of g * odd_x."""
    g, odd_x = flat_rows(g, tau), flat_rows(odd_x, tau)
    h, m, n = g.shape
    width = 512
    arguments = [g, odd_x, tau, t_bar, m, n, *g.stride(), *odd_x.stride()]
    _launch(_kernels().row_dot_kernel, (-(-n // width), h), arguments, {"WIDTH": width, "ROWS": min(8, _power(m))}, 4)


def tiling(merged: int, m: int, h: int) -> tuple[int, int, int]:
    """Points of the merged order, rows of x, and warps of a program: fixed by the sizes, never tuned at run time."""
    rows = 1
    tile = 2048
    while tile > 512 and -(-merged // tile) * -(-m // rows) * h < 256:  # few programs: smaller ones
        tile //= 2
    return tile, rows, max(1, tile // 512)


def _power(size: int) -> int:
    """The smallest power of two that is no smaller."""
    return 1 << max(size - 1, 0).bit_length()


def _run(
    x: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    order: _ops.Planned,
    even: Tensor,
    odd: Tensor | None,
    weights: Tensor | None,
) -> Tensor:
    """Fill even and odd; with weights return 1/tau sum over rows of weights * odd instead, (h, n)."""
    kernels = _kernels()
    rows, out = flat_rows(x, tau), flat_rows(even, tau)
    (h, m, k), n = rows.shape, out.shape[-1]
    merged, padded = n + k, _ops.padded(n + k)
    first = order[0].shape[-1] > 0  # the rows hold the plan, and come first at ties
    entry, position = order[:2] if first else order[2:]
    in_order = entry.shape[-1] < padded
    tile, rows_each, warps = tiling(merged, m, h)
    tiles, row_blocks = -(-merged // tile), -(-m // rows_each)
    layout = {"FIRST": first, "IN_ORDER": in_order, "WIDE": padded >= 2**31, "TILE": tile}
    checked = position.shape[-1] == 0
    faults = position
    if checked:
        position = target.new_empty((h, 1, padded))
        faults = target.new_empty((h, tiles), dtype=torch.float64)
        arguments = [target.contiguous(), source.contiguous(), entry, position, faults, merged, padded, n, k, tiles]
        _launch(kernels.refresh_kernel, (tiles, h), arguments, layout, 4)
    wants_odd = odd is not None or weights is not None
    exact = x.dtype == torch.float64
    precise = exact or wants_odd or tiles < PRECISE_TILES
    flags = {
        "EXACT": exact,
        "SUM": kernels.tl.float64 if precise else kernels.tl.float32,
        "ODD": wants_odd,
    }
    ends = x.new_empty((h, 2, tiles), dtype=torch.float64)
    totals = x.new_empty((3 if wants_odd else 2, h, m, tiles), dtype=torch.float64)
    merged_x = rows if in_order else x.new_empty((h, m, padded))
    grid = tiles, row_blocks, h
    arguments = [rows, merged_x, tau, entry, position, faults, ends, totals, m, merged, padded, tiles, *rows.stride()]
    constants = flags | {"FIRST": first, "IN_ORDER": in_order, "CHECKED": checked}
    constants |= {"WIDE": layout["WIDE"], "TILE": tile, "ROWS": rows_each}
    _launch(kernels.reduce_kernel, grid, arguments, constants, warps)
    carries = _carry(ends, totals, tau, first)
    pull = even if weights is None else x.new_empty((h, row_blocks, n), dtype=torch.float64)
    other = flat_rows(weights if odd is None else odd, tau) if wants_odd else out  # type: ignore[arg-type]
    arguments = [merged_x, other, tau, entry, position, ends, totals, carries, out, pull]
    arguments += [m, n, merged, padded, tiles, *merged_x.stride(), *out.stride(), *other.stride()]
    constants = flags | {"PULL": weights is not None, "FIRST": first, "IN_ORDER": in_order}
    constants |= {"WIDE": layout["WIDE"], "TILE": tile, "ROWS": rows_each}
    _launch(kernels.scan_kernel, grid, arguments, constants, warps)
    return pull.sum(1) if weights is not None else even


def _carry(ends: Tensor, totals: Tensor, tau: Tensor, first: bool) -> Tensor:
    """What lies left and right of every tile."""
    kernels = _kernels()
    channels, h, m, tiles = totals.shape
    odd = channels == 3
    carries = totals.new_empty((channels + 2, h, m, tiles))
    group, groups = min(max(64, _power(tiles)), CARRIED_AT_ONCE), -(-tiles // CARRIED_AT_ONCE)
    group_ends, group_totals = ends, totals
    flags = {"ODD": odd, "FIRST": first, "GROUP": group}
    warps = max(group // 32, 1)  # a tile a thread: the scan over them is one long chain
    if groups > 1:
        group_ends, group_totals = ends.new_empty((h, 2, groups)), totals.new_empty((channels, h, m, groups))
        arguments = [ends, totals, tau, group_ends, group_totals, m, tiles, groups]
        _launch(kernels.group_kernel, (groups, m, h), arguments, flags, warps)
    arguments = [ends, totals, tau, group_ends, group_totals, carries, m, tiles, groups]
    _launch(kernels.carry_kernel, (groups, m, h), arguments, flags | {"GROUPS": _power(groups)}, warps)
    return carries

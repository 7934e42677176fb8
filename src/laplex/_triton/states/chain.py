"""The three recursions of a chain of few states: the same functions as in ``laplex._states.cpp``."""

from __future__ import annotations

import torch
from torch import Tensor

from laplex._triton import tuning
from laplex._triton.states.carry import ROUNDS, launch_lanes, map_fields, spread, state_fields, total
from laplex._triton.states.programs_chain import factor_program, scan_program


def scan(steps: Tensor, source: Tensor, reverse: bool) -> Tensor:
    """f_n = T_n f_{n-1} + u_n, or in reverse f_n = T_{n+1}^T f_{n+1} + u_n; source and result (h, n, s, m)."""
    return _scanned(steps.contiguous(), source.contiguous(), reverse, matrices=False)


def scan_matrices(steps: Tensor, source: Tensor, reverse: bool) -> Tensor:
    """Z_n = T_n Z_{n-1} T_n^T + X_n, or in reverse Z_n = T_{n+1}^T Z_{n+1} T_{n+1} + X_n; X (h, n, s, s) symmetric."""
    return _scanned(steps.contiguous(), source.contiguous(), reverse, matrices=True)


def factor(steps: Tensor, p: Tensor, q: Tensor, diag: Tensor) -> tuple[Tensor, Tensor]:
    """S (h, n, s, s) before every point, and for every series the first point without a positive pivot, or -1."""
    tensors = tuple(part.contiguous() for part in (steps, p, q, diag))
    h, n, s = p.shape
    states = torch.empty_like(tensors[0])
    if states.numel() == 0:
        return states, steps.new_full((h,), -1, dtype=torch.int64)
    chunk = tuning.STATE_CHUNK
    chunks = -(-n // chunk)
    lanes, sizes = h * chunks, {"n": n, "chunks": chunks, "SIZE": s, "CHUNK": chunk}
    entries, maps = (states.new_empty(fields(s), lanes) for fields in (state_fields, map_fields))
    failures = states.new_empty(1, lanes)
    given = *tensors, entries, maps, states, failures
    for number in range(ROUNDS):
        launch_lanes(factor_program, lanes, given, START=number == 0, MAPS=True, **sizes)
        spread(maps, entries, s, h, add=True)
    launch_lanes(factor_program, lanes, given, START=False, MAPS=False, **sizes)
    return states, total(failures, h, smallest=0)[0].long()


def _scanned(steps: Tensor, source: Tensor, reverse: bool, *, matrices: bool) -> Tensor:
    h, n, s, columns = source.shape
    result = torch.empty_like(source)
    if result.numel() == 0:
        return result
    chunk, lines = tuning.STATE_CHUNK, h if matrices else h * columns
    chunks = -(-n // chunk)
    lanes = lines * chunks
    sizes = {"n": n, "columns": 1 if matrices else columns, "chunks": chunks, "SIZE": s, "CHUNK": chunk}
    flags = {"MATRICES": matrices, "REVERSE": reverse}
    entries, maps = (result.new_empty(fields(s), lanes) for fields in (state_fields, map_fields))
    given = steps, source, entries, maps, result
    if chunks > 1:
        launch_lanes(scan_program, lanes, given, MAPS=True, **sizes, **flags)
        spread(maps, entries, s, lines, add=False)
    else:
        entries.zero_()
    launch_lanes(scan_program, lanes, given, MAPS=False, **sizes, **flags)
    return result

"""The product where neither side fits into memory: bucket by bucket.

rows       a is read, and written grouped by bucket, with a label for every row
columns    b and x are read, and written likewise; each bucket's sources are summed as the others see them (``_sums``)
products   each bucket is multiplied in memory, with two extra sources that stand for all other buckets
output     results are read in the caller's order, by the labels, and written
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from laplex._progress import Progress
from laplex.disk import _borders
from laplex.disk._borders import Borders, Sample
from laplex.disk._files import WHERE, Scratch
from laplex.disk._grouping import Runs, counts_of, distribute_columns, distribute_rows, grouped, sums_of_columns, totals
from laplex.disk._multiply import multiply
from laplex.disk._output import Output
from laplex.disk._problem import Problem, blocks, span
from laplex.disk._sums import at_border, ghosts
from laplex.disk._workspace import Workspace

STEPS = ("rows", "columns", "products", "output")
SAMPLE = 1 << 18  # anchors sampled from a bucket that is too large, to choose more borders
PIECE = 1 << 20  # results that are written at a time if there are several rows of x


def begin(problem: Problem, workspace: Workspace) -> None:
    """Choose the first borders."""
    sides = {"a": problem.a, "b": problem.b}
    samples = [_borders.sample(side, name, problem.memory) for name, side in sides.items()]
    _restart(problem, _borders.chosen(samples, problem.capacity), workspace)


def run(problem: Problem, workspace: Workspace, output: Output, progress: Progress) -> None:
    """Continue from where the workspace is, up to the last number of the output."""
    borders = _borders_of(problem, workspace)
    while workspace.step != "output":
        more = _multiplied(problem, borders, workspace, progress)
        if more is None:
            workspace.enter("output", ("a", "b", "x", "phi", "psi", "sums", "column_counts"))
        else:
            _restart(problem, more, workspace)
            borders = Borders(more)
    _write_output(problem, borders, workspace, output, progress)


def _multiplied(
    problem: Problem, borders: Borders, workspace: Workspace, progress: Progress
) -> np.ndarray[Any, Any] | None:
    """Run the steps up to the products. Returns more borders if these are not enough, else None."""
    row_counts = distribute_rows(problem, borders, workspace, progress)
    rows = Runs(row_counts, ~borders.single)
    more = _split(problem, borders, workspace, {"a": rows})
    if more is not None:
        return more
    wanted = ~borders.single & (row_counts.sum(0) > 0)
    columns = Runs(distribute_columns(problem, borders, wanted, workspace, progress), wanted)
    more = _split(problem, borders, workspace, {"a": rows, "b": columns})
    if more is None:
        _multiply_buckets(problem, borders, workspace, (row_counts, rows, columns), progress)
    return more


def _split(
    problem: Problem, borders: Borders, workspace: Workspace, sides: dict[str, Runs]
) -> np.ndarray[Any, Any] | None:
    """More borders if a bucket of several values, which the sample missed, is larger than the memory; else None."""
    sizes = np.sum([side.counts.sum(0) for side in sides.values()], 0)
    chosen = [borders.values]
    for bucket in np.flatnonzero((sizes > problem.capacity) & ~borders.single).tolist():
        samples = [
            _sampled(side, workspace.scratch(name, problem.a.dtype), bucket, problem.a.dtype)
            for name, side in sides.items()
        ]
        chosen.append(_borders.chosen(samples, problem.capacity))
    return np.unique(np.concatenate(chosen)) if len(chosen) > 1 else None


def _sampled(side: Runs, scratch: Scratch, bucket: int, dtype: Any) -> Sample:
    """A sample of a bucket: every step-th anchor."""
    total = int(side.counts[:, bucket].sum())
    step = max(1, total // SAMPLE)
    parts = [np.empty(0, dtype)]
    for start, count in side.pieces(bucket):
        run = np.empty(count, dtype)
        scratch.read(run, start)
        parts.append(run[::step] + run.dtype.type(0))
    return Sample(np.concatenate(parts), total)


def _restart(problem: Problem, borders: np.ndarray[Any, Any], workspace: Workspace) -> None:
    if len(borders) + 1 > _borders.MOST_BUCKETS:
        raise ValueError(
            f"{WHERE}: `memory` must be larger for as many anchors: {problem.memory} bytes would need "
            f"{len(borders) + 1} buckets, and there are at most {_borders.MOST_BUCKETS}"
        )
    workspace.begin({"borders": base64.b64encode(borders.tobytes()).decode()})


def _borders_of(problem: Problem, workspace: Workspace) -> Borders:
    assert workspace.layout is not None
    return Borders(np.frombuffer(base64.b64decode(workspace.layout["borders"]), problem.a.dtype))


# --- products ---------------------------------------------------------------------------------------------------------


def _multiply_buckets(
    problem: Problem,
    borders: Borders,
    workspace: Workspace,
    tables: tuple[np.ndarray[Any, Any], Runs, Runs],
    progress: Progress,
) -> None:
    """Write the results of every bucket, one bucket after another."""
    row_counts, rows, columns = tables
    ahead, behind = sums_of_columns(problem, borders, workspace).values
    left, right = ghosts(ahead, behind, borders, problem.tau)
    results = workspace.scratch("y", problem.x.dtype)
    every_row = Runs(row_counts, np.ones(borders.buckets, bool))
    ends = row_counts.sum(0).cumsum()
    for bucket in workspace.items("products", totals(problem, borders), (results,), progress):
        count = int(row_counts[:, bucket].sum())
        place = int(ends[bucket]) - count
        phi = _bucket_numbers(workspace, "phi", problem.phi, every_row, bucket)
        if borders.single[bucket]:
            channel_sums = left[bucket] + behind[bucket] + at_border(right[bucket], borders, bucket, problem.tau)
            _write_single(results, channel_sums, phi, (count, problem.x.m), place)
        elif count:
            operand = _operand(problem, borders, workspace, columns, bucket, (left[bucket], right[bucket]))
            a = _bucket_numbers(workspace, "a", problem.a, rows, bucket)
            _write_rows(results, multiply(operand[0], a, operand[1], problem.tau, (phi, operand[2])), place)
            del operand, a  # before the next bucket is read


def _bucket_numbers(workspace: Workspace, name: str, side: Any, runs: Runs, bucket: int) -> Any:
    """The numbers (count,) in a file that belong to a bucket; None if there is no such argument."""
    if side is None:
        return None
    numbers = np.empty(int(runs.counts[:, bucket].sum()), side.dtype)
    runs.read(workspace.scratch(name, side.dtype), bucket, numbers)
    return numbers


def _operand(
    problem: Problem, borders: Borders, workspace: Workspace, columns: Runs, bucket: int, sums: tuple[Any, Any]
) -> tuple[Any, Any, Any]:
    """x (m, count), b and psi (count,) of a bucket's sources and of the sources that stand for all others.

    C cos(phi) + S sin(phi) comes from two sources, with phases 0 and pi / 2; psi has at least the precision of x.
    """
    channels = [0.0] if problem.psi is None else [0.0, np.pi / 2]
    extra = [
        (border, channel, phase)
        for border, side in ((borders.left(bucket), sums[0]), (borders.right(bucket), sums[1]))
        for channel, phase in zip(side.reshape(len(channels), -1), channels, strict=True)
        if border is not None
    ]
    count = int(columns.counts[:, bucket].sum())
    x = np.empty((problem.x.m, count + len(extra)), problem.x.dtype)
    b = np.empty(count + len(extra), problem.b.dtype)
    columns.read(workspace.scratch("x", x.dtype), bucket, x)
    columns.read(workspace.scratch("b", b.dtype), bucket, b)
    psi = _bucket_numbers(workspace, "psi", problem.psi, columns, bucket)
    if psi is not None:
        psi = np.append(psi, np.zeros(len(extra), np.promote_types(psi.dtype, x.dtype)))
    for place, (border, channel, phase) in enumerate(extra, count):
        b[place], x[:, place] = border, channel
        if psi is not None:
            psi[place] = phase
    return x, b, psi


def _write_rows(results: Scratch, y: np.ndarray[Any, Any], place: int) -> None:
    """Write y (m, count) as (count, m)."""
    m, count = y.shape
    step = count if m == 1 else PIECE // max(m, 1) + 1
    for first in range(0, count, max(step, 1)):
        results.write(y[:, first : first + step].T, (place + first) * m)


def _write_single(results: Scratch, channel_sums: Any, phi: Any, shape: tuple[int, int], place: int) -> None:
    """Write the results (count, m) of a bucket of one value, given the sums (channels,) that all its rows see."""
    count, m = shape
    step = PIECE // max(m, 1) + 1
    for first in range(0, count, step):
        size = min(step, count - first)
        if phi is None:
            y = np.broadcast_to(channel_sums[:, None], (m, size))
        else:
            angle = phi[first : first + size].astype(np.float64)
            y = channel_sums[:m, None] * np.cos(angle) + channel_sums[m:, None] * np.sin(angle)
        _write_rows(results, y, place + first)


# --- output -----------------------------------------------------------------------------------------------------------


def _write_output(problem: Problem, borders: Borders, workspace: Workspace, output: Output, progress: Progress) -> None:
    """Write results in the caller's order."""
    size, block, m = problem.a.size, problem.block, problem.x.m
    number = blocks(size, block)
    runs = Runs(counts_of(workspace, "row_counts", number, borders), np.ones(borders.buckets, bool), by_bucket=True)
    results, labels = workspace.scratch("y", problem.x.dtype), workspace.scratch("labels", borders.label_dtype)
    for item in workspace.items("output", totals(problem, borders), (output,), progress):
        first, last = span(block, item, size)
        part = np.empty(last - first, borders.label_dtype)
        labels.read(part, first)
        order, _ = grouped(part, borders.buckets)
        y = np.empty((last - first, m), problem.x.dtype)
        place = 0
        for start, count in zip(runs.starts[item].tolist(), runs.counts[item].tolist(), strict=True):
            results.read(y[place : place + count], start * m)
            place += count
        in_order = np.empty((m, last - first), y.dtype)
        for row in range(m):
            in_order[row, order] = y[:, row]
        output.write(in_order, first)

"""Blocks of anchors grouped by bucket, and where the anchors of a bucket are.

A block is sorted by bucket, stably, and appended to the file of its array. So each file is written in sequence, and the
anchors of bucket j are one run in every block, in the caller's order. A table (blocks, buckets) of the runs' lengths is
all it takes to find them. No index is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from laplex._progress import Progress
from laplex.disk._borders import Borders
from laplex.disk._files import Scratch
from laplex.disk._problem import Problem, blocks, span
from laplex.disk._running import RunningSum
from laplex.disk._sums import decayed
from laplex.disk._workspace import Workspace


class Runs:
    """Where the anchors of each bucket are in a file.

    Args:
        counts: how many anchors every block has in every bucket, (blocks, buckets).
        stored: whether a bucket is in the file, (buckets,).
        by_bucket: whether the file goes bucket by bucket, rather than block by block.
    """

    def __init__(self, counts: np.ndarray[Any, Any], stored: np.ndarray[Any, Any], *, by_bucket: bool = False) -> None:
        self.counts = np.where(stored, counts, 0)
        across = self.counts.T if by_bucket else self.counts
        starts = (across.cumsum() - across.reshape(-1)).reshape(across.shape)
        self.starts = starts.T if by_bucket else starts

    def pieces(self, bucket: int) -> Iterator[tuple[int, int]]:
        """The start and the length of every run of a bucket."""
        for start, count in zip(self.starts[:, bucket].tolist(), self.counts[:, bucket].tolist(), strict=True):
            if count:
                yield start, count

    def read(self, scratch: Scratch, bucket: int, out: np.ndarray[Any, Any]) -> None:
        """Fill the beginning of an array (..., count) with a bucket's numbers from a file, (count, ...)."""
        width = out.size // out.shape[-1] if out.shape[-1] else 0
        place = 0
        for start, count in self.pieces(bucket):
            if out.ndim == 1 or width == 1:
                scratch.read(out.reshape(-1)[place : place + count], start)
            else:
                piece = np.empty((count, width), out.dtype)
                scratch.read(piece, start * width)
                out[:, place : place + count] = piece.T
            place += count


def totals(problem: Problem, borders: Borders) -> dict[str, int]:
    """How many items every step has."""
    rows, columns = blocks(problem.a.size, problem.block), blocks(problem.b.size, problem.block)
    return {"rows": rows, "columns": columns, "products": borders.buckets, "output": rows}


def grouped(labels: np.ndarray[Any, Any], buckets: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The stable order of labels (count,), and how often each label occurs, (buckets,)."""
    order = np.argsort(labels, kind="stable")
    ends = np.searchsorted(labels[order], np.arange(buckets + 1, dtype=labels.dtype))
    return order, np.diff(ends)


def distribute_rows(
    problem: Problem, borders: Borders, workspace: Workspace, progress: Progress
) -> np.ndarray[Any, Any]:
    """Write the rows grouped by bucket, and return counts (blocks, buckets)."""
    size, block, table = problem.a.size, problem.block, _table(workspace, "row_counts")
    labels = workspace.scratch("labels", borders.label_dtype)
    anchors = workspace.scratch("a", problem.a.dtype)
    files = (table, labels, anchors, *((_phases(workspace, problem),) if problem.phi else ()))
    stored = ~borders.single  # a bucket of one value needs no values
    place = _anchors_before(workspace, "rows", table, blocks(size, block), stored)
    for item in workspace.items("rows", totals(problem, borders), files, progress):
        first, last = span(block, item, size)
        a = problem.a.read(first, last, ahead=block)[0]
        buckets = borders.labels(a, "a")
        order, counts = grouped(buckets, borders.buckets)
        table.write(counts, item * borders.buckets)
        labels.write(buckets, first)
        stored_order = order if stored.all() else order[stored[buckets[order]]]
        anchors.write(a[stored_order], place)
        if problem.phi is not None:
            files[-1].write(problem.phi.read(first, last, ahead=block)[0][order], first)
        place += len(stored_order)
    return counts_of(workspace, "row_counts", blocks(size, block), borders)


def distribute_columns(
    problem: Problem, borders: Borders, stored: np.ndarray[Any, Any], workspace: Workspace, progress: Progress
) -> np.ndarray[Any, Any]:
    """Write the columns of stored buckets grouped by bucket, and the sums of all buckets.

    Returns counts (blocks, buckets). The sums are (2, buckets, channels): ``ahead`` and ``behind`` of ``_sums``.
    """
    size, block, m = problem.b.size, problem.block, problem.x.m
    table, sums = _table(workspace, "column_counts"), sums_of_columns(problem, borders, workspace)
    anchors, x_file = workspace.scratch("b", problem.b.dtype), workspace.scratch("x", problem.x.dtype)
    psi_file = workspace.scratch("psi", problem.psi.dtype) if problem.psi else None
    files = (table, sums.scratch, anchors, x_file, *((psi_file,) if psi_file else ()))
    place = _anchors_before(workspace, "columns", table, blocks(size, block), stored)
    for item in workspace.items("columns", totals(problem, borders), files, progress):
        first, last = span(block, item, size)
        b = problem.b.read(first, last, ahead=block)[0]
        order, counts = grouped(borders.labels(b, "b"), borders.buckets)
        b, x = b[order], problem.x.read(first, last, ahead=block)
        x = np.stack([row[order] for row in x]) if m else x
        psi = problem.psi.read(first, last, ahead=block)[0][order] if problem.psi else None
        table.write(counts, item * borders.buckets)
        sums.values += block_sums(problem, borders, counts, b, x, psi)
        sums.save(item)
        choice = slice(None) if stored.all() else np.flatnonzero(np.repeat(stored, counts))
        anchors.write(b[choice], place)
        x_file.write(x[0, choice] if m == 1 else x[:, choice].T, place * m)
        if psi_file is not None and psi is not None:
            psi_file.write(psi[choice], place)
        place += int(counts[stored].sum())
    return counts_of(workspace, "column_counts", blocks(size, block), borders)


def block_sums(
    problem: Problem,
    borders: Borders,
    counts: np.ndarray[Any, Any],
    b: np.ndarray[Any, Any],
    x: np.ndarray[Any, Any],
    psi: np.ndarray[Any, Any] | None,
) -> np.ndarray[Any, Any]:
    """The sums (2, buckets, channels) of one block, whose columns are grouped by bucket."""
    part = np.zeros((2, borders.buckets, problem.channels))
    first = 0
    for bucket, count in enumerate(counts.tolist()):
        run = slice(first, first + count)
        for side, border in enumerate((borders.right(bucket), borders.left(bucket)) if count else ()):
            if border is not None:
                part[side, bucket] = decayed(b[run], x[:, run], psi if psi is None else psi[run], border, problem.tau)
        first += count
    return part


def counts_of(workspace: Workspace, name: str, number: int, borders: Borders) -> np.ndarray[Any, Any]:
    """The table of a side: how many anchors every block has in every bucket."""
    counts = np.empty((number, borders.buckets), np.int64)
    table = _table(workspace, name)
    table.read(counts, 0)
    return counts


def sums_of_columns(problem: Problem, borders: Borders, workspace: Workspace) -> RunningSum:
    """The sums (2, buckets, channels) of all blocks of columns so far."""
    shape = (2, borders.buckets, problem.channels)
    return RunningSum(workspace, "columns", blocks(problem.b.size, problem.block), shape)


def _anchors_before(workspace: Workspace, step: str, table: Scratch, total: int, stored: np.ndarray[Any, Any]) -> int:
    """How many anchors the complete blocks of a step have written to its files."""
    counts = np.empty((workspace.done(step, total), len(stored)), np.int64)
    table.read(counts, 0)
    return int(counts[:, stored].sum())


def _table(workspace: Workspace, name: str) -> Scratch:
    return workspace.scratch(name, np.int64)


def _phases(workspace: Workspace, problem: Problem) -> Scratch:
    assert problem.phi is not None
    return workspace.scratch("phi", problem.phi.dtype)

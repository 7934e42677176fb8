"""The product if one side fits into memory: the other is read once, in sequence, and nothing else is written.

by rows       the columns stay in memory; every block of rows gives its results
by columns    the rows stay in memory, with their results in float64, to which every block of columns adds
"""

from __future__ import annotations

from typing import Any

import numpy as np

from laplex._progress import Progress
from laplex.disk._borders import finite
from laplex.disk._multiply import multiply
from laplex.disk._output import Output
from laplex.disk._problem import CHANNELS, MOST_BLOCK, Problem, blocks, span
from laplex.disk._running import RunningSum
from laplex.disk._workspace import Workspace

STEPS = {"by rows": ("output",), "by columns": ("columns", "output")}
SHARE = 2  # the side that stays in memory takes at most 1 / SHARE of it
SAVED = 8  # the sums are saved each time SAVED times their size was read, so that saving costs little


def fits(problem: Problem) -> str | None:
    """The strategy, "by rows" or "by columns", in which one side stays in memory; None if neither fits."""
    if problem.b.size <= problem.capacity // SHARE:
        return "by rows"
    return "by columns" if problem.a.size <= _wide_capacity(problem) // SHARE else None


def run_by_rows(problem: Problem, workspace: Workspace, output: Output, progress: Progress) -> None:
    b, x = finite(problem.b.read(0, problem.b.size)[0], "b"), problem.x.read(0, problem.x.size)
    psi = problem.psi.read(0, problem.psi.size)[0] if problem.psi else None
    block = min(MOST_BLOCK, problem.capacity - problem.b.size)
    number = blocks(problem.a.size, block)
    for item in workspace.items("output", {"output": number}, (output,), progress):
        first, last = span(block, item, problem.a.size)
        a = finite(problem.a.read(first, last, ahead=block)[0], "a")
        phi = problem.phi.read(first, last, ahead=block)[0] if problem.phi else None
        output.write(multiply(x, a, b, problem.tau, (phi, psi)), first)


def run_by_columns(problem: Problem, workspace: Workspace, output: Output, progress: Progress) -> None:
    a = finite(problem.a.read(0, problem.a.size)[0], "a")
    phi = problem.phi.read(0, problem.phi.size)[0] if problem.phi else None
    block = min(MOST_BLOCK, _wide_capacity(problem) - len(a))
    parts = _parts(problem, block)
    totals = {"columns": len(parts), "output": 1}
    y = RunningSum(workspace, "columns", len(parts), (problem.x.m, len(a)))
    for item in workspace.items("columns", totals, (y.scratch,), progress):
        for first in range(*parts[item], block):
            y.values += _part(problem, a, phi, (first, min(first + block, parts[item][1])))
        y.save(item)
    for _ in workspace.items("output", totals, (output,), progress):
        output.write(y.values.astype(problem.x.dtype), 0)


def _part(problem: Problem, a: np.ndarray[Any, Any], phi: Any, columns: tuple[int, int]) -> np.ndarray[Any, Any]:
    """The product with one block of columns, in float64."""
    ahead = columns[1] - columns[0]
    b = finite(problem.b.read(*columns, ahead=ahead)[0], "b")
    x = problem.x.read(*columns, ahead=ahead)
    psi = problem.psi.read(*columns, ahead=ahead)[0] if problem.psi else None
    return multiply(x.astype(np.float64), a, b, problem.tau, (phi, psi))


def _parts(problem: Problem, block: int) -> list[tuple[int, int]]:
    """The columns [first, last) of each item, after which the sums are saved."""
    read = problem.b.dtype.itemsize + problem.x.m * problem.x.dtype.itemsize
    size = blocks(SAVED * problem.a.size * problem.x.m * 8, read * block) * block or block
    return [span(size, item, problem.b.size) for item in range(blocks(problem.b.size, size))]


def _wide_capacity(problem: Problem) -> int:
    """The capacity if x and y are in float64."""
    wide = problem.anchor_bytes + problem.channels * CHANNELS * (8 - problem.x.dtype.itemsize)
    return problem.capacity * problem.anchor_bytes // wide

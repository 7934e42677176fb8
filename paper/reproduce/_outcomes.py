"""Outcomes of all entries, from the results in folders."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from pathlib import Path

from paper.entry import Entry, Outcome
from paper.reproduce import _judge_accuracy as accuracy
from paper.reproduce import _judge_batches as batches
from paper.reproduce import _judge_density as density
from paper.reproduce import _judge_heads as heads
from paper.reproduce import _judge_projections as projections
from paper.reproduce import _judge_rff as rff
from paper.reproduce import _judge_sizes as sizes
from paper.reproduce._entries import ENTRIES, NAMES
from paper.results import Shelf, shown

JUDGES: dict[str, Callable[[Entry, Shelf], Outcome]] = {
    "runtime": sizes.runtime,
    "batch8": batches.batch8,
    "batch8-against-dense": batches.batch8_against_dense,
    "batch-scaling": batches.batches,
    "asymmetric": batches.asymmetric,
    "fft": sizes.fft,
    "cpu": sizes.cpu,
    "cpu-fft": sizes.cpu_fft,
    "gram": batches.gram,
    "accuracy": accuracy.accuracy,
    "toeplitz-accuracy": accuracy.grid,
    "rounding": accuracy.rounding,
    "differentiability": accuracy.differentiability,
    "rff-value": rff.values,
    "rff-gradient": rff.gradients,
    "theorem-1": accuracy.theorem,
    "full-rank": accuracy.full_rank,
    "projection-frozen": projections.frozen,
    "projection-trained": projections.trained,
    "heads": heads.heads,
    "heads-recipe": heads.recipe,
    "heads-curves": heads.curves,
    "density": density.density,
    "density-adam": density.by_adam,
    "density-samples": density.samples,
    "density-reconstructions": density.reconstructions,
    "density-photographs": density.photographs,
}


def outcomes(folders: list[Path], names: Collection[str] = NAMES) -> list[Outcome]:
    """What came of the entries, in their order. One whose results cannot be read is "not run", and says why.

    Args:
        folders: with results; those of a later folder replace those of an earlier one on the same device.
        names: of the entries.
    """
    return [_outcome(entry, Shelf(folders)) for entry in ENTRIES if entry.name in names]


def _outcome(entry: Entry, shelf: Shelf) -> Outcome:
    try:
        found = JUDGES[entry.name](entry, shelf)
        _refuse_numbers(found)
        _refuse_cells(found)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        files = list(dict.fromkeys(map(shown, shelf.opened)))
        what = f"{type(error).__name__}: {error}"
        reason = f"Its results cannot be read ({what}), from {', '.join(files)}; move the damaged file away."
        return Outcome(entry, "not run", reason, files=files, damage=what)
    return found


def _refuse_numbers(found: Outcome) -> None:
    """Raise ValueError where a figure is no finite number: no verdict can rest on it."""
    for one in found.figures:
        if one.ours is not None and not math.isfinite(one.ours):
            raise ValueError(f"{one.label}: {one.ours}")


def _refuse_cells(found: Outcome) -> None:
    """Raise TypeError where a cell of a table is no text: results that hold something else are damaged."""
    for one in found.tables:
        for cell in (cell for row in one.rows for cell in row):
            if not isinstance(cell, str):
                raise TypeError(f"{one.title}: a cell must be text, got {cell!r}")

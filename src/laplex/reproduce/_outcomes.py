"""Outcomes of all entries, from the results in folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from laplex.reproduce import _judge_accuracy as accuracy
from laplex.reproduce import _judge_batches as batches
from laplex.reproduce import _judge_density as density
from laplex.reproduce import _judge_heads as heads
from laplex.reproduce import _judge_projections as projections
from laplex.reproduce import _judge_rff as rff
from laplex.reproduce import _judge_sizes as sizes
from laplex.reproduce._entries import ENTRIES
from laplex.reproduce._outcome import Entry, Outcome
from laplex.reproduce._stored import Shelf

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
    "heads-curves": heads.curves,
    "density": density.density,
    "density-samples": density.samples,
    "density-reconstructions": density.reconstructions,
    "density-photographs": density.photographs,
}


def outcomes(folders: list[Path]) -> list[Outcome]:
    """What came of every entry, in the order of the entries.

    Args:
        folders: with results; those of a later folder replace those of an earlier one on the same device.

    Raises:
        ValueError: a file of results cannot be read; the message names it.
    """
    shelf = Shelf(folders)
    return [JUDGES[entry.name](entry, shelf) for entry in ENTRIES]

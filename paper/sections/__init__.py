"""The entries, one file per section of the paper: its figures, what is measured, how it is judged, and the entries.

Figures and tables have the numbers that a reader of the paper sees. ``networks`` is an addition, not in the paper.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from paper.entry import Entry, Outcome
from paper.judging import evaluate
from paper.results import Archive
from paper.sections import (
    accuracy,
    curves,
    density,
    features,
    fft,
    gradients,
    gram,
    heads,
    networks,
    operator,
    projections,
    theory,
)

_SECTIONS = (
    operator, fft, gram, accuracy, gradients, features, theory, projections, heads, curves, density, networks
)  # fmt: skip
ENTRIES: tuple[Entry, ...] = tuple(entry for section in _SECTIONS for entry in section.ENTRIES)
NAMES = tuple(entry.name for entry in ENTRIES)
LABELS_WITHOUT = {  # figures and tables that have no entry, and why
    "Figure 2": "a drawing of the theorem; the entry theorem-1 checks what it says",
    "Figure 7": "a drawing of the Gram matrix; the entry gram measures it",
    "Table 5": "settings, no results; the entry heads-recipe uses them",
}


def outcomes(folders: Sequence[Path], names: Collection[str] = NAMES) -> list[Outcome]:
    """What came of the entries, in their order. One whose results cannot be read is "not run", and says why.

    Args:
        folders: with results; those of a later folder replace those of an earlier one on the same device.
        names: of the entries.
    """
    return [evaluate(entry, Archive(folders)) for entry in ENTRIES if entry.name in names]

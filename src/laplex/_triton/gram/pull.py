"""Transitional: ``pullback`` with the parameters that it had here. Delete this file when no importer is left."""

from __future__ import annotations

from torch import Tensor

from laplex._triton.gram.launch import Bars, Columns, Sums
from laplex._triton.gram.launch import pullback as _pullback
from laplex._triton.gram.programs_pull import FIELDS as FIELDS
from laplex._triton.gram.programs_pull import FIELDS_TO_TAU as FIELDS_TO_TAU
from laplex._triton.gram.programs_pull import gram_source_program as gram_source_program
from laplex._triton.gram.programs_pull import gram_table_program as gram_table_program


def pullback(
    g: Tensor,
    sums: Tensor,
    direction: Tensor,
    weight: Tensor,
    phase: tuple[Tensor, ...],
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    need: tuple[bool, ...],
) -> Bars:
    """``launch.pullback``."""
    return _pullback(g, Sums(sums, direction), Columns(weight, phase), target, source, tau, need)

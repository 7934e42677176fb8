"""Transitional: ``gram`` with the parameters that it had here. Delete this file when no importer is left."""

from __future__ import annotations

from torch import Tensor

from laplex._scan import ops as _ops
from laplex._triton.gram.launch import Columns
from laplex._triton.gram.launch import gram as _gram
from laplex._triton.gram.programs_sums import gram_carry_program as gram_carry_program
from laplex._triton.gram.programs_sums import gram_reduce_program as gram_reduce_program
from laplex._triton.gram.programs_sums import gram_target_program as gram_target_program
from laplex._triton.launch import launch as launch


def gram(
    weight: Tensor, phase: tuple[Tensor, ...], target: Tensor, source: Tensor, tau: Tensor, order: _ops.Planned
) -> tuple[Tensor, Tensor, Tensor]:
    """``launch.gram``."""
    return _gram(Columns(weight, phase), target, source, tau, order)

"""Launches of Gram matrices."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from laplex._scan.order import Matrix
from laplex._triton.gram import pull as pulls
from laplex._triton.gram import sums
from laplex._triton.gram.matrix import assemble as assemble
from laplex._triton.gram.matrix import pull as pull


def gram(weight: Tensor, phase: tuple[Tensor, ...], matrix: Matrix) -> tuple[Tensor, Tensor, Tensor]:
    return sums.gram(weight, phase, *matrix[:4])


def pullback(
    g: Tensor, made: tuple[Tensor, Tensor], weight: Tensor, phase: tuple[Tensor, ...], matrix: Matrix, need: Any
) -> tuple[Tensor, ...]:
    weight_bar, t_bar, s_bar, tau_bar, phi_bar, psi_bar = pulls.pullback(g, *made, weight, phase, *matrix[:3], need)
    phi_bar = phi_bar.to(phase[0].dtype) if phase else phi_bar
    return weight_bar, t_bar.to(matrix.target.dtype), s_bar, tau_bar, phi_bar, psi_bar

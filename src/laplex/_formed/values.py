"""Checks of values on the CPU. On a GPU faulty values make W NaN."""

from __future__ import annotations

import torch

from laplex import _checks
from laplex._eager import plainly_eager
from laplex._formed.kernels import Kernels


def checked(kernels: Kernels) -> None:
    """Raise where anchors or tau are not what they must be; in a graph or a transform values are not known."""
    if kernels.target.device.type != "cpu" or not plainly_eager():
        return
    for name, anchors in (("a", kernels.target), ("b", kernels.source)):
        if not bool(torch.isfinite(anchors).all()):
            raise ValueError(_checks.not_finite("laplex.linear", name))
    if not bool(_checks.is_length(kernels.tau).all()):
        raise ValueError(_checks.bad_tau("laplex.linear", kernels.tau))

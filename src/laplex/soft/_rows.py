"""What all functions of ``laplex.soft`` do first: rows along a dimension, and tau."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from laplex._eager import plain, plainly_eager


def readable(x: Tensor) -> bool:
    """Whether the values of a tensor can be read: not in a graph or under a transform, and not on a GPU."""
    return plainly_eager() and plain(x) and x.device.type == "cpu"


def rows_along(where: str, x: Any, dim: int, name: str = "x") -> Tensor:
    """x with ``dim`` moved to the end, in float32 or float64."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        got = f"a tensor of {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(
            f"{where}: `{name}` must be a floating-point tensor, got {got}; use torch.as_tensor(x, dtype=...)"
        )
    if x.dim() == 0:
        raise ValueError(f"{where}: `{name}` must have at least one dimension, got a single number")
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"{where}: `dim` must be between {-x.dim()} and {x.dim() - 1}, got {dim}")
    moved = x.movedim(dim, -1)
    if moved.shape[-1] == 0:
        raise ValueError(f"{where}: `{name}` must have at least one number along `dim`, got shape {tuple(x.shape)}")
    if readable(x) and not bool(x.isfinite().all()):
        raise ValueError(f"{where}: `{name}` must be finite, got NaN or infinity; find it with torch.isfinite")
    return moved if x.dtype in (torch.float32, torch.float64) else moved.float()


def softness(where: str, tau: Any, rows: Tensor) -> Tensor:
    """tau as (*batch), in float64, for rows (*batch, n)."""
    batch = rows.shape[:-1]
    if isinstance(tau, str):
        if tau != "auto":
            raise ValueError(f'{where}: `tau` must be a positive number, a tensor or "auto", got {tau!r}')
        return _median_gap(rows.detach()).double()
    if isinstance(tau, bool) or not isinstance(tau, int | float | Tensor):
        raise TypeError(f'{where}: `tau` must be a positive number, a tensor or "auto", got {type(tau).__name__}')
    value = torch.as_tensor(tau, dtype=torch.float64, device=rows.device)
    try:
        value = value.expand(batch)
    except RuntimeError:
        raise ValueError(
            f"{where}: `tau` must be a number, or broadcast to {tuple(batch)}, the shape of `x` without `dim`, got "
            f"{tuple(value.shape)}"
        ) from None
    right = (value > 0) & value.isfinite()
    if readable(value) and not bool(right.all()):
        raise ValueError(f"{where}: `tau` must be positive and finite, got {float(value.detach()[~right][0]):g}")
    return value


def _median_gap(rows: Tensor) -> Tensor:
    """The median distance of neighbours; where that is 0, the mean; where that is 0, too, 1."""
    if rows.shape[-1] < 2:
        return torch.ones_like(rows[..., 0])
    gaps = rows.sort(-1).values.diff(dim=-1)
    median, mean = gaps.median(-1).values, gaps.mean(-1)
    return torch.where(median > 0, median, torch.where(mean > 0, mean, 1.0))

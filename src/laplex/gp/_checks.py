"""Checks of what a Gaussian process is given: the name, what is required, what was passed, and what to do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

WHERE = "laplex.gp.GaussianProcess"


def times(where: str, name: str, t: Any) -> Tensor:
    """Times (*batch, n) in float64; they must be finite where values can be read."""
    if not isinstance(t, Tensor) or not t.is_floating_point():
        got = f"a tensor of {t.dtype}" if isinstance(t, Tensor) else type(t).__name__
        raise TypeError(f"{where}: `{name}` must be a tensor of floating-point times, got {got}; use torch.as_tensor")
    if t.dim() == 0 or t.shape[-1] == 0:
        raise ValueError(f"{where}: `{name}` must have shape (n,) or (*batch, n) with n >= 1, got {tuple(t.shape)}")
    if t.dim() > 1 and t.shape[-1] == 1:
        raise ValueError(
            f"{where}: `{name}` must have shape (n,) or (*batch, n), got {tuple(t.shape)}, which would be "
            f"{t.shape[:-1].numel()} series of one time each; pass {name}.squeeze(-1)"
        )
    if not bool(torch.isfinite(t.detach()).all()):
        raise ValueError(f"{where}: `{name}` must be finite, got NaN or infinity; leave such times out")
    return t.double()


def new_times(where: str, t: Any, observed: Tensor) -> Tensor:
    """Times (*batch, m) of predictions, for the batch of the observed ones."""
    t = times(where, "t", t)
    try:
        return t.expand(*torch.broadcast_shapes(t.shape[:-1], observed.shape[:-1]), t.shape[-1])
    except RuntimeError:
        raise ValueError(
            f"{where}: `t` must have the shape (m,), or the leading dimensions {tuple(observed.shape[:-1])} of the "
            f"observed times, got {tuple(t.shape)}"
        ) from None


def noise(diag: Any, yerr: Any, t: Tensor) -> Tensor:
    """The variance of the noise, with the shape of the times."""
    if (diag is None) == (yerr is None):
        both = "neither" if diag is None else "both"
        raise ValueError(
            f"{WHERE}: either `diag`, the variance of the noise, or `yerr`, its standard deviation, must be given, "
            f"got {both}; for observations without noise pass a small diag, such as 1e-10 of the variance"
        )
    name, value = ("yerr", yerr) if diag is None else ("diag", diag)
    value = torch.as_tensor(value, dtype=torch.float64, device=t.device)
    try:
        value = value.expand(t.shape)
    except RuntimeError:
        raise ValueError(
            f"{WHERE}: `{name}` must be a number, or broadcast to the shape {tuple(t.shape)} of the times, got "
            f"{tuple(value.shape)}"
        ) from None
    if not bool((value.detach() >= 0).all()):
        raise ValueError(f"{WHERE}: `{name}` must not be negative or NaN, got {float(value.detach().min()):g}")
    return value.square() if diag is None else value


def observations(where: str, y: Any, t: Tensor) -> Tensor:
    """Observations that have a value for each time."""
    if not isinstance(y, Tensor) or not y.is_floating_point():
        got = f"a tensor of {y.dtype}" if isinstance(y, Tensor) else type(y).__name__
        raise TypeError(f"{where}: `y` must be a tensor of floating-point numbers, got {got}; use torch.as_tensor")
    if y.shape != t.shape:
        raise ValueError(
            f"{where}: `y` must have the shape {tuple(t.shape)} of the times, got {tuple(y.shape)}; several sets of "
            "observations at the same times need times of as many rows: t.expand(y.shape)"
        )
    return y


def fixed_mean(where: str, mean: Tensor, t: Tensor) -> Tensor:
    """A mean that is a tensor, at times for which it can be known."""
    if mean.numel() != 1 and mean.shape[-1:] != t.shape[-1:]:
        raise ValueError(
            f"{where}: `mean` must be a number or a function to be known at other times than those observed, got a "
            f"tensor of shape {tuple(mean.shape)}; pass a function of times, or predict with include_mean=False"
        )
    return mean.to(torch.float64)

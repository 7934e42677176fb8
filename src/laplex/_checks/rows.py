"""Checks of rows of numbers, as the functions of ``laplex.soft`` and ``laplex.stats`` take them."""

from __future__ import annotations

from torch import Tensor

from laplex._eager import plainly_eager
from laplex._errors import ShapeWarning, warn


def not_floating(where: str, name: str, value: object) -> TypeError:
    """The error for what is not a floating-point tensor."""
    got, to_do = type(value).__name__, f"torch.as_tensor({name}, dtype=torch.float32)"
    if isinstance(value, Tensor):
        got, to_do = f"a tensor of {value.dtype}", f"{name}.{'real' if value.is_complex() else 'float()'}"
    return TypeError(f"{where}: `{name}` must be a floating-point tensor, got {got}; use {to_do}")


def warn_of_column(where: str, name: str, x: Tensor, entry: str = "number", *, takes_dim: bool = False) -> None:
    """Warn about (..., n, 1), the shape of what a model with one output returns: allowed, but n rows of one ``entry``.

    ``takes_dim``: whether the caller could have passed ``dim`` instead.
    """
    if x.dim() < 2 or x.shape[-1] != 1 or x.shape[-2] == 1 or not plainly_eager():
        return
    instead = f", or dim={x.dim() - 2}" if takes_dim else ""
    warn(
        f"{where}: `{name}` has shape {tuple(x.shape)}: these are rows of one {entry} each; for rows of "
        f"{x.shape[-2]} {entry}s use {name}.squeeze(-1){instead} (if rows of one {entry} are meant, filter "
        "laplex.ShapeWarning)",
        ShapeWarning,
    )

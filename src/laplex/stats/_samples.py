"""What all functions of ``laplex.stats`` do first: check samples, weights and tau, and make rows (h, n) of them."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from laplex._checks.counts import flag
from laplex._checks.rows import not_floating, warn_of_column
from laplex._checks.tau import row_lengths
from laplex._eager import readable
from laplex._running import cumulative

Shape = tuple[int, ...]


def numbers(where: str, name: str, value: Any, like: Tensor | None = None) -> Tensor:
    """Return a tensor (..., n) as given; it must have at least one number, all finite, on the device of ``like``."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise not_floating(where, name, value)
    if value.dim() == 0 or value.shape[-1] == 0:
        raise ValueError(
            f"{where}: `{name}` must have at least one number in its last dimension, got shape {tuple(value.shape)}"
        )
    if like is not None and value.device != like.device:
        raise ValueError(f"{where}: `{name}` must be on {like.device}, as the samples are, got {value.device}")
    if readable(value) and not bool(value.isfinite().all()):
        raise ValueError(f"{where}: `{name}` must be finite, got NaN or infinity; find it with torch.isfinite")
    return value


def masses(where: str, name: str, weights: Any, x: Tensor, of_name: str = "x") -> Tensor | None:
    """Return weights that broadcast to the samples, in float64, scaled to a largest of 1; None stays None.

    The scale cancels in every result. In the graph it is a constant, by which derivatives are divided, too.
    """
    if weights is None:
        return None
    weights = numbers(where, name, weights, x)
    if weights.shape[-1] != x.shape[-1]:
        raise ValueError(
            f"{where}: `{name}` must have one number for each of the {x.shape[-1]} samples `{of_name}`, got shape "
            f"{tuple(weights.shape)}"
        )
    if readable(weights):
        if bool((weights < 0).any()):
            raise ValueError(f"{where}: `{name}` must not be negative, got {float(weights.detach().min()):g}")
        if not bool((weights > 0).any(-1).all()):
            raise ValueError(f"{where}: `{name}` must be positive somewhere in each row, got only zeros")
    wide: Tensor = weights.double()
    scaled: Tensor = wide / wide.detach().amax(-1, keepdim=True)
    return scaled


def common_dtype(*tensors: Tensor | None) -> torch.dtype:
    """What samples, values and points promote to: the dtype of a result. None does not count."""
    return functools.reduce(torch.promote_types, [tensor.dtype for tensor in tensors if tensor is not None])


def batch_shape(where: str, tau: Any = None, **tensors: Tensor | None) -> Shape:
    """The shape to which the leading dimensions of all tensors, and tau, broadcast."""
    shapes = {name: tuple(value.shape[:-1]) for name, value in tensors.items() if value is not None}
    if isinstance(tau, Tensor) and tau.dim():
        shapes["tau"] = tuple(tau.shape)
    try:
        return tuple(torch.broadcast_shapes(*shapes.values()))
    except RuntimeError:
        listed = ", ".join(f"`{name}` {shape}" for name, shape in shapes.items())
        raise ValueError(f"{where}: leading dimensions must broadcast, got {listed}") from None


def rows(value: Tensor, batch: Shape) -> Tensor:
    """Return (..., n) as (h, n), in its own dtype."""
    n = value.shape[-1]
    return value.expand(*batch, n).reshape(math.prod(batch), n)


def at_least_two(where: str, n: int, w: Tensor | None, name: str = "x") -> None:
    """Raise unless samples remain when one is left out."""
    if n < 2:
        raise ValueError(f"{where}: `{name}` must have at least 2 samples where one is left out, got {n}")
    if w is not None and readable(w) and not bool(((w > 0).sum(-1) > 1).all()):
        raise ValueError(f"{where}: at least 2 samples must have positive weights where one is left out, got fewer")


def sums_of_others(w: Tensor) -> Tensor:
    """The sum of all other weights for each weight, (h, n), without a subtraction."""
    before, after = (cumulative(side[..., None])[:, :-1, 0] for side in (w, w.flip(-1)))
    return pad(before, (1, 0)) + pad(after.flip(-1), (0, 1))


class Merged(NamedTuple):
    """Two samples as one, in the order in which they are given: n of the first, then those of the second."""

    z: Tensor  # (h, n + m), in float32 or float64
    w: Tensor  # (h, n): the masses of the first, with the sum 1
    v: Tensor  # (h, m): those of the second
    tau: Tensor  # (h,)
    weighted: bool
    batch: Shape
    dtype: torch.dtype
    single: bool  # the second is one number, which has no pairs

    @property
    def n(self) -> int:
        return self.w.shape[-1]

    def signed(self) -> tuple[Tensor, float]:
        """Masses of the first sample, and minus those of the second, (h, n + m), and their unit.

        Without weights they are whole numbers, m and -n in units of 1 / (n m), so that equal samples cancel exactly.
        """
        if self.weighted:
            return torch.cat([self.w, -self.v], -1), 1.0
        n, m = self.n, self.v.shape[-1]
        return torch.cat([torch.full_like(self.w, m), torch.full_like(self.v, -n)], -1), 1 / (n * m)

    def excesses(self) -> list[tuple[Tensor, Tensor]]:
        """For each sample its masses (h, n + m), 0 for the other, and q / (1 - q) (h,), with q the sum of squares."""
        nothing_w, nothing_v = torch.zeros_like(self.w), torch.zeros_like(self.v)
        sides = [(torch.cat([self.w, nothing_v], -1), self.w), (torch.cat([nothing_w, self.v], -1), self.v)]
        return [
            (mass, own.square().sum(-1) / (own * sums_of_others(own)).sum(-1))
            for mass, own in sides[: 1 if self.single else 2]
        ]

    def result(self, value: Tensor) -> Tensor:
        """Return values (h,) in the shape and dtype of the result."""
        return value.reshape(self.batch).to(self.dtype)


def merged(
    where: str,
    x: Any,
    y: Any,
    weights_x: Any,
    weights_y: Any,
    unbiased: bool,
    tau: Any = 1.0,
    names: tuple[str, str, str, str] = ("x", "y", "weights_x", "weights_y"),
    single: bool = False,
    projected: bool = False,
) -> Merged:
    """Check two samples, their weights and tau, and merge them."""
    x = numbers(where, names[0], x)
    y = numbers(where, names[1], y, x)
    if not (single or projected):
        warn_of_column(where, names[0], x, "sample")
        warn_of_column(where, names[1], y, "sample")
    w, v = masses(where, names[2], weights_x, x, names[0]), masses(where, names[3], weights_y, y, names[1])
    if flag(where, "unbiased", unbiased):
        at_least_two(where, x.shape[-1], w, names[0])
        if not single:
            at_least_two(where, y.shape[-1], v, names[1])
    shapes = dict(zip(names, (x, y, w, v), strict=True))
    batch = batch_shape(where, tau, **shapes)
    length = row_lengths(where, "tau", tau, batch, x).reshape(-1)
    dtype = common_dtype(x, y)
    z = torch.cat([rows(side, batch).to(torch.promote_types(dtype, torch.float32)) for side in (x, y)], -1)
    weighted = w is not None or v is not None
    w, v = _shares(w, x, batch), _shares(v, y, batch)
    return Merged(z, w, v, length, weighted, batch, dtype, single)


def _shares(mass: Tensor | None, x: Tensor, batch: Shape) -> Tensor:
    """Return masses (h, n) with the sum 1."""
    n = x.shape[-1]
    if mass is None:
        return torch.full((math.prod(batch), n), 1 / n, dtype=torch.float64, device=x.device)
    flat = rows(mass, batch)
    return flat / flat.sum(-1, keepdim=True)

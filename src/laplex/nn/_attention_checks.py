"""Checks of the arguments of attention, and their errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from laplex import _checks
from laplex._checks.arguments import same_device
from laplex._checks.tau import row_lengths
from laplex._eager import readable


def operands(where: str, q: Any, k: Any, v: Any) -> None:
    """Check that queries and keys have one number each, and that there is a value for every key."""
    for name, side in (("q", q), ("k", k), ("v", v)):
        if not isinstance(side, Tensor):
            raise TypeError(f"{where}: `{name}` must be a tensor, got {type(side).__name__}; use torch.as_tensor")
        if side.dim() < 2:
            raise ValueError(
                f"{where}: `{name}` must have at least two dimensions, (..., points, features), got shape "
                f"{tuple(side.shape)}; use {name}[:, None]"
            )
        if not side.is_floating_point():
            raise TypeError(f"{where}: `{name}` must be of a floating-point type, got {side.dtype}; use {name}.float()")
        same_device(where, name, side, "q", q)
    for name, side in (("q", q), ("k", k)):
        if side.shape[-1] != 1:
            raise ValueError(
                f"{where}: `{name}` must be (..., points, 1), one number for every point, got shape "
                f"{tuple(side.shape)}; a sum of distances over several dimensions has no exact form in O(n log n): use "
                "one dimension, a head for each (laplex.nn.LaplaceAttention), or form "
                "softmax(-torch.cdist(q, k, p=1) / scale)"
            )
        if side.dtype.itemsize < 4:
            raise TypeError(f"{where}: `{name}` must be float32 or float64, got {side.dtype}; use {name}.float()")
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(f"{where}: `v` must have a value for each of {k.shape[-2]} keys, got shape {tuple(v.shape)}")
    some_keys(where, "k", k)
    finite(where, {"q": q, "k": k})


def normalised(where: str, normalise: Any) -> None:
    if normalise is not True:
        raise ValueError(
            f"{where}: `normalise` must be True, got {normalise!r}; the weights 1 + tanh of neural processes are no "
            "sum of exponentials; for sums that are not divided use laplex.linear"
        )


def batch_shape(where: str, q: Tensor, k: Tensor, v: Tensor) -> tuple[int, ...]:
    """B, the common leading shape."""
    try:
        return tuple(torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2]))
    except RuntimeError:
        got = ", ".join(f"`{name}` {tuple(side.shape)}" for name, side in (("q", q), ("k", k), ("v", v)))
        raise ValueError(f"{where}: leading dimensions must broadcast, got {got}") from None


def length(where: str, scale: Any, batch: tuple[int, ...], q: Tensor) -> Tensor:
    """The length scale, (*B), in float64."""
    return row_lengths(where, "scale", scale, batch, q, like_name="q", batch_is="the leading shape of `q`, `k` and `v`")


def padding(where: str, mask: Any, shape: tuple[int, ...]) -> Tensor | None:
    """The mask of keys, checked, or None."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = f"a tensor of {mask.dtype}" if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(
            f"{where}: `key_padding_mask` must be a tensor of torch.bool, True for keys that do not count, got {got}"
            f"{'; if it is 0 for all other keys, use key_padding_mask.bool()' if isinstance(mask, Tensor) else ''}"
        )
    if mask.dim() != len(shape) or any(size not in (1, full) for size, full in zip(mask.shape, shape, strict=True)):
        raise ValueError(f"{where}: `key_padding_mask` must be {shape}, got shape {tuple(mask.shape)}")
    return mask


def divides(where: str, num_heads: int, embed_dim: int) -> None:
    if embed_dim % num_heads:
        raise ValueError(f"{where}: `num_heads` must divide `embed_dim`, got {num_heads} and {embed_dim}")


def sequences(where: str, module: Any, sides: tuple[Any, Any, Any]) -> None:
    """Check query, key and value: 2 or 3 dimensions, features in the last, equal batches, a value for every key."""
    query, key, value = sides
    widths = (module.embed_dim, module.kdim, module.vdim)
    for name, side, width in zip(("query", "key", "value"), sides, widths, strict=True):
        if not isinstance(side, Tensor):
            raise TypeError(f"{where}: `{name}` must be a tensor, got {type(side).__name__}; use torch.as_tensor")
        if side.dim() not in (2, 3) or side.shape[-1] != width:
            raise ValueError(
                f"{where}: `{name}` must be (batch, sequence, {width}) or (sequence, {width}), got shape "
                f"{tuple(side.shape)}{_by_default(name, sides)}"
            )
        if not side.is_floating_point():
            raise TypeError(f"{where}: `{name}` must be of a floating-point type, got {side.dtype}; use {name}.float()")
    own = module.v_proj.weight.dtype
    if value.dtype != own and not torch._C._is_any_autocast_enabled():
        raise TypeError(
            f"{where}: `value` must be {own}, as the layer is, got {value.dtype}; use value.to({own}), or convert "
            "the layer"
        )
    place = 0 if module.batch_first else 1
    if query.dim() != key.dim() or (query.dim() == 3 and query.shape[place] != key.shape[place]):
        raise ValueError(
            f"{where}: `query` and `key` must have the same batch, got shapes {tuple(query.shape)} and "
            f"{tuple(key.shape)}; batch_first is {module.batch_first}"
        )
    if key.shape[:-1] != value.shape[:-1]:
        raise ValueError(
            f"{where}: `value` must have a row for every key, got shape {tuple(value.shape)} for keys "
            f"{tuple(key.shape)}"
        )
    some_keys(where, "key", key if module.batch_first or key.dim() == 2 else key.transpose(0, 1))


def _by_default(name: str, sides: tuple[Any, Any, Any]) -> str:
    """What to add about a key or a value that nobody passed."""
    query, key, value = sides
    if name == "value" and value is key:
        return f"; `value` is `key` unless it is passed: pass it, or make the layer with vdim={key.shape[-1]}"
    if name == "key" and key is query:
        return f"; `key` is `query` unless it is passed: pass it, or make the layer with kdim={query.shape[-1]}"
    return ""


def some_keys(where: str, name: str, key: Tensor) -> None:
    if key.shape[-2] == 0:
        raise ValueError(f"{where}: `{name}` must have at least one key, got shape {tuple(key.shape)}")


def finite(where: str, sides: Mapping[str, Tensor]) -> None:
    """Check that numbers are finite. On a GPU, where reading them would wait, results become NaN instead."""
    for name, side in sides.items():
        if readable(side) and not bool(side.isfinite().all()):
            raise ValueError(_checks.not_finite(where, name))

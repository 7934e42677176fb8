"""Every check of shapes, types and devices, and its message: what was called, which argument, required, got, to do.

Values (finite anchors, tau > 0, a plan that still tells the truth) are checked where they are read anyway: in the
kernels and in the plan. Their messages are here too, so that one file holds everything a user can be told.
"""

from __future__ import annotations

import math
import numbers

import torch
from torch import Tensor

ANCHOR_DTYPES = (torch.float32, torch.float64)
X_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)


def is_tensor(where: str, name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{where}: `{name}` must be a torch.Tensor, got {type(value).__name__}; use torch.as_tensor")
    if value.layout is not torch.strided:
        raise TypeError(f"{where}: `{name}` must be a dense tensor, got layout {value.layout}; call .to_dense()")


def anchors(where: str, name: str, value: Tensor) -> None:
    """Anchors and phases: float32 or float64, at least one dimension."""
    is_tensor(where, name, value)
    if value.dtype not in ANCHOR_DTYPES:
        why = "; half precision would tie most anchors together" if value.dtype.itemsize == 2 else ""
        raise TypeError(f"{where}: `{name}` must be float32 or float64, got {value.dtype}{why}; call .float()")
    if value.dim() == 0:
        raise ValueError(f"{where}: `{name}` must have at least one dimension, got a scalar; use {name}.reshape(1)")


def anchor_pair(where: str, a: Tensor, b: Tensor) -> None:
    anchors(where, "a", a)
    anchors(where, "b", b)
    if a.dtype != b.dtype:
        raise TypeError(f"{where}: `a` and `b` must have one dtype, got {a.dtype} and {b.dtype}; cast one of them")
    same_device(where, "b", b, "a", a)
    for name, side in (("a", a), ("b", b)):
        if side.shape[-1] >= 2**31:
            raise ValueError(
                f"{where}: `{name}` must have fewer than 2^31 anchors, got {side.shape[-1]}; use two kernels"
            )
    if a.device.type == "mps":
        raise ValueError(f"{where}: `a` must be on a device with float64, got mps; use .cpu()")


def same_device(where: str, name: str, value: Tensor, other: str, reference: Tensor) -> None:
    if value.device != reference.device:
        raise ValueError(
            f"{where}: `{name}` must be on the device of `{other}` ({reference.device}), got {value.device}; "
            f"move it with {name}.to({other}.device)"
        )


def length_scale(where: str, tau: object, a: Tensor) -> None:
    """A number is checked whole; a tensor's values are checked by the kernel that reads them."""
    if isinstance(tau, Tensor):
        is_tensor(where, "tau", tau)
        if not tau.dtype.is_floating_point or tau.dtype.itemsize < 4:
            raise TypeError(f"{where}: `tau` must be float32 or float64, got {tau.dtype}; call .float()")
        same_device(where, "tau", tau, "a", a)
    elif isinstance(tau, bool) or not isinstance(tau, numbers.Real):
        raise TypeError(f"{where}: `tau` must be a positive number or a tensor, got {type(tau).__name__}")
    elif not 0.0 < _as_float(tau) < math.inf:
        raise ValueError(bad_tau(where, tau))


def _as_float(number: numbers.Real) -> float:
    try:
        return float(number)
    except OverflowError:  # an int that no float can hold
        return math.inf


def bad_tau(where: str, got: object) -> str:
    return (
        f"{where}: `tau` must be positive and finite, got {got}; it is the length scale in exp(-|a - b| / tau), "
        "and if it is learned, learn its logarithm"
    )


def batch_shape(where: str, a: Tensor, b: Tensor, tau: float | Tensor) -> tuple[int, ...]:
    """The kernels' common leading shape H."""
    shapes = [a.shape[:-1], b.shape[:-1]] + ([tau.shape] if isinstance(tau, Tensor) else [])
    if all(len(shape) == 0 for shape in shapes):
        return ()
    try:
        return tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        got = f"`a` {tuple(a.shape)}, `b` {tuple(b.shape)}"
        if isinstance(tau, Tensor):
            got += f", `tau` {tuple(tau.shape)}"
        raise ValueError(
            f"{where}: the leading dimensions of `a` and `b`, and all of `tau`, must broadcast together, got {got}"
        ) from None


def phases(where: str, a: Tensor, b: Tensor, phi: Tensor | None, psi: Tensor | None) -> None:
    if (phi is None) != (psi is None):
        given, missing = ("phi", "psi") if psi is None else ("psi", "phi")
        raise ValueError(
            f"{where}: `phi` and `psi` go together, got `{given}` without `{missing}`; "
            f"pass zeros for `{missing}` if only one side has phases"
        )
    for name, phase, side, anchor in (("phi", phi, "a", a), ("psi", psi, "b", b)):
        if phase is None:
            continue
        anchors(where, name, phase)
        same_device(where, name, phase, side, anchor)
        if phase.shape != anchor.shape:
            raise ValueError(
                f"{where}: `{name}` must have the shape of `{side}`, {tuple(anchor.shape)}, got {tuple(phase.shape)}"
            )


def operand(where: str, x: Tensor, b: Tensor, batch: tuple[int, ...]) -> None:
    is_tensor(where, "x", x)
    if x.dtype not in X_DTYPES:
        raise TypeError(f"{where}: `x` must be floating point or complex, got {x.dtype}; call .float()")
    same_device(where, "x", x, "b", b)
    _beside_columns(where, "x", x, b)
    if batch:
        _over_kernels(where, "x", x, batch)


def gram_weight(where: str, weight: Tensor | None, b: Tensor, batch: tuple[int, ...]) -> None:
    if weight is None:
        return
    is_tensor(where, "weight", weight)
    if weight.dtype not in ANCHOR_DTYPES:
        raise TypeError(f"{where}: `weight` must be float32 or float64, got {weight.dtype}; call .float()")
    same_device(where, "weight", weight, "b", b)
    _beside_columns(where, "weight", weight, b)
    if batch and weight.dim() > 1:
        _over_kernels(where, "weight", weight, batch)


def _beside_columns(where: str, name: str, x: Tensor, b: Tensor) -> None:
    k = b.shape[-1]
    if x.dim() == 0 or x.shape[-1] != k:
        raise ValueError(
            f"{where}: `{name}` must have size k = {k} in its last dimension to match `b`, got shape {tuple(x.shape)}"
        )


def _over_kernels(where: str, name: str, x: Tensor, batch: tuple[int, ...]) -> None:
    try:
        broadcasts = x.dim() >= 2 and torch.broadcast_shapes(x.shape[:-2], batch) is not None
    except RuntimeError:
        broadcasts = False
    if not broadcasts:
        raise ValueError(
            f"{where}: `a`, `b` and `tau` lead with H = {batch}, so `{name}` must be (*H, m, k) or broadcast to it, "
            f"got shape {tuple(x.shape)}; use {name}.unsqueeze(-2) for one vector a kernel"
        )


def not_finite(where: str, name: str) -> str:
    return (
        f"{where}: `{name}` must be finite, got NaN or infinity; "
        f"find it with torch.isfinite({name}).logical_not().nonzero()"
    )


def stale_plan(where: str) -> str:
    return (
        f"{where}: `plan` does not describe the order of these anchors: they moved past one another, or onto one "
        "another, since it was built (or are not finite); build a new one with laplex.Plan(a, b) or plan.update(a, b), "
        "or a new LaplaceOperator, which keeps a plan"
    )


def other_backend(where: str, backend: str, of_plan: str) -> str:
    return (
        f"{where}: `plan` was built for backend '{of_plan}', got backend='{backend}', which needs an order of another "
        f"form; leave the backend out, or build laplex.Plan(a, b, backend='{backend}')"
    )


def not_a_plan(where: str, plan: object) -> str:
    return f"{where}: `plan` must be a laplex.Plan or None, got {type(plan).__name__}"

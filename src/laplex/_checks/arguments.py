"""Shapes, dtypes and devices of the arguments. Every check raises with the argument, what is required and what to do.

``where`` is the name of the function that the user called. H is the anchors' common leading shape, a batch of matrices.
"""

from __future__ import annotations

import math
import numbers

import torch
from torch import Tensor

from laplex._eager import always, plainly_eager
from laplex._errors import ShapeWarning, warn

ANCHOR_DTYPES = (torch.float32, torch.float64)
X_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)


# --- What every tensor must be ---------------------------------------------------------------------------------------


def check_tensor(where: str, name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        lazy = hasattr(value, "to_dense")
        to_do = "apply one after the other, as in K @ (M @ x), or use .to_dense()" if lazy else "use torch.as_tensor"
        raise TypeError(f"{where}: `{name}` must be a torch.Tensor, got {type(value).__name__}; {to_do}")
    if value.layout is not torch.strided:
        raise TypeError(f"{where}: `{name}` must be a dense tensor, got layout {value.layout}; call .to_dense()")


def same_device(where: str, name: str, value: Tensor, other: str, reference: Tensor) -> None:
    if value.device != reference.device:
        raise ValueError(
            f"{where}: `{name}` must be on the device of `{other}` ({reference.device}), got {value.device}; "
            f"move it with {name}.to({other}.device)"
        )


def real(where: str, name: str, value: Tensor, like: Tensor, *, half: bool = False) -> None:
    """Check for a real tensor on the device of the anchors; float16 and bfloat16 are allowed only with ``half``."""
    check_tensor(where, name, value)
    if not value.dtype.is_floating_point or (value.dtype.itemsize < 4 and not half):
        to_do = real_instead(name, value) if value.is_complex() else "call .double()"
        kinds = "floating point" if half else "float32 or float64"
        raise TypeError(f"{where}: `{name}` must be {kinds}, got {value.dtype}; {to_do}")
    same_device(where, name, value, "a", like)


def real_instead(name: str, value: Tensor) -> str:
    """What to do about a tensor that must be float32 or float64 and is not."""
    if not value.is_complex():
        return "call .float()"
    if name == "weight":
        return "the matrix is linear in it: use weight.real and weight.imag, and add M(real) + 1j * M(imag)"
    return f"use {name}.real, or whatever real numbers are meant"


def as_float(number: numbers.Real | float) -> float:
    try:
        return float(number)
    except OverflowError:  # an int that no float can hold
        return -math.inf if number <= 0 else math.inf


# --- Anchors and phases ----------------------------------------------------------------------------------------------


def anchors(where: str, name: str, value: Tensor) -> None:
    """Check anchors or phases: float32 or float64, with at least one dimension."""
    check_tensor(where, name, value)
    if value.dtype not in ANCHOR_DTYPES:
        tied = value.dtype.itemsize == 2 and name in ("a", "b")
        why = "; half precision would tie most anchors together" if tied else ""
        to_do = real_instead(name, value)
        raise TypeError(f"{where}: `{name}` must be float32 or float64, got {value.dtype}{why}; {to_do}")
    if value.dim() == 0:
        raise ValueError(f"{where}: `{name}` must have at least one dimension, got a scalar; use {name}.reshape(1)")


def anchor_pair(where: str, a: Tensor, b: Tensor) -> None:
    anchors(where, "a", a)
    anchors(where, "b", b)
    if a.dtype != b.dtype:
        raise TypeError(f"{where}: `a` and `b` must have one dtype, got {a.dtype} and {b.dtype}; cast one of them")
    same_device(where, "b", b, "a", a)
    for name, side in (("a", a), ("b", b)):
        if always(side.shape[-1] >= 2**31):
            raise ValueError(
                f"{where}: `{name}` must have fewer than 2^31 anchors, got {side.shape[-1]}; use two matrices"
            )
    if a.device.type == "mps":
        raise ValueError(f"{where}: `a` must be on a device with float64, got mps; use .cpu()")


def batch_shape(where: str, a: Tensor, b: Tensor, tau: float | Tensor) -> tuple[int, ...]:
    """H, the common leading shape of the anchors. tau must have one element or broadcast to H."""
    batch: tuple[int, ...] = tuple(a.shape[:-1])
    if batch != b.shape[:-1]:  # compared first: in torch, broadcasting shapes takes as long as a launch
        try:
            batch = tuple(torch.broadcast_shapes(batch, b.shape[:-1]))
        except RuntimeError:
            got = f"`a` {tuple(a.shape)}, `b` {tuple(b.shape)}"
            columns = a.dim() == b.dim() == 2 and a.shape[-1] == b.shape[-1] == 1
            to_do = "; if they are anchors of one matrix, use a.squeeze(-1) and b.squeeze(-1)" if columns else ""
            raise ValueError(
                f"{where}: the leading dimensions of `a` and `b` must broadcast together, got {got}{to_do}"
            ) from None
    if isinstance(tau, Tensor) and tau.numel() != 1:
        _tau_over_batch(where, tau, a, batch)
    return batch


def _tau_over_batch(where: str, tau: Tensor, a: Tensor, batch: tuple[int, ...]) -> None:
    try:
        full = tuple(torch.broadcast_shapes(tau.shape, batch))
        if full == batch:
            return
        to_do = f"; for a larger batch of matrices expand the anchors: a.expand{(*full, a.shape[-1])}"
    except RuntimeError:
        to_do = ""
    raise ValueError(
        f"{where}: `tau` must have one element, or broadcast to H = {batch}, the leading dimensions of `a` and `b`, "
        f"got shape {tuple(tau.shape)}{to_do}"
    )


def column_hint(batch: tuple[int, ...], n: int, shape: torch.Size) -> str:
    """What to do if an operand of this shape suggests that anchors (h, 1) were meant as h anchors of one matrix."""
    if n != 1 or len(batch) != 1 or batch[0] < 2 or batch[0] not in shape:
        return ""
    h = batch[0]
    return f"; anchors of shape {(h, 1)} are {h} matrices of 1 x 1: for one matrix of {h} anchors use a.squeeze(-1)"


def one_by_one(where: str, a: Tensor, b: Tensor) -> None:
    """Warn about anchors (h, 1), the shape of times in scikit-learn and GPyTorch: allowed, but h 1 x 1 matrices."""
    if a.dim() == b.dim() == 2 and a.shape[-1] == b.shape[-1] == 1 and len(a) > 1:
        h = len(a)
        warn(
            f"{where}: `a` has shape {(h, 1)}: these are {h} matrices of 1 x 1, one for each anchor; for one matrix of "
            f"{h} anchors use a.squeeze(-1) (if {h} matrices are meant, filter laplex.ShapeWarning)",
            ShapeWarning,
        )


def both_phases(where: str, phi: object, psi: object) -> None:
    if (phi is None) != (psi is None):
        given, missing = ("phi", "psi") if psi is None else ("psi", "phi")
        raise ValueError(
            f"{where}: `phi` and `psi` go together, got `{given}` without `{missing}`; "
            f"pass zeros for `{missing}` if only one side has phases"
        )


def phase_shape(where: str, name: str, shape: tuple[int, ...], side: str, anchors_shape: tuple[int, ...]) -> None:
    if shape != anchors_shape:
        raise ValueError(
            f"{where}: `{name}` must have the shape of `{side}`, {tuple(anchors_shape)}, got {tuple(shape)}"
        )


def phases(where: str, a: Tensor, b: Tensor, phi: Tensor | None, psi: Tensor | None) -> None:
    both_phases(where, phi, psi)
    for name, phase, side, anchor in (("phi", phi, "a", a), ("psi", psi, "b", b)):
        if phase is None:
            continue
        anchors(where, name, phase)
        same_device(where, name, phase, side, anchor)
        phase_shape(where, name, phase.shape, side, anchor.shape)


# --- What the matrix is applied to, and weights ----------------------------------------------------------------------


def operand(where: str, x: Tensor, b: Tensor, batch: tuple[int, ...]) -> None:
    """Check x (..., k), or (*H, m, k) with a batch of matrices, or what broadcasts to it."""
    check_tensor(where, "x", x)
    if x.dtype not in X_DTYPES:
        to_do = "call .to(torch.complex64)" if x.is_complex() else "call .float()"
        raise TypeError(f"{where}: `x` must be floating point or complex, got {x.dtype}; {to_do}")
    same_device(where, "x", x, "b", b)
    _as_long_as_columns(where, "x", x, b, batch)
    if batch:
        _rows_over_batch(where, "x", x, batch)
        _column_of_numbers(where, x, b, batch)


def inner_size(where: str, shape: torch.Size, x: Tensor, *, side: int) -> None:
    """Check the size of x on one side of an operator of this shape: on the right, side=-1, or on the left, -2."""
    if x.dim() == 0 or x.shape[-1 if x.dim() == 1 else -3 - side] != shape[side]:
        hint = column_hint(tuple(shape[:-2]), shape[side], x.shape)
        raise ValueError(
            f"{where}: the operator is {tuple(shape)} and `x` must have size {shape[side]} where they meet, "
            f"got shape {tuple(x.shape)}{hint}"
        )


def _column_of_numbers(where: str, x: Tensor, b: Tensor, batch: tuple[int, ...]) -> None:
    """Warn about x (h, 1) and b (h, 1): allowed, but h rows of one number, for each of h matrices of one column."""
    if plainly_eager() and len(batch) == 1 and batch[0] > 1 and x.shape == b.shape == (batch[0], 1):
        h = batch[0]
        warn(
            f"{where}: `x` and `b` have shape {(h, 1)}: these are {h} rows of one number, and {h} matrices of one "
            f"column, each of which multiplies all rows; for one matrix of {h} columns use x.squeeze(-1), "
            f"a.squeeze(-1) and b.squeeze(-1) (if {h} matrices are meant, filter laplex.ShapeWarning)",
            ShapeWarning,
        )


def gram_weight(where: str, weight: Tensor | None, b: Tensor, batch: tuple[int, ...]) -> None:
    """Check the weights of ``laplex.gram``: (k,), (..., k), or (*H, m, k) with a batch of matrices."""
    if weight is None:
        return
    check_tensor(where, "weight", weight)
    if weight.dtype not in ANCHOR_DTYPES:
        to_do = real_instead("weight", weight)
        raise TypeError(f"{where}: `weight` must be float32 or float64, got {weight.dtype}; {to_do}")
    same_device(where, "weight", weight, "b", b)
    _as_long_as_columns(where, "weight", weight, b)
    if batch and weight.dim() > 1:
        _rows_over_batch(where, "weight", weight, batch)


def sum_weight(where: str, weight: Tensor | None, a: Tensor, batch: tuple[int, ...]) -> None:
    """Check the weights of a sum of matrices: one number per matrix, or what broadcasts to that."""
    if weight is None:
        return
    real(where, "weight", weight, a)
    if always(math.prod(batch) == 0):
        raise ValueError(f"{where}: a sum needs at least one matrix, got H = {batch}; a sum of none would be zeros")
    if weight.shape == batch:
        return
    try:
        fits = tuple(torch.broadcast_shapes(weight.shape, batch)) == batch
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"{where}: `weight` must have the shape H = {batch} of the leading dimensions of `a` and `b`, one number "
            f"per matrix of the sum, got shape {tuple(weight.shape)}; for weights of columns use laplex.gram, or "
            "x * weight"
        )


def one_weight(where: str, weight: Tensor | None, b: Tensor, batch: tuple[int, ...]) -> None:
    """Check the weight of a GramOperator: (k,) or (*H, k), one vector per matrix."""
    if weight is None:
        return
    real(where, "weight", weight, b)
    k = b.shape[-1]
    try:
        fits = weight.dim() > 0 and tuple(torch.broadcast_shapes(weight.shape, (*batch, k))) == (*batch, k)
    except RuntimeError:
        fits = False
    if not fits or weight.shape[-1] != k:
        shapes = f"{(k,)} or {(*batch, k)}" if batch else f"{(k,)}"
        raise ValueError(
            f"{where}: `weight` must be {shapes}, one number per column, got shape {tuple(weight.shape)}; "
            "for several weights, expand the anchors to a batch of as many matrices"
        )


def _as_long_as_columns(where: str, name: str, x: Tensor, b: Tensor, batch: tuple[int, ...] = ()) -> None:
    k = b.shape[-1]
    if x.dim() == 0 or x.shape[-1] != k:
        raise ValueError(
            f"{where}: `{name}` must have size k = {k} in its last dimension to match `b`, got shape {tuple(x.shape)}"
            f"{column_hint(batch, k, x.shape)}"
        )


def _rows_over_batch(where: str, name: str, x: Tensor, batch: tuple[int, ...]) -> None:
    """Check that x is (*H, m, k), or broadcasts to it."""
    try:
        broadcasts = x.dim() >= 2 and torch.broadcast_shapes(x.shape[:-2], batch) is not None
    except RuntimeError:
        broadcasts = False
    if not broadcasts:
        raise ValueError(
            f"{where}: `a` and `b` lead with H = {batch}, so `{name}` must be (*H, m, k) or broadcast to it, "
            f"got shape {tuple(x.shape)}; use {name}.unsqueeze(-2) for one vector per matrix"
        )


# --- How a call is made ----------------------------------------------------------------------------------------------


def made_by(name: str, maker: str, got: object, required: type) -> None:
    """Raise if a user called the constructor of a class whose objects only the method ``maker`` makes."""
    if not isinstance(got, required):
        raise TypeError(f"laplex.{name}: is made by {maker}, not by calling the class, got {type(got).__name__}")


def no_transform_in_a_graph() -> None:
    """Raise if torch.compile is tracing a transform of torch.func: the graph would lose the derivatives."""
    if torch._C._are_functorch_transforms_active():
        raise RuntimeError(
            "laplex: products within transforms of torch.func are not captured in a graph, in which their derivatives "
            "would be lost; put the transform into a function under @torch.compiler.disable, or use .backward() in its "
            "place"
        )

"""Every check of shapes, types and devices, and its message: what was called, which argument, required, got, to do.

Values (finite anchors, tau > 0, a plan that still tells the truth) are checked where they are read anyway: in the
kernels and in the plan. Their messages are here too, so that one file holds everything a user can be told.
"""

from __future__ import annotations

import math
import numbers

import torch
from torch import Tensor
from torch.autograd import forward_ad

from laplex._eager import always, plainly_eager
from laplex._shapes import flat_tau

SMALLEST_TAU = torch.finfo(torch.float64).tiny  # a little below 1 / tau overflows; csrc/common.h has the same limit
SMALLEST_TAU_OF_SQUARES = 2 * SMALLEST_TAU  # Gram matrices are made of sums at half of tau
ANCHOR_DTYPES = (torch.float32, torch.float64)
X_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)


def is_tensor(where: str, name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        lazy = hasattr(value, "to_dense")
        to_do = "apply one after the other, as in K @ (M @ x), or use .to_dense()" if lazy else "use torch.as_tensor"
        raise TypeError(f"{where}: `{name}` must be a torch.Tensor, got {type(value).__name__}; {to_do}")
    if value.layout is not torch.strided:
        raise TypeError(f"{where}: `{name}` must be a dense tensor, got layout {value.layout}; call .to_dense()")


def anchors(where: str, name: str, value: Tensor) -> None:
    """Anchors and phases: float32 or float64, at least one dimension."""
    is_tensor(where, name, value)
    if value.dtype not in ANCHOR_DTYPES:
        why = "; half precision would tie most anchors together" if value.dtype.itemsize == 2 else ""
        raise TypeError(f"{where}: `{name}` must be float32 or float64, got {value.dtype}{why}; {_cast(name, value)}")
    if value.dim() == 0:
        raise ValueError(f"{where}: `{name}` must have at least one dimension, got a scalar; use {name}.reshape(1)")


def _cast(name: str, value: Tensor) -> str:
    """What to do about a tensor whose dtype is not float32 or float64."""
    if not value.is_complex():
        return "call .float()"
    if name == "weight":
        return "the matrix is linear in it: use weight.real and weight.imag, and add M(real) + 1j * M(imag)"
    return f"use {name}.real, or whatever real numbers are meant"


def anchor_pair(where: str, a: Tensor, b: Tensor) -> None:
    anchors(where, "a", a)
    anchors(where, "b", b)
    if a.dtype != b.dtype:
        raise TypeError(f"{where}: `a` and `b` must have one dtype, got {a.dtype} and {b.dtype}; cast one of them")
    same_device(where, "b", b, "a", a)
    for name, side in (("a", a), ("b", b)):
        if always(side.shape[-1] >= 2**31):
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


def length_scale(where: str, tau: object, a: Tensor, smallest: float = SMALLEST_TAU) -> None:
    """A number is checked whole; a tensor's values are checked by the kernel that reads them."""
    if isinstance(tau, Tensor):
        is_tensor(where, "tau", tau)
        if not tau.dtype.is_floating_point or tau.dtype.itemsize < 4:
            raise TypeError(f"{where}: `tau` must be float32 or float64, got {tau.dtype}; {_cast('tau', tau)}")
        same_device(where, "tau", tau, "a", a)
    elif isinstance(tau, bool) or not isinstance(tau, numbers.Real):
        raise TypeError(f"{where}: `tau` must be a positive number or a tensor, got {type(tau).__name__}")
    elif not smallest <= _as_float(tau) < math.inf:
        raise ValueError(bad_tau(where, _as_float(tau)))


def positive_on_cpu(where: str, tau: float | Tensor, batch: tuple[int, ...], smallest: float = SMALLEST_TAU) -> None:
    """A tensor's values where looking costs no wait, for what no kernel reads: entries and the dense matrix."""
    if not isinstance(tau, Tensor) or tau.device.type != "cpu" or not plainly_eager():
        return
    values = flat_tau(tau.detach(), batch, tau.device)
    if not bool(is_length(values, smallest).all()):
        raise ValueError(bad_tau(where, values, smallest))


def is_length(tau: Tensor, smallest: float = SMALLEST_TAU) -> Tensor:
    """Where tau is a length scale: positive, finite, and with a reciprocal. (In float32 the limit would be 0.)"""
    return (tau.double() >= smallest) & (tau < math.inf)


def valid_tau(where: str, tau: Tensor) -> Tensor:
    """tau (h,) as it is, or an error; NaN on CUDA, which is not waited for."""
    if tau.is_cuda:
        return torch.where(is_length(tau), tau, torch.nan)
    if not bool(is_length(tau).all()):
        raise ValueError(bad_tau(where, tau))
    return tau


def _as_float(number: numbers.Real) -> float:
    try:
        return float(number)
    except OverflowError:  # an int that no float can hold
        return -math.inf if number <= 0 else math.inf


def bad_tau(where: str, tau: float | Tensor, smallest: float = SMALLEST_TAU) -> str:
    got = _one_of(tau, ~is_length(tau, smallest)) if isinstance(tau, Tensor) else tau
    return (
        f"{where}: `tau` must be positive and finite, got {got}; it is the length scale in exp(-|a - b| / tau), "
        f"at least {SMALLEST_TAU:.1e} (twice that for Gram matrices), and if it is learned, learn its logarithm"
    )


def _one_of(values: Tensor, wrong: Tensor) -> str:
    """The first value that is wrong; of several kernels', with the kernel."""
    at, count = int(wrong.flatten().int().argmax()), values.numel()
    return str(float(values.detach().flatten()[at])) + (f" for kernel {at} of {count}" if count > 1 else "")


def batch_shape(where: str, a: Tensor, b: Tensor, tau: float | Tensor) -> tuple[int, ...]:
    """The kernels' common leading shape H: that of the anchors. tau has one element, or broadcasts to it."""
    if a.dim() == b.dim() == 1:
        batch: tuple[int, ...] = ()
    else:
        try:
            batch = tuple(torch.broadcast_shapes(a.shape[:-1], b.shape[:-1]))
        except RuntimeError:
            got = f"`a` {tuple(a.shape)}, `b` {tuple(b.shape)}"
            raise ValueError(
                f"{where}: the leading dimensions of `a` and `b` must broadcast together, got {got}"
            ) from None
    if isinstance(tau, Tensor) and tau.numel() != 1:
        _tau_over_kernels(where, tau, a, batch)
    return batch


def _tau_over_kernels(where: str, tau: Tensor, a: Tensor, batch: tuple[int, ...]) -> None:
    try:
        full = tuple(torch.broadcast_shapes(tau.shape, batch))
        if full == batch:
            return
        to_do = f"; for more kernels expand the anchors: a.expand{(*full, a.shape[-1])}"
    except RuntimeError:
        to_do = ""
    raise ValueError(
        f"{where}: `tau` must have one element, or broadcast to H = {batch}, the leading dimensions of `a` and `b`, "
        f"got shape {tuple(tau.shape)}{to_do}"
    )


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
        raise TypeError(f"{where}: `weight` must be float32 or float64, got {weight.dtype}; {_cast('weight', weight)}")
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
            f"{where}: `a` and `b` lead with H = {batch}, so `{name}` must be (*H, m, k) or broadcast to it, "
            f"got shape {tuple(x.shape)}; use {name}.unsqueeze(-2) for one vector a kernel"
        )


def diagonal(where: str, diag: object, a: Tensor, batch: tuple[int, ...], *, optional: bool) -> Tensor:
    """What is added to the diagonal, as (h, n) float64: a positive number, or values that broadcast to (*H, n)."""
    n = a.shape[-1]
    if isinstance(diag, Tensor):
        _real("diag", where, diag, a)
        values = diag.to(dtype=torch.float64, device=a.device)
    elif isinstance(diag, bool) or not isinstance(diag, numbers.Real):
        raise TypeError(f"{where}: `diag` must be a positive number or a tensor, got {type(diag).__name__}")
    else:  # filled in on the device: a copy from the host would wait for it
        values = torch.full((), _as_float(diag), dtype=torch.float64, device=a.device)
    try:
        flat = values.expand(*batch, n).reshape(math.prod(batch), n)
    except RuntimeError:
        raise ValueError(
            f"{where}: `diag` must be a number or broadcast to {(*batch, n)}, got shape {tuple(values.shape)}"
        ) from None
    if flat.is_cuda:  # not waited for: NaN in place of an error
        positive = (flat > 0) & (flat < math.inf)
        return torch.where(positive.all(-1, keepdim=True), flat, torch.nan)
    positive = (values > 0) & (values < math.inf)  # before it is expanded: a number is one look
    if not bool(positive.all()):
        found = float(values.detach()[~positive][0])
        raise ValueError(
            f"{where}: `diag` must be positive and finite throughout, got {found}{_to_do(found, optional)}"
        )
    return flat


def _to_do(found: float, optional: bool) -> str:
    """What may be done about a diagonal with such a value."""
    if not math.isfinite(found):
        return "; find it with torch.isfinite(diag).logical_not().nonzero()"
    left_out = "leave `diag` out for the matrix without one, or " if optional and found == 0 else ""
    return f"; {left_out}clamp it from below"


def one_weight(where: str, weight: Tensor | None, b: Tensor, batch: tuple[int, ...]) -> None:
    if weight is None:
        return
    _real("weight", where, weight, b)
    k = b.shape[-1]
    try:
        fits = weight.dim() > 0 and tuple(torch.broadcast_shapes(weight.shape, (*batch, k))) == (*batch, k)
    except RuntimeError:
        fits = False
    if not fits or weight.shape[-1] != k:
        shapes = f"{(k,)} or {(*batch, k)}" if batch else f"{(k,)}"
        raise ValueError(
            f"{where}: `weight` must be {shapes}, one a column, got shape {tuple(weight.shape)}; "
            "for several weights, expand the anchors to as many kernels"
        )


def not_negative(where: str, weight: Tensor) -> Tensor:
    """Weights (h, k) as they are, or an error; NaN on CUDA, which is not waited for."""
    allowed = (weight >= 0) & (weight < math.inf)
    if weight.is_cuda:
        return torch.where(allowed.all(-1, keepdim=True), weight, torch.nan)
    if not bool(allowed.all()):
        found = float(weight.detach()[~allowed][0])
        raise ValueError(
            f"{where}: `weight` must be finite and not negative, or the matrix need not be definite, got {found}; "
            "products with signed weights are fine, solves are not"
        )
    return weight


def finite_phase(where: str, name: str, phase: Tensor) -> Tensor:
    """Phases (h, n) as they are, or an error; NaN on CUDA, which is not waited for."""
    finite = torch.isfinite(phase)
    if phase.is_cuda:
        return torch.where(finite.all(-1, keepdim=True), phase, torch.nan)
    if not bool(finite.all()):
        raise ValueError(not_finite(where, name))
    return phase


def right_hand_side(where: str, y: Tensor, like: Tensor, batch: tuple[int, ...], n: int) -> None:
    if isinstance(y, Tensor) and y.is_complex():
        raise TypeError(
            f"{where}: `y` must be real, got {y.dtype}; the matrix is real: give y.real and y.imag as two columns, or "
            "one after the other"
        )
    _real("y", where, y, like, half=True)
    if y.dim() == 0 or y.shape[-2 if y.dim() > 1 else -1] != n:
        vectors = batch and y.dim() > 1 and y.shape[-1] == n
        hint = "; use y.unsqueeze(-1) for one vector a kernel" if vectors else ""
        raise ValueError(f"{where}: `y` must be (n,) or (..., n, m) with n = {n}, got shape {tuple(y.shape)}{hint}")
    try:
        torch.broadcast_shapes(y.shape[:-2], batch)
    except RuntimeError:
        raise ValueError(
            f"{where}: the kernels lead with H = {batch}, so `y` must be (n,), (n, m) or broadcast to (*H, n, m), "
            f"got shape {tuple(y.shape)}"
        ) from None


def _real(name: str, where: str, value: Tensor, like: Tensor, *, half: bool = False) -> None:
    is_tensor(where, name, value)
    if not value.dtype.is_floating_point or (value.dtype.itemsize < 4 and not half):
        to_do = _cast(name, value) if value.is_complex() else "call .double()"
        raise TypeError(f"{where}: `{name}` must be float32 or float64, got {value.dtype}; {to_do}")
    same_device(where, name, value, "a", like)


def sample_count(where: str, count: object) -> None:
    if count is None:
        return
    if isinstance(count, bool) or not isinstance(count, numbers.Integral):
        raise TypeError(f"{where}: `count` must be a whole number or None, got {type(count).__name__}")
    if count < 0:
        raise ValueError(f"{where}: `count` must not be negative, got {count}")


def made_by(name: str, how: str, got: object, required: type) -> None:
    """Raise unless what the constructor of a lazy matrix got is what the method that makes it hands over."""
    if not isinstance(got, required):
        raise TypeError(f"laplex.{name}: is made by {how}, not by its own name, got {type(got).__name__}")


_METHODS = {
    "solve(y, diag)": ("linalg_solve", "linalg_inv", "inverse"),
    "logdet(diag)": ("logdet", "slogdet", "linalg_slogdet", "det", "linalg_det"),
    "cholesky(diag)": ("linalg_cholesky", "cholesky"),
}


def not_defined(function: str, name: str) -> str:
    """Of a function of torch that would need the matrix."""
    methods = [method for method, functions in _METHODS.items() if function in functions]
    instead = f"K.{methods[0]} if it is symmetric, or " if methods else ""
    return f"{function} is not defined for a {name}; use {instead}.to_dense() if the matrix fits"


def not_an_index(key: object) -> str:
    parts = key if isinstance(key, tuple) else (key,)
    if any(part is None for part in parts):
        instead = "for a leading dimension make LaplaceOperator(a[None], b[None], tau)"
    else:
        instead = "use K[rows, :] for whole rows"
    return f"LaplaceOperator: index with K[rows, cols], got {key!r}; {instead}"


def not_symmetric(where: str) -> str:
    return (
        f"{where}: needs a symmetric matrix, made as LaplaceOperator(a) without `b` (and with `phi` alone); for "
        "least squares with a rectangular K use K.mT.gram().solve(K.mT @ y, diag), or K.aslinearoperator() and SciPy"
    )


def not_definite(where: str, index: int, tied: list[int] | None) -> str:
    if tied is not None:
        return (
            f"{where}: the matrix is singular: anchors a[{tied[0]}] and a[{tied[1]}] are equal, or as good as equal "
            "beside tau; drop one of them, or add a positive `diag`"
        )
    return (
        f"{where}: the matrix is not positive definite in float64: its factorisation broke down at a[{index}]; `diag` "
        "is too small beside the entries there (or an argument is not finite); use a larger one"
    )


def not_defined_for_factors(function: str) -> str:
    return (
        f"{function} is not defined for a CholeskyFactor; use C @ x with C on the left, C.solve(y), C.logdet(), or "
        ".to_dense() if the matrix fits"
    )


def not_captured(where: str) -> str:
    return (
        f"{where}: solves, log determinants and factors are not captured in a graph; use torch.compile without "
        "fullgraph=True and put this call into a function under @torch.compiler.disable: the graph breaks there"
    )


def reverse_mode_only(where: str, *values: object) -> None:
    """Raise where a graph is made, under torch.func's transforms, and for dual numbers, whose derivatives would be
    lost. (Dynamo, unless it was asked for a whole graph, answers the first with a break, and the call runs eagerly.)
    """
    if torch.compiler.is_compiling():
        raise RuntimeError(not_captured(where))
    transformed = torch._C._are_functorch_transforms_active()
    if not transformed and forward_ad._current_level >= 0:
        tensors = (value for value in values if isinstance(value, Tensor))
        transformed = any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)
    if transformed:
        raise RuntimeError(
            f"{where}: solves, log determinants and factors are differentiated in reverse mode only, not in forward "
            "mode, nor under torch.func transforms or vmap; use .backward() or torch.autograd.grad, anchors with a "
            "leading dimension in place of vmap, or .to_dense() if the matrix fits"
        )


def no_transform_in_a_graph() -> None:
    """Raise where torch.compile traces a transform of torch.func: it would lose derivatives without a word."""
    if torch._C._are_functorch_transforms_active():
        raise RuntimeError(
            "laplex: products within transforms of torch.func are not captured in a graph, in which their derivatives "
            "would be lost; put the transform into a function under @torch.compiler.disable, or use .backward() in its "
            "place"
        )


def not_copied() -> str:
    return (
        "CholeskyFactor: a factor that carries gradients cannot be copied or saved: the copy would lose them; make it "
        "under torch.no_grad(), or keep what it is made of"
    )


def differentiable_once() -> str:
    return (
        "laplex: log determinants and Cholesky factors are differentiable once (solves to any order); for second "
        "derivatives of small matrices use .to_dense()"
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


def without_core(missing: str) -> str:
    return (
        "laplex: on the CPU products, Gram matrices and solves run in plain torch, several times slower than need be "
        f"(told once; filter laplex.PerformanceWarning to silence it): {missing}"
    )


def not_a_plan(where: str, plan: object) -> str:
    return f"{where}: `plan` must be a laplex.Plan or None, got {type(plan).__name__}"

"""Checks of what a Gaussian process is given: the name, what is required, what was passed, and what to do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex._checks.arguments import as_float
from laplex._checks.counts import is_integer, is_number
from laplex._eager import normal_mode, plain, plainly_eager
from laplex._states.order import extremes, survey
from laplex.gp._kernel import Kernel
from laplex.gp._range import WHERE as WHERE
from laplex.gp._range import check_noise


def readable(x: Tensor) -> bool:
    """Whether the values of a tensor can be read, which they cannot in a graph or under a transform."""
    return plainly_eager() and plain(x)


def all_finite(x: Tensor) -> bool:
    """Whether all values of an ordinary tensor are finite."""
    return math.isfinite(x.item()) if x.numel() == 1 else all(map(math.isfinite, extremes(x)))


def check_kernel(where: str, kernel: Any) -> None:
    """Raise unless ``kernel`` is a kernel."""
    if not isinstance(kernel, Kernel):
        raise TypeError(
            f"{where}: `kernel` must be a kernel of laplex.gp, such as laplex.gp.Matern32(scale=1.0), got "
            f"{type(kernel).__name__}"
        )


def times(where: str, name: str, t: Any) -> Tensor:
    """Return the times (*batch, n) in float64; they must be finite, if their values can be read."""
    checked = shaped_times(where, name, t)
    if readable(checked):
        finite_times(where, name, all_finite(checked))
    return checked


def finite_times(where: str, name: str, finite: bool) -> None:
    """Raise unless the times are finite."""
    if not finite:
        raise ValueError(f"{where}: `{name}` must be finite, got NaN or infinity; leave such times out")


def shaped_times(where: str, name: str, t: Any) -> Tensor:
    """Return the times (*batch, n) in float64, whatever their values are."""
    if not isinstance(t, Tensor) or not t.is_floating_point():
        got = f"a tensor of {t.dtype}" if isinstance(t, Tensor) else type(t).__name__
        raise TypeError(
            f"{where}: `{name}` must be a tensor of floating-point times, got {got}; use "
            f"torch.as_tensor({name}).double()"
        )
    dense_real(where, name, t)
    if t.dim() == 0 or t.numel() == 0:
        raise ValueError(f"{where}: `{name}` must have shape (n,) or (*batch, n) with n >= 1, got {tuple(t.shape)}")
    return t.double()


def observed_times(t: Any) -> Tensor:
    """Return the times (*batch, n) of observations in float64; a column, which other libraries take, is refused."""
    checked = shaped_times(WHERE, "t", t)
    if t.dim() > 1 and t.shape[-1] == 1:
        raise ValueError(
            f"{WHERE}: `t` must have shape (n,) or (*batch, n), got {tuple(t.shape)}, which would be "
            f"{t.shape[:-1].numel()} series of one time each; pass t.squeeze(-1)"
        )
    return checked


def list_of_series(t: Sequence[Any]) -> Sequence[Any]:
    """Return the list of series; it must not be empty, and every tensor in it must be a vector."""
    if len(t) == 0:
        raise ValueError(f"{WHERE}: `t` must have at least one series, got an empty list")
    for i, row in enumerate(t):
        if isinstance(row, Tensor) and row.dim() != 1:
            raise ValueError(f"{WHERE}: in a list, `t` must have shapes (n_i,), got {tuple(row.shape)} for series {i}")
    return t


def batch(t: Tensor, of_kernel: torch.Size) -> torch.Size:
    """The batch shape of the series: that of the times broadcast with that of the kernel's parameters."""
    if not of_kernel:
        return t.shape[:-1]
    try:
        return torch.Size(torch.broadcast_shapes(t.shape[:-1], of_kernel))
    except RuntimeError:
        raise ValueError(
            f"{WHERE}: the kernel's parameters must broadcast to the leading dimensions {tuple(t.shape[:-1])} of the "
            f"times, got parameters of shape {tuple(of_kernel)}"
        ) from None


def new_times(where: str, t: Any, observed: torch.Size, other: Tensor) -> Tensor:
    """Return the times (*batch, m) of predictions; they must fit the observed batch, on the device of ``other``."""
    checked = times(where, "t", t)
    same_device(where, "t", checked, other)
    try:
        lead = torch.broadcast_shapes(checked.shape[:-1], observed)
    except RuntimeError:
        lead = None
    if lead != observed:
        column = "; pass t.squeeze(-1)" if t.shape[-1] == 1 else ""
        raise ValueError(
            f"{where}: `t` must have the shape (m,), or the leading dimensions {tuple(observed)} of the observed "
            f"times, got {tuple(t.shape)}{column}"
        )
    return checked


class Noise(NamedTuple):
    """The noise as it was given."""

    given: Tensor
    expanded: Tensor  # the same, expanded to the shape of the times
    is_deviation: bool  # a standard deviation, not a variance


def noise(diag: Any, yerr: Any, t: Tensor, batch: torch.Size) -> Noise:
    """Return the noise, whatever its values are."""
    if (diag is None) == (yerr is None):
        both = "neither" if diag is None else "both"
        raise ValueError(
            f"{WHERE}: either `diag`, the variance of the noise, or `yerr`, its standard deviation, must be given, "
            f"got {both}; for observations without noise pass a small diag, such as 1e-10 of the variance"
        )
    name, value = ("yerr", yerr) if diag is None else ("diag", diag)
    given = number_or_tensor(WHERE, name, value, t)
    return Noise(given, over_times(name, given, t, batch), diag is None)


def check_values(t: Tensor, noise: Noise) -> bool | None:
    """Raise if times or noise have bad values that can be read; return whether times are in order, None if unknown.

    Times and noise may have any shape; on a GPU both are read at once.
    """
    if not readable(noise.given):
        if readable(t):
            finite_times(WHERE, "t", all_finite(t))
        return None
    if not readable(t):
        check_noise_range(noise, *extremes(noise.given))
        return None
    (first, last, *of_noise), ordered = survey(t, noise.given)
    finite_times(WHERE, "t", math.isfinite(first) and math.isfinite(last))
    check_noise_range(noise, *of_noise)
    return ordered


def check_noise_range(noise: Noise, smallest: float, largest: float) -> None:
    """Raise if the noise, given by its extremes, is negative, infinite or too large."""
    name = "yerr" if noise.is_deviation else "diag"
    if not smallest >= 0:
        raise ValueError(f"{WHERE}: `{name}` must not be negative or NaN, got {smallest:g}")
    if math.isinf(largest):
        raise ValueError(f"{WHERE}: `{name}` must be finite, got infinity; leave such observations out")
    check_noise(name, largest)


def over_times(name: str, value: Tensor, t: Tensor, batch: torch.Size) -> Tensor:
    """Expand a value to a number for each time, (*batch, n)."""
    if value.shape == (*batch, t.shape[-1]):
        return value
    try:
        return value.expand(*batch, t.shape[-1])
    except RuntimeError:
        raise ValueError(
            f"{WHERE}: `{name}` must be a number, or broadcast to the shape {(*batch, t.shape[-1])} of the times, got "
            f"{tuple(value.shape)}"
        ) from None


def number_or_tensor(where: str, name: str, value: Any, t: Tensor) -> Tensor:
    """Return a number, an array or a tensor as a float64 tensor on the device of the times."""
    if isinstance(value, Tensor):
        dense_real(where, name, value)
        same_device(where, name, value, t)
        if value.dtype == torch.float64 and value.device == t.device:
            return value
    try:
        if isinstance(value, bool):
            raise TypeError
        with normal_mode():
            return torch.as_tensor(value, dtype=torch.float64, device=t.device)
    except OverflowError:
        raise ValueError(f"{where}: `{name}` must be in the range of float64, got a larger integer") from None
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"{where}: `{name}` must be a number or a tensor of numbers, got {type(value).__name__}"
        ) from None


def dense_real(where: str, name: str, value: Tensor) -> None:
    """Raise if a tensor is sparse, or complex."""
    if value.layout != torch.strided or value.is_complex():
        raise TypeError(
            f"{where}: `{name}` must be a dense tensor of real numbers, got one of {value.dtype}, {value.layout}"
        )


def same_device(where: str, name: str, value: Tensor, t: Tensor) -> None:
    """Raise unless a tensor is where the times are; a single number may be on the CPU."""
    if value.device != t.device and not (value.dim() == 0 and value.device.type == "cpu"):
        raise ValueError(
            f"{where}: `{name}` must be on {t.device}, where the times are, got {value.device}; use {name}.to(t.device)"
        )


def finite_observations(where: str, residual: Tensor, mean: Callable[[], Tensor | float]) -> None:
    """Raise if observations, or the mean that was subtracted from them, are NaN or infinite and can be read."""
    if not readable(residual) or all_finite(residual.double()):
        return
    if not bool(torch.as_tensor(mean()).isfinite().all()):
        raise ValueError(f"{where}: `mean` must be finite at all times, got NaN or infinity")
    raise ValueError(f"{where}: `y` must be finite, got NaN or infinity; leave such observations and their times out")


def check_mean(where: str, mean: Any, *, many: bool) -> None:
    """Raise unless the mean is a number, a tensor or a function; for many series it may be a list."""
    real = isinstance(mean, Tensor) and not mean.is_complex()
    if not (is_number(mean) or real or callable(mean) or (many and isinstance(mean, list | tuple))):
        got = f"a tensor of {mean.dtype}" if isinstance(mean, Tensor) else type(mean).__name__
        raise TypeError(f"{where}: `mean` must be a number, a tensor or a function of times, got {got}")
    if is_number(mean) and not math.isfinite(as_float(mean)):
        raise ValueError(f"{where}: `mean` must be finite, got {as_float(mean)}")


def observations(where: str, y: Any, batch: torch.Size, shape: torch.Size) -> Tensor:
    """Return the observations; they must have a value for each time."""
    if not isinstance(y, Tensor) or not y.is_floating_point():
        got = f"a tensor of {y.dtype}" if isinstance(y, Tensor) else type(y).__name__
        raise TypeError(
            f"{where}: `y` must be a tensor of floating-point numbers, got {got}; use torch.as_tensor(y).double()"
        )
    dense_real(where, "y", y)
    if y.shape == (*batch, shape[-1]):
        return y
    fits = y.dim() > 0 and y.shape[-1] == shape[-1]
    if fits:
        try:
            fits = torch.broadcast_shapes(y.shape[:-1], batch) == batch
        except RuntimeError:
            fits = False
    if not fits:
        raise ValueError(
            f"{where}: `y` must have the shape {(*batch, shape[-1])} of the times, got {tuple(y.shape)}; m sets of "
            "observations at the same times need m rows of times, as t.expand(m, -1)"
        )
    return y


def columns(where: str, y: Any, shape: tuple[int, ...]) -> Tensor:
    """Return y (*batch, n) or (*batch, n, m) as columns (*batch, n, m)."""
    if not isinstance(y, Tensor) or not y.is_floating_point():
        raise TypeError(f"{where}: `y` must be a tensor of floating-point numbers, got {type(y).__name__}")
    dense_real(where, "y", y)
    if y.shape != shape and y.shape[:-1] != shape:
        raise ValueError(
            f"{where}: `y` must have the shape {shape} of the times, or {(*shape, 'm')} for m columns, got "
            f"{tuple(y.shape)}"
        )
    if readable(y) and not all_finite(y.double()):
        raise ValueError(f"{where}: `y` must be finite, got NaN or infinity")
    return y[..., None] if y.shape == shape else y


def bands(where: str, band: Any, t: Tensor) -> Tensor | None:
    """Return the bands of the times, integers (*batch, n); None for none."""
    if band is None:
        return None
    if not isinstance(band, Tensor) or band.is_floating_point() or band.is_complex():
        got = f"a tensor of {band.dtype}" if isinstance(band, Tensor) else type(band).__name__
        raise TypeError(f"{where}: `band` must be a tensor of integers, got {got}")
    same_device(where, "band", band, t)
    try:
        return band.expand(t.shape)
    except RuntimeError:
        raise ValueError(
            f"{where}: `band` must have the shape {tuple(t.shape)} of the times, got {tuple(band.shape)}"
        ) from None


def exposures(
    exposure: Any, t: Tensor, batch: torch.Size, counts: list[int] | None, band: Tensor | None
) -> Tensor | None:
    """Return the lengths of exposures, with the shape of the times; None for none."""
    if exposure is None:
        return None
    if counts is not None or band is not None:
        raise ValueError(
            f"{WHERE}: `exposure` cannot be used with lists of series, or with bands; leave one of them out"
        )
    value = over_times("exposure", number_or_tensor(WHERE, "exposure", exposure, t), t, batch)
    if readable(value) and not bool(((value.detach() > 0) & value.detach().isfinite()).all()):
        raise ValueError(f"{WHERE}: `exposure` must be positive and finite, got {float(value.detach().min()):g}")
    return value


def not_exposed(where: str, exposure: Tensor | None) -> None:
    """Raise where exposures are not supported."""
    if exposure is not None:
        raise ValueError(f"{where}: is not defined for observations over exposures; mean and variance are")


def fixed_mean(where: str, mean: Tensor, t: Tensor, dims: int, *, observed: bool) -> Tensor:
    """Return a mean that is a tensor; one that varies over time is known at the observed times only."""
    if mean.numel() != 1 and mean.dim() > 0 and mean.shape[-1] != 1 and not observed:
        raise ValueError(
            f"{where}: `mean` must be a number or a function to be known at other times than those observed, got a "
            f"tensor of shape {tuple(mean.shape)}; pass a function of times, or include_mean=False"
        )
    return computed_mean(where, mean, t, dims)


def computed_mean(where: str, mean: Any, t: Tensor, dims: int) -> Tensor:
    """Return the mean; it must broadcast to the times and have at most ``dims`` dimensions."""
    if not isinstance(mean, Tensor):
        raise TypeError(f"{where}: `mean` must return a tensor of the shape of the times, got {type(mean).__name__}")
    dense_real(where, "mean", mean)
    same_device(where, "mean", mean, t)
    try:
        fits = torch.broadcast_shapes(mean.shape, t.shape)[-1] == t.shape[-1] and mean.dim() <= dims
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"{where}: `mean` must broadcast to the shape {tuple(t.shape)} of the times, got {tuple(mean.shape)}"
        )
    return mean.to(torch.float64)


def draws(where: str, size: Any) -> int:
    """Return the number of draws; None means one."""
    if size is None:
        return 1
    if not is_integer(size) or size < 1:
        raise ValueError(f"{where}: `size` must be a positive integer or None, got {size!r}")
    return int(size)


def not_ragged(where: str, counts: list[int] | None) -> None:
    """Raise where series of different sizes are not supported."""
    if counts is not None:
        raise ValueError(f"{where}: needs times in one tensor, got a list of series; make a process of each series")


def last_size(values: Any) -> int:
    """The size of the last dimension of a tensor or an array; 1 for numbers."""
    shape = tuple(getattr(values, "shape", ()))
    return shape[-1] if shape else 1


def one_tensor_per_series(name: str, values: Any, counts: Sequence[int]) -> list[Tensor]:
    """Return the list; it must have a tensor for each series."""
    if not isinstance(values, list | tuple) or len(values) != len(counts):
        got = len(values) if isinstance(values, list | tuple) else type(values).__name__
        raise ValueError(f"{WHERE}: `{name}` must be a list of {len(counts)} tensors, one for each series, got {got}")
    for i, row in enumerate(values):
        if not isinstance(row, Tensor):
            raise TypeError(f"{WHERE}: `{name}` must be a list of tensors, got {type(row).__name__} for series {i}")
    return list(values)


def one_value_per_time(name: str, values: Any, counts: Sequence[int]) -> list[Tensor]:
    """Return the list; it must have a tensor for each series, as long as the times of that series."""
    checked = one_tensor_per_series(name, values, counts)
    for i, (row, count) in enumerate(zip(checked, counts, strict=True)):
        if row.shape != (count,):
            raise ValueError(f"{WHERE}: `{name}` of series {i} must have the shape ({count},), got {tuple(row.shape)}")
    return checked


def chosen_terms(where: str, kernel: Kernel, term: Kernel | None) -> list[bool] | None:
    """Which terms of a kernel belong to ``term``, one of them or a sum of some; None for all."""
    if term is None or term is kernel:
        return None
    check_kernel(where, term)
    wanted = {id(part) for part in term.terms()}
    every = [id(part) for part in kernel.terms()]
    if any(every.count(part) > 1 for part in wanted):
        raise ValueError(
            f"{where}: `kernel` must be a term that is in the sum once, got one that is in it several times; add "
            "different objects"
        )
    known = {*every}
    if not wanted <= known:
        raise ValueError(
            f"{where}: `kernel` must be a term of the process's kernel, the same object as in the sum, or a sum of "
            f"some of its terms; got {type(term).__name__}, which is not one of its {len(known)} terms"
        )
    return [part in wanted for part in every]

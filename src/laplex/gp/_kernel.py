"""What every kernel of Gaussian processes can do, and sums, products and multiples of kernels."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from laplex._checks.arguments import as_float
from laplex._checks.counts import is_number
from laplex._eager import plain, plainly_eager
from laplex._states.components import Component, Value
from laplex._states.numbers import Number


class _Reading(threading.local):
    """How this thread's kernels read tensors (None: in float64), and the numbers by which they choose components."""

    read: Callable[[Tensor], Any] | None = None
    branch: Callable[[float], float] | None = None


_reading = _Reading()


class Kernel(nn.Module, ABC):
    """A covariance function k(t, t') of a Gaussian process over time.

    Parameters are numbers or tensors. A tensor may require a gradient, and its shape broadcasts to the batch of series.
    A kernel is a module: an ``nn.Parameter`` that it is given is one of its ``parameters()``. Parameters can be set
    later, as in ``kernel.scale = 3.0``; those that are trained are written in place. Kernels are added and multiplied,
    with one another and with positive numbers. ``kernel(t1, t2)`` is the dense matrix.
    """

    __module__ = "laplex.gp"
    __array_ufunc__ = None  # so that a NumPy number times a kernel is a kernel
    parameter_names: tuple[str, ...] = ()  # all parameters
    signed_parameters: tuple[str, ...] = ()  # those that need not be positive

    def __init__(self, **values: Any) -> None:
        super().__init__()
        for name, value in values.items():
            self._set(name, value)

    @abstractmethod
    def components(self) -> list[Component]:
        """The states of the kernel."""

    def evaluate(self, distance: Any) -> Tensor:
        """k as a function of the distance |t - t'|, of which only the size counts: a number, an array or a tensor.

        Parameters broadcast to the leading dimensions of distances (*batch, n, m). Computed in float64; the result has
        the dtype of the distances, and that of torch's defaults for integers.
        """
        given = _real(f"laplex.gp.{type(self).__name__}.evaluate", "distance", distance)
        self._check_leading(distance=given.shape[:-2])
        dtype = given.dtype if given.is_floating_point() else torch.get_default_dtype()
        wide = given.double()
        size = torch.where(wide < 0, -wide, wide)  # with the derivative 1 at 0, where that of abs() is 0
        return self._covariance(size).to(dtype)

    def _covariance(self, distance: Tensor) -> Tensor:
        """The same for distances in float64 that are not negative. Kernels define this, or else ``evaluate``."""
        raise NotImplementedError(f"laplex.gp.{type(self).__name__}: `evaluate` must be defined by the class")

    def forward(self, t1: Tensor, t2: Tensor | None = None) -> Tensor:
        """The dense matrix k(t1, t2), (*batch, n, m), for t1 (*batch, n) and t2 (*batch, m), or t1 itself."""
        other = t1 if t2 is None else t2
        self._check_times(t1, other)
        distance = (t1.double()[..., :, None] - other.double()[..., None, :]).abs()
        return self.evaluate(distance).to(torch.promote_types(t1.dtype, other.dtype))

    def _check_times(self, t1: Any, t2: Any) -> None:
        """Raise unless there is a dense matrix for t1 and t2."""
        for name, t in (("t1", t1), ("t2", t2)):
            if not isinstance(t, Tensor) or not t.is_floating_point() or t.dim() == 0:
                got = f"a tensor of {t.dtype}, {tuple(t.shape)}" if isinstance(t, Tensor) else type(t).__name__
                raise TypeError(
                    f"laplex.gp.{type(self).__name__}: `{name}` must be a tensor of floating-point times (*batch, n), "
                    f"got {got}; use torch.as_tensor({name}).double()"
                )
        self._check_leading(t1=t1.shape[:-1], t2=t2.shape[:-1])

    def _check_leading(self, **leading: torch.Size) -> None:
        """Raise unless leading dimensions of arguments broadcast with the kernel's parameters."""
        try:
            torch.broadcast_shapes(self.batch_shape, *leading.values())
        except RuntimeError:
            names = " and ".join(f"`{name}`" for name in leading)
            got = ", ".join(str(tuple(shape)) for shape in leading.values())
            raise ValueError(
                f"laplex.gp.{type(self).__name__}: the leading dimensions of {names} must broadcast with the shape "
                f"{tuple(self.batch_shape)} of the kernel's parameters, got {got}; insert dimensions of size 1 for all "
                "pairs"
            ) from None

    def components_by(
        self, read: Callable[[Tensor], Any], branch: Callable[[float], float] | None = None
    ) -> list[Component]:
        """The components, with ``read(tensor)`` in place of every tensor, in the order in which they are read.

        ``branch(number)`` takes the place of every number by which a kernel chooses its components, so that a second
        evaluation can repeat the choices of the first.
        """
        before = _reading.read, _reading.branch
        _reading.read, _reading.branch = read, branch
        try:
            return self.components()
        finally:
            _reading.read, _reading.branch = before

    def terms(self) -> list[Kernel]:
        """The kernels of which this one is the sum."""
        return [self]

    @property
    def batch_shape(self) -> torch.Size:
        """The shape to which all parameters broadcast."""
        values = [self._get(name) for name in self.parameter_names]
        shapes = [value.shape for value in values if isinstance(value, Tensor) and value.dim()]
        shapes += [child.batch_shape for child in self._modules.values() if isinstance(child, Kernel)]
        return torch.Size(torch.broadcast_shapes(*shapes)) if shapes else torch.Size()

    def __add__(self, other: object) -> Kernel:
        if is_number(other):
            raise TypeError(
                f"laplex.gp: a number cannot be added to a kernel; add laplex.gp.Constant(sigma), got {other}"
            )
        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __radd__(self, other: object) -> Kernel:
        return self if is_number(other) and other == 0 else self.__add__(other)  # so that sum(kernels) works

    def __mul__(self, other: object) -> Kernel:
        if isinstance(other, Kernel):
            return Product(self, other)
        return Scale(self, other) if is_number(other) or isinstance(other, Tensor) else NotImplemented

    __rmul__ = __mul__

    def __getattr__(self, name: str) -> Any:
        """Find a tensor, or a parameter whose logarithm is trained (see :func:`laplex.gp.trainable`)."""
        buffers, modules = self.__dict__.get("_buffers"), self.__dict__.get("_modules")
        if buffers and name in buffers:
            return buffers[name]
        if modules and "logs" in modules and name in modules["logs"]:
            return modules["logs"][name].exp()
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Write an attribute. Parameters are checked as when the kernel is made; trained ones are written in place."""
        if name not in self.parameter_names or isinstance(getattr(type(self), name, None), property):
            self._refuse_mistyped(name, value)
            super().__setattr__(name, value)
            return
        self._check(name, value)
        modules, parameters = self.__dict__.get("_modules") or {}, self.__dict__.get("_parameters") or {}
        if "logs" in modules and name in modules["logs"]:
            self._write(name, modules["logs"][name], value, torch.log)
        elif name in parameters and not isinstance(value, nn.Parameter):
            self._write(name, parameters[name], value, torch.clone)
        else:
            if name in self.__dict__ or name in parameters or name in (self.__dict__.get("_buffers") or {}):
                delattr(self, name)
            self._set(name, value)

    def _refuse_mistyped(self, name: str, value: Any) -> None:
        """Raise if a kernel of laplex has no attribute of this name. Other classes may have any."""
        free = name.startswith("_") or isinstance(value, nn.Module | nn.Parameter)
        if free or not type(self).__module__.startswith("laplex.") or hasattr(self, name):
            return
        parts = [part for part in (*self._modules, *self._parameters, *self._buffers) if part != "logs"]
        known = ", ".join(f"`{part}`" for part in dict.fromkeys((*self.parameter_names, *parts)))
        raise AttributeError(f"laplex.gp.{type(self).__name__}: `{name}` cannot be set, only {known}")

    def _write(self, name: str, parameter: Tensor, value: Any, function: Callable[[Tensor], Tensor]) -> None:
        """Write function(value) to a parameter that is trained, which stays the same object."""
        where = f"laplex.gp.{type(self).__name__}: `{name}` is trained, so it must be set to"
        if isinstance(value, Tensor) and (value.requires_grad or isinstance(value, nn.Parameter)):
            got = "an nn.Parameter" if isinstance(value, nn.Parameter) else "a tensor that requires a gradient"
            raise TypeError(
                f"{where} a number, or a tensor without a gradient, got {got}; to replace the parameter make another "
                "kernel, or set it on laplex.gp.fixed(kernel)"
            )
        try:
            with torch.no_grad():
                parameter.copy_(function(torch.as_tensor(value, dtype=torch.float64)))
        except RuntimeError:
            shape = tuple(parameter.shape)
            raise ValueError(f"{where} a number, or one for each of {shape}, got {tuple(value.shape)}") from None

    def _set(self, name: str, value: Any) -> None:
        """Keep a parameter. Tensors move with the module and are part of its state."""
        if type(value) is not Tensor and isinstance(value, nn.Parameter):
            self.register_parameter(name, value)
        elif isinstance(value, Tensor):
            self._buffers[name] = value  # register_buffer first searches for the name, which takes longer than all else
        else:
            number: Any = float(value) if isinstance(value, numpy.generic) else value
            super().__setattr__(name, number)

    def _get(self, name: str) -> Any:
        """A parameter. Tensors are found here at once, and otherwise only after everything else."""
        value = self._buffers.get(name)
        return getattr(self, name) if value is None else value

    def _set_checked(self, **values: Any) -> None:
        """Keep parameters that must be positive, or finite if they are signed."""
        for name, value in values.items():
            self._check(name, value)
            self._set(name, value)

    def _check(self, name: str, value: Any) -> None:
        """Raise unless a parameter is a number, or a tensor of numbers, in its range."""
        self._check_number(name, value)
        signed = name in self.signed_parameters
        for number in _extremes(value):
            if not (math.isfinite(number) and (signed or number > 0)):
                text = f"`{name}` must be {'' if signed else 'positive and '}finite, got {number:g}"
                raise ValueError(f"laplex.gp.{type(self).__name__}: {text}")

    def _check_number(self, name: str, value: Any) -> None:
        numeric = isinstance(value, Tensor) and value.is_floating_point() and value.layout == torch.strided
        if not (numeric or is_number(value)):
            got = f"a tensor of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
            got += ", which is sparse" if isinstance(value, Tensor) and value.layout != torch.strided else ""
            raise TypeError(
                f"laplex.gp.{type(self).__name__}: `{name}` must be a number or a floating-point tensor, got {got}"
            )
        if isinstance(value, Tensor) and not value.numel():
            raise ValueError(f"laplex.gp.{type(self).__name__}: `{name}` must have a number, got an empty tensor")

    def _value(self, name: str) -> Value:
        """A parameter in float64."""
        value = self._get(name)
        if not isinstance(value, Tensor):
            return float(value)
        return value.double() if _reading.read is None else _reading.read(value)

    def _over(self, distance: Tensor, *names: str) -> list[Value]:
        """Parameters shaped to broadcast to distances (*batch, n, m), and at least as precise."""
        values: list[Value] = []
        for value in (getattr(self, name) for name in names):
            if isinstance(value, Tensor):
                value = value.to(torch.promote_types(value.dtype, distance.dtype))
            values.append(value[..., None, None] if isinstance(value, Tensor) and value.dim() else value)
        return values

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={shown(getattr(self, name))}" for name in self.parameter_names)


class Sum(Kernel):
    """k(t, t') = left(t, t') + right(t, t'), as ``left + right``."""

    def __init__(self, left: Kernel, right: Kernel) -> None:
        super().__init__()
        self.left, self.right = left, right

    def components(self) -> list[Component]:
        return [*self.left.components(), *self.right.components()]

    def forward(self, t1: Tensor, t2: Tensor | None = None) -> Tensor:
        dense: Tensor = self.left(t1, t2) + self.right(t1, t2)
        return dense

    def _covariance(self, distance: Tensor) -> Tensor:
        return self.left.evaluate(distance) + self.right.evaluate(distance)

    def terms(self) -> list[Kernel]:
        return [*self.left.terms(), *self.right.terms()]


class Product(Kernel):
    """k(t, t') = left(t, t') right(t, t'), as ``left * right``. It has as many states as the factors' multiplied."""

    def __init__(self, left: Kernel, right: Kernel) -> None:
        super().__init__()
        self.left, self.right = left, right

    def components(self) -> list[Component]:
        return [left.times(right) for left in self.left.components() for right in self.right.components()]

    def forward(self, t1: Tensor, t2: Tensor | None = None) -> Tensor:
        dense: Tensor = self.left(t1, t2) * self.right(t1, t2)
        return dense

    def _covariance(self, distance: Tensor) -> Tensor:
        return self.left.evaluate(distance) * self.right.evaluate(distance)


class Scale(Kernel):
    """k(t, t') = factor kernel(t, t'), as ``factor * kernel``, with a positive number or tensor."""

    parameter_names = ("factor",)

    def __init__(self, kernel: Kernel, factor: Any) -> None:
        super().__init__()
        self.kernel = kernel
        self._set_checked(factor=factor)

    def components(self) -> list[Component]:
        return [component.scaled(self._value("factor")) for component in self.kernel.components()]

    def forward(self, t1: Tensor, t2: Tensor | None = None) -> Tensor:
        dense: Tensor = self.kernel(t1, t2)
        return (self._over(dense, "factor")[0] * dense).to(dense.dtype)

    def _covariance(self, distance: Tensor) -> Tensor:
        return self._over(distance, "factor")[0] * self.kernel.evaluate(distance)


def _real(where: str, name: str, value: Any) -> Tensor:
    """A number, an array or a tensor as a dense tensor of real numbers."""
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        tensor = None
    if tensor is None or tensor.is_complex() or tensor.dtype == torch.bool or tensor.layout != torch.strided:
        got = f"one of {value.dtype}, {value.layout}" if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"{where}: `{name}` must be a number or a dense tensor of real numbers, got {got}")
    return tensor


def largest(value: Any) -> float:
    """The largest of a parameter's values, by which a kernel chooses; infinite where they cannot be read at once."""
    known = [float(numpy.max(value.value))] if isinstance(value, Number) else _extremes(value)
    number = max(known, default=math.inf)
    return number if _reading.branch is None else _reading.branch(number)


def _extremes(value: Any) -> list[float]:
    """The smallest and the largest value, NaN if there is one; none where they cannot be read at once."""
    if not isinstance(value, Tensor):
        return [as_float(value)]
    if not value.is_cpu or not plainly_eager() or not plain(value) or not value.numel():
        return []
    return [value.item()] if value.numel() == 1 else [extreme.item() for extreme in value.detach().aminmax()]


def shown(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"{value:g}"
    return f"{float(value.detach()):g}" if value.numel() == 1 and plain(value) else f"tensor{tuple(value.shape)}"

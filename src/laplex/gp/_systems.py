"""Kernels that are given by their states, and processes that are observed in bands."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from laplex._eager import plain, plainly_eager
from laplex._exponential import exponential
from laplex._states.components import Banded, Component, Feedback
from laplex.gp._kernel import Kernel, shown

ROUNDING = 1e-6  # how wrong a covariance may be, over its largest entry: it may have been computed in float32


class StateSpace(Kernel):
    r"""A kernel of your own: the process h^T x with states x' = F x + noise, where the noise has the covariance Q.

    The states have the covariance P that solves F P + P F^T + Q = 0, and k(D) = h^T exp(F D) P h.

    Args:
        feedback (*batch, s, s): F; the real parts of its eigenvalues must be negative.
        noise (*batch, s, s): Q, symmetric and positive semidefinite.
        readout (*batch, s): h.
    """

    feedback: Tensor
    noise: Tensor
    readout: Tensor

    def __init__(self, feedback: Tensor, noise: Tensor, readout: Tensor) -> None:
        super().__init__()
        s = readout.shape[-1] if isinstance(readout, Tensor) and readout.dim() else 0
        for name, value, shape in (
            ("feedback", feedback, (s, s)),
            ("noise", noise, (s, s)),
            ("readout", readout, (s,)),
        ):
            if not isinstance(value, Tensor) or s == 0 or value.shape[-len(shape) :] != shape:
                got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                needed = "(*batch, s)" if len(shape) == 1 else "(*batch, s, s) with the s of `readout`"
                raise ValueError(f"laplex.gp.StateSpace: `{name}` must be a tensor of shape {needed}, got {got}")
            if not value.is_floating_point():
                raise TypeError(f"laplex.gp.StateSpace: `{name}` must be of floating point, got {value.dtype}")
            self._set(name, value)
        if plainly_eager() and plain(noise):
            _check_covariance("laplex.gp.StateSpace", "noise", noise.detach().double())

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={shown(getattr(self, name))}" for name in ("feedback", "noise", "readout"))

    @property
    def batch_shape(self) -> torch.Size:
        shapes = self.feedback.shape[:-2], self.noise.shape[:-2], self.readout.shape[:-1]
        return torch.Size(torch.broadcast_shapes(*shapes))

    def components(self) -> list[Component]:
        return [self._component()]

    def _component(self) -> Feedback:
        parts = self.feedback, self.noise, self.readout
        feedback, noise, readout = (part.double().clone() for part in parts)  # a conditional keeps the component
        p = stationary_covariance("laplex.gp.StateSpace", feedback, noise)
        turned = (readout[..., None, :] @ feedback)[..., 0, :]  # F^T h
        # The slope is white noise, and does not exist, unless h^T Q h = 0.
        slope = _times(p, turned) if _is_zero(readout[..., None, :] @ noise) else None
        return Feedback(feedback, readout, _times(p, readout), slope)

    def _covariance(self, distance: Tensor) -> Tensor:
        return _feedback_kernel(self._component(), distance)


class CARMA(Kernel):
    r"""A continuous-time autoregressive moving average, CARMA(p, q) with q < p.

        y^(p) + alpha_{p-1} y^(p-1) + ... + alpha_0 y = beta_0 e + beta_1 e' + ... + beta_q e^(q)

    where e is white noise of unit power.

    Args:
        alpha (*batch, p): the polynomial s^p + alpha_{p-1} s^(p-1) + ... + alpha_0 must have roots with negative real
            parts only.
        beta (*batch, q + 1).
    """

    alpha: Tensor
    beta: Tensor

    def __init__(self, alpha: Tensor, beta: Tensor) -> None:
        super().__init__()
        for name, value in (("alpha", alpha), ("beta", beta)):
            if not isinstance(value, Tensor) or value.dim() == 0 or not value.is_floating_point():
                raise TypeError(
                    f"laplex.gp.CARMA: `{name}` must be a floating-point tensor (*batch, size), got {value!r}"
                )
        if not 0 < beta.shape[-1] <= alpha.shape[-1]:
            raise ValueError(
                f"laplex.gp.CARMA: `beta` must have 1 to {alpha.shape[-1]} coefficients, at most as many as `alpha`, "
                f"got {beta.shape[-1]}"
            )
        self._set("alpha", alpha)
        self._set("beta", beta)

    def extra_repr(self) -> str:
        return f"alpha={shown(self.alpha)}, beta={shown(self.beta)}"

    @property
    def batch_shape(self) -> torch.Size:
        return torch.Size(torch.broadcast_shapes(self.alpha.shape[:-1], self.beta.shape[:-1]))

    def components(self) -> list[Component]:
        return [self._component()]

    def _component(self) -> Feedback:
        alpha, beta = (part.double().expand(*self.batch_shape, -1) for part in (self.alpha, self.beta))
        s = alpha.shape[-1]
        unit = torch.eye(s, dtype=alpha.dtype, device=alpha.device)
        upper = torch.cat([torch.zeros_like(unit[:-1, :1]), unit[:-1, :-1]], -1).expand(*alpha.shape[:-1], s - 1, s)
        feedback = torch.cat([upper, -alpha[..., None, :]], -2)
        noise = (unit[:, -1:] @ unit[-1:]).expand_as(feedback)
        readout = torch.nn.functional.pad(beta, (0, s - beta.shape[-1]))
        p = stationary_covariance("laplex.gp.CARMA", feedback, noise)
        turned = (readout[..., None, :] @ feedback)[..., 0, :]
        slope = _times(p, turned) if beta.shape[-1] < s else None
        return Feedback(feedback, readout, _times(p, readout), slope)

    def _covariance(self, distance: Tensor) -> Tensor:
        return _feedback_kernel(self._component(), distance)


class Bands(Kernel):
    """One process in several bands: band i observes value[i] times the process plus slope[i] times its slope.

    The argument ``band`` of the process says which band each time belongs to. In a sum, bands may observe different
    processes: ``Bands(one, ...) + Bands(two, ...)``. With value = (1, 0) and slope = (0, 1), band 1 observes the slope.

    Args:
        kernel: that of the process; if slopes are given, a differentiable one such as Matern32, Matern52 and SHO.
        value (bands,): a number for each band.
        slope (bands,): likewise; None for 0.
    """

    kernel: Kernel
    value: Tensor
    slope: Tensor | None

    def __init__(self, kernel: Kernel, value: Tensor, slope: Tensor | None = None) -> None:
        super().__init__()
        if not isinstance(kernel, Kernel) or any(isinstance(part, Bands) for part in kernel.modules()):
            what = "one with bands" if isinstance(kernel, Kernel) else type(kernel).__name__
            raise TypeError(f"laplex.gp.Bands: `kernel` must be a kernel of laplex.gp without bands, got {what}")
        self.kernel = kernel
        for name, tensor in (("value", value), ("slope", slope)):
            if tensor is None and name == "slope":
                continue
            if not isinstance(tensor, Tensor) or tensor.dim() != 1 or tensor.shape != value.shape:
                got = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
                raise ValueError(f"laplex.gp.Bands: `{name}` must be a tensor with a number for each band, got {got}")
        self._set("value", value)
        self._set("slope", slope)

    def components(self) -> list[Component]:
        value, slope = self.value.clone(), None if self.slope is None else self.slope.clone()
        return [Banded(component, value, slope) for component in self.kernel.components()]

    def extra_repr(self) -> str:
        return f"value={shown(self.value)}" + ("" if self.slope is None else f", slope={shown(self.slope)}")

    def forward(self, t1: Tensor, t2: Tensor | None = None) -> Tensor:
        raise ValueError("laplex.gp.Bands: the matrix depends on bands, too; use a GaussianProcess with `band`")

    def evaluate(self, distance: Any) -> Tensor:
        return self.forward(distance)


def _check_covariance(where: str, name: str, matrix: Tensor) -> None:
    """Raise unless a matrix is symmetric and positive semidefinite, up to rounding errors. (NaN is found later.)"""
    largest = float(matrix.abs().max())
    if not math.isfinite(largest):
        return
    symmetric = float((matrix - matrix.mT).abs().max()) <= ROUNDING * largest
    if not (symmetric and float(torch.linalg.eigvalsh(matrix).min()) >= -ROUNDING * largest):
        got = "one with a negative eigenvalue" if symmetric else "one that is not symmetric"
        raise ValueError(f"{where}: `{name}` must be symmetric and positive semidefinite, got {got}")


def stationary_covariance(where: str, feedback: Tensor, noise: Tensor) -> Tensor:
    """Solve F P + P F^T + Q = 0 for P, as s^2 linear equations."""
    if plainly_eager() and plain(feedback) and feedback.device.type == "cpu":
        largest = float(torch.linalg.eigvals(feedback.detach()).real.max())
        if not largest < 0:
            raise ValueError(
                f"{where}: the states must decay: all eigenvalues of F, or roots of the polynomial of alpha, must have "
                f"negative real parts, got one of {largest:g}"
            )
    s = feedback.shape[-1]
    unit = torch.eye(s, dtype=feedback.dtype, device=feedback.device)
    system = torch.einsum("...ij,kl->...ikjl", feedback, unit) + torch.einsum("ij,...kl->...ikjl", unit, feedback)
    # Not torch.linalg.solve, whose second derivatives by nested forward mode are wrong (pytorch#192540).
    flat = _times(torch.linalg.inv(system.flatten(-4, -3).flatten(-2)), -noise.flatten(-2))
    p: Tensor = flat.unflatten(-1, (s, s))
    return (p + p.mT) / 2


def _is_zero(x: Tensor) -> bool:
    """Whether all numbers are known to be 0. In graphs and under vmap they cannot be read."""
    if torch.compiler.is_compiling():
        return False
    try:
        return not bool((x != 0).any())
    except RuntimeError:
        return False


def _feedback_kernel(component: Feedback, distance: Tensor) -> Tensor:
    """The kernel of one component with matrix exponentials, for distances (*batch, n, m)."""
    dynamics, p, q = _over(component.dynamics, 2), _over(component.p, 1), _over(component.q, 1)
    moved = exponential(dynamics * distance[..., None, None]) @ q[..., None]
    value: Tensor = (p[..., None, :] @ moved)[..., 0, 0]
    return value


def _over(part: Tensor, dims: int) -> Tensor:
    """A part (*batch, ...) of a component, shaped to broadcast to distances; the last ``dims`` dimensions stay."""
    batch, own = part.shape[: part.dim() - dims], part.shape[part.dim() - dims :]
    return part.reshape(*batch, 1, 1, *own) if batch else part


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector[..., None])[..., 0]

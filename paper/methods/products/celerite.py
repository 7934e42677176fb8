"""celerite2's products, factor and solve: C++, exact, O(n + k), for sorted anchors; float64, one thread, on the CPU."""

import importlib
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

DIAG = 0.1  # added to the diagonal of what is solved


def prepare(a: Tensor, b: Tensor, tau: float) -> Callable[[Tensor], Tensor]:
    """Hand over ascending float64 anchors; K is celerite's real term of rate 1 / tau, with generators U = V = 1."""
    driver = importlib.import_module("celerite2.driver")
    rows, cols, rate = a.numpy(), b.numpy(), np.array([1.0 / tau])
    ones_rows, ones_cols = np.ones((len(rows), 1)), np.ones((len(cols), 1))

    def apply(x: Tensor) -> Tensor:
        columns = np.ascontiguousarray(x.numpy().T)  # (k, batch)
        y = np.zeros((len(rows), columns.shape[1]))  # both calls add to it
        driver.general_matmul_lower(rows, cols, rate, ones_rows, ones_cols, columns, y)
        driver.general_matmul_upper(rows, cols, rate, ones_rows, ones_cols, columns, y)
        return torch.from_numpy(y.T)

    return apply


def prepare_symmetric(a: Tensor, b: Tensor, tau: float) -> Callable[[Tensor], Tensor]:
    """K(a, a) x as celerite2's own `Term.dot` multiplies, its matrices made before. Ascending float64 anchors."""
    del b
    driver = importlib.import_module("celerite2.driver")
    times, rate, ones = a.numpy(), np.array([1.0 / tau]), np.ones((len(a), 1))

    def apply(x: Tensor) -> Tensor:
        columns = np.ascontiguousarray(x.numpy().T)  # (n, batch)
        y = columns.copy()  # the diagonal is 1; both calls add to it
        driver.matmul_lower(times, rate, ones, ones, columns, y)
        driver.matmul_upper(times, rate, ones, ones, columns, y)
        return torch.from_numpy(y.T)

    return apply


def prepare_solve(a: Tensor, b: Tensor, tau: float) -> Callable[[Tensor], Tensor]:
    """(K(a, a) + DIAG)^-1 y for y (batch, n): factored and solved in every call. Ascending float64 anchors."""
    del b
    driver = importlib.import_module("celerite2.driver")
    times, rate, ones = a.numpy(), np.array([1.0 / tau]), np.ones((len(a), 1))
    diagonal = np.full(len(times), 1.0 + DIAG)

    def apply(y: Tensor) -> Tensor:
        columns = np.ascontiguousarray(y.numpy().T)  # (n, batch)
        d, w, x = np.empty(len(times)), np.empty((len(times), 1)), np.empty_like(columns)
        driver.factor(times, rate, diagonal, ones, ones, d, w)
        x[:] = columns
        driver.solve_lower(times, rate, ones, w, x, x)
        x /= d[:, None]
        driver.solve_upper(times, rate, ones, w, x, x)
        return torch.from_numpy(x.T)

    return apply

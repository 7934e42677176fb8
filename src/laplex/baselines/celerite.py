"""celerite2's general_matmul: C++, exact, O(n + k), for anchors that are already sorted; float64 on the CPU."""

import importlib
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


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

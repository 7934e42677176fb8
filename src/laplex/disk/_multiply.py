"""One product in memory: the scan of ``laplex.linear``, without checks, since all arguments were checked before."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from laplex import _backends
from laplex._plan import planned_matrix
from laplex._product import product
from laplex._shapes import flat_tau
from laplex.disk._files import WHERE


def multiply(
    x: np.ndarray[Any, Any],
    a: np.ndarray[Any, Any],
    b: np.ndarray[Any, Any],
    tau: float,
    phases: tuple[np.ndarray[Any, Any] | None, np.ndarray[Any, Any] | None],
) -> np.ndarray[Any, Any]:
    """y (m, n) for x (m, k)."""
    if a.size == 0 or b.size == 0 or len(x) == 0:
        return np.zeros((len(x), a.size), x.dtype)
    device = torch.device("cpu")
    name = _backends.planner(device)  # not the backend that forms the matrix, which would need more memory
    rows, cols, operand = (torch.from_numpy(array) for array in (a, b, x))
    phase = tuple(torch.from_numpy(angles) for angles in phases if angles is not None)
    with torch.no_grad():
        length = flat_tau(tau, (), device)
        matrix = planned_matrix(WHERE, (rows, cols), length, (), None, (_backends.load(name, "cpu"), name))
        y: np.ndarray[Any, Any] = product(operand, matrix, phase).numpy()
    return y

"""What the estimators of :mod:`laplex.sklearn` share: tensors from arrays, and random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor


def as_tensor(data: np.ndarray) -> Tensor:
    """Return the array as a tensor, without a copy where torch may write to it: otherwise torch would warn."""
    return torch.from_numpy(np.require(data, requirements=["C", "W"]))


def seeded_generator(random_state: Any) -> torch.Generator:
    """A generator whose seed is drawn from an int, a ``numpy.random.RandomState`` or, for None, NumPy's own state."""
    seed = int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
    return torch.Generator().manual_seed(seed)

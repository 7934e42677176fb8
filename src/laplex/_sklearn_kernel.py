"""Estimators of densities and of means on the line, for scikit-learn; :mod:`laplex.sklearn` exports them."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from laplex import stats
from laplex._checks.counts import integer, positive
from laplex._sklearn_shared import as_tensor, seeded_generator


class _OnTheLine(BaseEstimator):  # type: ignore[misc]
    """What both estimators share: checks, and the search for the bandwidth."""

    __module__ = "laplex.sklearn"

    @property
    def _where(self) -> str:
        return f"laplex.sklearn.{type(self).__name__}"

    def _check_bandwidth(self) -> None:
        """Raise unless the bandwidth is valid. scikit-learn wants this in ``fit``, not in the constructor."""
        if not (isinstance(self.bandwidth, str) and self.bandwidth == "loo"):
            positive(self._where, "bandwidth", self.bandwidth, '"loo"')

    def _weights(self, sample_weight: Any, X: np.ndarray) -> Tensor | None:
        if sample_weight is None:
            return None
        if not np.asarray(sample_weight).any():
            raise ValueError(f"{self._where}: `sample_weight` must be positive somewhere, got only zeros")
        return as_tensor(_check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True, copy=True))

    def _places(self, X: Any, **options: Any) -> Tensor:
        """Return the feature of X (n, 1) as (n,)."""
        return as_tensor(self._flat(validate_data(self, X, dtype=np.float64, **options)))

    def _flat(self, data: np.ndarray) -> np.ndarray:
        if data.shape[1] != 1:
            raise ValueError(
                f"{self._where}: `X` must have one feature, shape (n, 1), got {data.shape}; choose one column"
            )
        return data[:, 0]

    def _bandwidth(self, kind: str, y: Tensor | None = None) -> float:
        if not isinstance(self.bandwidth, str):
            return float(self.bandwidth)
        return float(stats.bandwidth(self._x, y, kind=kind, weights=self._w))


class LaplaceKernelDensity(_OnTheLine):
    """A kernel density estimate on the line, exact and in O(n log n), used like scikit-learn's KernelDensity.

    The kernel is scikit-learn's ``kernel="exponential"``, e^{-|x - x_i| / bandwidth} / (2 bandwidth). There is no
    tolerance: the result is exact, and right far away from all samples.

    Args:
        bandwidth: a positive number, or "loo" for the one with the largest leave-one-out likelihood, by
            :func:`laplex.stats.bandwidth`.

    Attributes:
        bandwidth_: the bandwidth that is used.
        n_features_in_, feature_names_in_: as scikit-learn defines them.

    Example:
        >>> import numpy as np
        >>> from laplex.sklearn import LaplaceKernelDensity
        >>> X = np.array([[0.0], [1.0], [3.0]])
        >>> LaplaceKernelDensity(bandwidth=1.0).fit(X).score_samples([[0.0]]).round(4)
        array([-1.4427])
    """

    __module__ = "laplex.sklearn"

    def __init__(self, bandwidth: float | str = 1.0) -> None:
        self.bandwidth = bandwidth

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> LaplaceKernelDensity:
        """Keep the samples X (n, 1) and their weights (n,), and find the bandwidth; y is ignored."""
        self._check_bandwidth()
        self._x = self._places(X, copy=True)
        self._w = self._weights(sample_weight, self._x.numpy())
        self.bandwidth_ = self._bandwidth("density")
        return self

    def score_samples(self, X: Any) -> np.ndarray:
        """Log densities (m,) at X (m, 1)."""
        check_is_fitted(self)
        points = self._places(X, reset=False)
        densities: np.ndarray = stats.kde(self._x, points, tau=self.bandwidth_, weights=self._w).numpy()
        return densities

    def score(self, X: Any, y: Any = None) -> float:
        """The log likelihood of X (m, 1): the sum of its log densities."""
        return float(self.score_samples(X).sum())

    def sample(self, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """Draw (n_samples, 1) numbers from the density."""
        check_is_fitted(self)
        integer(f"{self._where}.sample", "n_samples", n_samples)
        generator = seeded_generator(random_state)
        drawn = stats.kde_sample(self._x, int(n_samples), tau=self.bandwidth_, weights=self._w, generator=generator)
        return np.asarray(drawn.numpy())[:, None]


class LaplaceKernelRegressor(RegressorMixin, _OnTheLine):  # type: ignore[misc]
    """Kernel regression on the line, exact and in O(n log n): local means, or local lines.

    Args:
        bandwidth: a positive number, or "loo" for the one with the least squared error of leave-one-out predictions, by
            :func:`laplex.stats.bandwidth`.
        kind: "constant" for :func:`laplex.stats.nadaraya_watson`, "linear" for :func:`laplex.stats.local_linear`.

    Attributes:
        bandwidth_: the bandwidth that is used.
        n_features_in_, feature_names_in_: as scikit-learn defines them.

    Example:
        >>> import numpy as np
        >>> from laplex.sklearn import LaplaceKernelRegressor
        >>> X, y = np.array([[0.0], [1.0], [3.0]]), np.array([1.0, 3.0, 7.0])
        >>> LaplaceKernelRegressor(bandwidth=1.0, kind="linear").fit(X, y).predict([[2.0]]).round(4)
        array([5.])
    """

    __module__ = "laplex.sklearn"

    def __init__(self, bandwidth: float | str = 1.0, *, kind: str = "constant") -> None:
        self.bandwidth = bandwidth
        self.kind = kind

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LaplaceKernelRegressor:
        """Keep the samples X (n, 1), their values y (n,) and weights (n,), and find the bandwidth."""
        self._check_bandwidth()
        if not (isinstance(self.kind, str) and self.kind in ("constant", "linear")):
            raise ValueError(f'{self._where}: `kind` must be "constant" or "linear", got {self.kind!r}')
        data, values = validate_data(self, X, y, dtype=np.float64, y_numeric=True, copy=True)
        self._x, self._y = as_tensor(self._flat(data)), as_tensor(np.array(values, dtype=np.float64))
        self._w = self._weights(sample_weight, data)
        self.bandwidth_ = self._bandwidth(self.kind, self._y)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Predictions (m,) at X (m, 1)."""
        check_is_fitted(self)
        points = self._places(X, reset=False)
        estimate = stats.nadaraya_watson if self.kind == "constant" else stats.local_linear
        predicted: np.ndarray = estimate(self._x, self._y, points, tau=self.bandwidth_, weights=self._w).numpy()
        return predicted

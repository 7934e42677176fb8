"""Estimators for scikit-learn. The module needs scikit-learn, which ``import laplex`` does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from laplex import _autocast
from laplex._checks.counts import integer, positive
from laplex.nn._projection import LaplexProjection

try:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        f"laplex.sklearn: needs scikit-learn 1.6 or newer, which could not be imported ({error}); "
        "install it with `pip install 'scikit-learn>=1.6'`"
    ) from error

from laplex._sklearn_kernel import LaplaceKernelDensity, LaplaceKernelRegressor
from laplex._sklearn_process import LaplexGaussianProcess
from laplex._sklearn_shared import as_tensor, seeded_generator

__all__ = ["LaplaceKernelDensity", "LaplaceKernelRegressor", "LaplexGaussianProcess", "LaplexTransformer"]


class LaplexTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Project features to fewer by a frozen kernel matrix: X (N, d) to Y (N, n_components), Y = (X * signs) K^T.

        K[i, j] = exp(-|a_i - b_j| / tau) * cos(phi_i - psi_j)

    The places b of the features come from the data: features that vary alike lie near one another, so that a component
    is a weighted mean of such features. ``fit`` does not look at y.

    Args:
        n_components: the number of components.
        tau: the length scale, where the places span [0, 1]; "auto" is 1 / n_components.
        places: "data" places the features by :func:`laplex.seriate`, and the components on an even grid; "random" draws
            both.
        phase: give K random phases.
        signs: give the features random signs.
        random_state: an int, a ``numpy.random.RandomState`` or None, for places, phases and signs that are drawn.

    Attributes:
        projection_: the :class:`laplex.nn.LaplexProjection`, in float64.
        n_features_in_, feature_names_in_: as scikit-learn defines them.

    Example:
        >>> make_pipeline(StandardScaler(), LaplexTransformer(64), LogisticRegression()).fit(X, y)
    """

    def __init__(
        self,
        n_components: int = 100,
        *,
        tau: float | str = "auto",
        places: str = "data",
        phase: bool = False,
        signs: bool = False,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.tau = tau
        self.places = places
        self.phase = phase
        self.signs = signs
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> LaplexTransformer:
        """Place the features of X (N, d); y is ignored."""
        self._check()
        data = validate_data(self, X, dtype=[np.float64, np.float32])
        self.projection_ = LaplexProjection(
            data.shape[1],
            int(self.n_components),
            tau=None if isinstance(self.tau, str) else float(self.tau),
            phase=self.phase,
            signs=self.signs,
            generator=seeded_generator(self.random_state),
            device="cpu",
            dtype=torch.float64,
        )
        if self.places == "data":
            self.projection_.place(as_tensor(data))
        return self

    @_autocast.unaffected
    def transform(self, X: Any) -> np.ndarray:
        """Project X (N, d) to (N, n_components), in float32 if X is, else in float64."""
        check_is_fitted(self)
        data = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        with torch.no_grad():
            projected: np.ndarray = self.projection_(as_tensor(data)).numpy()
        return projected

    def _check(self) -> None:
        """Raise unless the parameters are valid. scikit-learn wants this in ``fit``, not in the constructor."""
        where = "laplex.sklearn.LaplexTransformer"
        integer(where, "n_components", self.n_components)
        if not (isinstance(self.tau, str) and self.tau == "auto"):
            positive(where, "tau", self.tau, '"auto"')
        if not (isinstance(self.places, str) and self.places in ("data", "random")):
            raise ValueError(f'{where}: `places` must be "data" or "random", got {self.places!r}; leave it out')

    @property
    def _n_features_out(self) -> int:
        """The number of components, for ``get_feature_names_out``."""
        return self.projection_.out_features

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

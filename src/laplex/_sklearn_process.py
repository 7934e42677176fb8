"""A scikit-learn regressor over time; :mod:`laplex.sklearn` exports it."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from laplex import gp
from laplex._checks.counts import integer
from laplex._sklearn_shared import as_tensor, seeded_generator

WHERE = "laplex.sklearn.LaplexGaussianProcess"
DAY = np.timedelta64(1, "D")
ACCEPTED: dict[str, Any] = {"dtype": np.float64, "ensure_2d": False}  # of X


class LaplexGaussianProcess(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A Gaussian process over time, exact and in O(n), used like scikit-learn's GaussianProcessRegressor.

    X holds times, (n,) or (n, 1): numbers, or dates (datetime64, a DatetimeIndex, a Series or a column of dates), which
    are counted in days from the earliest one in ``fit``. So for dates the scale of a kernel is in days.

    Args:
        kernel: a kernel of :mod:`laplex.gp`. The fit starts at its numbers; a parameter that is a tensor keeps its
            value. None stands for a Matern32 with a scale and a sigma from the data.
        alpha: the variance of noise that is not fitted, a number or (n,).
        noise: "fit" fits the standard deviation of white noise, too; None does not; "auto" does if ``fit`` is not given
            ``yerr``, and if there is an optimizer.
        optimizer: "lbfgs" finds the parameters with the largest likelihood, by :func:`laplex.gp.fit`; None keeps the
            given ones.
        n_restarts_optimizer: how often to start again from random parameters; the best result counts.
        normalize_y: shift y to mean 0 and scale it to variance 1 first. The kernel and ``alpha`` are then those of the
            scaled values, as in scikit-learn; ``yerr`` and ``noise_`` have the units of y.
        random_state: an int, a ``numpy.random.RandomState`` or None, for the restarts.

    Attributes:
        kernel_: the kernel with the fitted parameters.
        noise_: the standard deviation of the fitted noise, in the units of y; 0 if none was fitted.
        log_marginal_likelihood_value_: that of y, or of the scaled values, with ``kernel_`` and all noise.
        process_: the :class:`laplex.gp.GaussianProcess`, in float64.
        X_train_, y_train_: the times (n,), and the values (n,), scaled if ``normalize_y``.
        origin_: the date from which days are counted; None if X held numbers.
        n_features_in_, feature_names_in_: as scikit-learn defines them.

    Example:
        >>> import numpy as np
        >>> from laplex.sklearn import LaplexGaussianProcess
        >>> times = np.linspace(0, 10, 300)
        >>> values = np.sin(times) + 0.1 * np.random.default_rng(0).normal(size=300)
        >>> model = LaplexGaussianProcess(laplex.gp.Matern32(scale=1.0)).fit(times, values)
        >>> mean, std = model.predict([[2.5], [11.0]], return_std=True)
        >>> mean.shape, bool(std[0] < std[1])
        ((2,), True)
    """

    __module__ = "laplex.sklearn"

    def __init__(
        self,
        kernel: Any = None,
        *,
        alpha: Any = 1e-10,
        noise: str | None = "auto",
        optimizer: str | None = "lbfgs",
        n_restarts_optimizer: int = 0,
        normalize_y: bool = False,
        random_state: Any = None,
    ) -> None:
        self.kernel = kernel
        self.alpha = alpha
        self.noise = noise
        self.optimizer = optimizer
        self.n_restarts_optimizer = n_restarts_optimizer
        self.normalize_y = normalize_y
        self.random_state = random_state

    def fit(self, X: Any, y: Any, yerr: Any = None) -> LaplexGaussianProcess:
        """Fit the kernel to y (n,) at times X; ``yerr``, a number or (n,), is the standard deviation of the noise."""
        self._check()
        dates = _dates(X)
        self.origin_ = None if dates is None else _origin(dates)
        data, values = validate_data(self, self._numbers(X, dates), y, y_numeric=True, copy=True, **ACCEPTED)
        t, values = self._flat(data), np.asarray(values, dtype=np.float64)
        self.n_features_in_ = 1
        self._shift = float(values.mean()) if self.normalize_y else 0.0
        self._unit = float(values.std() or 1.0) if self.normalize_y else 1.0
        self.X_train_, self.y_train_ = t, (values - self._shift) / self._unit
        process = gp.GaussianProcess(gp.fixed(self._start()), as_tensor(t), diag=self._diag(yerr))
        outcome = self._outcome(process, fitted_noise=self.noise == "fit" or (self.noise == "auto" and yerr is None))
        self.process_, self.kernel_, self.noise_ = outcome.process, outcome.process.kernel, outcome.noise * self._unit
        self.log_marginal_likelihood_value_ = float(outcome.log_likelihood)
        with torch.no_grad():
            self._given = self.process_.condition(as_tensor(self.y_train_))
        return self

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """The mean (m,) of the process, without noise, at times X, or a tuple of the mean and what else is asked for.

        The standard deviation (m,) takes O(m), as the mean does; the covariance (m, m) takes O((n + m) m).
        """
        if return_std and return_cov:
            raise ValueError(f"{WHERE}.predict: `return_std` and `return_cov` exclude each other, got both")
        t = self._new_times(X)
        with torch.no_grad():
            mean: np.ndarray = self._given.mean(t).numpy() * self._unit + self._shift
            if return_std:
                return mean, self._given.variance(t).sqrt().numpy() * self._unit
            return (mean, self._given.covariance(t).numpy() * self._unit**2) if return_cov else mean

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Draw from the process given the data, without noise, at times X: (m, n_samples)."""
        t = self._new_times(X)
        integer(f"{WHERE}.sample_y", "n_samples", n_samples)
        with torch.no_grad():
            drawn = self._given.sample(int(n_samples), t, generator=seeded_generator(random_state))
        values: np.ndarray = np.ascontiguousarray(drawn.numpy().T) * self._unit + self._shift
        return values

    # --- The fit -----------------------------------------------------------------------------------------------------

    def _start(self) -> gp.Kernel:
        """The kernel with which the fit begins."""
        if self.kernel is not None:
            given: gp.Kernel = self.kernel
            return given
        span = float(np.ptp(self.X_train_)) or 1.0
        return gp.Matern32(scale=span / 10, sigma=float(np.sqrt(np.mean(self.y_train_**2))) or 1.0)

    def _outcome(self, process: gp.GaussianProcess, fitted_noise: bool) -> gp.Fitted:
        y = as_tensor(self.y_train_)
        if self.optimizer is None:
            with torch.no_grad():
                return gp.Fitted(process, 0.0, process.log_likelihood(y))
        noise = 0.3 * (float(self.y_train_.std()) or 1.0) if fitted_noise else None
        generator = seeded_generator(self.random_state)
        return gp.fit(process, y, noise=noise, restarts=int(self.n_restarts_optimizer), generator=generator)

    def _diag(self, yerr: Any) -> Tensor:
        """The variances of noise that is not fitted, (n,)."""
        n = len(self.X_train_)
        alpha = _variances("alpha", self.alpha, n)
        return as_tensor(alpha if yerr is None else alpha + (_variances("yerr", yerr, n) / self._unit) ** 2)

    # --- Arguments ---------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Raise unless the parameters are valid. scikit-learn wants this in ``fit``, not in the constructor."""
        if self.kernel is not None and not isinstance(self.kernel, gp.Kernel):
            got = type(self.kernel).__name__
            raise TypeError(f"{WHERE}: `kernel` must be a kernel of laplex.gp, or None, got {got}")
        if self.kernel is not None and self.kernel.batch_shape:
            raise ValueError(
                f"{WHERE}: `kernel` must have single numbers as its parameters, got some of shape "
                f"{tuple(self.kernel.batch_shape)}; use an estimator for each, or laplex.gp.fit for all at once"
            )
        for name, value, words in (
            ("noise", self.noise, ("auto", "fit")),
            ("optimizer", self.optimizer, ("lbfgs",)),
        ):
            if value is not None and not (isinstance(value, str) and value in words):
                allowed = ", ".join(f'"{word}"' for word in words)
                raise ValueError(f"{WHERE}: `{name}` must be {allowed} or None, got {value!r}; leave it out")
        if self.noise == "fit" and self.optimizer is None:
            raise ValueError(
                f'{WHERE}: `noise="fit"` needs an optimizer, got None; give the noise as `alpha` or `yerr`'
            )
        integer(WHERE, "n_restarts_optimizer", self.n_restarts_optimizer, 0)

    def _new_times(self, X: Any) -> Tensor:
        """Return X as the times of predictions."""
        check_is_fitted(self)
        dates = _dates(X)
        needed, got = _kind(self.origin_), _kind(dates)
        if got != needed:
            raise TypeError(f"{WHERE}: `X` must be {needed}, as those of `fit`, got {got}")
        return as_tensor(self._flat(validate_data(self, self._numbers(X, dates), reset=False, **ACCEPTED)))

    def _numbers(self, X: Any, dates: np.ndarray | None) -> Any:
        """X, with days in place of dates."""
        return X if dates is None else _days(dates, self.origin_)

    @staticmethod
    def _flat(data: np.ndarray) -> np.ndarray:
        if data.ndim == 2 and data.shape[1] != 1:
            raise ValueError(
                f"{WHERE}: `X` must be times, of shape (n,) or (n, 1), got {data.shape}: a process over time has one "
                "feature; choose one column"
            )
        return data.reshape(-1)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array = True
        return tags


def _dates(X: Any) -> np.ndarray | None:
    """Return X as dates in UTC, or as spans of time: datetime64 or timedelta64; None if it holds something else.

    Months and years stand for their first day.
    """
    array = np.asarray(X)
    if array.dtype == object and array.size and isinstance(array.flat[0], datetime.date):
        # In microseconds, as Python's dates are: nanoseconds end in 1677 and 2262, and beyond them wrap silently.
        array = np.array([_in_utc(one) for one in array.flat], dtype="datetime64[us]").reshape(array.shape)
    if array.dtype.kind not in "mM":
        return None
    if np.datetime_data(array.dtype)[0] not in ("M", "Y"):
        return array
    if array.dtype.kind == "m":
        raise TypeError(
            f"{WHERE}: `X` must be spans of time of a fixed length, got {array.dtype}: months and years have none; use "
            "days, as in X.astype('timedelta64[D]') for months of average length, or dates"
        )
    return array.astype("datetime64[D]")


def _kind(times: Any) -> str:
    """What times are, for messages: an array of dates, or one date, or None for numbers."""
    return "numbers" if times is None else {"M": "dates", "m": "spans of time"}[times.dtype.kind]


def _in_utc(date: Any) -> Any:
    """Return a date as numpy takes it, without a time zone."""
    if date != date:  # NaT of pandas
        return np.datetime64("NaT")
    if getattr(date, "tzinfo", None) is None:
        return date
    return date.astimezone(datetime.UTC).replace(tzinfo=None)


def _origin(dates: np.ndarray) -> Any:
    """Return the date from which days are counted, the earliest one; spans of time count from 0."""
    known = dates[~np.isnat(dates)]
    return known.min() if dates.dtype.kind == "M" and known.size else np.timedelta64(0, "D")


def _days(dates: np.ndarray, origin: Any) -> np.ndarray:
    """Return dates - origin in days. Whole days are subtracted apart from the rest: NumPy would subtract in the finer
    of both units, in which the other date may not exist, and would then wrap silently."""
    full_days, first = (date.astype(f"{date.dtype.kind}8[D]") for date in (dates, origin))
    days: np.ndarray = (full_days - first) / DAY + ((dates - full_days) / DAY - (origin - first) / DAY)
    return days


def _variances(name: str, given: Any, n: int) -> np.ndarray:
    """Return numbers (n,), which must not be negative."""
    values = np.asarray(given, dtype=np.float64)
    if values.shape not in ((), (1,), (n,)):
        raise ValueError(f"{WHERE}: `{name}` must be a number or have the shape ({n},) of y, got {values.shape}")
    if not bool((values >= 0).all()):
        raise ValueError(f"{WHERE}: `{name}` must not be negative or NaN, got {values.min():g}")
    return np.broadcast_to(values, (n,))

"""LaplexGaussianProcess: what scikit-learn checks of every estimator, and the process it stands for."""

import datetime
import pickle
import re

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Matern
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import check_estimator

from laplex import gp
from laplex.sklearn import LaplexGaussianProcess

SLICES = "the check takes columns of X, which it has made one-dimensional itself"
EXPECTED = {
    "check_dont_overwrite_parameters": SLICES,
    "check_n_features_in_after_fitting": SLICES,
    "check_dtype_object": SLICES,
    "check_estimator_sparse_array": "the check makes a one-dimensional sparse array, which scipy refuses",
    "check_f_contiguous_array_estimator": SLICES,
    "check_regressors_train": "the check asks for a good score, but y depends on more columns than the first",
    "check_regressors_no_decision_function": SLICES,
    "check_methods_sample_order_invariance": SLICES,
    "check_methods_subset_invariance": SLICES,
    "check_fit2d_1sample": SLICES,
    "check_fit2d_1feature": SLICES,
    "check_dict_unchanged": SLICES,
    "check_n_features_in": SLICES,
    "check_fit1d": "X of one dimension are times, and not refused",
    "check_fit2d_predict1d": SLICES,
}
ONE_FEATURE = "X has one feature, and may be of one dimension"
EXPECTED_OF_COLUMNS = dict.fromkeys(
    ("check_n_features_in_after_fitting", "check_n_features_in", "check_fit1d", "check_fit2d_predict1d"), ONE_FEATURE
)


class FirstColumn(LaplexGaussianProcess):
    """Takes the first column of X, so that scikit-learn's checks, whose X have several, can run."""

    @staticmethod
    def _flat(data):
        return np.ascontiguousarray(data[:, 0])

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array = False
        tags.regressor_tags.poor_score = True  # y depends on the other columns, too
        return tags


@pytest.mark.parametrize(("kind", "expected"), [(LaplexGaussianProcess, EXPECTED), (FirstColumn, EXPECTED_OF_COLUMNS)])
@pytest.mark.filterwarnings("ignore::laplex.PrecisionWarning")
def test_scikit_learn_checks(kind, expected):
    check_estimator(kind(), expected_failed_checks=expected, on_skip=None)


def series(n=120, seed=0):
    generator = np.random.default_rng(seed)
    t = generator.uniform(0, 20, n)
    return t, np.sin(t) + 3.0 + 0.2 * generator.normal(size=n)


NEW = np.array([0.5, 21.0, 7.3, 7.3])


# --- Compared with scikit-learn ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("nu", "kind"), [(0.5, gp.Exponential), (1.5, gp.Matern32), (2.5, gp.Matern52)])
def test_is_the_regressor_of_scikit_learn(nu, kind, normalize):
    t, y = series()
    options = {"alpha": 0.05, "optimizer": None, "normalize_y": normalize}
    theirs = GaussianProcessRegressor(Matern(2.0, nu=nu), **options).fit(t[:, None], y)
    ours = LaplexGaussianProcess(kind(2.0), **options).fit(t[:, None], y)
    want = theirs.log_marginal_likelihood_value_
    assert ours.log_marginal_likelihood_value_ == pytest.approx(want, rel=1e-10)
    for options in ({"return_std": True}, {"return_cov": True}):
        for got, wanted in zip(ours.predict(NEW[:, None], **options), theirs.predict(NEW[:, None], **options)):
            np.testing.assert_allclose(got, wanted, rtol=1e-7, atol=1e-9)


def test_the_fit_is_that_of_scikit_learn():
    t, y = series()
    y = y - y.mean()
    theirs = GaussianProcessRegressor(1.0 * Matern(1.0, nu=1.5), alpha=0.04).fit(t[:, None], y)
    ours = LaplexGaussianProcess(gp.Matern32(1.0, 1.0), alpha=0.04, noise=None).fit(t, y)
    assert ours.log_marginal_likelihood_value_ == pytest.approx(theirs.log_marginal_likelihood_value_, rel=1e-6)
    assert ours.kernel_.scale == pytest.approx(theirs.kernel_.k2.length_scale, rel=1e-2)


def test_yerr_is_alpha_s_root_in_the_units_of_y():
    t, y = series()
    kernel, yerr = gp.Matern32(2.0), np.linspace(0.1, 0.3, len(t))
    one = LaplexGaussianProcess(kernel, alpha=0.0, optimizer=None, normalize_y=True).fit(t, y, yerr=yerr)
    two = LaplexGaussianProcess(kernel, alpha=(yerr / y.std()) ** 2, optimizer=None, normalize_y=True).fit(t, y)
    np.testing.assert_allclose(one.predict(NEW), two.predict(NEW), rtol=1e-12)


# --- Fits and attributes ----------------------------------------------------------------------------------------------


def test_the_defaults_fit_a_series():
    t, y = series(600)
    model = LaplexGaussianProcess(normalize_y=True).fit(t[:500], y[:500])
    assert model.score(t[500:], y[500:]) > 0.9
    assert model.noise_ == pytest.approx(0.2, rel=0.15)
    assert isinstance(model.kernel_, gp.Matern32)
    assert model.X_train_.shape == model.y_train_.shape == (500,)
    assert model.n_features_in_ == 1
    value = model.process_.log_likelihood(torch.from_numpy(model.y_train_))
    assert model.log_marginal_likelihood_value_ == pytest.approx(float(value), rel=1e-12)


@pytest.mark.parametrize(
    ("noise", "yerr", "fitted"),
    [("auto", None, True), ("auto", 0.1, False), ("fit", 0.1, True), (None, 0.1, False), (None, None, False)],
)
def test_when_noise_is_fitted(noise, yerr, fitted):
    t, y = series()
    model = LaplexGaussianProcess(noise=noise, alpha=1e-4).fit(t, y, yerr=yerr)
    assert (model.noise_ > 0) == fitted


def test_without_an_optimizer_the_kernel_is_the_given_one():
    t, y = series()
    model = LaplexGaussianProcess(gp.Matern32(2.0, 1.5), alpha=0.04, optimizer=None).fit(t, y)
    assert (model.kernel_.scale, model.kernel_.sigma, model.noise_) == (2.0, 1.5, 0.0)
    assert model.kernel_ is not model.kernel


def test_many_points():
    t = torch.linspace(0, 5000, 100_000, dtype=torch.float64)
    y = gp.GaussianProcess(gp.SHO(6.0, 4.0), t, yerr=0.1).sample(generator=torch.Generator().manual_seed(0)).numpy()
    model = LaplexGaussianProcess(gp.SHO(period=5.0)).fit(t.numpy(), y)
    assert model.kernel_.period == pytest.approx(6.0, rel=0.02)
    assert model.noise_ == pytest.approx(0.1, rel=0.02)
    mean, std = model.predict(t.numpy(), return_std=True)
    assert (mean - y).std() == pytest.approx(0.1, rel=0.1)
    assert std.max() < 0.1


def test_samples():
    t, y = series()
    model = LaplexGaussianProcess(gp.Matern32(2.0), alpha=0.04, optimizer=None, normalize_y=True).fit(t, y)
    drawn = model.sample_y(NEW, n_samples=4000, random_state=1)
    mean, covariance = model.predict(NEW, return_cov=True)
    assert drawn.shape == (4, 4000)
    np.testing.assert_allclose(drawn.mean(1), mean, atol=0.1)
    np.testing.assert_allclose(np.cov(drawn), covariance, atol=0.1 * covariance.max())
    assert np.array_equal(drawn, model.sample_y(NEW, n_samples=4000, random_state=1))
    assert not np.array_equal(drawn, model.sample_y(NEW, n_samples=4000, random_state=2))


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)], ids=["(n,)", "(n, 1)"])
def test_what_is_written_to_the_data_later_changes_nothing(shape):
    t, y = series()
    t.sort()
    noise = np.full(len(t), 0.2)
    model = LaplexGaussianProcess(gp.Matern32(2.0), alpha=noise**2, optimizer=None).fit(t.reshape(shape), y, yerr=noise)
    before, times = model.predict(NEW, return_std=True), t.copy()
    for data in (t, y, noise):
        data[:] = 0
    np.testing.assert_array_equal(model.predict(NEW, return_std=True), before)
    np.testing.assert_array_equal(model.X_train_, times)


def test_restarts_follow_the_random_state():
    t, y = series(60)
    one, two = (LaplexGaussianProcess(n_restarts_optimizer=2, random_state=3).fit(t, y) for _ in range(2))
    assert one.kernel_.scale == two.kernel_.scale


def test_clones_searches_and_pickles():
    t, y = series()
    model = LaplexGaussianProcess(gp.Matern32(2.0), normalize_y=True)
    assert clone(model).get_params()["kernel"].scale == 2.0
    search = GridSearchCV(model, {"kernel": [gp.Matern32(2.0), gp.SHO(6.0, 5.0)]}, cv=3).fit(t[:, None], y)
    best = search.best_estimator_
    assert np.array_equal(pickle.loads(pickle.dumps(best)).predict(NEW), best.predict(NEW))


# --- Times ------------------------------------------------------------------------------------------------------------


def dated(n=80):
    """Days from the first date, as numbers and as dates, and values."""
    days = np.sort(np.random.default_rng(2).integers(0, 86400 * 60, n)) / 86400
    days -= days[0]
    dates = pd.Timestamp("2024-03-01 06:00") + pd.to_timedelta(np.round(days * 86400), unit="s")
    return np.round(days * 86400) / 86400, dates, np.sin(days / 3)


KINDS = {
    "index": lambda dates: dates,
    "index_with_zone": lambda dates: dates.tz_localize("UTC").tz_convert("Europe/Berlin"),
    "series": lambda dates: dates.to_series(),
    "frame": lambda dates: pd.DataFrame({"date": dates}),
    "numpy": lambda dates: dates.to_numpy().astype("datetime64[s]"),
    "objects": lambda dates: list(dates.to_pydatetime()),
    "objects_with_zone": lambda dates: [one.replace(tzinfo=datetime.UTC) for one in dates.to_pydatetime()],
}


@pytest.mark.parametrize("kind", KINDS)
def test_dates_are_counted_in_days(kind):
    days, dates, y = dated()
    options = {"alpha": 1e-4, "optimizer": None}
    want = LaplexGaussianProcess(gp.Matern32(3.0), **options).fit(days, y)
    got = LaplexGaussianProcess(gp.Matern32(3.0), **options).fit(KINDS[kind](dates), y)
    np.testing.assert_allclose(got.X_train_, days, atol=1e-9)
    np.testing.assert_allclose(got.predict(KINDS[kind](dates)), want.predict(days), atol=1e-9)
    assert got.origin_ == np.datetime64("2024-03-01T06:00") or got.origin_ == dates[0].to_datetime64()


@pytest.mark.parametrize("kind", [datetime.date, datetime.datetime])
def test_dates_of_any_century(kind):
    """Nanoseconds in 64 bits would end in 1677 and 2262."""
    dates = [kind(1500, 1, 1), kind(1600, 6, 1), kind(1700, 1, 1), kind(2400, 1, 1)]
    model = LaplexGaussianProcess(gp.Matern32(3e4), alpha=0.1, optimizer=None).fit(dates, [1.0, 2.0, 3.0, 4.0])
    np.testing.assert_array_equal(model.X_train_, [(one - dates[0]).days for one in dates])


def test_dates_of_prediction_may_have_other_units():
    """What pandas counts in nanoseconds, and dates of which there are none."""
    days, dates, y = dated()
    model = LaplexGaussianProcess(gp.Matern32(1e6), alpha=0.1, optimizer=None).fit(dates.as_unit("ns"), y)
    want = LaplexGaussianProcess(gp.Matern32(1e6), alpha=0.1, optimizer=None).fit(days, y)
    later = (datetime.date(2400, 1, 1) - datetime.date(2024, 3, 1)).days - 0.25
    for far in (np.array(["2400-01-01"], dtype="datetime64[D]"), [datetime.datetime(2400, 1, 1)]):
        np.testing.assert_allclose(model.predict(far), want.predict([later]))


def test_dates_before_those_of_the_fit_are_negative():
    days, dates, y = dated()
    model = LaplexGaussianProcess(gp.Matern32(3.0), alpha=1e-4, optimizer=None).fit(dates, y)
    want = LaplexGaussianProcess(gp.Matern32(3.0), alpha=1e-4, optimizer=None).fit(days, y)
    earlier = dates[:1] - pd.Timedelta("36h")
    np.testing.assert_allclose(model.predict(earlier), want.predict([-1.5]), atol=1e-9)


def test_spans_of_time_are_counted_in_days():
    days, dates, y = dated()
    model = LaplexGaussianProcess(gp.Matern32(3.0), alpha=1e-4, optimizer=None)
    want = model.fit(days, y).predict(days)
    spans = (dates - dates[0]).to_numpy()
    np.testing.assert_allclose(model.fit(spans, y).predict(spans), want, atol=1e-9)


def test_months_stand_for_their_first_days():
    months = np.arange("2020-01", "2023-01", dtype="datetime64[M]")
    y, model = np.sin(np.arange(36.0)), LaplexGaussianProcess(gp.Matern32(90.0), alpha=1e-4, optimizer=None)
    want = model.fit(months.astype("datetime64[D]"), y).predict(months[:4].astype("datetime64[D]"))
    np.testing.assert_array_equal(model.fit(months, y).predict(months[:4]), want)
    with pytest.raises(TypeError, match=r"`X` must be spans of time of a fixed length, got timedelta64\[M\]: mo"):
        model.fit(months - months[0], y)


def test_pandas_of_numbers():
    t, y = series()
    frame = pd.DataFrame({"time": t, "value": y})
    model = LaplexGaussianProcess(gp.Matern32(2.0), alpha=0.04, optimizer=None)
    want = model.fit(t, y).predict(NEW)
    got = model.fit(frame[["time"]], frame["value"])
    np.testing.assert_allclose(got.predict(pd.DataFrame({"time": NEW})), want, rtol=1e-12)
    assert got.feature_names_in_.tolist() == ["time"]
    np.testing.assert_allclose(model.fit(frame["time"], frame["value"]).predict(NEW), want, rtol=1e-12)


WRONG = {
    "columns": ({}, {"X": np.zeros((120, 3))}, ValueError, "`X` must be times, of shape (n,) or (n, 1), got (120, 3)"),
    "kernel": ({"kernel": Matern()}, {}, TypeError, "`kernel` must be a kernel of laplex.gp, or None, got Matern"),
    "batch": (
        {"kernel": gp.Matern32(torch.ones(3))},
        {},
        ValueError,
        "`kernel` must have single numbers as its parameters, got some of shape (3,); use an estimator for each",
    ),
    "noise": ({"noise": 0.1}, {}, ValueError, '`noise` must be "auto", "fit" or None, got 0.1'),
    "optimizer": ({"optimizer": "adam"}, {}, ValueError, "`optimizer` must be \"lbfgs\" or None, got 'adam'"),
    "both": ({"noise": "fit", "optimizer": None}, {}, ValueError, '`noise="fit"` needs an optimizer, got None'),
    "restarts": ({"n_restarts_optimizer": -1}, {}, ValueError, "`n_restarts_optimizer` must be at least 0, got -1"),
    "alpha": ({"alpha": -1.0}, {}, ValueError, "`alpha` must not be negative or NaN, got -1"),
    "yerr": ({}, {"yerr": np.ones(3)}, ValueError, "`yerr` must be a number or have the shape (120,) of y, got (3,)"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_errors(kind):
    options, arguments, error, text = WRONG[kind]
    t, y = series()
    with pytest.raises(error, match=re.escape("laplex.sklearn.LaplexGaussianProcess: " + text)):
        LaplexGaussianProcess(**options).fit(**({"X": t, "y": y} | arguments))


def test_errors_of_predictions():
    days, dates, y = dated()
    model = LaplexGaussianProcess(gp.Matern32(3.0), alpha=1e-4, optimizer=None)
    with pytest.raises(TypeError, match="`X` must be dates, as those of `fit`, got numbers"):
        model.fit(dates, y).predict(days)
    with pytest.raises(TypeError, match="`X` must be numbers, as those of `fit`, got dates"):
        model.fit(days, y).predict(dates)
    with pytest.raises(TypeError, match="`X` must be numbers, as those of `fit`, got spans of time"):
        model.predict(days.astype("timedelta64[D]"))
    with pytest.raises(TypeError, match="`X` must be dates, as those of `fit`, got spans of time"):
        model.fit(dates, y).predict(days.astype("timedelta64[D]"))
    with pytest.raises(TypeError, match="`X` must be spans of time, as those of `fit`, got dates"):
        model.fit(dates - dates[0], y).predict(dates)
    model.fit(days, y)
    with pytest.raises(ValueError, match="`return_std` and `return_cov` exclude each other, got both"):
        model.predict(days, return_std=True, return_cov=True)
    with pytest.raises(ValueError, match="`n_samples` must be at least 1, got 0"):
        model.sample_y(days, 0)
    with pytest.raises(ValueError, match="contains NaN"):
        model.fit([pd.Timestamp("2024-01-01"), pd.NaT, pd.Timestamp("2024-01-03")], [1.0, 2.0, 3.0])

"""LaplaceKernelDensity and LaplaceKernelRegressor: what scikit-learn checks, and its own density estimate."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KernelDensity
from sklearn.utils.estimator_checks import check_estimator

from laplex import stats
from laplex.sklearn import LaplaceKernelDensity, LaplaceKernelRegressor


class FirstColumn:
    """Takes the first column of X, so that scikit-learn's checks, whose X have several, can run."""

    def _flat(self, data):
        return np.ascontiguousarray(data[:, 0])

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        if tags.regressor_tags is not None:
            tags.regressor_tags.poor_score = True  # y depends on the other columns, too
        return tags


class DensityOfColumn(FirstColumn, LaplaceKernelDensity):
    pass


class RegressorOfColumn(FirstColumn, LaplaceKernelRegressor):
    pass


@pytest.mark.parametrize(
    "estimator",
    [DensityOfColumn(), RegressorOfColumn(), RegressorOfColumn(kind="linear"), DensityOfColumn("loo")],
    ids=["density", "constant", "linear", "leave-one-out"],
)
def test_scikit_learn_checks(estimator):
    expected = {}
    if estimator.bandwidth == "loo":
        expected = {
            "check_sample_weight_equivalence_on_dense_data": "a sample of weight 2 is left out at once, not half of it",
            "check_fit2d_1sample": "nothing remains of one sample where one is left out",
        }
    check_estimator(estimator, expected_failed_checks=expected, on_skip=None)


def samples(n=300, seed=0):
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(n, 1))
    return X, np.sin(3 * X[:, 0]) + 0.1 * generator.normal(size=n), generator.uniform(0.1, 1.0, n)


POINTS = np.linspace(-5, 5, 101)[:, None]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bandwidth", [0.05, 0.5, 5.0])
def test_is_the_exponential_density_of_scikit_learn(bandwidth, weighted):
    X, _, weights = samples()
    options = {"sample_weight": weights} if weighted else {}
    theirs = KernelDensity(kernel="exponential", bandwidth=bandwidth, rtol=1e-12).fit(X, **options)
    ours = LaplaceKernelDensity(bandwidth).fit(X, **options)
    np.testing.assert_allclose(ours.score_samples(POINTS), theirs.score_samples(POINTS), rtol=1e-9, atol=1e-9)
    assert ours.score(POINTS) == pytest.approx(theirs.score(POINTS), rel=1e-9)


def test_leave_one_out_is_that_of_stats():
    X, y, weights = samples()
    x, y, w = torch.from_numpy(X[:, 0]), y, torch.from_numpy(weights)
    fitted = LaplaceKernelDensity("loo").fit(X, sample_weight=weights)
    assert fitted.bandwidth_ == pytest.approx(float(stats.bandwidth(x, weights=w)))
    for kind, estimate in (("constant", stats.nadaraya_watson), ("linear", stats.local_linear)):
        fitted = LaplaceKernelRegressor("loo", kind=kind).fit(X, y)
        tau = float(stats.bandwidth(x, torch.from_numpy(y), kind=kind))
        assert fitted.bandwidth_ == pytest.approx(tau)
        want = estimate(x, torch.from_numpy(y), torch.from_numpy(POINTS[:, 0]), tau=tau)
        np.testing.assert_allclose(fitted.predict(POINTS), want.numpy(), rtol=1e-12)
        assert fitted.score(X, y) > 0.95


def test_draws_have_the_density():
    X = np.array([[0.0], [100.0]])
    fitted = LaplaceKernelDensity(2.0).fit(X, sample_weight=[3.0, 1.0])
    drawn = fitted.sample(20_000, random_state=0)
    assert drawn.shape == (20_000, 1)
    assert np.array_equal(drawn, fitted.sample(20_000, random_state=0))
    near = drawn[drawn < 50]
    assert near.size / 20_000 == pytest.approx(0.75, abs=0.02)
    assert np.abs(near).mean() == pytest.approx(2.0, rel=0.05)


def test_works_with_the_tools_of_scikit_learn():
    X, y, _ = samples()
    search = GridSearchCV(LaplaceKernelDensity(), {"bandwidth": [1e-3, 0.2, 10.0]}).fit(X)
    assert search.best_params_ == {"bandwidth": 0.2}
    fitted = LaplaceKernelRegressor(0.2, kind="linear").fit(X, y)
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict(POINTS), fitted.predict(POINTS))
    assert clone(fitted).get_params() == {"bandwidth": 0.2, "kind": "linear"}


@pytest.mark.parametrize("fitted", [LaplaceKernelDensity(0.5), LaplaceKernelRegressor(0.5)], ids=["density", "mean"])
def test_what_is_written_to_the_data_later_changes_nothing(fitted):
    X, y, weights = samples()
    fitted.fit(X, y, sample_weight=weights)
    predict = fitted.score_samples if isinstance(fitted, LaplaceKernelDensity) else fitted.predict
    before = predict(POINTS)
    for data in (X, y, weights):
        data[:] = 0
    assert np.array_equal(predict(POINTS), before)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda X, y: LaplaceKernelDensity(0.0).fit(X), '`bandwidth` must be positive and finite, or "loo", got 0.0'),
        (lambda X, y: LaplaceKernelDensity("scott").fit(X), '`bandwidth` must be a positive number or "loo"'),
        (lambda X, y: LaplaceKernelDensity().fit(np.hstack([X, X])), "`X` must have one feature, shape .n, 1., got"),
        (lambda X, y: LaplaceKernelDensity().fit(X, sample_weight=0 * y), "`sample_weight` must be positive somewhere"),
        (lambda X, y: LaplaceKernelDensity().fit(X).sample(0), "`n_samples` must be at least 1, got 0"),
        (lambda X, y: LaplaceKernelRegressor(kind="cubic").fit(X, y), '`kind` must be "constant" or "linear"'),
    ],
)
def test_errors(call, message):
    X, y, _ = samples(5)
    with pytest.raises((TypeError, ValueError), match=f"laplex.sklearn.Laplace.*{message}"):
        call(X, y)

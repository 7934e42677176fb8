"""LaplexTransformer: what scikit-learn checks of every estimator, and the projection it stands for."""

import re
import subprocess
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from laplex import reference
from laplex._seriation import seriate
from laplex.sklearn import LaplexTransformer


@pytest.mark.parametrize("options", [{}, {"tau": 0.2, "places": "random", "phase": True, "signs": True}], ids=str)
def test_scikit_learn_checks(options):
    check_estimator(
        LaplexTransformer(3, random_state=1, **options), on_skip=None
    )  # what needs other packages is left out


def normal(samples=30, features=12, seed=0):
    return np.random.default_rng(seed).normal(size=(samples, features))


def test_is_the_product_with_the_placed_matrix():
    X = normal()
    fitted = LaplexTransformer(5, tau=0.1, random_state=0).fit(X)
    places = fitted.projection_.b
    assert sorted(places.tolist()) == sorted((torch.arange(12).double() / 12).tolist())
    grid = (torch.arange(5).double() + 0.5) / 5
    want = reference.linear(torch.from_numpy(X), grid, places, float(fitted.projection_.tau))
    np.testing.assert_allclose(fitted.transform(X), want.numpy(), rtol=1e-12, atol=1e-12)


def test_places_are_those_of_seriate():
    X = normal()
    fitted = LaplexTransformer(5, random_state=0).fit(X)
    assert torch.equal(fitted.projection_.b, seriate(torch.from_numpy(X)))


@pytest.mark.parametrize("places", ["data", "random"])
def test_random_state_decides(places):
    X, options = normal(), {"places": places, "signs": True}
    one, two, three = (LaplexTransformer(4, random_state=seed, **options).fit_transform(X) for seed in (3, 3, 4))
    assert np.array_equal(one, two)
    assert not np.array_equal(one, three)


def test_autocast_changes_nothing():
    X = normal().astype(np.float32)
    want = LaplexTransformer(5, random_state=0).fit_transform(X)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert np.array_equal(LaplexTransformer(5, random_state=0).fit_transform(X), want)


def test_names():
    fitted = LaplexTransformer(2).set_output(transform="default").fit(normal())
    assert fitted.get_feature_names_out().tolist() == ["laplextransformer0", "laplextransformer1"]


def test_float32_stays_float32():
    X = normal().astype(np.float32)
    assert LaplexTransformer(4).fit_transform(X).dtype == np.float32


def test_in_a_pipeline():
    X = normal(200, 40)
    y = X[:, :20].sum(1) > 0
    X[:, 20:] += 2 * y[:, None]
    assert make_pipeline(LaplexTransformer(8), LogisticRegression()).fit(X, y).score(X, y) > 0.8


WRONG = {
    "count": ({"n_components": 0}, ValueError, "`n_components` must be at least 1, got 0; use a larger one"),
    "half": ({"n_components": 1.5}, TypeError, "`n_components` must be a whole number, got 1.5; use int(n_components)"),
    "tau": ({"tau": -1.0}, ValueError, '`tau` must be positive and finite, or "auto", got -1.0; leave it out'),
    "word": ({"tau": "small"}, TypeError, "`tau` must be a positive number or \"auto\", got 'small'; leave it out"),
    "places_array": ({"places": np.zeros(3)}, ValueError, '`places` must be "data" or "random", got array'),
    "places": ({"places": "grid"}, ValueError, '`places` must be "data" or "random", got \'grid\'; leave it out'),
}


@pytest.mark.parametrize("kind", WRONG)
def test_errors(kind):
    options, error, text = WRONG[kind]
    with pytest.raises(error, match=re.escape("laplex.sklearn.LaplexTransformer: " + text)):
        LaplexTransformer(**options).fit(normal())


MISSING = """
import sys
sys.modules["sklearn"] = None
try:
    import laplex.sklearn
except ImportError as error:
    text = str(error)
assert text.startswith("laplex.sklearn: needs scikit-learn 1.6 or newer, which could not be imported"), text
assert text.endswith("install it with `pip install 'scikit-learn>=1.6'`"), text
"""


def test_without_scikit_learn_the_error_says_what_to_install():
    done = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

"""Every mistake has a message that names the argument, what is required, and what was passed."""

import math
import re

import numpy
import pytest
import torch

from helpers import shape_warnings
from laplex import stats

X = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]])
ONE = torch.tensor([1.0])
ESTIMATES = {
    "kde": lambda x=X, points=X, **options: stats.kde(x, points, **{"tau": 1.0, **options}),
    "nadaraya_watson": lambda x=X, points=X, **options: stats.nadaraya_watson(x, X, points, **{"tau": 1.0, **options}),
    "local_linear": lambda x=X, points=X, **options: stats.local_linear(x, X, points, **{"tau": 1.0, **options}),
}
EVERY = {
    **ESTIMATES,
    "kde_sample": lambda x=X, **options: stats.kde_sample(x, 3, **{"tau": 1.0, **options}),
    "mmd": lambda x=X, **options: stats.mmd(x, X, **{"tau": 1.0, **options}),
    "energy_distance": lambda x=X: stats.energy_distance(x, X),
    "bandwidth": lambda x=X: stats.bandwidth(x),
    "permutation_test": lambda x=X, **options: stats.permutation_test(x, X, **{"tau": 1.0, **options}),
}


def raises(error, name, message):
    return pytest.raises(error, match=re.escape(f"laplex.stats.{name}: {message}"))


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (X.long(), TypeError, "`x` must be a floating-point tensor, got a tensor of torch.int64; use x.float()"),
        (X * 1j, TypeError, "`x` must be a floating-point tensor, got a tensor of torch.complex64; use x.real"),
        (
            [1.0, 2.0],
            TypeError,
            "`x` must be a floating-point tensor, got list; use torch.as_tensor(x, dtype=torch.float32)",
        ),
        (torch.tensor(1.0), ValueError, "`x` must have at least one number in its last dimension, got shape ()"),
        (X[:, :0], ValueError, "`x` must have at least one number in its last dimension, got shape (2, 0)"),
        (X / 0, ValueError, "`x` must be finite, got NaN or infinity"),
    ],
)
@pytest.mark.parametrize("name", EVERY)
def test_samples(name, x, error, message):
    with raises(error, name, message):
        EVERY[name](x)


@pytest.mark.parametrize(
    ("tau", "error", "message"),
    [
        (0.0, ValueError, "`tau` must be positive and finite, got 0; if it is learned, learn its logarithm"),
        (torch.tensor([1.0, -2.0]), ValueError, "`tau` must be positive and finite, got -2"),
        (math.inf, ValueError, "`tau` must be positive and finite, got inf"),
        ("auto", TypeError, "`tau` must be a positive number or a tensor, got str"),
        (True, TypeError, "`tau` must be a positive number or a tensor, got bool"),
        (
            torch.tensor(1j),
            TypeError,
            "`tau` must be a number or a tensor of real numbers, got torch.complex64; use tau.re",
        ),
        (torch.tensor(True), TypeError, "`tau` must be a number or a tensor of real numbers, got torch.bool; use"),
        (torch.ones(2, device="meta"), ValueError, "`tau` must be on the device of `x` (cpu), got meta; move it with"),
        (torch.ones(3), ValueError, "leading dimensions must broadcast, got `x` (2,)"),
    ],
)
@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("energy_distance", "bandwidth")])
def test_length_scale(name, tau, error, message):
    with raises(error, name, message):
        EVERY[name](tau=tau)


def test_length_scales_of_other_types():
    want = stats.kde(X, X, tau=2.0)
    for tau in (2, numpy.float32(2), torch.tensor(2), torch.tensor([2, 2]), torch.tensor([2.0, 2.0], dtype=torch.half)):
        assert stats.kde(X, X, tau=tau).equal(want)


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ([1.0, 2.0, 3.0], TypeError, "`weights` must be a floating-point tensor, got list"),
        (torch.ones(4), ValueError, "`weights` must have one number for each of the 3 samples `x`, got shape (4,)"),
        (torch.tensor([1.0, -2.0, 3.0]), ValueError, "`weights` must not be negative, got -2"),
        (torch.zeros(3), ValueError, "`weights` must be positive somewhere in each row, got only zeros"),
        (torch.ones(5, 3), ValueError, "leading dimensions must broadcast, got `x` (2,)"),
    ],
)
@pytest.mark.parametrize("name", [*ESTIMATES, "kde_sample"])
def test_weights(name, weights, error, message):
    with raises(error, name, message):
        EVERY[name](weights=weights)


@pytest.mark.parametrize("name", ESTIMATES)
def test_points(name):
    with raises(ValueError, name, "`points` must have at least one number in its last dimension, got shape (2, 0)"):
        ESTIMATES[name](points=X[:, :0])
    with raises(ValueError, name, "leading dimensions must broadcast, got `x` (2,)"):
        ESTIMATES[name](points=torch.ones(5, 3))


@pytest.mark.parametrize("name", ESTIMATES)
def test_nothing_remains(name):
    w = torch.tensor([1.0, 0.0, 0.0])
    with raises(ValueError, name, "at least 2 samples must have positive weights where one is left out, got fewer"):
        ESTIMATES[name](points=None, weights=w)
    if name == "kde":
        with raises(ValueError, name, "`x` must have at least 2 samples where one is left out, got 1"):
            stats.kde(ONE, tau=1.0)


@pytest.mark.parametrize("name", ["nadaraya_watson", "local_linear"])
def test_values(name):
    with raises(ValueError, name, "`y` must have one value for each of the 3 samples `x`, got shape (2,)"):
        getattr(stats, name)(X, torch.ones(2), X, tau=1.0)
    with raises(TypeError, name, "`y` must be a floating-point tensor, got NoneType"):
        getattr(stats, name)(X, None, X, tau=1.0)


@pytest.mark.parametrize("name", ["mmd", "energy_distance"])
def test_two_samples(name):
    options = {"tau": 1.0} if name == "mmd" else {}
    call = getattr(stats, name)
    with raises(ValueError, name, "`x` must have at least 2 samples where one is left out, got 1"):
        call(ONE, X, unbiased=True, **options)
    with raises(ValueError, name, "`y` must have at least 2 samples where one is left out, got 1"):
        call(X, ONE, unbiased=True, **options)
    with raises(ValueError, name, "`weights_y` must have one number for each of the 3 samples `y`, got shape (2,)"):
        call(X, X, weights_y=torch.ones(2), **options)
    with raises(ValueError, name, "leading dimensions must broadcast, got `x` (2,), `y` (5,)"):
        call(X, torch.ones(5, 3), **options)


def test_devices():
    with raises(ValueError, "kde", "`points` must be on cpu, as the samples are, got meta"):
        stats.kde(X, X.to("meta"), tau=1.0)


def test_crps():
    message = "`observation` must be a floating-point tensor, got "
    with raises(TypeError, "crps", message + "float; use torch.as_tensor(observation, dtype=torch.float32)"):
        stats.crps(1.0, X)
    with raises(TypeError, "crps", message + "a tensor of torch.int64; use observation.float()"):
        stats.crps(torch.tensor(1), X)
    with raises(ValueError, "crps", "`ensemble` must have at least 2 samples where one is left out, got 1"):
        stats.crps(torch.tensor(1.0), ONE, unbiased=True)
    with raises(
        ValueError, "crps", "leading dimensions must broadcast, got `ensemble` (2,), `observation` (5,)"
    ) as raised:
        stats.crps(torch.ones(5), X)
    assert "tau" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "cubic"}, "`kind` must be 'density', 'constant', 'linear', got 'cubic'"),
        ({"kind": "linear"}, "`y` goes with the kinds 'constant' and 'linear', got kind='linear' and y=NoneType"),
        ({"y": X}, "`y` goes with the kinds 'constant' and 'linear', got kind='density' and y=Tensor"),
        ({"rtol": 0.0}, "`rtol` must be between 1e-13 and 1, got 0.0"),
        ({"bounds": (2.0, 1.0)}, "`bounds` must be two positive numbers, the smaller one first, got (2.0, 1.0)"),
        ({"y": torch.ones(2), "kind": "constant"}, "`y` must have one value for each of the 3 samples `x`"),
    ],
)
def test_bandwidth(options, message):
    with raises(ValueError, "bandwidth", message):
        stats.bandwidth(X, **options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"statistic": "t"}, ValueError, "`statistic` must be 'mmd', 'energy_distance' or a function, got 't'"),
        ({"tau": None}, ValueError, "the statistic 'mmd' needs `tau`, got None"),
        ({"statistic": "energy_distance"}, ValueError, "the statistic 'energy_distance' has no use for `tau`, got 1.0"),
        ({"permutations": 0}, ValueError, "`permutations` must be at least 1, got 0"),
        ({"permutations": 1.5}, TypeError, "`permutations` must be a whole number, got 1.5"),
        (
            {"statistic": lambda x, y: x.mean(), "tau": None},
            ValueError,
            "`statistic` must return one number for each of (1, 2), got (); its arguments lead with a dimension of "
            "permutations, so reduce over the last one only, as in a.mean(-1)",
        ),
        (
            {"statistic": lambda x, y: 0 * (x.mean(-1) - y.mean(-1)) / 0, "tau": None},
            ValueError,
            "`statistic` must not be NaN, got NaN for 2000 of 2000 values, of the samples as they are and of permuted",
        ),
        (
            {"statistic": lambda x, y: (x[..., 0] - 3).sqrt() + y.sum(-1), "tau": None, "permutations": 3},
            ValueError,
            "`statistic` must not be NaN, got NaN for ",
        ),
        ({"unbiased": "no"}, TypeError, "`unbiased` must be True or False, got 'no'"),
    ],
)
def test_permutations(options, error, message):
    with raises(error, "permutation_test", message):
        stats.permutation_test(X, X, **{"tau": 1.0, **options})


def test_sliced():
    vectors = torch.randn(10, 3)
    for name, options in (("sliced_mmd", {"tau": 1.0}), ("sliced_energy_distance", {})):
        call = getattr(stats, name)
        with raises(ValueError, name, "`x` and `y` must be vectors (..., n, d) and (..., m, d) of one size d, got"):
            call(vectors, torch.randn(10, 2), **options)
        with raises(ValueError, name, "`projections` must be at least 1, got 0"):
            call(vectors, vectors, projections=0, **options)
        with raises(
            ValueError, name, "`projections` must be a number or directions (p, d) with d = 3, got shape (5, 2)"
        ):
            call(vectors, vectors, projections=torch.randn(5, 2), **options)
        with raises(ValueError, name, "`projections` must have at least one direction, got shape (0, 3)"):
            call(vectors, vectors, projections=torch.zeros(0, 3), **options)


UNBIASED = {
    "mmd": lambda unbiased: stats.mmd(X, X, tau=1.0, unbiased=unbiased),
    "energy_distance": lambda unbiased: stats.energy_distance(X, X, unbiased=unbiased),
    "crps": lambda unbiased: stats.crps(X[:, 0], X, unbiased=unbiased),
    "sliced_mmd": lambda unbiased: stats.sliced_mmd(X, X, tau=1.0, unbiased=unbiased),
    "sliced_energy_distance": lambda unbiased: stats.sliced_energy_distance(X, X, unbiased=unbiased),
}


@pytest.mark.parametrize("unbiased", ["no", 0, None])
@pytest.mark.parametrize("name", UNBIASED)
def test_flags(name, unbiased):
    with raises(TypeError, name, f"`unbiased` must be True or False, got {unbiased!r}"):
        UNBIASED[name](unbiased)


def test_draws():
    with raises(ValueError, "kde_sample", "`count` must be at least 0, got -1"):
        stats.kde_sample(X, -1, tau=1.0)


@pytest.mark.parametrize("call", [stats.mmd, stats.sliced_mmd])
def test_a_tau_that_is_none(call):
    x = torch.randn(5, 2) if call is stats.sliced_mmd else torch.randn(5)
    with pytest.raises(TypeError, match="`tau` must be"):
        call(x, x + 1, tau=None)


@pytest.mark.parametrize("rtol", [1e-17, 0.0, 1.0, "x"])
def test_a_tolerance_that_no_search_reaches(rtol):
    with pytest.raises(ValueError, match="`rtol` must be between 1e-13 and 1"):
        stats.bandwidth(torch.tensor([0.0, 1.0, 3.0]), rtol=rtol)


GENERATORS = {
    "kde_sample": lambda generator: stats.kde_sample(X, 3, tau=1.0, generator=generator),
    "permutation_test": lambda generator: stats.permutation_test(X, X, tau=1.0, generator=generator),
    "sliced_mmd": lambda generator: stats.sliced_mmd(X, X, tau=1.0, generator=generator),
    "sliced_energy_distance": lambda generator: stats.sliced_energy_distance(X, X, generator=generator),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_generators(name):
    with raises(TypeError, name, "`generator` must be None or a torch.Generator, got int; use torch.Generator()"):
        GENERATORS[name](0)


BOUNDS = {
    "one number": 3.0,
    "one in a tuple": (1.0,),
    "three": (1.0, 2.0, 3.0),
    "letters": ("a", "b"),
    "digits": ("1", "2"),
    "a text": "12",
    "bytes": b"12",
    "True": (True, 2.0),
    "in descending order": (2.0, 1.0),
    "zero": (0.0, 1.0),
    "NaN": (math.nan, 1.0),
    "infinity": (1.0, math.inf),
    "a huge integer": (1, 10**400),
    "one number in a tensor": torch.tensor(3.0),
    "tensors of two": (torch.ones(2), torch.ones(2)),
}


@pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)
def test_bounds_of_bandwidths(bounds):
    with raises(ValueError, "bandwidth", "`bounds` must be two positive numbers, the smaller one first, got "):
        stats.bandwidth(X, bounds=bounds)


COLUMN = torch.randn(8, 1)
LINE = COLUMN[:, 0]
COLUMNS = {
    "kde": lambda x: stats.kde(x, LINE, tau=1.0),
    "kde_sample": lambda x: stats.kde_sample(x, 3, tau=1.0),
    "nadaraya_watson": lambda x: stats.nadaraya_watson(x, x, LINE, tau=1.0),
    "local_linear": lambda x: stats.local_linear(x, x, LINE, tau=1.0),
    "mmd": lambda x: stats.mmd(x, LINE, tau=1.0),
    "energy_distance": lambda x: stats.energy_distance(x, LINE),
    "permutation_test": lambda x: stats.permutation_test(x, LINE, tau=1.0, permutations=2),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_is_said_to_be_rows_of_one_sample(name):
    ((message, file),) = shape_warnings(lambda: COLUMNS[name](COLUMN))
    assert message.startswith(f"laplex.stats.{name}: `x` has shape (8, 1): these are rows of one sample each")
    assert "for rows of 8 samples use x.squeeze(-1)" in message
    assert file == __file__  # the user's line, not one of laplex
    assert shape_warnings(lambda: COLUMNS[name](LINE)) == shape_warnings(lambda: COLUMNS[name](COLUMN[:1])) == []


def test_a_column_of_which_one_sample_is_left_out():
    def bandwidth():
        with pytest.raises(ValueError, match="at least 2 samples"):
            stats.bandwidth(COLUMN)

    ((message, _),) = shape_warnings(bandwidth)
    assert "use x.squeeze(-1)" in message


def test_a_second_column_is_said_to_be_rows_of_one_sample():
    ((message, _),) = shape_warnings(lambda: stats.mmd(LINE, COLUMN, tau=1.0))
    assert message.startswith("laplex.stats.mmd: `y` has shape (8, 1)")


MEANT = {
    "vectors of one number": lambda: stats.sliced_mmd(COLUMN, COLUMN, tau=1.0),
    "one vector": lambda: stats.sliced_mmd(X[:1], X, tau=1.0),
    "one vector each": lambda: stats.sliced_energy_distance(X[:1], X[1:]),
    "observations": lambda: stats.crps(LINE, torch.randn(8, 5)),
    "forecasts that are certain": lambda: stats.crps(LINE, COLUMN),
    "a place in each row": lambda: stats.kde(torch.randn(8, 5), COLUMN, tau=1.0),
    "a graph": lambda: torch.compile(stats.mmd, fullgraph=True, backend="eager")(COLUMN, LINE, tau=1.0),
}


@pytest.mark.parametrize("name", MEANT)
def test_columns_that_are_meant_warn_of_nothing(name):
    assert shape_warnings(MEANT[name]) == []

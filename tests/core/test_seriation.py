"""Places of features: neighbours of a chain stay neighbours, however the columns are shuffled."""

import re

import pytest
import torch

from laplex._seriation import BLOCK, _leading, seriate

pytestmark = pytest.mark.usefixtures("one_thread")


def chain(samples, features, seed=0, dtype=torch.float64):
    """A stationary process: features that are near have a high correlation."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(samples, features, generator=generator, dtype=torch.float64)
    decay = 1 - 8 / features  # some eight lengths of correlation along the chain
    for j in range(1, features):
        values[:, j] = decay * values[:, j - 1] + (1 - decay**2) ** 0.5 * values[:, j]
    return values.to(dtype)


def rank_correlation(one, two):
    ranks = torch.stack([side.argsort().argsort().double() for side in (one, two)])
    return float(torch.corrcoef(ranks)[0, 1])


def mean_step(places, features):
    """How far apart, in ranks, features lie that are neighbours in the chain."""
    return float(places.argsort().argsort().double().diff().abs().mean()), features / 3  # and at random


@pytest.mark.parametrize("leaf", [1, 5, 48])
@pytest.mark.parametrize(("samples", "features"), [(150, 200), (300, 150), (900, 60)])
def test_a_shuffled_chain_is_recovered_up_to_reversal(samples, features, leaf):
    data = torch.cumsum(torch.randn(samples, features, dtype=torch.float64), 1)
    shuffled = torch.randperm(features)
    assert abs(rank_correlation(seriate(data[:, shuffled], leaf=leaf), shuffled)) > 0.9


@pytest.mark.parametrize(("samples", "features"), [(150, 200), (300, 150)])
def test_few_coordinates_will_do(samples, features):
    """These are found by subspace iteration, not by a whole decomposition."""
    data = torch.cumsum(torch.randn(samples, features, dtype=torch.float64), 1)
    shuffled = torch.randperm(features)
    places = seriate(data[:, shuffled], coordinates=8)
    assert abs(rank_correlation(places, shuffled)) > 0.9
    assert torch.equal(seriate(data, coordinates=8)[shuffled], places)


def test_subspace_iteration_finds_the_leading_eigenvectors():
    basis = torch.linalg.qr(torch.randn(100, 100, dtype=torch.float64)).Q
    values = 0.8 ** torch.arange(100).double()
    got, vectors = _leading((basis * values) @ basis.mT, 6, torch.Generator().manual_seed(0))
    torch.testing.assert_close(got, values[:6], rtol=1e-9, atol=0)
    torch.testing.assert_close((basis[:, :6].mT @ vectors).abs(), torch.eye(6).double(), rtol=0, atol=1e-9)


def test_neighbours_of_a_long_chain_stay_near():
    step, at_random = mean_step(seriate(chain(200, 600)), 600)
    assert step < at_random / 10


def test_places_are_all_ranks(dtype):
    places = seriate(chain(20, 101, dtype=dtype), leaf=4)
    assert places.dtype == dtype
    assert torch.equal(places.sort().values, (torch.arange(101).double() / 101).to(dtype))


@pytest.mark.parametrize(("samples", "features"), [(30, 200), (300, 100)])
def test_permuting_features_permutes_places(samples, features):
    data, shuffled = chain(samples, features), torch.randperm(features)
    assert torch.equal(seriate(data[:, shuffled]), seriate(data)[shuffled])


def test_offsets_and_positive_scales_do_not_matter():
    data = chain(60, 100)
    offset, scale = 10 * torch.randn(100), 10 ** torch.randn(100)
    assert torch.equal(seriate(offset + scale * data), seriate(data))


@pytest.mark.parametrize("exponent", [-1000, 1000])
def test_very_large_and_small_data(exponent):
    data = chain(60, 100)
    assert torch.equal(seriate(data * 2.0**exponent), seriate(data))


def test_blocks_do_not_matter(monkeypatch):
    data = chain(30, 200)
    places = seriate(data, leaf=3)
    monkeypatch.setattr("laplex._seriation.BLOCK", 30 * 7)
    assert data.numel() < BLOCK
    assert torch.equal(seriate(data, leaf=3), places)


def test_a_generator_decides_and_the_global_one_is_left_alone():
    data, state = chain(40, 150), torch.get_rng_state()
    assert torch.equal(seriate(data), seriate(data))
    seeded = [seriate(data, generator=torch.Generator().manual_seed(seed)) for seed in (0, 3, 3)]
    assert torch.equal(seeded[0], seriate(data))
    assert torch.equal(seeded[1], seeded[2])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    assert seriate(chain(20, 60, dtype=dtype)).dtype == torch.float32


def test_constant_features_leave_the_others_in_order():
    data = torch.zeros(200, 160, dtype=torch.float64)
    varying = torch.arange(160) % 4 != 0
    data[:, varying] = torch.cumsum(torch.randn(200, 120, dtype=torch.float64), 1)
    data[:, ~varying] = torch.rand(40, dtype=torch.float64) + 0.1  # one value each, which a mean would round
    places = seriate(data, leaf=4)
    assert torch.equal(places.sort().values, torch.arange(160).double() / 160)
    assert abs(rank_correlation(places[varying], torch.arange(120))) > 0.9


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (9, 1), (2, 2), (5, 2)])
def test_small_data(shape):
    places = seriate(torch.randn(shape), leaf=1)
    assert torch.equal(places.sort().values, torch.arange(shape[1]) / shape[1])


def test_all_features_alike():
    column = torch.randn(9, 1)
    assert torch.equal(seriate(column.expand(9, 50), leaf=4).sort().values, torch.arange(50) / 50)


def test_a_data_set_that_requires_gradients():
    assert not seriate(torch.randn(5, 6, requires_grad=True)).requires_grad


WRONG = {
    "list": ([[1.0]], {}, TypeError, "`data` must be a torch.Tensor, got list; use torch.as_tensor"),
    "whole": (
        torch.ones(2, 2).long(),
        {},
        TypeError,
        "`data` must be real and floating point, or uint8, got torch.int64",
    ),
    "vector": (torch.ones(3), {}, ValueError, "`data` must be (N, d), with at least one sample and one feature, got"),
    "empty": (torch.ones(0, 3), {}, ValueError, "one feature, got shape (0, 3); use .flatten(1)"),
    "nan": (torch.tensor([[1.0, torch.nan]]), {}, ValueError, "`data` must be finite, got NaN or infinity; find it"),
    "inf": (torch.tensor([[1.0, torch.inf]]), {}, ValueError, "`data` must be finite, got NaN or infinity; find it"),
    "leaf": (torch.ones(2, 2), {"leaf": 0}, ValueError, "`leaf` must be at least 1, got 0; use a larger one"),
    "coordinates": (
        torch.ones(2, 2),
        {"coordinates": 1.5},
        TypeError,
        "`coordinates` must be a whole number, got 1.5;",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_errors(kind):
    data, options, error, text = WRONG[kind]
    with pytest.raises(error, match=r"^laplex\.seriate: .*" + re.escape(text)):
        seriate(data, **options)

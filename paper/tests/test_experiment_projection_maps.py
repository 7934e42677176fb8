"""Projections of flattened images: what they compute, what they store, and the images they are given."""

import re

import pytest
import torch
from torch import nn

import laplex
from laplex.nn import LaplexProjection
from made_images import CLASSES, D, load_files, write_files
from paper.experiments import images, projection_maps
from paper.experiments.images import FlatImages, FlatSplit, Images, flatten
from paper.experiments.projection_maps import METHODS, PROJECTIONS, TRAINED, Maps, Projection, stored
from paper.experiments.projection_training import joint_parameters
from paper.methods.sketch import principal_components

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return load_files(write_files(tmp_path_factory.mktemp("made")))


@pytest.fixture(scope="module")
def maps(data):
    return Maps(data, 64)


# --- Images ----------------------------------------------------------------------------------------------------------


def test_images_are_normalised_by_the_train_split(data):
    x = data.normalised(data.train.pixels)
    assert (x.shape, x.dtype, data.train.pixels.dtype) == ((400, D), torch.float32, torch.uint8)
    assert x.mean(0).abs().max() < 1e-5
    assert x.square().mean().item() == pytest.approx(1, rel=1e-5)
    columns = slice(7, 20)
    assert torch.equal(
        data.normalised(data.val.pixels[:, columns], columns), data.normalised(data.val.pixels)[:, columns]
    )


def test_sums_over_blocks_are_exact(monkeypatch):
    pixels = torch.randint(256, (41, 5), dtype=torch.uint8)
    pixels[:, 2] = 200  # constant
    for rows in (1, 8, 256):
        monkeypatch.setattr(images, "ROWS", rows)
        mean, deviation = images._moments(pixels)
        torch.testing.assert_close(mean, pixels.double().mean(0).float())
        assert deviation == pytest.approx(float(pixels.double().var(0, correction=0).mean().sqrt()), rel=1e-12)
    assert images._moments(pixels[:, 2:3])[1] == 0


def test_a_tenth_of_the_train_rows_of_each_class_is_held_out(data):
    assert torch.bincount(data.train.y[data.held]).tolist() == [10] * CLASSES
    assert sorted(torch.cat([data.held, data.rest]).tolist()) == list(range(400))


def test_the_digest_tells_pixels_and_classes_apart(data):
    def small_images(pixel=7, label=0):
        pixels = torch.full((20, 2, 2, 3), 3, dtype=torch.uint8)
        pixels[0, 0, 0, 0] = pixel
        y = torch.zeros(20, dtype=torch.int64)
        y[1] = label
        return Images(pixels, y, ("a", "b"))

    digests = [flatten(small_images(), small_images(*other), "cpu").digest for other in ((), (), (8,), (7, 1))]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
    assert re.fullmatch("[0-9a-f]{16}", data.digest)


# --- Projections -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", PROJECTIONS, ids=str)
def test_stored_numbers_are_those_of_the_modules(variant, maps, data):
    width = 6
    errors = stored(variant, D, width)
    if variant.method == "gaussian":
        assert errors == 1  # a seed
    elif variant.method == "pca":
        assert errors == sum(
            value.numel() for value in principal_components(torch.randn(9, D), width).state_dict().values()
        )
    elif variant.method in TRAINED:
        module = maps.trainable(variant, width, 0)
        assert errors == sum(value.numel() for value in module.parameters())
        assert errors == (D * width + width if variant.method == "trained-dense" else D + width + 1)
    else:
        assert errors == sum(value.numel() for value in maps.frozen(variant, width, 0).state_dict().values())


def test_trained_numbers_are_those_of_the_net(data):
    rest = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, CLASSES))
    assert joint_parameters(100, 6, CLASSES) == 100 + sum(value.numel() for value in rest.parameters())


FROZEN_PROJECTIONS = [one for one in PROJECTIONS if one.method not in TRAINED]


@pytest.mark.parametrize("variant", FROZEN_PROJECTIONS, ids=str)
def test_features_depend_on_the_seed_where_the_projection_is_random(variant, maps):
    first, again, other = (maps.features(variant, 5, seed) for seed in (0, 0, 1))
    assert [one.shape for one in first] == [(400, 5), (400, 5)]
    assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))
    assert torch.equal(first[0], other[0]) != variant.random
    assert all(one.isfinite().all() for one in first)


def test_every_variant_has_a_name_of_its_own():
    frozen = [str(one) for one in PROJECTIONS if one.method not in TRAINED]
    assert len(set(frozen)) == len(frozen) == 25
    assert str(Projection("laplex", 0.1, True, True)) == "LAPLEX, random, tau = 0.1, with phases and signs"
    assert str(Projection("placed")) == "LAPLEX, placed, tau = 1/m"
    assert str(Projection("pca")) == "PCA"
    assert {one.method for one in PROJECTIONS} == set(METHODS) == set(projection_maps.TITLES)


def test_frozen_laplex_is_the_dense_definition(maps, data):
    projection = maps.frozen(Projection("laplex", 0.05, True, True), 7, 3)
    kernel = laplex.reference.kernel(
        projection.a.double(), projection.b.double(), 0.05, phi=projection.phi.double(), psi=projection.psi.double()
    )
    x = data.normalised(data.val.pixels)
    want = (x.double() * projection.signs) @ kernel.mT
    torch.testing.assert_close(
        maps.features(Projection("laplex", 0.05, True, True), 7, 3)[1].double(), want, rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize(
    "variant", [Projection("placed", 0.002), Projection("placed"), Projection("trained-placed", 0.01)]
)
def test_placed_projections_are_those_of_place(variant, maps, data):
    projection = maps._laplex(variant, 9, torch.Generator())
    want = LaplexProjection(D, 9, tau=variant.tau).place(data.normalised(data.train.pixels[data.rest]))
    torch.testing.assert_close(projection.a, want.a)
    torch.testing.assert_close(projection.tau, want.tau)
    # There the pixels are whole numbers in float16, here they are normalised: rounding may change the order a little.
    assert (projection.b - want.b).abs().median() < 0.02


def test_places_are_blind_to_the_order_of_pixels(data):
    order = torch.randperm(D, generator=torch.Generator().manual_seed(5))
    split = FlatSplit(data.train.pixels[:, order], data.train.y)
    shuffled = Maps(FlatImages(split, data.val, data.held, data.rest, data.mean, 1.0, CLASSES, ""), 4)
    assert (shuffled.places - Maps(data, 4).places[order]).abs().median() < 1e-3


def test_the_gaussian_projection_is_a_matrix_of_normal_numbers_drawn_in_blocks(maps, data, monkeypatch):
    monkeypatch.setattr(projection_maps, "COLUMNS", 100)
    train, val = maps.features(Projection("gaussian"), 8, 4)
    generator = torch.Generator().manual_seed(4)
    matrix = torch.cat([torch.randn(min(100, D - first), 8, generator=generator) for first in range(0, D, 100)])
    torch.testing.assert_close(val, data.normalised(data.val.pixels) @ matrix / 8**0.5, rtol=1e-4, atol=1e-4)
    lengths = train.square().sum(1) / data.normalised(data.train.pixels).square().sum(1)
    assert lengths.mean().item() == pytest.approx(1, abs=0.3)


def test_components_of_a_smaller_width_are_the_first_ones(maps, data):
    rows = data.normalised(data.train.pixels[data.rest])
    want = principal_components(rows, 5)(data.normalised(data.val.pixels))
    torch.testing.assert_close(maps.features(Projection("pca"), 5, 0)[1], want, rtol=1e-4, atol=1e-3)
    assert data.most_components == 359

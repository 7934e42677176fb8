"""`laplex inpaint`: what it hides, its means and its draws."""

import numpy as np
import pytest
import torch
from PIL import Image

from laplex.cli import density_commands, masks
from made_fits import fit_model, images_of, record_grids, save_model
from made_pictures import SHAPE

pytest.importorskip("safetensors")
pytestmark = pytest.mark.usefixtures("one_thread")

CPU = ("--device", "cpu")


@pytest.fixture(scope="module")
def model(data):
    return fit_model(data)


@pytest.fixture(scope="module")
def path(model, tmp_path_factory):
    return save_model(model, tmp_path_factory.mktemp("model"))


@pytest.fixture
def grids(monkeypatch):
    return record_grids(monkeypatch)


@pytest.mark.parametrize("name", ["half", "centre", "random:0.3"])
def test_inpaint_fills_by_the_conditional_mean(name, laplex, path, data, model, grids, tmp_path):
    status, _, errors = laplex("inpaint", path, data, "--out", tmp_path / "i.png", "--mask", name, "--count", 3, *CPU)
    assert status == 0, errors
    x = torch.from_numpy(np.load(data)).flatten(1)[:3] / 255
    known = masks.mask(name, SHAPE, 0)
    filled = images_of(grids[0], "filled")
    assert torch.allclose(filled[:, known], x[:, known], atol=1e-6)
    for one, result in zip(x, filled):
        want = model.condition(known, one[known]).mean.detach()
        assert torch.allclose(result[~known], want, atol=1e-4)
    assert bool((images_of(grids[0], "what is given")[:, ~known] == 0.5).all())


def test_masks_hide_whole_pixels():
    for name, hidden in (("half", 18), ("centre", 16), ("random:0.5", 18), ("random:0.25", 9)):
        known = masks.mask(name, SHAPE, 0).reshape(SHAPE)
        assert torch.equal(known.any(-1), known.all(-1))
        assert int((~known[..., 0]).sum()) == hidden, name
    assert bool(masks.mask("half", SHAPE, 0).reshape(SHAPE)[:3].all())  # the lower half is hidden
    assert not torch.equal(masks.mask("random:0.5", SHAPE, 0), masks.mask("random:0.5", SHAPE, 1))


def test_a_mask_of_one_s_own_hides_what_is_white(laplex, path, data, model, grids, tmp_path):
    drawing = np.zeros((12, 18), np.uint8)  # the middle square of it is seen
    drawing[:4, 3:9] = 255
    Image.fromarray(drawing).save(tmp_path / "mask.png")
    hidden = torch.zeros(6, 6, dtype=torch.bool)
    hidden[:2, :3] = True
    known = masks.mask(str(tmp_path / "mask.png"), SHAPE, 0)
    assert torch.equal(known.reshape(SHAPE), ~hidden[..., None].expand(SHAPE))
    options = ("--mask", tmp_path / "mask.png", "--out", tmp_path / "i.png", "--count", 2)
    assert laplex("inpaint", path, data, *options, *CPU)[0] == 0
    x = torch.from_numpy(np.load(data)).flatten(1)[:2] / 255
    assert torch.allclose(images_of(grids[0], "filled"), model.inpaint(known, x), atol=1e-6)


@pytest.mark.parametrize("kind", ["grey", "colour", "1", "transparent", "turned", "blurred"])
def test_masks_of_every_kind(kind, tmp_path):
    drawing = np.zeros((6, 6), np.uint8)
    drawing[4:] = 255
    image = Image.fromarray(drawing)
    if kind == "transparent":  # white, and nothing below
        image = Image.fromarray(np.stack([np.full((6, 6), 0, np.uint8), 255 - drawing], -1))
    elif kind == "turned":  # by its camera
        image = Image.fromarray(np.rot90(drawing).copy())
        image.getexif()[0x0112] = 6
    elif kind == "blurred":
        image = Image.fromarray((drawing // 3 + 60).astype(np.uint8))  # 60 and 145
    elif kind in ("colour", "1"):
        image = image.convert("RGB" if kind == "colour" else "1")
    image.save(tmp_path / "mask.png", exif=image.getexif())
    known = masks.mask(str(tmp_path / "mask.png"), SHAPE, 0).reshape(SHAPE)
    assert bool(known[:4].all())
    assert not bool(known[4:].any())


def test_samples_of_a_filling_are_draws_given_the_rest(laplex, path, data, model, grids, tmp_path):
    out, random_numbers = ("--out", tmp_path / "i.png", "--count", 2), torch.get_rng_state()
    for options in (("--samples", 3), ("--samples", 3), ("--samples", 3, "--seed", 1)):
        assert laplex("inpaint", path, data, *out, *options, *CPU)[0] == 0
    assert torch.equal(torch.get_rng_state(), random_numbers)
    draws = [f"sample {number}{noise}" for number in (1, 2, 3) for noise in ("", " without noise")]
    assert [label for label, _ in grids[0][0]] == ["images", "what is given", "filled", *draws]
    first, again, other = (images_of(grid, "sample 2") for grid in grids)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    x, known = torch.from_numpy(np.load(data)).flatten(1)[:2] / 255, masks.mask("half", SHAPE, 0)
    assert torch.allclose(first[:, known], x[:, known], atol=1e-6)
    count = 4000
    draws = density_commands.fillings(model, known, model.inpaint(known, x), count, 0)
    for one, index in zip(x, (0, 1)):
        expected = model.condition(known, one[known])
        mean, covariance = expected.mean.detach().double(), expected.covariance().detach().double()
        for noise, wanted in (
            ("", covariance),
            (" without noise", covariance - expected.noise.square().diag().double()),
        ):
            some = torch.stack([draws[f"sample {number}{noise}"][index] for number in range(1, count + 1)])
            some, spread = some[:, ~known].double(), covariance.diagonal().sqrt()
            assert ((some.mean(0) - mean).abs() / spread).max() < 5 / count**0.5
            errors = (some.T.cov() - wanted).abs() / torch.outer(spread, spread)
            assert errors.max() < 6 / count**0.5

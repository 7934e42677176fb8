"""`laplex sample`, `reconstruct`, `inpaint` and `evaluate`: what they draw and say, and what they refuse."""

import json
import os
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from laplex.cli import density_commands
from laplex.density import Examples, LaplexGaussian, evaluate, files, fit
from made_pictures import DIM, SHAPE, drawn, write

pytest.importorskip("safetensors")
pytestmark = pytest.mark.usefixtures("one_thread")

CPU = ("--device", "cpu")


@pytest.fixture(scope="module")
def model(data):
    examples = Examples(torch.from_numpy(np.load(data)).flatten(1))
    return fit(examples, 8, rounds=4, told=lambda done, of: None).model


@pytest.fixture(scope="module")
def path(model, tmp_path_factory):
    made = tmp_path_factory.mktemp("model") / "model.safetensors"
    files.save(made, model, SHAPE, units="1/255")
    return made


@pytest.fixture
def grids(monkeypatch):
    """What was drawn: (rows, shape) of every grid."""
    found, right = [], density_commands.pictures.grid

    def grid(path, rows, shape):
        found.append((rows, shape))
        right(path, rows, shape)

    monkeypatch.setattr(density_commands.pictures, "grid", grid)
    return found


def images_of(grid, label):
    return torch.cat([one for name, one in grid[0] if name == label])


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_sample_draws_as_many_as_asked(laplex, path, model, grids, tmp_path):
    out = tmp_path / "samples.png"
    random_numbers = torch.get_rng_state()
    for options in ((), ("--seed", 0), ("--seed", 1), ("--count", 11)):
        assert laplex("sample", path, "--out", out, *options, *CPU) == (0, f"wrote {out}\n", "")
    assert torch.equal(torch.get_rng_state(), random_numbers)
    first, again, other, fewer = (images_of(grid, "samples") for grid in grids)
    assert first.shape == (16, DIM)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len(fewer) == 11
    assert max(len(one) for _, one in grids[-1][0]) == 8  # images in a row
    torch.manual_seed(0)
    assert torch.equal(first, model.sample(16))
    with Image.open(out) as image:
        assert image.format == "PNG"


def test_reconstruct_shows_images_and_reconstructions(laplex, path, data, model, grids, tmp_path):
    status, _, told = laplex("reconstruct", path, data, "--out", tmp_path / "r.png", "--count", 10, *CPU)
    assert status == 0, told
    x = torch.from_numpy(np.load(data)).flatten(1)[:10] / 255
    assert torch.allclose(images_of(grids[0], "images"), x, atol=1e-6)
    assert torch.allclose(images_of(grids[0], "reconstructions"), model.reconstruct(x), atol=1e-5)
    assert [name for name, _ in grids[0][0]] == ["images", "reconstructions"] * 2


@pytest.mark.parametrize("name", ["half", "centre", "random:0.3"])
def test_inpaint_fills_by_the_conditional_mean(name, laplex, path, data, model, grids, tmp_path):
    status, _, told = laplex("inpaint", path, data, "--out", tmp_path / "i.png", "--mask", name, "--count", 3, *CPU)
    assert status == 0, told
    x = torch.from_numpy(np.load(data)).flatten(1)[:3] / 255
    known = density_commands.mask(name, SHAPE, 0)
    filled = images_of(grids[0], "filled")
    assert torch.allclose(filled[:, known], x[:, known], atol=1e-6)
    for one, result in zip(x, filled):
        want = model.condition(known, one[known]).mean.detach()
        assert torch.allclose(result[~known], want, atol=1e-4)
    assert bool((images_of(grids[0], "what is given")[:, ~known] == 0.5).all())


def test_masks_hide_whole_pixels():
    for name, hidden in (("half", 18), ("centre", 16), ("random:0.5", 18), ("random:0.25", 9)):
        known = density_commands.mask(name, SHAPE, 0).reshape(SHAPE)
        assert torch.equal(known.any(-1), known.all(-1))
        assert int((~known[..., 0]).sum()) == hidden, name
    assert bool(density_commands.mask("half", SHAPE, 0).reshape(SHAPE)[:3].all())  # the lower half is hidden
    assert not torch.equal(density_commands.mask("random:0.5", SHAPE, 0), density_commands.mask("random:0.5", SHAPE, 1))


def test_images_of_a_folder_get_the_shape_of_the_model(laplex, path, grids, tmp_path):
    folder = tmp_path / "photographs"
    folder.mkdir()
    for index, one in enumerate(drawn(3)):
        Image.fromarray(one).resize((20, 30)).save(folder / f"{index}.png")
    Image.fromarray(drawn(1)[0][..., 0]).save(folder / "grey.png")
    status, _, told = laplex("reconstruct", path, folder, "--out", tmp_path / "r.png", *CPU)
    assert status == 0, told
    assert images_of(grids[0], "images").shape == (4, DIM)


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_evaluate_says_what_a_model_is_worth(laplex, path, data, model, tmp_path):
    file = tmp_path / "numbers.json"
    status, output, told = laplex("evaluate", path, data, "--json", file, *CPU)
    assert (status, told) == (0, "")
    found = evaluate(model, Examples(torch.from_numpy(np.load(data)).flatten(1)))
    saved = json.loads(file.read_text())
    got = saved["evaluation"][str(data)]
    assert got["count"] == 50
    for name, value in found._asdict().items():
        assert got[name] == pytest.approx(value, rel=1e-5), name
    assert saved["machine"]["torch"] == torch.__version__
    for title in ("log-likelihood", "standard error", "bits per dimension", "reconstruction RMSE"):
        assert title in output
    assert f"{found.bits_per_dim:.4f}" in output


def test_one_example_has_no_standard_error(laplex, path, tmp_path):
    one = write(tmp_path / "one.npy", 1)
    status, output, told = laplex("evaluate", path, one, "--json", tmp_path / "numbers.json", *CPU)
    assert status == 0, told
    assert json.loads((tmp_path / "numbers.json").read_text())["evaluation"][str(one)]["standard_error"] is None
    assert "  -  " in output


def test_a_model_of_numbers_is_evaluated_but_not_drawn(laplex, tmp_path):
    files.save(tmp_path / "rows.safetensors", LaplexGaussian(30, 4))
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(9, 30)).astype(np.float32))
    status, output, told = laplex("evaluate", tmp_path / "rows.safetensors", tmp_path / "rows.npy", *CPU)
    assert (status, told) == (0, "")
    assert "LaplexGaussian of " in output
    status, _, told = laplex("sample", tmp_path / "rows.safetensors", "--out", tmp_path / "s.png", *CPU)
    assert status == 2
    assert "laplex sample: MODEL must be of images, got " in told
    assert not (tmp_path / "s.png").exists()


# --- what is refused --------------------------------------------------------------------------------------------------


def test_data_of_another_size_are_refused(laplex, path, tmp_path):
    np.save(tmp_path / "other.npy", drawn(4)[:, :4])
    np.save(tmp_path / "rows.npy", drawn(4).reshape(4, -1)[:, :50])
    for name, numbers in (("other.npy", "72 (4 x 6 x 3)"), ("rows.npy", "50")):
        for command in ("evaluate", "reconstruct", "inpaint"):
            out = () if command == "evaluate" else ("--out", tmp_path / "x.png")
            status, output, told = laplex(command, path, tmp_path / name, *out, *CPU)
            assert (status, output) == (2, "")
            expected = f"DATA must have {DIM} (6 x 6 x 3) numbers an example, as the model has, got {numbers} in "
            assert told.startswith(f"laplex {command}: {expected}")
    assert not (tmp_path / "x.png").exists()


def test_data_in_other_units_are_refused(laplex, path, data, model, tmp_path):
    scaled = np.load(data).reshape(50, -1).astype(np.float32) / 255
    np.save(tmp_path / "floats.npy", scaled)
    status, _, told = laplex("evaluate", path, tmp_path / "floats.npy", *CPU)
    assert status == 2
    assert "DATA must be bytes, which count in 1/255, as the model was fitted to, got torch.float32" in told
    files.save(tmp_path / "model.safetensors", model, SHAPE, units="1")
    status, _, told = laplex("evaluate", tmp_path / "model.safetensors", data, *CPU)
    assert status == 2
    assert "DATA must be floating-point numbers, as the model was fitted to, got torch.uint8" in told


def test_a_folder_for_a_model_of_rectangles_is_refused(laplex, tmp_path):
    files.save(tmp_path / "model.safetensors", LaplexGaussian(4 * 6 * 3, 4), (4, 6, 3), units="1/255")
    (tmp_path / "folder").mkdir()
    status, _, told = laplex("evaluate", tmp_path / "model.safetensors", tmp_path / "folder", *CPU)
    assert status == 2
    assert "DATA must be an array for a model of images of 4 x 6 pixels, got the folder" in told


def test_a_disk_that_cannot_be_written_is_told(laplex, path, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(density_commands.pictures, "grid", full)
    status, _, told = laplex("sample", path, "--out", tmp_path / "s.png", *CPU)
    assert status == 1
    assert "laplex sample: cannot write ([Errno 28] No space left on device); nothing was replaced" in told


def test_models_that_are_none_are_refused(laplex, data, tmp_path):
    (tmp_path / "text.safetensors").write_text("this is no model, but a text")
    for command in ("sample", "reconstruct", "inpaint", "evaluate"):
        rest = () if command == "sample" else (data,)
        out = () if command == "evaluate" else ("--out", tmp_path / "x.png")
        for name in ("none.safetensors", "text.safetensors"):
            status, output, told = laplex(command, tmp_path / name, *rest, *out, *CPU)
            assert (status, output) == (2, "")
            assert told.startswith(f"laplex {command}: laplex.density.files.load: `path` must be a model file")
    assert os.listdir(tmp_path) == ["text.safetensors"]


def test_images_of_another_shape_are_refused(laplex, tmp_path):
    files.save(tmp_path / "model.safetensors", LaplexGaussian(4 * 6 * 3, 4), (4, 6, 3), units="1/255")
    np.save(tmp_path / "turned.npy", drawn(5)[:, :, :4])  # 6 x 4
    status, _, told = laplex("evaluate", tmp_path / "model.safetensors", tmp_path / "turned.npy", *CPU)
    assert status == 2
    assert "DATA must have 72 (4 x 6 x 3) numbers an example, as the model has, got 72 (6 x 4 x 3) in " in told


REFUSED = {
    ("sample", "--seed", 1 << 70): "--seed must be a whole number from 0 to 2^63 - 1, got ",
    ("inpaint", "DATA", "--seed", -1): "--seed must be a whole number from 0 to 2^63 - 1, got -1",
    ("sample", "--count", 0): "--count must be at least 1, got 0",
    ("sample", "--device", "tpu"): "--device must be cpu, cuda or cuda:INDEX, got 'tpu'",
    ("sample", "--out", "picture.jpg"): "--out must end with .png, got picture.jpg",
    ("sample", "--out", "nowhere/x.png"): "--out: cannot write nowhere/x.png (there is no such folder)",
    ("inpaint", "DATA", "--mask", "left"): "--mask must be half, centre, or random: and a fraction such as random:0.5",
    ("inpaint", "DATA", "--mask", "random:2"): "--mask must be half, centre, or random: and a fraction",
    ("inpaint", "DATA", "--mask", "random:x"): "--mask must be half, centre, or random: and a fraction",
    ("reconstruct", "none.npy"): "laplex.density.images.load: `source` must be a folder of images",
    ("evaluate", "DATA", "--json", "nowhere/x.json"): "--json: cannot write nowhere/x.json (there is no such folder)",
    ("evaluate", "DATA", "--json", "."): "--json: cannot write . (it is a folder)",
}


@pytest.mark.parametrize("arguments", REFUSED, ids=lambda arguments: " ".join(map(str, arguments)))
def test_bad_input_is_refused(arguments, laplex, path, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command, *rest = [data if one == "DATA" else one for one in arguments]
    out = () if command == "evaluate" or "--out" in rest else ("--out", "x.png")
    device = () if "--device" in rest else CPU
    status, output, told = laplex(command, path, *rest, *out, *device)
    assert (status, output) == (2, "")
    assert told.startswith(f"laplex {command}: {REFUSED[arguments]}")
    assert os.listdir(tmp_path) == []


def test_ctrl_c_writes_nothing(laplex, path, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(density_commands, "sample_rows", interrupted)
    status, _, told = laplex("sample", path, "--out", tmp_path / "x.png", *CPU)
    assert (status, told) == (130, "\nlaplex sample: interrupted; nothing was written\n")
    assert os.listdir(tmp_path) == []


def test_without_pillow_it_is_said(laplex, path, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    status, _, told = laplex("sample", path, "--out", tmp_path / "x.png", *CPU)
    assert status == 2
    assert "images need Pillow, which is missing; pip install pillow" in told

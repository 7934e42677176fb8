"""`laplex sample`, `reconstruct`, `inpaint` and `evaluate`: what they draw and say, and what they refuse."""

import json
import os

import numpy as np
import pytest
import torch
from PIL import Image

from laplex._writing import replaced
from laplex.cli import density_commands, masks
from laplex.density import Examples, LaplexGaussian, evaluate, files, images
from made_fits import fit_model, images_of, record_grids, save_model
from made_pictures import DIM, SHAPE, drawn, write

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
    status, _, errors = laplex("reconstruct", path, data, "--out", tmp_path / "r.png", "--count", 10, *CPU)
    assert status == 0, errors
    x = torch.from_numpy(np.load(data)).flatten(1)[:10] / 255
    assert torch.allclose(images_of(grids[0], "images"), x, atol=1e-6)
    assert torch.allclose(images_of(grids[0], "reconstructions"), model.reconstruct(x), atol=1e-5)
    assert [name for name, _ in grids[0][0]] == ["images", "reconstructions"] * 2


# --- a folder for a model, an image for data, files for images --------------------------------------------------------


def test_a_folder_stands_for_the_model_in_it(laplex, path, data, grids, tmp_path):
    for command in ("sample", "reconstruct", "inpaint"):
        rest = () if command == "sample" else (data,)
        assert laplex(command, path.parent, *rest, "--out", tmp_path / "x.png", *CPU)[0] == 0
    assert laplex("evaluate", path.parent, data, *CPU)[0] == 0
    (tmp_path / "empty").mkdir()
    status, _, errors = laplex("sample", tmp_path / "empty", "--out", tmp_path / "y.png", *CPU)
    assert (status, errors) == (
        2,
        "laplex sample: MODEL must be a model file, or a folder with a model.safetensors, got the folder "
        f"{tmp_path / 'empty'} without one; `laplex fit` writes it into its --out\n",
    )
    (tmp_path / "empty" / "checkpoint.safetensors").write_bytes(b"")
    status, _, errors = laplex("evaluate", tmp_path / "empty", data, *CPU)
    assert status == 2
    assert errors.endswith("without one; its fit has not ended: run the same command again\n")


def test_one_image_is_data(laplex, path, model, grids, tmp_path):
    pixels = drawn(1)[0]
    Image.fromarray(pixels).save(tmp_path / "one.png")
    Image.fromarray(pixels).resize((30, 20)).save(tmp_path / "large.jpg")
    for command in ("reconstruct", "inpaint"):
        for name in ("one.png", "large.jpg"):
            status, _, errors = laplex(command, path, tmp_path / name, "--out", tmp_path / "x.png", *CPU)
            assert status == 0, errors
    assert torch.allclose(images_of(grids[0], "images"), torch.from_numpy(pixels).flatten()[None] / 255, atol=1e-6)
    assert images_of(grids[3], "filled").shape == (1, DIM)
    assert laplex("evaluate", path, tmp_path / "large.jpg", *CPU)[0] == 0
    (tmp_path / "broken.png").write_bytes(b"no image")
    status, _, errors = laplex("reconstruct", path, tmp_path / "broken.png", "--out", tmp_path / "y.png", *CPU)
    assert status == 2
    assert f"got {tmp_path / 'broken.png'}, which is not an image that Pillow can read" in errors


@pytest.mark.parametrize("command", ["inpaint", "reconstruct"])
def test_no_more_images_are_decoded_than_are_shown(command, laplex, path, tmp_path, monkeypatch):
    folder = tmp_path / "photographs"
    folder.mkdir()
    for index, one in enumerate(drawn(20)):
        Image.fromarray(one).save(folder / f"{index:02}.png")
    read, right = [], images.decoder

    def counted(*arguments, **options):
        square = right(*arguments, **options)
        return lambda source: (read.append(source.name), square(source))[1]

    monkeypatch.setattr(images, "decoder", counted)
    assert laplex(command, path, folder, "--out", tmp_path / "x.png", "--count", 3, *CPU)[0] == 0
    assert sorted(read) == [str(folder / f"{index:02}.png") for index in range(3)]


def test_images_as_files(laplex, path, data, model, tmp_path):
    folder = tmp_path / "some" / "files"
    status, output, errors = laplex("sample", path, "--files", folder, "--count", 11, *CPU)
    assert (status, errors) == (0, "")
    assert output == f"wrote {folder / 'samples-0001.png'} to without-noise-0011.png, 22 files\n"
    torch.manual_seed(0)
    for number, one in enumerate(model.sample(11), 1):
        with Image.open(folder / f"samples-{number:04}.png") as image:
            pixels = np.asarray(image)
        assert pixels.shape == SHAPE  # its own size
        assert abs(pixels / 255 - one.clamp(0, 1).reshape(SHAPE).numpy()).max() <= 0.51 / 255
    out = tmp_path / "i.png"
    options = ("--files", folder, "--out", out, "--samples", 2, "--count", 3)
    status, output, errors = laplex("inpaint", path, data, *options, *CPU)
    assert (status, errors) == (0, "")
    assert output == f"wrote {out}\nwrote {folder / 'images-0001.png'} to sample-2-without-noise-0003.png, 21 files\n"
    for label in ("images", "what-is-given", "filled", "sample-1", "sample-1-without-noise", "sample-2"):
        assert len(list(folder.glob(f"{label}-000[123].png"))) == 3


def test_images_of_a_folder_get_the_shape_of_the_model(laplex, path, grids, tmp_path):
    folder = tmp_path / "photographs"
    folder.mkdir()
    for index, one in enumerate(drawn(3)):
        Image.fromarray(one).resize((20, 30)).save(folder / f"{index}.png")
    Image.fromarray(drawn(1)[0][..., 0]).save(folder / "grey.png")
    status, _, errors = laplex("reconstruct", path, folder, "--out", tmp_path / "r.png", *CPU)
    assert status == 0, errors
    assert images_of(grids[0], "images").shape == (4, DIM)


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_evaluate_says_what_a_model_is_worth(laplex, path, data, model, tmp_path):
    file = tmp_path / "numbers.json"
    status, output, errors = laplex("evaluate", path, data, "--json", file, *CPU)
    assert (status, errors) == (0, "")
    evaluation = evaluate(model, Examples(torch.from_numpy(np.load(data)).flatten(1)))
    saved = json.loads(file.read_text())
    link = tmp_path / "link.json"
    link.symlink_to(file)
    file.write_text("something else")
    assert laplex("evaluate", path, data, "--json", link, *CPU)[0] == 0
    assert link.is_symlink()
    assert json.loads(file.read_text()) == saved
    assert laplex("evaluate", path, data, "--json", os.devnull, *CPU)[0] == 0
    assert not os.path.isfile(os.devnull)
    got = saved["evaluation"][str(data)]
    assert got["count"] == 50
    for name, value in evaluation._asdict().items():
        assert got[name] == pytest.approx(value, rel=1e-5), name
    assert saved["machine"]["torch"] == torch.__version__
    for title in ("log-likelihood", "standard error", "bits per dimension", "reconstruction RMSE"):
        assert title in output
    assert f"{evaluation.bits_per_dim:.4f}" in output


def test_one_example_has_no_standard_error(laplex, path, tmp_path):
    one = write(tmp_path / "one.npy", 1)
    status, output, errors = laplex("evaluate", path, one, "--json", tmp_path / "numbers.json", *CPU)
    assert status == 0, errors
    assert json.loads((tmp_path / "numbers.json").read_text())["evaluation"][str(one)]["standard_error"] is None
    assert "  -  " in output


def test_a_model_of_numbers_is_evaluated_but_not_drawn(laplex, tmp_path):
    files.save(tmp_path / "rows.safetensors", LaplexGaussian(30, 4))
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(9, 30)).astype(np.float32))
    status, output, errors = laplex("evaluate", tmp_path / "rows.safetensors", tmp_path / "rows.npy", *CPU)
    assert (status, errors) == (0, "")
    assert "LaplexGaussian of " in output
    status, _, errors = laplex("sample", tmp_path / "rows.safetensors", "--out", tmp_path / "s.png", *CPU)
    assert status == 2
    assert "laplex sample: MODEL must be of images, got " in errors
    assert not (tmp_path / "s.png").exists()


# --- what is refused --------------------------------------------------------------------------------------------------


def test_data_of_another_size_are_refused(laplex, path, tmp_path):
    np.save(tmp_path / "other.npy", drawn(4)[:, :4])
    np.save(tmp_path / "rows.npy", drawn(4).reshape(4, -1)[:, :50])
    for name, numbers in (("other.npy", "72 (4 x 6 x 3)"), ("rows.npy", "50")):
        for command in ("evaluate", "reconstruct", "inpaint"):
            out = () if command == "evaluate" else ("--out", tmp_path / "x.png")
            status, output, errors = laplex(command, path, tmp_path / name, *out, *CPU)
            assert (status, output) == (2, "")
            expected = f"DATA must have {DIM} (6 x 6 x 3) numbers per example, as the model has, got {numbers} in "
            assert errors.startswith(f"laplex {command}: {expected}")
    assert not (tmp_path / "x.png").exists()


def test_data_in_other_units_are_refused(laplex, path, data, model, tmp_path):
    scaled = np.load(data).reshape(50, -1).astype(np.float32) / 255
    np.save(tmp_path / "floats.npy", scaled)
    status, _, errors = laplex("evaluate", path, tmp_path / "floats.npy", *CPU)
    assert status == 2
    assert "DATA must be bytes, which count in 1/255, as the model was fitted to, got torch.float32" in errors
    files.save(tmp_path / "model.safetensors", model, SHAPE, units="1")
    status, _, errors = laplex("evaluate", tmp_path / "model.safetensors", data, *CPU)
    assert status == 2
    assert "DATA must be floating-point numbers, as the model was fitted to, got torch.uint8" in errors


def test_a_folder_for_a_model_of_rectangles_is_refused(laplex, tmp_path):
    files.save(tmp_path / "model.safetensors", LaplexGaussian(4 * 6 * 3, 4), (4, 6, 3), units="1/255")
    (tmp_path / "folder").mkdir()
    status, _, errors = laplex("evaluate", tmp_path / "model.safetensors", tmp_path / "folder", *CPU)
    assert status == 2
    assert "DATA must be an array for a model of images of 4 x 6 pixels, got the folder" in errors


def test_one_image_for_a_model_of_rectangles(laplex, grids, tmp_path):
    files.save(tmp_path / "model.safetensors", LaplexGaussian(4 * 6 * 3, 4), (4, 6, 3), units="1/255")
    Image.fromarray(drawn(1)[0][:4, :, 0]).save(tmp_path / "grey.png")
    assert laplex("reconstruct", tmp_path, tmp_path / "grey.png", "--out", tmp_path / "r.png", *CPU)[0] == 0
    Image.fromarray(drawn(1)[0]).save(tmp_path / "square.png")
    status, _, errors = laplex("reconstruct", tmp_path, tmp_path / "square.png", "--out", tmp_path / "r.png", *CPU)
    assert status == 2
    assert "DATA must have 72 (4 x 6 x 3) numbers per example, as the model has, got 108 (6 x 6 x 3) in " in errors


def test_a_disk_that_cannot_be_written_is_told(laplex, path, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(density_commands.pictures, "grid", full)
    status, _, errors = laplex("sample", path, "--out", tmp_path / "s.png", *CPU)
    assert status == 1
    assert "laplex sample: cannot write ([Errno 28] No space left on device); nothing was replaced" in errors


def test_models_that_are_none_are_refused(laplex, data, tmp_path):
    (tmp_path / "text.safetensors").write_text("this is no model, but a text")
    for command in ("sample", "reconstruct", "inpaint", "evaluate"):
        rest = () if command == "sample" else (data,)
        out = () if command == "evaluate" else ("--out", tmp_path / "x.png")
        for name in ("none.safetensors", "text.safetensors"):
            status, output, errors = laplex(command, tmp_path / name, *rest, *out, *CPU)
            assert (status, output) == (2, "")
            assert errors.startswith(f"laplex {command}: MODEL must be a model file")
    assert os.listdir(tmp_path) == ["text.safetensors"]


def test_images_of_another_shape_are_refused(laplex, tmp_path):
    files.save(tmp_path / "model.safetensors", LaplexGaussian(4 * 6 * 3, 4), (4, 6, 3), units="1/255")
    np.save(tmp_path / "turned.npy", drawn(5)[:, :, :4])  # 6 x 4
    status, _, errors = laplex("evaluate", tmp_path / "model.safetensors", tmp_path / "turned.npy", *CPU)
    assert status == 2
    assert "DATA must have 72 (4 x 6 x 3) numbers per example, as the model has, got 72 (6 x 4 x 3) in " in errors


REFUSED = {
    ("sample", "--seed", 1 << 70): "--seed must be a whole number from 0 to 2^63 - 1, got ",
    ("inpaint", "DATA", "--seed", -1): "--seed must be a whole number from 0 to 2^63 - 1, got -1",
    ("sample", "--count", 0): "--count must be at least 1, got 0",
    ("sample", "--device", "tpu"): "--device must be cpu, cuda or cuda:INDEX, got 'tpu'",
    ("sample", "--out", "picture.jpg"): "--out must end with .png, got picture.jpg; --files takes a folder",
    ("sample", "--out", "nowhere/x.png"): "--out: cannot write nowhere/x.png (there is no such folder)",
    ("inpaint", "DATA", "--mask", "left"): f"--mask must be {masks.KINDS}, got 'left', which is not a file",
    ("inpaint", "DATA", "--mask", "random:2"): f"--mask must be {masks.KINDS}, got 'random:2', which is not a file",
    ("inpaint", "DATA", "--mask", "random:x"): f"--mask must be {masks.KINDS}, got 'random:x', which is not a file",
    (
        "inpaint",
        "DATA",
        "--mask",
        "random:0.001",
    ): "--mask must hide some of the 6 x 6 pixels, got random:0.001, wh",
    ("inpaint", "DATA", "--mask", "."): f"--mask must be {masks.KINDS}, got '.', which is not a file",
    ("inpaint", "DATA", "--mask", "DATA"): f"--mask must be {masks.KINDS}, got ",
    ("inpaint", "DATA", "--samples", -1): "--samples must be at least 0, got -1",
    ("sample", "--files", ""): "--files must name a folder, got an empty name",
    ("reconstruct", "none.npy"): "DATA must be a folder of images",
    ("evaluate", "DATA", "--json", "nowhere/x.json"): "--json: cannot write nowhere/x.json (there is no such folder)",
    ("evaluate", "DATA", "--json", "."): "--json: cannot write . (it is a folder)",
}


@pytest.mark.parametrize("arguments", REFUSED, ids=lambda arguments: " ".join(map(str, arguments)))
def test_bad_input_is_refused(arguments, laplex, path, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command, *rest = [data if one == "DATA" else one for one in arguments]
    out = () if command == "evaluate" or "--out" in rest else ("--out", "x.png")
    device = () if "--device" in rest else CPU
    status, output, errors = laplex(command, path, *rest, *out, *device)
    assert (status, output) == (2, "")
    assert errors.startswith(f"laplex {command}: {REFUSED[arguments]}")
    assert os.listdir(tmp_path) == []


def test_a_picture_or_files_are_asked_for(laplex, path, data, tmp_path):
    for command, rest in (("sample", ()), ("reconstruct", (data,)), ("inpaint", (data,))):
        status, _, errors = laplex(command, path, *rest, *CPU)
        message = "--out FILE.png or --files FOLDER must be given: one picture of all images, or a file for each"
        assert (status, errors) == (2, f"laplex {command}: {message}\n")


def test_files_where_no_folder_can_be(laplex, path, tmp_path):
    (tmp_path / "file").write_text("")
    status, _, errors = laplex("sample", path, "--files", tmp_path / "file" / "deep", *CPU)
    assert status == 2
    message = f"--files: cannot write into {tmp_path / 'file' / 'deep'}: {tmp_path / 'file'} is not a folder; give"
    assert message in errors


def test_ctrl_c_between_files(laplex, path, tmp_path, monkeypatch):
    right, calls = os.replace, []

    def interrupted(*paths):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        right(*paths)

    monkeypatch.setattr(os, "replace", interrupted)
    status, _, errors = laplex("sample", path, "--files", tmp_path, *CPU)
    assert (status, errors) == (130, "\nlaplex sample: interrupted; files that are there are complete\n")
    assert sorted(os.listdir(tmp_path)) == ["samples-0001.png", "samples-0002.png"]


def test_ctrl_c_writes_nothing(laplex, path, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(density_commands, "samples", interrupted)
    status, _, errors = laplex("sample", path, "--out", tmp_path / "x.png", *CPU)
    assert (status, errors) == (130, "\nlaplex sample: interrupted; nothing was replaced\n")
    assert os.listdir(tmp_path) == []


def test_a_file_that_cannot_be_written_has_its_own_name_in_the_error(tmp_path):
    path = tmp_path / "no-such-folder" / "picture.png"
    with pytest.raises(FileNotFoundError) as caught, replaced(path):
        pass
    assert caught.value.filename == str(path)  # not that of the unfinished file

"""`python -m paper experiment features`: what it writes, how it resumes after a stop, and what it refuses."""

import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import stand_in_torchvision as stand_in
from paper.experiments import data, features, trunks
from paper.experiments.trunks import DEVIATION, MEAN

pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = ("bird", "cat", "dog")
SMALL = ("--side", 56, "--device", "cpu", "--batch", 4)


@pytest.fixture
def models(monkeypatch):
    return stand_in.install(monkeypatch)


@pytest.fixture
def extract(models, command):
    return lambda *arguments: command("features", *arguments)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Twelve train and five validation images per class: squares of 58 pixels, and others of twice that height."""
    folder, generator = tmp_path_factory.mktemp("images") / "pictures", np.random.default_rng(0)
    for split, each in (("train", 12), ("val", 5)):
        for label, name in enumerate(NAMES):
            (folder / split / name).mkdir(parents=True)
            for index in range(each):
                size = (116, 140, 3) if index % 2 else (58, 58, 3)
                pixels = generator.integers(0, 120, size) + 60 * label
                Image.fromarray(pixels.astype(np.uint8)).save(folder / split / name / f"{index}.png")
    return folder


def expected(root, side, covered):
    """The images of the test split as the network takes them, by Pillow alone."""
    images = []
    for path in sorted((root / "val").glob("*/*.png")):
        image = Image.open(path)
        scale = covered / min(image.size)
        size = round(image.size[0] * scale), round(image.size[1] * scale)
        image = image.resize(size, Image.Resampling.BICUBIC)
        left, top = (size[0] - side) // 2, (size[1] - side) // 2
        pixels = np.asarray(image.crop((left, top, left + side, top + side))).astype(np.float32) / 255
        images.append((pixels - np.float32(MEAN)) / np.float32(DEVIATION))
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)


def read(path):
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def test_features_of_swin_are_what_enters_its_head(root, tmp_path, extract):
    status, output, errors = extract("--model", "swin_t", "--data", root, "--out", tmp_path, *SMALL)
    assert status == 0, errors
    assert os.listdir(tmp_path) == ["swin_t-pictures.npz"]
    arrays = read(tmp_path / "swin_t-pictures.npz")
    assert arrays["x_train"].shape == (36, stand_in.SWIN_WIDTH)
    assert (arrays["x_train"].dtype, arrays["y_train"].dtype) == (np.float16, np.int64)
    assert arrays["y_test"].tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert arrays["classes"].tolist() == list(NAMES)
    assert arrays["skipped"].tolist() == []
    model = stand_in.drawn(stand_in.Swin).eval()
    images = expected(root, 56, 58)
    np.testing.assert_array_equal(arrays["W"], model.head.weight.detach())
    np.testing.assert_array_equal(arrays["b"], model.head.bias.detach())
    scores = torch.from_numpy(arrays["x_test"]).float() @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(scores, model(images).detach(), rtol=0, atol=2e-3)  # features are float16
    reached = (model(images).argmax(1) == torch.from_numpy(arrays["y_test"])).float().mean()
    assert f"the network's own head: {100 * reached:.2f} % of 15 test images" in output
    squares = arrays["x_train"].astype(np.float64) ** 2
    np.testing.assert_allclose(arrays["importance"], squares.mean(0), rtol=1e-5)
    assert "laplex: train images: 36 of 36" in errors
    assert "laplex: test images: 15 of 15" in errors


def test_features_of_maxvit_enter_the_first_of_two_layers(root, tmp_path, extract):
    torch.save(stand_in.drawn(stand_in.MaxVit, (224, 224)).state_dict(), tmp_path / "weights.pth")
    options = ("--weights", tmp_path / "weights.pth", "--device", "cpu")
    status, _, errors = extract("--model", "maxvit_t", "--data", root, "--out", tmp_path / "out", *options)
    assert status == 0, errors
    arrays = read(tmp_path / "out" / "maxvit_t-pictures.npz")
    model = stand_in.drawn(stand_in.MaxVit, (224, 224))
    assert "b" not in arrays
    hidden = np.tanh(arrays["x_test"].astype(np.float32) @ arrays["W1"].T + arrays["b1"])
    want = model(expected(root, 224, 224)).detach().numpy()
    squares = np.arange(15) % 5 % 2 == 0  # at this side the others would be cropped within a pixel
    np.testing.assert_allclose((hidden @ arrays["W"].T)[squares], want[squares], rtol=0, atol=2e-3)
    inner = np.tanh(arrays["x_train"].astype(np.float32) @ arrays["W1"].T + arrays["b1"]).astype(np.float64)
    np.testing.assert_allclose(arrays["importance"], (inner**2).mean(0), rtol=1e-5)


def test_the_file_serves_heads_and_compress(root, tmp_path, extract, command):
    assert extract("--model", "swin_t", "--data", root, "--out", tmp_path, *SMALL)[0] == 0
    file = tmp_path / "swin_t-pictures.npz"
    loaded = data.features(file)
    assert (loaded.classes, loaded.width, len(loaded.test[1])) == (3, stand_in.SWIN_WIDTH, 15)
    assert len(loaded.train[1]) + len(loaded.val[1]) == 36
    options = ("--ranks", 1, "--device", "cpu", "--out", tmp_path / "out")
    assert command("heads", "--data", file, "--quick", "--methods", "low-rank", *options)[0] == 0
    assert command("compress", "--weight", file, "--sweeps", 2, *options)[0] == 0
    page = (tmp_path / "out" / "compress-swin_t-pictures.md").read_text()
    assert page.startswith(f"# swin_t-pictures, 3 x {stand_in.SWIN_WIDTH}, compressed")


# --- Stops and bad images --------------------------------------------------------------------------------------------


def test_a_stopped_run_resumes_with_the_missing_shards(root, tmp_path, extract, monkeypatch):
    arguments = ("--model", "swin_t", "--data", root, *SMALL)
    assert extract(*arguments, "--out", tmp_path / "whole")[0] == 0
    monkeypatch.setattr(features, "SHARD", 10)
    rows, seen = features._rows, []

    def stopped(extraction, squares):
        seen.append(len(squares))
        if sum(seen) > 24:
            raise KeyboardInterrupt
        return rows(extraction, squares)

    monkeypatch.setattr(features, "_rows", stopped)
    status, _, errors = extract(*arguments, "--out", tmp_path / "parts")
    assert status == 130
    assert "the same command resumes from there" in errors
    folder = tmp_path / "parts" / "swin_t-pictures.shards"
    assert sorted(os.listdir(folder)) == ["train-000000000.npz", "train-000000010.npz"]
    (folder / "train-000000010.npz").write_bytes(b"damaged")
    seen.clear()
    monkeypatch.setattr(features, "_rows", lambda *given: seen.append(len(given[1])) or rows(*given))
    status, _, errors = extract(*arguments, "--out", tmp_path / "parts")
    assert status == 0, errors
    assert sum(seen) == 36 - 10 + 15
    assert os.listdir(tmp_path / "parts") == ["swin_t-pictures.npz"]
    one, other = (read(tmp_path / name / "swin_t-pictures.npz") for name in ("whole", "parts"))
    assert set(one) == set(other)
    for name, value in one.items():
        if value.dtype == np.float16:
            np.testing.assert_allclose(value.astype(float), other[name].astype(float), atol=2e-3)  # other batches
        elif name != "importance":
            np.testing.assert_array_equal(value, other[name])


def test_a_complete_file_stays_and_another_is_replaced_by_fresh_alone(root, tmp_path, extract, monkeypatch):
    arguments = ("--model", "swin_t", "--data", root, "--out", tmp_path)
    assert extract(*arguments, *SMALL)[0] == 0
    before = (tmp_path / "swin_t-pictures.npz").read_bytes()
    monkeypatch.setattr(features, "_rows", None)  # a call would fail
    status, output, _ = extract(*arguments, *SMALL)
    assert (status, output) == (0, f"{tmp_path / 'swin_t-pictures.npz'} is complete; --fresh makes it again\n")
    monkeypatch.undo()
    stand_in.install(monkeypatch)
    run = (*arguments, "--side", 64, "--device", "cpu")
    status, _, errors = extract(*run)
    assert status == 2
    assert "holds features of other images, weights or sides; move it away, or replace it with --fresh" in errors
    assert (tmp_path / "swin_t-pictures.npz").read_bytes() == before
    (tmp_path / "swin_t-pictures.shards").mkdir()
    (tmp_path / "swin_t-pictures.shards" / "train-000000000.npz").write_bytes(b"no shard")
    assert extract(*run, "--fresh")[0] == 0
    assert os.listdir(tmp_path) == ["swin_t-pictures.npz"]
    assert (tmp_path / "swin_t-pictures.npz").read_bytes() != before


def folders(root, bad=(), each=3):
    """Folders of images, of which those in ``bad`` are not images."""
    for split in ("train", "val"):
        for name in NAMES:
            (root / split / name).mkdir(parents=True)
            for index in range(each):
                path = root / split / name / f"{index}.png"
                Image.new("RGB", (60, 60), (30 * index, 90, 60)).save(path)
    for name in bad:
        (root / name).write_bytes(b"no image")
    return root


def test_bad_images_are_named_counted_and_skipped(tmp_path, extract):
    root = folders(tmp_path / "pictures", bad=("train/cat/1.png", "val/dog/0.png", "val/dog/2.png"))
    with pytest.warns(UserWarning, match="cannot be read") as errors:
        assert extract("--model", "swin_t", "--data", root, "--out", tmp_path / "out", *SMALL)[0] == 0
    where = "paper.experiments.features: "
    assert [str(one.message) for one in errors] == [
        f"{where}1 of 9 images cannot be read and are skipped: {root / 'train/cat/1.png'}",
        f"{where}2 of 9 images cannot be read and are skipped: {root / 'val/dog/0.png'}, {root / 'val/dog/2.png'}",
    ]
    arrays = read(tmp_path / "out" / "swin_t-pictures.npz")
    assert arrays["y_train"].tolist() == [0, 0, 0, 1, 1, 2, 2, 2]
    assert arrays["y_test"].tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert len(arrays["skipped"]) == 3


def test_images_that_all_fail_and_features_that_overflow_are_told(tmp_path, extract, models):
    bad = [f"val/{name}/{index}.png" for name in NAMES for index in range(2)]
    root = folders(tmp_path / "pictures", bad, each=2)
    status, output, errors = extract("--model", "swin_t", "--data", root, "--out", tmp_path / "out", *SMALL)
    assert (status, output) == (1, "")
    assert (
        "python -m paper experiment features: paper.experiments.features: `source` must have images that can be read"
        in errors
    )
    state = stand_in.drawn(stand_in.Swin).state_dict()
    state["norm.weight"] *= 1e9
    torch.save(state, tmp_path / "large.pth")
    options = ("--weights", tmp_path / "large.pth", *SMALL)
    status, _, errors = extract("--model", "swin_t", "--data", root, "--out", tmp_path / "out", *options)
    assert status == 1
    assert "features: `--weights` must give features that float16 can hold, got NaN or infinity; check the w" in errors


# --- What is refused -------------------------------------------------------------------------------------------------


def bad_files(folder):
    (folder / "text.pth").write_text("no weights")
    torch.save({"some": torch.zeros(1)}, folder / "other.pth")
    torch.save(torch.zeros(1), folder / "tensor.pth")
    return folder


WHERE = "python -m paper experiment features: "
REFUSED = {
    "model": (("--model", "resnet"), "--model must be one of swin_t, maxvit_t, got 'resnet'"),
    "batch": (("--batch", 0), "--batch must be at least 1, got 0"),
    "side": (("--side", -1), "--side must be at least 1, got -1"),
    "windows": (("--model", "maxvit_t", "--side", 225), "--side must be a multiple of 224 for maxvit_t, got 225"),
    "data": (
        ("--data", "nowhere"),
        WHERE + "`root` must hold folders train and val, or",
    ),
    "no file": (
        ("--weights", "nothing.pth"),
        WHERE + "`--weights` must be default or a file that torch.load reads with weights_only=True, got nothing.pth "
        "(No such file or directory); check the file",
    ),
    "no weights": (("--weights", "text.pth"), "that torch.load reads with weights_only=True, got text.pth ("),
    "other weights": (
        ("--weights", "other.pth"),
        WHERE + "`--weights` must be a state dict of torchvision's swin_t, got other.pth, which does not fit (",
    ),
    "a tensor": (("--weights", "tensor.pth"), "torchvision's swin_t, got tensor.pth, which does not fit (Expected"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_options_are_refused_and_nothing_is_written(case, root, tmp_path, extract, monkeypatch):
    options, message = REFUSED[case]
    monkeypatch.chdir(bad_files(tmp_path))
    status, output, errors = extract("--model", "swin_t", "--data", root, "--out", "out", "--device", "cpu", *options)
    assert (status, output) == (2, "")
    assert errors.startswith("python -m paper experiment features: ")
    assert message in errors
    assert not (tmp_path / "out").exists()


def test_weights_that_cannot_be_loaded_are_named_with_their_address(root, tmp_path, extract, models):
    models.weights.fails = True
    status, _, errors = extract("--model", "swin_t", "--data", root, "--out", tmp_path, *SMALL)
    assert status == 2
    assert (
        WHERE + "`--weights` default must be loaded from https://example.org/weights.pth, which fails (no network); "
        "download the file elsewhere and name it: --weights FILE.pth"
    ) in errors


def test_a_torchvision_of_another_torch_is_told(root, tmp_path, extract, monkeypatch):
    def broken(name):
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(trunks, "importlib", SimpleNamespace(import_module=broken))
    status, _, errors = extract("--model", "swin_t", "--data", root, "--out", tmp_path, *SMALL)
    assert status == 2
    reason = "operator torchvision::nms does not exist"
    assert f"{WHERE}networks need torchvision, which cannot be imported ({reason}" in errors
    assert f"pip install torchvision, in the version that belongs to torch {torch.__version__}" in errors

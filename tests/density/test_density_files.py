"""Files of models: what comes back, and what is refused."""

import json
import re
import subprocess
import sys

import pytest
import torch

from laplex.density import LaplexGaussian, PlacedGaussian, files

pytest.importorskip("safetensors")

MODELS = {
    "paper": lambda: LaplexGaussian(12, 4),
    "components": lambda: LaplexGaussian(12, 4, 2, phase=False, dtype=torch.float64),
    "diagonal": lambda: LaplexGaussian(12, 4, latent="diagonal"),
    "placed": lambda: PlacedGaussian(12, 4),
    "one_function": lambda: PlacedGaussian(12, 4, 1),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_model_comes_back_to_the_bit(make, path):
    model, x = make(), torch.rand(3, 12)
    files.save(path, model, (2, 2, 3), units="1/255")
    random_numbers = torch.get_rng_state()
    again, about = files.load(path)
    assert torch.equal(torch.get_rng_state(), random_numbers)  # the user's are not touched
    assert type(again) is type(model)
    assert str(again) == str(model)
    assert list(again.state_dict()) == list(model.state_dict())
    for name, value in model.state_dict().items():
        assert value.dtype == again.state_dict()[name].dtype
        assert torch.equal(value, again.state_dict()[name]), name
    assert all(one.requires_grad for one in again.parameters())
    x = x.to(model.mean.dtype)
    assert torch.equal(again.log_prob(x), model.log_prob(x))
    assert (about["shape"], about["units"], about["class"]) == ((2, 2, 3), "1/255", type(model).__name__)
    assert about["laplex"]


def test_equal_models_have_equal_files(path, tmp_path):
    model = PlacedGaussian(12, 4)
    files.save(path, model, units="1", settings={"b": 1, "a": 2})
    files.save(tmp_path / "other", files.load(path)[0], settings={"a": 2, "b": 1}, units="1")
    assert path.read_bytes() == (tmp_path / "other").read_bytes()
    assert files.load(path)[1]["shape"] is None
    assert sorted(one.name for one in tmp_path.iterdir()) == ["model.safetensors", "other"]


def test_an_interruption_leaves_the_old_file(path, monkeypatch):
    model = PlacedGaussian(12, 4)
    files.save(path, model)
    before = path.read_bytes()

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.save(path, PlacedGaussian(12, 6))
    assert path.read_bytes() == before
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def spoiled(path, **changes):
    """The file with other metadata."""
    tensors, _ = files.read(path, "model")
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(path, "pt") as file:
        content = json.loads(file.metadata()["laplex"])
    content["about"] |= changes.pop("about", {})
    save_file(tensors, path, {"laplex": json.dumps(content | changes)})


def test_files_that_are_not_models_are_refused(path, tmp_path):
    from safetensors.torch import save_file

    start = r"^laplex\.density\.files\.load: `path` must be a model file of laplex, got .*, "
    with pytest.raises(ValueError, match=start + r"which cannot be read \(No such file"):
        files.load(path)
    with pytest.raises(ValueError, match=start + "which cannot be read"):
        files.load(tmp_path)
    path.write_bytes(b"\x89PNG and some more bytes")
    with pytest.raises(ValueError, match=start + "which is damaged or not a safetensors file"):
        files.load(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=start + "which "):
        files.load(path)
    for metadata in (None, {"format": "pt"}, {"laplex": "no JSON"}, {"laplex": "[1]"}, {"laplex": "{}"}):
        save_file({"weight": torch.ones(2)}, path, metadata)
        with pytest.raises(ValueError, match=start + "which laplex did not write"):
            files.load(path)


def test_files_that_are_damaged_or_of_others_are_refused(path):
    model = PlacedGaussian(12, 4)
    files.save(path, model)
    content = path.read_bytes()
    for count in (len(content) - 1, len(content) // 2, 40, 7):
        path.write_bytes(content[:count])
        with pytest.raises(ValueError, match="which is damaged or not a safetensors file"):
            files.load(path)
    for changes, message in (
        ({"format": 2, "laplex": "9.9"}, "of format 2, by laplex 9.9; laplex .* reads format 1: upgrade it"),
        ({"kind": "checkpoint"}, "which is a checkpoint"),
        ({"about": {"class": "Other"}}, "of the class 'Other', which laplex .* does not have"),
        ({"about": {"class": "LaplexGaussian"}}, "whose parts do not fit together"),
        ({"about": {"arguments": {"dim": 12}}}, "whose parts do not fit together"),
        ({"about": {"arguments": {"dim": 13, "rank": 4, "dtype": "float32"}}}, "whose parts do not fit together"),
    ):
        path.write_bytes(content)
        spoiled(path, **changes)
        with pytest.raises(ValueError, match=message):
            files.load(path)


def test_only_our_models_are_saved(path):
    with pytest.raises(TypeError, match="`model` must be one of LaplexGaussian, PlacedGaussian, got Linear"):
        files.save(path, torch.nn.Linear(2, 2))
    assert not path.exists()


def test_a_shape_of_another_size_is_refused(path):
    for shape in ((4, 4, 3), (4, 3), (-2, -2, 3), (2, 2.0, 3)):
        message = (
            f"`shape` must be (height, width, channels) of 12 numbers, as the model has, got {shape}; leave it out"
        )
        with pytest.raises(ValueError, match=re.escape(message)):
            files.save(path, PlacedGaussian(12, 4), shape)
    assert not path.exists()


def test_without_safetensors_it_is_said(path):
    code = "import sys; sys.modules['safetensors'] = None; from laplex.density import files, PlacedGaussian\n"
    code += f"try:\n    files.save({str(path)!r}, PlacedGaussian(4, 4))\nexcept ImportError as error:\n    print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    message = "laplex.density.files.save: files of models need safetensors, which is missing; "
    assert done.stdout == message + "pip install safetensors\n"

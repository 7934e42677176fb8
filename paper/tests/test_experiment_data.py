"""Loaders of features and images: what they return, what they skip, and what they refuse."""

import io
import re

import numpy as np
import pytest
import torch
from PIL import Image

from paper.experiments import data, images


def arrays(rows=40, width=6, classes=4):
    generator = np.random.default_rng(0)
    content = {}
    for name in ("train", "val", "test"):
        content[f"x_{name}"] = generator.normal(size=(rows, width)).astype(np.float16)
        content[f"y_{name}"] = (np.arange(rows) % classes).astype(np.int16)
    return content


def saved(folder, content):
    path = folder / "features.npz"
    np.savez(path, **content)
    return path


# --- Features --------------------------------------------------------------------------------------------------------


def test_features_are_float32_and_labels_are_numbers_of_classes(tmp_path):
    content = arrays()
    loaded = data.features(saved(tmp_path, content))
    assert (loaded.classes, loaded.width) == (4, 6)
    for name, (x, y) in (("train", loaded.train), ("val", loaded.val), ("test", loaded.test)):
        assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
        assert np.array_equal(x.numpy(), content[f"x_{name}"].astype(np.float32))
        assert np.array_equal(y.numpy(), content[f"y_{name}"])


def test_the_digest_tells_files_apart(tmp_path):
    first = data.features(saved(tmp_path, arrays())).digest
    changed = arrays()
    changed["x_test"][0, 0] += 1
    assert data.features(saved(tmp_path, changed)).digest != first
    assert re.fullmatch("[0-9a-f]{16}", first)


def test_without_validation_rows_a_tenth_of_each_class_is_held_out(tmp_path):
    content = arrays(rows=120, classes=4)
    content["x_train"][:, 0] = np.arange(120)
    del content["x_val"], content["y_val"]
    loaded = data.features(saved(tmp_path, content))
    assert torch.bincount(loaded.val[1]).tolist() == [3, 3, 3, 3]
    assert torch.bincount(loaded.train[1]).tolist() == [27, 27, 27, 27]
    numbers = torch.cat([loaded.train[0][:, 0], loaded.val[0][:, 0]])
    assert sorted(numbers.tolist()) == list(range(120))
    assert all(y == x[0] % 4 for x, y in zip(*loaded.val, strict=True))
    again = data.features(tmp_path / "features.npz")
    assert torch.equal(again.val[0], loaded.val[0])


def test_standardised_features_use_the_train_split_and_one_scale(tmp_path):
    content = arrays(rows=400)
    for name in ("train", "val", "test"):
        content[f"x_{name}"] = (content[f"x_{name}"] * 3 + 5).astype(np.float32)
        content[f"x_{name}"][:, 2] = 7  # constant
        content[f"x_{name}"][:, 3] *= 2
    loaded = data.features(saved(tmp_path, content))
    done = loaded.standardised()
    x = done.train[0]
    assert x.mean(0).abs().max() < 1e-5
    assert x.square().mean().item() == pytest.approx(1, rel=1e-5)
    assert x[:, 2].abs().max() < 1e-5
    assert x[:, 3].std() > 1.5 * x[:, 0].std()  # one divisor for all features keeps their proportions
    mean, scale = loaded.train[0].mean(0), (loaded.train[0] - loaded.train[0].mean(0)).square().mean().sqrt()
    torch.testing.assert_close(done.test[0], (loaded.test[0] - mean) / scale)
    assert done.importance.shape == (6,)
    assert done.importance.min() > 0
    torch.testing.assert_close(done.importance[0], x[:, 0].square().mean())


def test_constant_features_alone_stay_finite(tmp_path):
    content = arrays()
    for name in ("train", "val", "test"):
        content[f"x_{name}"][:] = 3
    assert all(x.isfinite().all() for x, _ in (data.features(saved(tmp_path, content)).standardised().train,))


def spoiled(**changes):
    """Features with these arrays replaced, or dropped where the value is None."""
    content = arrays() | changes
    return {name: value for name, value in content.items() if value is not None}


BAD = {
    "a key is missing": (
        spoiled(y_test=None),
        "`path` must have the keys x_train, y_train, x_test, y_test, got .*features.npz, which lacks y_test and has x_",
    ),
    "half a validation split": (spoiled(y_val=None), "`path` must have the keys x_val, y_val, got .* lacks y_val"),
    "other features": (
        spoiled(x_test=np.ones((40, 5), np.float16)),
        "`x_test` must have the 6 features of `x_train`, got 5; use the same network for all splits",
    ),
    "other classes": (
        spoiled(y_val=np.full(40, 4)),
        "`y_val` must have classes of `y_train` only, got 4, which is not among them; drop",
    ),
    "a gap": (
        spoiled(y_train=np.arange(40) % 4 * 2),
        "`y_train` must have rows of every class from 0 to 6, got none of class 1; number the classes without gaps",
    ),
    "a negative class": (spoiled(y_test=np.full(40, -1)), "`y_test` must not be negative, got -1; number the classes"),
    "too few labels": (
        spoiled(y_train=np.arange(39)),
        r"`y_train` must be one integer for each of the 40 rows of `x_train`, got int64 \(39,\); number",
    ),
    "labels that are not integers": (spoiled(y_train=np.ones(40)), "`y_train` must be one integer .* got float64"),
    "images": (
        spoiled(x_train=np.ones((40, 2, 3), np.float32)),
        r"`x_train` must be floating point, of the shape \(rows, features\) and not empty, got float32 \(40, 2, 3\);",
    ),
    "integers": (spoiled(x_train=np.ones((40, 6), int)), "`x_train` must be floating point, .* got int64"),
    "no rows": (spoiled(x_test=np.ones((0, 6), np.float32), y_test=np.ones(0, int)), "`x_test` must be .* not empty"),
    "NaN": (spoiled(x_val=np.full((40, 6), np.nan, np.float32)), "`x_val` must be finite, got NaN or infinity; "),
    "too few rows to hold out": (
        spoiled(x_val=None, y_val=None, y_train=np.arange(40)),
        "`x_train` must have 10 rows of some class where there is no `x_val`, got fewer of every class; add x_val",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_features_are_named(case, tmp_path):
    content, message = BAD[case]
    with pytest.raises(ValueError, match="paper.experiments.data.features: " + message):
        data.features(saved(tmp_path, content))


@pytest.mark.parametrize("content", [None, b"", b"no zip file", "array"])
def test_a_file_that_cannot_be_read_is_named(content, tmp_path):
    path = tmp_path / "some.npz"
    if content == "array":
        np.save(path.open("wb"), np.ones(3))
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"features: `path` must be a readable .npz file, got .*some.npz \(.+\); check"
    ):
        data.features(path)


# --- Images ----------------------------------------------------------------------------------------------------------


def jpeg(color, size=(20, 12), mode="RGB"):
    buffer = io.BytesIO()
    Image.new(mode, size, color).save(buffer, "JPEG")
    return buffer.getvalue()


def packed(path, files, labels, classes, changes=None):
    content = {
        "jpeg": np.frombuffer(b"".join(files), np.uint8),
        "off": np.cumsum([0, *map(len, files)]),
        "y": np.array(labels),
        "classes": classes,
    }
    path.parent.mkdir(exist_ok=True)
    np.savez(path, **{name: value for name, value in (content | (changes or {})).items() if value is not None})
    return path


def folder(root, classes=("cat", "dog"), each=2, suffix=".jpg"):
    for label, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for index in range(each):
            (root / name / f"{index}{suffix}").write_bytes(jpeg((200 * label, 100, 0)))
    return root


def decoded(path, side=8, **options):
    """The images of one source."""
    return images.decode(images.listings([path], [path])[0], side, **options)


def splits(root):
    return images.listings(*images.split_paths(root))


def test_a_folder_of_classes(tmp_path):
    root = folder(tmp_path / "images", suffix=".JPEG")
    (root / "cat" / "notes.txt").write_text("no image")
    (root / "readme.txt").write_text("no class")
    steps = []
    loaded = decoded(root, progress=lambda done, total: steps.append((done, total)))
    assert loaded.classes == ("cat", "dog")
    assert (loaded.pixels.shape, loaded.pixels.dtype) == ((4, 8, 8, 3), torch.uint8)
    assert loaded.y.tolist() == [0, 0, 1, 1]
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert (loaded.pixels[3, 4, 4].int() - torch.tensor([200, 100, 0])).abs().max() < 8  # JPEG rounds


def test_images_are_cropped_at_the_centre_after_the_shorter_side_fits(tmp_path):
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 255  # the middle third
    (tmp_path / "a").mkdir()
    Image.fromarray(wide).save(tmp_path / "a" / "wide.png")
    Image.fromarray(wide.transpose(1, 0, 2)).save(tmp_path / "a" / "tall.png")
    assert decoded(tmp_path, 20).pixels[:, 3:17, 3:17].min() > 250


def test_grey_images_become_rgb(tmp_path):
    loaded = decoded(packed(tmp_path / "p.npz", [jpeg(90, mode="L"), jpeg((10, 20, 30))], [0, 1], ["grey", "colour"]))
    assert loaded.classes == ("grey", "colour")
    assert loaded.y.tolist() == [0, 1]
    assert loaded.pixels[0].unique().tolist() == [90]


def test_unreadable_images_are_named_counted_and_skipped(tmp_path):
    root = folder(tmp_path / "images", each=8)
    for index in range(6):
        (root / "cat" / f"{index}.jpg").write_bytes(jpeg((0, 0, 0))[:40] if index % 2 else b"")
    message = r"images: 6 of 16 images cannot be read and are skipped: .*0.jpg.*4.jpg, \.\.\."
    with pytest.warns(UserWarning, match=message):
        loaded = decoded(root)
    assert len(loaded.pixels) == 10
    assert torch.bincount(loaded.y).tolist() == [2, 8]


def test_splits_of_folders_and_of_packed_files_are_listed_without_decoding(tmp_path):
    for name in ("train", "val"):
        folder(tmp_path / "tree" / name, each=3)
    (tmp_path / "tree" / "val" / "cat" / "0.jpg").write_bytes(b"no image")
    train, val = splits(tmp_path / "tree")
    assert (len(train.sources), len(val.sources), val.classes) == (6, 6, ("cat", "dog"))
    assert [one.label for one in val.sources] == [0, 0, 0, 1, 1, 1]
    assert val.sources[0].read() == b"no image"
    for name, color in (("train0", 10), ("train1", 20), ("val", 30)):
        packed(tmp_path / "files" / f"some_{name}.npz", [jpeg((color,) * 3)], [1], ["cat", "dog"])
    train, val = (images.decode(one, 8) for one in splits(tmp_path / "files"))
    assert [int(one.float().mean()) for one in train.pixels] == [10, 20]
    assert (train.y.tolist(), val.y.tolist()) == ([1, 1], [1])


def test_splits_must_have_the_same_classes(tmp_path):
    folder(tmp_path / "train")
    message = r"images: `root` must hold folders train and val, or files .*, got .* no val;"
    with pytest.raises(ValueError, match=message):
        splits(tmp_path)
    folder(tmp_path / "val", classes=("cat", "fox"))
    message = r"`train` and `val` must have the same classes in every part, got 2 in .*val and 2 in .*: dog, fox\)"
    with pytest.raises(ValueError, match=message):
        splits(tmp_path)
    for name in ("some_train0", "some_train1", "some_val0"):
        order = ["cat", "dog"] if name.endswith("0") else ["dog", "cat"]
        packed(tmp_path / "x" / f"{name}.npz", [jpeg(0, mode="L")], [0], order)
    with pytest.raises(ValueError, match="they differ in: the same ones in another order"):
        splits(tmp_path / "x")


def test_bad_sources_of_images_are_named(tmp_path):
    where = "paper.experiments.images: "
    (tmp_path / "empty").mkdir()
    message = "`source` must be a folder with one folder of images per class, got .* none;"
    with pytest.raises(ValueError, match=where + message):
        decoded(tmp_path)
    (tmp_path / "empty" / "broken.jpg").write_bytes(b"broken")
    message = "`source` must have images that can be read, got .* all 1 fail; .*broken.jpg"
    with pytest.raises(ValueError, match=where + message):
        decoded(tmp_path)
    with pytest.raises(ValueError, match=where + "`path` must be a readable .npz file, got .*nowhere"):
        decoded(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": None}, "`path` must have the keys jpeg, off, y, classes, got .* lacks classes and has"),
        ({"off": np.array([0, 1])}, r"`off` must have one entry more than the 2 of `y`, got 2; image i is jpeg\[off"),
        ({"y": np.array([0, 2])}, "`y` must be from 0 to 1, an index into `classes`, got 0 to 2; name every class"),
    ],
)
def test_bad_packed_files_are_named(changes, message, tmp_path):
    path = packed(tmp_path / "p.npz", [jpeg(0, mode="L")] * 2, [0, 1], ["cat", "dog"], changes)
    with pytest.raises(ValueError, match="paper.experiments.images: " + message):
        decoded(path)

"""One image, images that are transparent, and the first of many."""

import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from laplex.density import images
from made_pictures import drawn

WHERE = "laplex.density.images.load: "
BUNDLED = f"{images.Path(images.__file__).with_name('photographs.npz')}:val"


def load(source, **options):
    return images.load(source, **({"progress": lambda done, total: None} | options))


# --- One image -------------------------------------------------------------------------------------------------------


def test_one_image(tmp_path):
    pixels = drawn(1)[:, :4]
    for name in ("one.png", "one.gif"):  # any format that Pillow opens
        Image.fromarray(pixels[0]).convert("RGB").save(tmp_path / name)
    loaded = load(tmp_path / "one.png")
    assert (loaded.shape, loaded.skipped) == ((4, 6, 3), ())
    assert np.array_equal(loaded.values.numpy(), pixels.reshape(1, -1))
    assert load(tmp_path / "one.png", side=4, channels=1).shape == (4, 4, 1)
    assert load(tmp_path / "one.gif").values.shape == (1, 72)


# --- Transparency ----------------------------------------------------------------------------------------------------


def transparent(mode):
    """A red image whose left half cannot be seen through, whose next quarter is half seen through, and then wholly."""
    alpha = np.repeat([[255] * 4 + [128] * 2 + [0] * 2], 8, 0).astype(np.uint8)
    colour = np.zeros((8, 8, 3), np.uint8)
    colour[..., 0] = 200
    if mode == "LA":
        return Image.fromarray(np.stack([np.full((8, 8), 200, np.uint8), alpha], -1))
    image = Image.fromarray(np.concatenate([colour, alpha[..., None]], -1))
    if mode == "RGBA":
        return image
    steps = Image.fromarray((alpha > 0).astype(np.uint8) * 255)  # a palette, and RGB with a colour for nothing
    plain = Image.composite(Image.new("RGB", (8, 8), (200, 0, 0)), Image.new("RGB", (8, 8), (1, 2, 3)), steps)
    if mode == "RGB":
        plain.info["transparency"] = (1, 2, 3)
        return plain
    palette = plain.quantize(2)
    palette.info["transparency"] = palette.getpixel((7, 0))
    return palette


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB"])
def test_transparent_pixels_are_white(mode, channels, tmp_path):
    image = transparent(mode)
    image.save(tmp_path / "some.png", transparency=image.info.get("transparency"))
    with Image.open(tmp_path / "some.png") as saved:
        assert saved.mode == mode
    seen = load(tmp_path / "some.png", channels=channels).values.reshape(8, 8, channels).int()
    assert (seen[:, 6:] == 255).all()
    colour = 200 if mode == "LA" else torch.tensor([200, 0, 0] if channels == 3 else [60])
    assert (seen[:, :4] == colour).all()
    if mode in ("RGBA", "LA"):
        half = (255 + colour) / 2
        assert (seen[:, 4:6] - half).abs().max() <= 1


def test_opaque_images_with_alpha_are_as_they_are(tmp_path):
    pixels = drawn(1)[0]
    Image.fromarray(np.concatenate([pixels, np.full((6, 6, 1), 255, np.uint8)], -1)).save(tmp_path / "some.png")
    assert np.array_equal(load(tmp_path / "some.png").values.numpy(), pixels.reshape(1, -1))


# --- The first images ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "looked"), [(1, 1), (2, 3), (3, 5), (4, 6), (5, 8), (100, 8)])
def test_only_the_first_images_are_decoded(count, looked, tmp_path, monkeypatch):
    pixels, broken = drawn(8), (1, 3, 6)  # of these, three cannot be read
    for index, one in enumerate(pixels):
        Image.fromarray(one).save(tmp_path / f"{index}.png")
        if index in broken:
            (tmp_path / f"{index}.png").write_bytes(b"")
    read, right = [], images.decoder

    def counted(*arguments, **options):
        square = right(*arguments, **options)
        return lambda source: (read.append(source.name), square(source))[1]

    monkeypatch.setattr(images, "decoder", counted)
    progress = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = load(
            tmp_path, side=6, channels=3, count=count, progress=lambda done, total: progress.append((done, total))
        )
    good = [index for index in range(8) if index not in broken][:count]
    assert np.array_equal(loaded.values.numpy(), pixels[good].reshape(len(good), -1))
    assert sorted(read) == [str(tmp_path / f"{index}.png") for index in range(looked)]
    assert loaded.skipped == tuple(str(tmp_path / f"{index}.png") for index in broken if index < looked)
    assert progress[-1] == (min(count, 8), min(count, 8))


def test_the_first_of_other_sources(tmp_path):
    assert torch.equal(load(BUNDLED, count=2).values, images.bundled()[1].values[:2])
    np.save(tmp_path / "array.npy", drawn(3))
    assert np.array_equal(load(tmp_path / "array.npy", count=2).values.numpy(), drawn(3)[:2].reshape(2, -1))
    assert len(load(tmp_path / "array.npy", count=9).values) == 3
    with pytest.raises(ValueError, match=WHERE + "`count` must be at least 1, got 0"):
        load(tmp_path / "array.npy", count=0)

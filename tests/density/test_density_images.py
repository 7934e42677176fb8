"""Images as rows of numbers: every source, what is skipped, and what is refused."""

import io
import re
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from laplex.density import images
from laplex.density.images import bundled

QUIET = {"progress": lambda done, total: None}
WHERE = "laplex.density.images.load: "


def load(source, **options):
    return images.load(source, **(QUIET | options))


def encoded(pixels, form="PNG", **options):
    """The bytes of an image file, of an array (height, width) or (height, width, 3)."""
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, form, **options)
    return stream.getvalue()


def drawn(count=3, shape=(6, 6, 3), seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), np.uint8)


def pack(parts):
    """One array of bytes, and the offsets."""
    return np.frombuffer(b"".join(parts), np.uint8), np.cumsum([0, *map(len, parts)])


# --- Folders ---------------------------------------------------------------------------------------------------------


def test_a_folder_is_searched_with_its_subfolders(tmp_path):
    pixels = drawn(3)
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    for name, one in zip(("a.png", "deep/b.PNG", "deep/deeper/c.webp"), pixels, strict=True):
        (tmp_path / name).write_bytes(encoded(one, name[-4:].strip(".").upper(), lossless=True))
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "folder.jpg").mkdir()
    steps = []
    loaded = load(tmp_path, side=6, progress=lambda done, total: steps.append((done, total)))
    assert (loaded.shape, loaded.skipped, loaded.values.dtype) == ((6, 6, 3), (), torch.uint8)
    assert np.array_equal(loaded.values.numpy(), pixels.reshape(3, -1))
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_images_of_any_size_are_resized_and_cropped_at_the_centre(tmp_path):
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 255  # the middle third
    (tmp_path / "wide.png").write_bytes(encoded(wide))
    (tmp_path / "tall.png").write_bytes(encoded(wide.transpose(1, 0, 2)))
    loaded = load(tmp_path, side=20)
    assert loaded.values.reshape(2, 20, 20, 3)[:, 3:17, 3:17].min() > 250


def test_images_stand_upright(tmp_path):
    pixels = np.zeros((8, 8), np.uint8)
    pixels[:, :4] = 255  # the left half, which is the upper one after a turn to the right
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "turned.png").write_bytes(encoded(pixels, exif=exif))
    values = load(tmp_path, side=8).values.reshape(8, 8)
    assert values[:4].min() == 255
    assert values[4:].max() == 0


@pytest.mark.parametrize(("mode", "channels"), [("1", 1), ("L", 1), ("LA", 1), ("P", 3), ("RGBA", 3), ("RGB", 3)])
def test_images_keep_their_channels_if_all_are_alike(mode, channels, tmp_path):
    for name in "ab":
        Image.fromarray(drawn(1)[0]).convert(mode).save(tmp_path / f"{name}.png")
    assert load(tmp_path, side=4).shape == (4, 4, channels)


def test_sixteen_bits_become_eight(tmp_path):
    Image.fromarray(np.full((4, 4), 30000, np.uint16)).save(tmp_path / "deep.png")
    for channels in (1, 3):
        assert load(tmp_path, side=4, channels=channels).values.unique().tolist() == [30000 // 256]


def test_grey_among_coloured_images_needs_a_choice(tmp_path):
    for index, one in enumerate(drawn(5)):
        (tmp_path / f"{index}.png").write_bytes(encoded(one if index < 3 else one[..., 0]))
    (tmp_path / "broken.png").write_bytes(b"broken")
    message = (
        "`channels` must be given where grey .* got none for .* with 2 grey and 3 coloured images; pass channels=3"
    )
    with pytest.raises(ValueError, match=WHERE + message):
        load(tmp_path, side=6)
    with pytest.warns(UserWarning, match="1 of 6 images cannot be read"):
        colour = load(tmp_path, side=6, channels=3).values.reshape(5, 36, 3)
    assert (colour[3:] == colour[3:, :, :1]).all()
    with pytest.warns(UserWarning, match="1 of 6 images cannot be read"):
        grey = load(tmp_path, side=6, channels=1)
    assert (grey.values.shape, grey.shape) == ((5, 36), (6, 6, 1))
    assert torch.equal(grey.values[3], colour[3, :, 0])


def test_unreadable_images_are_named_counted_and_skipped(tmp_path):
    pixels = drawn(10)
    for index, one in enumerate(pixels):
        content = encoded(one)
        (tmp_path / f"{index}.png").write_bytes(content[:50] if index in (1, 3) else content if index % 2 == 0 else b"")
    with pytest.warns(UserWarning, match=WHERE + r"5 of 10 images cannot be read and are skipped: .*1.png.*9.png$"):
        loaded = load(tmp_path, side=6)
    assert loaded.skipped == tuple(str(tmp_path / f"{index}.png") for index in (1, 3, 5, 7, 9))
    assert np.array_equal(loaded.values.numpy(), pixels[::2].reshape(5, -1))
    (tmp_path / "0.png").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"6 of 10 images cannot be read and are skipped: .*0.png.*7.png, \.\.\.$"):
        load(tmp_path, side=6)


def test_a_folder_without_readable_images_is_refused(tmp_path):
    message = (
        r"`source` must be a folder with images \(.jpg, .*\), got .*, where neither it nor its subfolders have any"
    )
    with pytest.raises(ValueError, match=WHERE + message):
        load(tmp_path, side=6)
    (tmp_path / "a.jpg").write_bytes(b"broken")
    with pytest.raises(ValueError, match=WHERE + "`side` must be given for a folder, got none for the 1 images of .*"):
        load(tmp_path)
    for channels in (None, 3):  # with a look at headers, and without
        with pytest.raises(
            ValueError, match=WHERE + "`source` must have images that can be read, .* all 1 fail; .*a.jpg"
        ):
            load(tmp_path, side=6, channels=channels)


# --- Packed images ---------------------------------------------------------------------------------------------------


@pytest.fixture
def packed(tmp_path):
    """A file with two parts, a labelled one, and arrays that are no images."""
    content = {"credits": np.array(["somebody"]), "y": np.arange(3)}
    content["webp_train"], content["off_train"] = pack([encoded(one, "WEBP", lossless=True) for one in drawn(3)])
    content["webp_val"], content["off_val"] = pack([encoded(one, "WEBP", lossless=True) for one in drawn(2, seed=1)])
    np.savez(tmp_path / "photographs.npz", **content)
    return tmp_path / "photographs.npz"


def test_parts_of_packed_files(packed):
    for source in (f"{packed}:train", packed.with_name("photographs.npz:train")):
        loaded = load(source)
        assert loaded.shape == (6, 6, 3)
        assert np.array_equal(loaded.values.numpy(), drawn(3).reshape(3, -1))
    assert np.array_equal(load(f"{packed}:val").values.numpy(), drawn(2, seed=1).reshape(2, -1))
    assert load(f"{packed}:val", side=4, channels=1).shape == (4, 4, 1)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("", "`source` must name one of the parts train, val, got no part for .*npz; write photographs.npz:train"),
        (":test", "`source` must name one of the parts train, val, got the part test of .*photographs.npz; write"),
    ],
)
def test_a_part_must_be_one_of_the_file(part, message, packed):
    with pytest.raises(ValueError, match=WHERE + message):
        load(f"{packed}{part}")


def test_the_only_part_need_not_be_named(tmp_path):
    data, ends = pack([encoded(one) for one in drawn(2, (4, 8, 3))])
    np.savez(tmp_path / "one.npz", jpeg=data, off=ends, y=np.arange(2), classes=np.array(["cat", "dog"]))
    loaded = load(tmp_path / "one.npz")
    assert loaded.shape == (4, 8, 3)
    assert torch.equal(loaded.values, load(f"{tmp_path / 'one.npz'}:jpeg").values)


def test_packed_images_of_many_sizes_need_a_side(tmp_path):
    data, ends = pack([encoded(drawn(1, shape)[0]) for shape in ((4, 8, 3), (9, 5, 3), (6, 6))])
    np.savez(tmp_path / "many.npz", jpeg=data, off=ends)
    message = r"`side` must be given where images differ in size, .* of 3 sizes, such as \(4, 8\) and \(9, 5\); give"
    with pytest.raises(ValueError, match=WHERE + message):
        load(tmp_path / "many.npz")
    with pytest.raises(ValueError, match="with 1 grey and 2 coloured images"):
        load(tmp_path / "many.npz", side=6)
    assert load(tmp_path / "many.npz", side=6, channels=3).values.shape == (3, 108)


def test_unreadable_packed_images_are_named_by_number(tmp_path):
    data, ends = pack([encoded(drawn(1)[0]), b"broken"])
    np.savez(tmp_path / "one.npz", jpeg=data, off=ends)
    with pytest.warns(UserWarning, match=r"1 of 2 images .* skipped: .*one.npz\[1\]$"):
        assert load(tmp_path / "one.npz").values.shape == (1, 108)
    np.savez(tmp_path / "one.npz", jpeg=data[-6:], off=np.array([0, 6]))
    with pytest.raises(ValueError, match=r"where all 1 fail; .*one.npz\[0\]"):
        load(tmp_path / "one.npz")


@pytest.mark.parametrize("ends", [[0], [0, 2, 1], [0, 9], [-1, 3], [0.0, 3.0], [[0], [3]]])
def test_bad_offsets_are_named(ends, tmp_path):
    np.savez(tmp_path / "bad.npz", jpeg=np.zeros(5, np.uint8), off=np.array(ends))
    message = (
        r"`off` must be at least two offsets that rise from 0 to at most the 5 bytes of `jpeg`, got .*; image i is"
    )
    with pytest.raises(ValueError, match=WHERE + message):
        load(tmp_path / "bad.npz")


# --- Arrays ----------------------------------------------------------------------------------------------------------


SHAPES = {(4, 5, 3): (4, 5, 3), (4, 5, 1): (4, 5, 1), (4, 5): (4, 5, 1), (60,): None}


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_arrays(shape, dtype, tmp_path):
    array = drawn(3, shape).astype(dtype)
    np.save(tmp_path / "array.npy", array)
    np.savez(tmp_path / "array.npz", array=array, y=np.arange(3))
    np.savez_compressed(tmp_path / "two.npz", array=array, other=array[:1])
    for source in ("array.npy", "array.npz", "two.npz:array"):
        loaded = load(tmp_path / source)
        assert loaded.shape == SHAPES[shape]
        assert np.array_equal(loaded.values.numpy(), array.reshape(3, -1))
        assert loaded.values.numpy().dtype == dtype


@pytest.mark.filterwarnings("error")  # torch warns of arrays that are not writable
def test_an_npy_file_is_mapped_and_not_copied(tmp_path):
    path = tmp_path / "array.npy"
    np.save(path, drawn(3))
    loaded = load(path)
    before = loaded.values[2, 107].item()
    with path.open("r+b") as file:
        file.seek(-1, io.SEEK_END)
        file.write(bytes([255 - before]))
    assert loaded.values[2, 107].item() == 255 - before


def test_side_and_channels_give_the_shape_of_rows(tmp_path):
    np.save(tmp_path / "rows.npy", np.zeros((2, 48), np.float32))
    assert load(tmp_path / "rows.npy", side=4).shape == (4, 4, 3)
    assert load(tmp_path / "rows.npy", side=4, channels=3).shape == (4, 4, 3)
    np.save(tmp_path / "square.npy", np.zeros((2, 4, 4), np.float32))
    assert load(tmp_path / "square.npy", side=4, channels=1).shape == (4, 4, 1)


@pytest.mark.parametrize(
    ("shape", "asked"),
    [
        ((48,), {"side": 5}),
        ((48,), {"side": 7}),
        ((48,), {"channels": 3}),
        ((32,), {"side": 4}),
        ((48,), {"side": 4, "channels": 1}),
        ((4, 4, 3), {"side": 5}),
        ((4, 6, 3), {"side": 4}),
        ((4, 4, 3), {"channels": 1}),
        ((4, 4), {"channels": 3}),
    ],
)
def test_arrays_are_not_resized(shape, asked, tmp_path):
    np.save(tmp_path / "array.npy", np.zeros((2, *shape), np.uint8))
    with pytest.raises(ValueError, match=WHERE + "`side` and `channels` must fit an array, .* got side=.*; leave them"):
        load(tmp_path / "array.npy", **asked)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4, 4), (2, 4, 4, 3, 1), (2, 0)])
def test_arrays_of_other_shapes_are_refused(shape, tmp_path):
    np.save(tmp_path / "array.npy", np.zeros(shape, np.uint8))
    message = (
        r"`source` must be (\(N, n\), .* and not empty, got .* in .*; move channels|a readable .npy file, got .* empty)"
    )
    with pytest.raises(ValueError, match=WHERE + message):
        load(tmp_path / "array.npy")


def test_empty_arrays_of_an_npz_file_are_refused(tmp_path):
    np.savez(tmp_path / "array.npz", np.zeros((0, 4, 4, 3), np.uint8))
    with pytest.raises(ValueError, match=WHERE + r"`source` must be .* and not empty, got \(0, 4, 4, 3\) in .*npz"):
        load(tmp_path / "array.npz")


@pytest.mark.parametrize("dtype", [np.int64, ">f4", bool, np.complex64])
def test_arrays_of_other_dtypes_are_refused(dtype, tmp_path):
    np.save(tmp_path / "array.npy", np.zeros((2, 3), dtype))
    with pytest.raises(TypeError, match=WHERE + "`source` must be uint8 or floating point, .* got .*; convert it with"):
        load(tmp_path / "array.npy")


def test_images_in_fortran_order_are_refused_and_rows_are_not(tmp_path):
    array = drawn(2)
    np.save(tmp_path / "array.npy", np.asfortranarray(array))
    with pytest.raises(
        ValueError, match=WHERE + "`source` must be in C order, got Fortran order in .*; save numpy.asc"
    ):
        load(tmp_path / "array.npy")
    np.save(tmp_path / "array.npy", np.asfortranarray(array.reshape(2, -1)))
    assert np.array_equal(load(tmp_path / "array.npy").values.numpy(), array.reshape(2, -1))


# --- What is refused -------------------------------------------------------------------------------------------------


def test_other_sources_are_refused(tmp_path):
    with pytest.raises(ValueError, match=WHERE + "`source` must be a folder .*, got .*nowhere, which does not exist; "):
        load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=WHERE + "`source` must be .*, got .*nowhere.npz, which does not exist; check"):
        load(tmp_path / "nowhere.npz:train")
    (tmp_path / "a.png").write_bytes(encoded(drawn(1)[0])[:40])
    (tmp_path / "notes.txt").write_text("no image")
    for name in ("a.png", "notes.txt"):
        for options in ({}, {"side": 4}, {"side": 4, "channels": 3}):
            message = "`source` must be a folder of images, .* or an .npy file, got .*{}, which is not an image"
            with pytest.raises(ValueError, match=WHERE + message.format(name)):
                load(tmp_path / name, **options)


@pytest.mark.parametrize("suffix", ["npz", "npy"])
@pytest.mark.parametrize("content", [b"", b"no file of NumPy"])
def test_files_that_cannot_be_read_are_named(suffix, content, tmp_path):
    path = tmp_path / f"some.{suffix}"
    path.write_bytes(content)
    message = re.escape(f"`source` must be a readable .{suffix} file, got {path} (")
    with pytest.raises(ValueError, match=WHERE + message + r".+\); check the file"):
        load(path)


def test_a_damaged_npz_file_is_named(tmp_path):
    path = tmp_path / "some.npz"
    np.savez(path, drawn(9, (40, 40, 3)))
    content = bytearray(path.read_bytes())
    content[5000] ^= 255
    path.write_bytes(content)
    with pytest.raises(ValueError, match=WHERE + r"`source` must be a readable .npz file, .* \(Bad CRC.*\); check"):
        load(path)


def test_an_npz_file_without_images_is_named(tmp_path):
    np.savez(tmp_path / "some.npz", jpeg=np.zeros(5, np.uint8), y=np.arange(3))
    message = (
        r"`source` must have packed images .*, got .*some.npz with jpeg uint8 \(5,\), y int64 \(3,\); save it with"
    )
    with pytest.raises(ValueError, match=WHERE + message):
        load(tmp_path / "some.npz")
    np.savez(tmp_path / "some.npz")
    with pytest.raises(ValueError, match="with nothing; save"):
        load(tmp_path / "some.npz")


def test_bad_options_are_named(tmp_path):
    with pytest.raises(ValueError, match=WHERE + "`side` must be at least 1, got 0; use a larger one"):
        load(tmp_path, side=0)
    with pytest.raises(TypeError, match=WHERE + "`side` must be a whole number, got 2.5"):
        load(tmp_path, side=2.5)
    with pytest.raises(ValueError, match=WHERE + "`channels` must be 1 or 3, got 4; use 1 for grey and 3 for RGB"):
        load(tmp_path, side=2, channels=4)


@pytest.mark.parametrize("channels", [None, 3])
def test_without_pillow_it_is_named(channels, tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=WHERE + r"images need Pillow, .* pip install pillow"):
        load(tmp_path, side=2, channels=channels)


# --- The bundled set -------------------------------------------------------------------------------------------------


def test_the_bundled_set():
    train, val = bundled()
    assert (train.values.shape, val.values.shape) == ((414, 12288), (64, 12288))
    assert train.shape == val.shape == (64, 64, 3)
    for part in (train, val):
        pixels = part.values.reshape(-1, 4096, 3).double() / 255
        assert pixels.std(1).mean(1).min() > 0.045  # JPEG changes it a little
        assert len(part.values.unique(dim=0)) == len(part.values)
        assert part.skipped == ()


def test_the_bundled_set_names_its_photographs():
    path = images.Path(images.__file__).with_name("photographs.npz")
    assert path.stat().st_size < 1_500_000
    with np.load(path) as file:
        credits, train, val = (file[name] for name in ("credits", "credit_train", "credit_val"))
    assert (len(train), len(val)) == (414, 64)
    assert not set(train) & set(val)
    assert set(train) | set(val) == set(range(len(credits)))
    assert all(" by " in one and ", CC0, from github.com/" in one for one in credits)


def test_a_side_that_would_fill_the_memory(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "one.png")
    with pytest.raises(ValueError, match="`side` must make images of at most 268,435,456 numbers, got 100000"):
        images.load(tmp_path, side=100_000)

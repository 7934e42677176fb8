"""Pictures of densities: their sizes, what they show, and what is refused."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image

from laplex.density import pictures

MODULE = "laplex.density.pictures."


def shown(path):
    """The pixels of a picture (height, width, 3)."""
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB")).astype(int)


def grid(path, rows, shape):
    pictures.grid(path, rows, shape)
    return shown(path)


@pytest.mark.parametrize(
    ("shape", "height", "width"),
    [
        ((8, 8, 1), 96, 96),
        ((7, 5, 3), 98, 70),  # 14 pixels a pixel
        ((100, 120, 3), 100, 120),
        ((512, 256, 1), 256, 128),
        ((300, 1, 1), 256, 1),
    ],
)
def test_images_are_shown_at_a_readable_size(shape, height, width, tmp_path):
    n = shape[0] * shape[1] * shape[2]
    drawn = grid(tmp_path / "g.png", [("", torch.zeros(2, n)), ("", torch.zeros(3, n))], shape)
    black = (drawn == 0).all(2)
    assert black.sum() == 5 * height * width
    rows, columns = np.flatnonzero(black.any(1)), np.flatnonzero(black.any(0))
    assert rows[-1] - rows[0] + 1 == 2 * height + pictures.GAP
    assert columns[-1] - columns[0] + 1 == 3 * width + 2 * pictures.GAP


def test_a_grid_shows_the_values_and_cuts_off_what_lies_beyond(tmp_path):
    values = torch.tensor([[-5.0, 0.5, 7.0]]).expand(4, 3)
    seen = {tuple(one) for one in grid(tmp_path / "g.png", [("", values)], (1, 1, 3)).reshape(-1, 3)}
    assert seen == {(255, 255, 255), (0, 128, 255)}
    levels = torch.tensor([[0, 100, 255]], dtype=torch.uint8)
    seen = {tuple(one) for one in grid(tmp_path / "g.png", [("", levels)], (1, 1, 3)).reshape(-1, 3)}
    assert seen == {(255, 255, 255), (0, 100, 255)}


def test_rows_and_columns_are_in_order(tmp_path):
    first, second = torch.tensor([[0.1], [0.2]]), torch.tensor([[0.3], [0.4]])
    drawn = grid(tmp_path / "g.png", [("", first), ("", second)], (1, 1, 1))[..., 0]
    step, start = 96 + pictures.GAP, 2 * pictures.MARGIN
    seen = [[drawn[pictures.MARGIN + row * step, start + column * step] for column in (0, 1)] for row in (0, 1)]
    assert seen == [[26, 51], [76, 102]]


def test_labels_are_on_the_left(tmp_path):
    image = torch.full((2, 1), 1.0)
    plain = grid(tmp_path / "g.png", [("", image)], (1, 1, 1))
    assert plain.min() == 255
    labelled = grid(tmp_path / "g.png", [("held-out images and some more words", image)], (1, 1, 1))
    assert labelled.shape[0] == plain.shape[0]
    assert 0 < labelled.shape[1] - plain.shape[1] <= pictures.LABEL
    assert (labelled.min(2) < 128).any(0).nonzero()[0].max() < labelled.shape[1] - plain.shape[1] + pictures.MARGIN


BAD_GRIDS = {
    "no rows": ([], (1, 1, 1), "`rows` must have at least one row, got none; give a label"),
    "an empty row": ([("a", torch.ones(0, 1))], (1, 1, 1), r"`rows` must .* got shape \(0, 1\) in 'a'; use .fla"),
    "other images": (
        [("a", torch.ones(2, 4))],
        (2, 1, 3),
        r"`rows` must have images \(m, 6\) of 2 x 1 x 3, .* got shape \(2, 4\) in 'a'",
    ),
    "NaN": ([("a", torch.full((1, 1), torch.nan))], (1, 1, 1), "`rows` must be finite, got NaN .* in 'a'; look"),
    "two channels": (
        [("a", torch.ones(1, 2))],
        (1, 1, 2),
        r"`shape` must be .* 1 or 3 channels, got \(1, 1, 2\)",
    ),
    "no channels": ([("a", torch.ones(1, 1))], (1, 1), r"`shape` must be \(height, .* got \(1, 1\); use that of"),
}


@pytest.mark.parametrize("case", BAD_GRIDS)
def test_bad_grids_are_named_and_nothing_is_written(case, tmp_path):
    rows, shape, message = BAD_GRIDS[case]
    with pytest.raises(ValueError, match=MODULE + "grid: " + message):
        pictures.grid(tmp_path / "g.png", rows, shape)
    assert not list(tmp_path.iterdir())


def test_images_as_files_of_their_own(tmp_path):
    values = torch.tensor([[-5.0, 0.1, 0.2, 0.5, 0.9, 7.0], [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]])
    levels = (values.clamp(0, 1) * 255).round().to(torch.uint8)
    for shape, mode in (((1, 2, 3), "RGB"), ((2, 3, 1), "L")):
        paths = pictures.separate(tmp_path, {"what is given": values, "bytes": levels[:1]}, shape)
        names = ["what-is-given-0001.png", "what-is-given-0002.png", "bytes-0001.png"]
        assert paths == [tmp_path / name for name in names]
        for path, one in zip(paths, (*levels, levels[0])):
            with Image.open(path) as image:
                assert (image.format, image.mode, image.size) == ("PNG", mode, (shape[1], shape[0]))
                assert np.array_equal(np.asarray(image).ravel(), one.numpy())
    with pytest.raises(ValueError, match=MODULE + "separate: `rows` must be finite, got NaN or infinity in 'some'"):
        pictures.separate(tmp_path, {"some": torch.full((1, 6), torch.nan)}, (1, 2, 3))
    assert len(list(tmp_path.iterdir())) == 3


def test_missing_packages_are_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=MODULE + r"grid: images need Pillow, .* pip install pillow"):
        pictures.grid(tmp_path / "g.png", [("", torch.ones(1, 1))], (1, 1, 1))
    with pytest.raises(ImportError, match=MODULE + r"separate: images need Pillow, .* pip install pillow"):
        pictures.separate(tmp_path, {"": torch.ones(1, 1)}, (1, 1, 1))

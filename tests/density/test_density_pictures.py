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


def colours(path):
    return {tuple(one) for one in shown(path).reshape(-1, 3)}


# --- Grids -----------------------------------------------------------------------------------------------------------


def grid(path, rows, shape, **options):
    pictures.grid(path, rows, shape, **options)
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
    whole = torch.tensor([[0, 100, 255]], dtype=torch.uint8)
    seen = {tuple(one) for one in grid(tmp_path / "g.png", [("", whole)], (1, 1, 3)).reshape(-1, 3)}
    assert seen == {(255, 255, 255), (0, 100, 255)}


def test_rows_and_columns_are_in_order(tmp_path):
    first, second = torch.tensor([[0.1], [0.2]]), torch.tensor([[0.3], [0.4]])
    drawn = grid(tmp_path / "g.png", [("", first), ("", second)], (1, 1, 1))[..., 0]
    step, start = 96 + pictures.GAP, 2 * pictures.MARGIN
    seen = [[drawn[pictures.MARGIN + row * step, start + column * step] for column in (0, 1)] for row in (0, 1)]
    assert seen == [[26, 51], [76, 102]]


def test_labels_are_at_the_left_and_titles_above(tmp_path):
    image = torch.full((2, 1), 1.0)
    plain = grid(tmp_path / "g.png", [("", image)], (1, 1, 1))
    assert plain.min() == 255
    labelled = grid(tmp_path / "g.png", [("held-out images and some more words", image)], (1, 1, 1))
    assert labelled.shape[0] == plain.shape[0]
    assert 0 < labelled.shape[1] - plain.shape[1] <= pictures.LABEL
    assert (labelled.min(2) < 128).any(0).nonzero()[0].max() < labelled.shape[1] - plain.shape[1] + pictures.MARGIN
    titled = grid(tmp_path / "g.png", [("", image)], (1, 1, 1), titles=["first", "a title of several words"])
    assert titled.shape[0] > plain.shape[0]
    assert (titled.min(2) < 128).any(1).nonzero()[0].max() < titled.shape[0] - plain.shape[0] + pictures.MARGIN


BAD_GRIDS = {
    "no rows": ([], (1, 1, 1), None, "`rows` must have at least one row, got none; give a label"),
    "an empty row": ([("a", torch.ones(0, 1))], (1, 1, 1), None, r"`rows` must .* got shape \(0, 1\) in 'a'; use .fla"),
    "other images": (
        [("a", torch.ones(2, 4))],
        (2, 1, 3),
        None,
        r"`rows` must have images \(m, 6\) of 2 x 1 x 3, .* got shape \(2, 4\) in 'a'",
    ),
    "NaN": ([("a", torch.full((1, 1), torch.nan))], (1, 1, 1), None, "`rows` must be finite, got NaN .* in 'a'; look"),
    "two channels": (
        [("a", torch.ones(1, 2))],
        (1, 1, 2),
        None,
        r"`shape` must be .* 1 or 3 channels, got \(1, 1, 2\)",
    ),
    "no channels": ([("a", torch.ones(1, 1))], (1, 1), None, r"`shape` must be \(height, .* got \(1, 1\); use that of"),
    "titles": ([("a", torch.ones(2, 1))], (1, 1, 1), ["x"], "`titles` must be one for each of the 2 columns, got 1;"),
}


@pytest.mark.parametrize("case", BAD_GRIDS)
def test_bad_grids_are_named_and_nothing_is_written(case, tmp_path):
    rows, shape, titles, message = BAD_GRIDS[case]
    with pytest.raises(ValueError, match=MODULE + "grid: " + message):
        pictures.grid(tmp_path / "g.png", rows, shape, titles)
    assert not list(tmp_path.iterdir())


def test_images_as_files_of_their_own(tmp_path):
    values = torch.tensor([[-5.0, 0.1, 0.2, 0.5, 0.9, 7.0], [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]])
    whole = (values.clamp(0, 1) * 255).round().to(torch.uint8)
    for shape, mode in (((1, 2, 3), "RGB"), ((2, 3, 1), "L")):
        paths = pictures.separate(tmp_path, {"what is given": values, "bytes": whole[:1]}, shape)
        names = ["what-is-given-0001.png", "what-is-given-0002.png", "bytes-0001.png"]
        assert paths == [tmp_path / name for name in names]
        for path, one in zip(paths, (*whole, whole[0])):
            with Image.open(path) as image:
                assert (image.format, image.mode, image.size) == ("PNG", mode, (shape[1], shape[0]))
                assert np.array_equal(np.asarray(image).ravel(), one.numpy())
    with pytest.raises(ValueError, match=MODULE + "separate: `rows` must be finite, got NaN or infinity in 'some'"):
        pictures.separate(tmp_path, {"some": torch.full((1, 6), torch.nan)}, (1, 2, 3))
    assert len(list(tmp_path.iterdir())) == 3


# --- Plots -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8, 8, 3), (4, 16, 1), (30, 2, 1)])
def test_places_are_drawn_over_the_image(shape, tmp_path):
    n = shape[0] * shape[1] * shape[2]
    before, after = torch.linspace(0, 1, n), torch.linspace(1, 0, n, dtype=torch.float64, requires_grad=True)
    pictures.places(tmp_path / "p.png", before, after, shape)
    drawn = shown(tmp_path / "p.png")
    for end in ((68, 1, 84), (253, 231, 37)):  # of viridis
        for half in (drawn[:, : drawn.shape[1] // 2], drawn[:, drawn.shape[1] // 2 :]):
            assert abs(half - end).max(2).min() < 8


def test_a_spectrum_leaves_out_what_has_no_logarithm(tmp_path):
    pictures.spectrum(tmp_path / "s.png", {"some": torch.tensor([1.0, 3.0, 0.0, -1e-9, 2.0]), "one": torch.ones(1)})
    seen = colours(tmp_path / "s.png")
    assert shown(tmp_path / "s.png").shape == (690, 1050, 3)
    assert {(0x1F, 0x5F, 0xBF), (0xC8, 0x38, 0x2C)} <= seen  # the first two colours


def axes_of(monkeypatch, path, *given, **options):
    """The axes that are drawn, and the plot as a file."""
    figures, save = [], pictures._save
    monkeypatch.setattr(pictures, "_save", lambda path, figure: (figures.append(figure), save(path, figure)))
    pictures.likelihoods(path, *given, **options)
    assert len(colours(path)) > 2
    return figures[0].axes[0]


def test_likelihoods_against_seconds(tmp_path, monkeypatch):
    curves = {"EM": [(2.0, 5.0), (1.0, 3.0)], "Adam": [(1.0, 1.0), (10.0, 4.0)]}
    axes = axes_of(monkeypatch, tmp_path / "l.png", curves, {"ceiling": 6.0}, label="bits", title="A title")
    assert [line.get_label() for line in axes.lines] == ["EM", "Adam", "ceiling"]
    assert axes.lines[0].get_xydata().tolist() == [[1, 3], [2, 5]]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("seconds", "bits", "A title")
    assert axes.get_xscale() == "linear"
    assert axes.get_ylim()[0] < 1


def test_likelihoods_show_what_was_reached(tmp_path, monkeypatch):
    curves = {"EM": [(0.5, 10.0), (1.0, 40.0)], "Adam": [(1.0, -1e6), (500.0, 20.0)]}
    axes = axes_of(monkeypatch, tmp_path / "l.png", curves)
    assert axes.get_xscale() == "log"
    assert axes.get_ylim() == pytest.approx((-20, 43))


def test_marks_are_light_lines_behind_the_curves(tmp_path, monkeypatch):
    marks = {"levelled": [1.0, 3.0], "shortened": [2.0], "never": []}
    axes = axes_of(monkeypatch, tmp_path / "l.png", {"EM": [(0.0, 1.0), (4.0, 2.0)]}, marks=marks)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["EM", "levelled", "shortened"]
    curve, *lines = axes.lines
    assert [line.get_xdata()[0] for line in lines] == [1.0, 3.0, 2.0]
    assert lines[0].get_color() == lines[1].get_color() != lines[2].get_color()
    assert all(line.get_zorder() < curve.get_zorder() for line in lines)
    assert axes.get_ylim()[0] > 0.5  # a line that crosses the plot does not decide what it shows


def test_a_single_point_is_a_plot(tmp_path, monkeypatch):
    axes = axes_of(monkeypatch, tmp_path / "l.png", {"PPCA": [(0.0, 3.0)]})
    assert axes.get_ylim()[0] < 3 < axes.get_ylim()[1]


def test_bad_plots_are_named_and_nothing_is_written(tmp_path):
    path = tmp_path / "p.png"
    with pytest.raises(
        ValueError, match=MODULE + r"places: `after` must be one place .* the 12 numbers .* shape \(3,\)"
    ):
        pictures.places(path, torch.ones(12), torch.ones(3), (2, 2, 3))
    with pytest.raises(ValueError, match=MODULE + "places: `shape` must be"):
        pictures.places(path, torch.ones(12), torch.ones(12), (2, 3, 2))
    with pytest.raises(
        ValueError, match=MODULE + "spectrum: `curves` must have at least one curve, .* got none; leave"
    ):
        pictures.spectrum(path, {})
    with pytest.raises(
        ValueError, match=MODULE + "likelihoods: `curves` must .* got none in 'Adam'; leave out what was"
    ):
        pictures.likelihoods(path, {"Adam": []})
    assert not list(tmp_path.iterdir())


def test_missing_packages_are_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=MODULE + r"grid: images need Pillow, .* pip install pillow"):
        pictures.grid(tmp_path / "g.png", [("", torch.ones(1, 1))], (1, 1, 1))
    with pytest.raises(ImportError, match=MODULE + r"separate: images need Pillow, .* pip install pillow"):
        pictures.separate(tmp_path, {"": torch.ones(1, 1)}, (1, 1, 1))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=MODULE + r"spectrum: plots need matplotlib, .* pip install matplotlib"):
        pictures.spectrum(tmp_path / "s.png", {"one": torch.ones(1)})

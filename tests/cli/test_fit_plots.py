"""The plots of a fit: what they show."""

import numpy as np
import pytest
import torch
from PIL import Image

from laplex.cli import fit_plots

pytest.importorskip("matplotlib")


def pixels(path):
    """Of a plot (height, width, 3)."""
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB")).astype(int)


def colours(path):
    return {tuple(one) for one in pixels(path).reshape(-1, 3)}


@pytest.mark.parametrize("shape", [(8, 8, 3), (4, 16, 1), (30, 2, 1)])
def test_places_are_drawn_over_the_image(shape, tmp_path):
    n = shape[0] * shape[1] * shape[2]
    before, after = torch.linspace(0, 1, n), torch.linspace(1, 0, n, dtype=torch.float64, requires_grad=True)
    fit_plots.places(tmp_path / "p.png", before, after, shape)
    drawn = pixels(tmp_path / "p.png")
    for end in ((68, 1, 84), (253, 231, 37)):  # of viridis
        for half in (drawn[:, : drawn.shape[1] // 2], drawn[:, drawn.shape[1] // 2 :]):
            assert abs(half - end).max(2).min() < 8


def test_a_spectrum_leaves_out_what_has_no_logarithm(tmp_path):
    fit_plots.spectrum(tmp_path / "s.png", {"some": torch.tensor([1.0, 3.0, 0.0, -1e-9, 2.0]), "one": torch.ones(1)})
    seen = colours(tmp_path / "s.png")
    assert pixels(tmp_path / "s.png").shape == (690, 1050, 3)
    assert {(0x1F, 0x5F, 0xBF), (0xC8, 0x38, 0x2C)} <= seen  # the first two colours


def axes_of(monkeypatch, path, curves, levels=None, marks=None):
    """The axes that are drawn, and the plot as a file."""
    figures, save = [], fit_plots._save
    monkeypatch.setattr(fit_plots, "_save", lambda path, figure: (figures.append(figure), save(path, figure)))
    fit_plots.likelihoods(path, curves, levels or {}, marks or {})
    assert len(colours(path)) > 2
    return figures[0].axes[0]


def test_likelihoods_against_seconds(tmp_path, monkeypatch):
    curves = {"EM": [(2.0, 5.0), (1.0, 3.0)], "Adam": [(1.0, 1.0), (10.0, 4.0)]}
    axes = axes_of(monkeypatch, tmp_path / "l.png", curves, {"ceiling": 6.0})
    assert [line.get_label() for line in axes.lines] == ["EM", "Adam", "ceiling"]
    assert axes.lines[0].get_xydata().tolist() == [[1, 3], [2, 5]]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == (
        "seconds",
        "log-likelihood (nats per image)",
        "Likelihood against time",
    )
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

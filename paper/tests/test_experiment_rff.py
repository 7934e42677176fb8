"""`python -m paper experiment rff`: errors with known answers, and the command."""

import json
import re

import pytest
import torch

from paper.experiments import published, report, rff
from paper.experiments.report import Panel, Point, Section

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ("--size", 50, "--features", 1, 64, "--seeds", 3, "--device", "cpu")


def test_the_truth_is_the_dense_definition():
    problem = rff.draw(37, "cpu")
    difference, x = problem.a[:, None] - problem.b, problem.x[0]
    kernel = torch.exp(-difference.abs())
    slope = -difference.sign() * kernel  # of an entry in its row anchor
    want = (kernel @ x)[None], slope @ x, -slope.sum(0) * x
    for one, other in zip(rff.truth(problem), want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_an_error_is_relative_to_the_length_of_the_truth():
    want = rff.Outcome(torch.tensor([3.0, 4.0]), torch.tensor([2.0]), torch.tensor([1.0]))
    got = rff.Outcome(torch.tensor([3.0, 5.0]), torch.tensor([1.0]), torch.tensor([1.0]))
    assert rff.errors(got, want) == {"value": pytest.approx(0.2), "a": 0.5, "b": 0.0}


def test_laplex_is_exact_and_float32_inputs_are_not_rounded_again():
    problem = rff.draw(300, "cpu")
    assert all(torch.equal(one.float().double(), one) for one in (problem.x, problem.a, problem.b))
    want = rff.truth(problem)
    for dtype, most in ((torch.float64, 1e-13), (torch.float32, 1e-6)):
        outcome = rff.laplex_outcome(problem, dtype)
        assert outcome.value.dtype == dtype
        assert max(rff.errors(outcome, want).values()) < most


def test_values_converge_with_the_number_of_features():
    problem = rff.draw(60, "cpu")
    want = rff.truth(problem)
    reached = [rff.errors(rff.features_outcome(problem, count, 0), want)["value"] for count in (16, 65536)]
    assert reached[1] < 0.05 < reached[0]


def test_the_command_writes_table_and_plot_and_resumes(tmp_path, command, monkeypatch):
    status, output, errors = command("rff", "--out", tmp_path / "new", *SMALL)
    assert status == 0, errors
    assert output.count("wrote ") == 2
    assert "[2/2] D = 64: K x " in errors
    page = (tmp_path / "new" / "rff.md").read_text()
    assert page.startswith("# Random Fourier features and laplex, n = 50, 3 seeds\n")
    assert re.search(r"\| laplex, float64 \|  \| \d\.\de-1[4-7] \|", page)
    runs = json.loads((tmp_path / "new" / "rff.json").read_text())["runs"]
    values = [run["result"]["value"] for run in runs if run["settings"].get("features") == 1]
    cell = f"{sorted(values)[1]:.3g} [{min(values):.2g}, {max(values):.2g}]"
    assert re.search(rf"\| random Fourier features \| 1 \| {re.escape(cell)} \|.*\| 4\.5 \|", page)
    assert published.RFF_SOURCE in page
    assert (tmp_path / "new" / "rff.png").read_bytes().startswith(b"\x89PNG")
    assert len(runs) == 2 + 2 * 3

    def never(*_):
        raise AssertionError("a finished run was repeated")

    for name in ("truth", "features_outcome", "laplex_outcome"):
        monkeypatch.setattr(rff, name, never)
    assert command("rff", "--out", tmp_path / "new", *SMALL)[0] == 0
    assert (tmp_path / "new" / "rff.md").read_text() == page


def test_without_options_the_features_are_the_paper_s():
    assert rff.Options().features == (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
    assert set(published.RFF_VALUES) == {1, 16, 2048}


@pytest.mark.parametrize("option", ["--size", "--features", "--seeds"])
def test_bad_options_are_refused_and_nothing_is_written(option, tmp_path, command):
    status, output, errors = command("rff", "--out", tmp_path / "out", "--device", "cpu", option, 0)
    assert (status, output) == (2, "")
    assert errors == f"python -m paper experiment rff: {option} must be at least 1, got 0\n"
    assert list(tmp_path.iterdir()) == []


# --- Pages and plots of several parts --------------------------------------------------------------------------------


def test_a_page_has_a_heading_and_a_table_a_section():
    sections = [Section(["a"], [["1"]], ["First."], "One"), Section(["b"], [], [], "Two")]
    want = "# T\n\n## One\n\n| a |\n| --- |\n| 1 |\n\nFirst.\n\n## Two\n\n| b |\n| --- |\n"
    assert report.page("T", sections) == want


def test_panels_lie_side_by_side_and_ranges_may_be_uneven(tmp_path):
    from matplotlib.figure import Figure

    curves = {"one": [Point(1, 1.0, 0.5, 3.0), Point(10, 2.0, 0.25)]}
    figure = Figure()
    left, right = figure.subplots(1, 2)
    report._fill(left, Panel(("x", "y"), curves, title="L", log_y=True))
    report._fill(right, Panel(("x", "y"), curves, Point(9, 1.5)))
    assert (left.get_yscale(), right.get_yscale(), left.get_title()) == ("log", "linear", "L")
    (bars,) = left.containers[0].lines[2]
    ends = [[(x, pytest.approx(y)) for x, y in segment] for segment in bars.get_segments()]
    assert ends == [[(1, 0.5), (1, 4.0)], [(10, 1.75), (10, 2.25)]]
    report.draw(tmp_path / "two.png", "T", [Panel(("x", "y"), curves)] * 2)
    assert (tmp_path / "two.png").read_bytes().startswith(b"\x89PNG")

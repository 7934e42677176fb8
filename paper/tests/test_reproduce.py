"""`python -m paper run`: entries and measurements. The command and verdicts: test_reproduce_command.py, _verdicts.py."""

import argparse
import json
import os
import re
from itertools import pairwise

import pytest
import torch

from made_features import write_features
from paper.commands import experiment
from paper.experiments import data
from paper.reproduce import (
    ENTRIES,
    LABELS_WITHOUT,
    NAMES,
    _curves,
    _experiments,
    _measure,
    _problems,
    _runs,
    _timing,
    labels,
)
from paper.reproduce._measure import MEASUREMENTS, QUICK, Effort
from paper.reproduce._outcomes import JUDGES
from paper.reproduce._rivals import BOTH, DENSE, FFT, FORWARD, KEPT, LAPLEX, LOGS, SCANNED, TOEPLITZ, make
from paper.reproduce._timing import interleaved

pytestmark = pytest.mark.usefixtures("one_thread")

# The paper has so many figures and tables, counted in the order in which it numbers them.
LABELS = {f"Figure {number}" for number in range(1, 22)} | {f"Table {number}" for number in range(1, 8)}
LOOK = Effort("cpu", QUICK)


# --- Entries ---------------------------------------------------------------------------------------------------------


def test_every_figure_and_table_of_the_paper_has_an_entry_or_a_reason():
    covered = {label for entry in ENTRIES for label in labels(entry)}
    places = r"Figure \d+|Table \d+|Theorem \d|Appendix [A-I]\.\d|Abstract"  # as a reader of the paper finds them
    assert all(re.fullmatch(places, label) for label in covered)
    assert LABELS - covered == set(LABELS_WITHOUT)
    assert not covered & set(LABELS_WITHOUT)


def test_entries_are_complete():
    assert len(set(NAMES)) == len(NAMES) == len(ENTRIES)
    assert set(JUDGES) == set(_runs.PARTS) == set(NAMES)
    known = {*MEASUREMENTS, *_runs.EXPERIMENTS, _runs.CURVES}
    assert {part for parts in _runs.PARTS.values() for part in parts} == known
    for entry in ENTRIES:
        assert re.fullmatch(r"[a-z0-9-]+", entry.name)
        assert set(entry.minutes) == set(entry.devices) <= {"cpu", "cuda"}
        assert all((entry.title, entry.section, entry.claim, entry.criterion))


# --- Problems and rivals ---------------------------------------------------------------------------------------------


def test_the_truth_is_the_dense_definition(monkeypatch):
    monkeypatch.setattr(_problems, "SLICE", 64)  # many slices
    problem = _problems.draw(23, 31, 2, 0, "cpu")
    kernel = torch.exp(-(problem.a[:, None] - problem.b).abs().double())
    rows = torch.tensor([0, 7, 22])
    x = problem.x.double()
    torch.testing.assert_close(_problems.product(problem, rows), (x @ kernel.T)[:, rows])
    torch.testing.assert_close(_problems.gram(problem, rows), ((kernel * x[0]) @ kernel.T)[rows])
    slope = -(problem.a[:, None] - problem.b).sign().double() * kernel
    weight = torch.ones(2, 3)
    torch.testing.assert_close(_problems.row_gradient(problem, rows, weight), (slope @ x.sum(0))[rows])


def test_a_sample_of_rows_has_all_of_few_and_some_of_many():
    assert len(_problems.sample(100, 10, "cpu")) == 100
    assert 200 < len(_problems.sample(1 << 16, 1 << 10, "cpu")) <= _problems.MOST
    assert len(_problems.sample(1 << 16, 1 << 29, "cpu")) <= _problems.FEWEST
    assert len(_problems.sample(5000, 1 << 29, "cpu", everything=True)) == 5000


@pytest.mark.parametrize("method", [LAPLEX, KEPT, SCANNED, DENSE, LOGS, TOEPLITZ])
def test_methods_compute_the_product(method):
    problem = _problems.draw(200, 200, 3, 1, "cpu")
    solved = _problems.on_grid(problem) if method == TOEPLITZ else problem
    found = _problems.product_errors(solved, make(method, FORWARD, problem)()[0], everything=True)
    assert found["error"] < 1e-5


def test_a_wrong_method_is_left_out_and_not_timed(monkeypatch):
    honest = _measure.make
    monkeypatch.setattr(_measure, "make", lambda method, way, problem: _off(honest(method, way, problem), method))
    found = _measure.compared(_problems.draw(64, 64, 2, 0, "cpu"), [(LAPLEX, FORWARD), (DENSE, FORWARD)], LOOK)
    assert "seconds" in found["measured"][DENSE][FORWARD]
    assert LAPLEX not in found["measured"]
    assert found["left_out"][f"{LAPLEX}, {FORWARD}"].startswith("wrong: its relative error is ")


def _off(call, method):
    return (lambda: tuple(1.001 * one for one in call())) if method == LAPLEX else call


def test_a_rival_that_is_too_large_or_out_of_memory_is_left_out(monkeypatch):
    monkeypatch.setitem(_measure.too_large.__globals__["MOST"], ("cpu", DENSE, FORWARD), 100)
    problem = _problems.draw(64, 64, 2, 0, "cpu")
    found = _measure.compared(problem, [(LAPLEX, FORWARD), (DENSE, FORWARD)], LOOK)
    assert "4,096 entries" in found["left_out"][f"{DENSE}, {FORWARD}"]

    for message, told in (("none left\nmore about it", "none left"), ("", "OutOfMemoryError")):

        def full(method, way, problem, message=message):
            raise torch.OutOfMemoryError(message)

        monkeypatch.setattr(_measure, "make", full)
        found = _measure.compared(problem, [(LAPLEX, FORWARD)], LOOK)
        assert found["measured"] == {}
        assert found["left_out"] == {f"{LAPLEX}, {FORWARD}": told}


def test_calls_take_turns():
    order = []
    found = interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, "cpu", 0.0)
    assert set(found) == {"a", "b"}
    assert found["a"]["turns"] == found["b"]["turns"] == 3
    assert found["a"]["p20"] <= found["a"]["seconds"] <= found["a"]["p80"]
    changes = sum(one != other for one, other in pairwise(order))
    assert changes >= 5  # a and b in turn, three times at least


def test_others_are_what_uses_the_cpu_beside_this_process(monkeypatch, tmp_path):
    clocks = iter([(0.0, 100.0, 1.0), (10.0, 100.0 + 5.0 * (os.cpu_count() or 1) + 2.0, 3.0)])
    monkeypatch.setattr(_timing, "_clocks", lambda: next(clocks))
    assert _timing.Others().share() == 0.5
    monkeypatch.undo()
    monkeypatch.setattr(_timing, "STAT", tmp_path / "none")
    assert _timing.Others().share() is None


# --- Measurements ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_every_measurement_runs_and_its_result_is_json(name):
    points = MEASUREMENTS[name].points(LOOK)
    assert all("seed" in one for one in points)
    result = json.loads(json.dumps(MEASUREMENTS[name].compute(points[0], LOOK)))
    assert result
    for ways in result.get("measured", {}).values():
        assert all(ways.values())


def test_the_full_sizes_are_those_of_the_paper():
    full = Effort("cuda", _measure.FULL)
    largest = {name: max(point["n"] for point in MEASUREMENTS[name].points(full)) for name in ("sizes", "batch8")}
    assert largest == {"sizes": 1 << 29, "batch8": 1 << 20}
    assert {point["batch"] for point in MEASUREMENTS["batches"].points(full)} == {1 << power for power in range(9)}
    assert max(point["k"] for point in MEASUREMENTS["gram"].points(full)) == 1 << 20


def test_both_ways_are_checked_and_timed():
    found = MEASUREMENTS["batch8"].compute({"n": 100, "k": 100, "batch": 8, "seed": 3}, LOOK)["measured"]
    assert found[LAPLEX][BOTH]["error"] < 1e-6
    assert found[DENSE][BOTH]["seconds"] > 0
    assert found[LAPLEX][BOTH]["peak_bytes"] is None  # on a CPU it is not measured


def test_an_fft_has_a_time_and_no_error():
    found = MEASUREMENTS["sizes"].compute({"n": 128, "k": 128, "batch": 1, "seed": 0}, LOOK)["measured"]
    assert found[FFT][FORWARD]["seconds"] > 0
    assert "error" not in found[FFT][FORWARD]


def test_gradients_come_out_as_in_the_paper():
    for settings in MEASUREMENTS["gradients"].points(LOOK):
        found = MEASUREMENTS["gradients"].compute(settings, LOOK)
        assert found["has"] is (True if settings["paper"] is None else settings["paper"]), settings


def test_the_printed_theorem_loses_columns_and_laplex_does_not():
    found = MEASUREMENTS["theorem"].compute({"n": 8, "draws": 20, "seed": 0}, LOOK)
    assert max(found["mended"]) < 1e-13 > max(found["laplex"])
    assert max(found["strict"]) > 0.01
    assert min(found["printed"]) > 0.01


def test_curves_have_a_loss_before_the_first_epoch_and_after_each(tmp_path):
    features = data.features(write_features(tmp_path / "made.npz")).standardised()
    points = _curves.points(features, LOOK)
    assert [(one["method"], one["start"]) for one in points[-2:]] == [("low-rank", "random"), ("full", "random")]
    found = _curves.compute(features, points[0])
    assert {len(found[part]) for part in ("train", "val")} == {1 + _curves.QUICK_EPOCHS}
    assert found["accuracy"]["diverged"] is False


# --- Commands of experiments -----------------------------------------------------------------------------------------


def test_data_sets_are_found_in_a_folder(tmp_path):
    import numpy as np

    assert _experiments.lines("heads", tmp_path, LOOK) == _experiments.lines("density", tmp_path, LOOK) == []
    write_features(tmp_path / "made_16.npz")
    for part in ("train0", "train1", "val"):
        np.savez(tmp_path / f"imagenette_{part}.npz", jpeg=np.zeros(1), off=np.zeros(1))
    np.savez(tmp_path / "photos.npz", webp_train=np.zeros(1))
    for name, recipe in (("heads", "tuned"), ("heads-recipe", "paper")):
        (line,) = _experiments.lines(name, tmp_path, Effort("cpu"))
        assert line[:7] == ["heads", "--data", str(tmp_path / "made_16.npz"), "--name", "made", "--recipe", recipe]
    write_features(tmp_path / "made_32.npz")
    heads = _experiments.lines("heads", tmp_path, Effort("cpu"))
    assert [line[4] for line in heads] == ["made_16", "made_32"]  # "made" would be both
    (density,) = _experiments.lines("density", tmp_path, LOOK)
    assert density[-1] == "--quick"
    assert [str(tmp_path / f"imagenette_train{part}.npz") for part in (0, 1)] == density[2:4]
    assert _experiments.lines("photographs", tmp_path, LOOK)[0][2] == f"{tmp_path / 'photos.npz'}:train"
    assert _experiments.lines("projection", tmp_path, LOOK)[0][2] == str(tmp_path)
    assert _experiments.lines("heads", None, LOOK) == []
    parser = argparse.ArgumentParser()
    experiment.add_to(parser.add_subparsers())
    for name in _runs.EXPERIMENTS:
        for effort in (LOOK, Effort("cpu"), Effort("cuda", _measure.FULL)):
            for line in _experiments.lines(name, tmp_path, effort):
                given = parser.parse_args(["experiment", *line, "--out", "somewhere"])
                assert given.experiment == line[0]

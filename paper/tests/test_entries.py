"""Entries and what they measure. The command: test_run_command.py; verdicts: test_verdicts.py."""

import json
import re

import numpy as np
import pytest
import torch

from laplex import testing
from made_features import write_features
from paper import datasets, experiments, measuring
from paper.measuring import BOTH, DENSE, FFT, FORWARD, LAPLEX, LOGS, PLANNED, SCANNED, TOEPLITZ, check, compare, make
from paper.running import FULL, QUICK, Experiments, Measurement, Request
from paper.sections import ENTRIES, LABELS_WITHOUT, NAMES, curves

pytestmark = pytest.mark.usefixtures("one_thread")

# The paper has so many figures and tables, counted in the order in which it numbers them.
LABELS = {f"Figure {number}" for number in range(1, 22)} | {f"Table {number}" for number in range(1, 8)}
LOOK = Request("cpu", QUICK)
PARTS = {part.name: part for entry in ENTRIES for part in entry.measure}
MEASUREMENTS = {name: part for name, part in PARTS.items() if isinstance(part, Measurement)}


# --- Entries ---------------------------------------------------------------------------------------------------------


def test_every_figure_and_table_of_the_paper_has_an_entry_or_a_reason():
    covered = {label for entry in ENTRIES for label in entry.labels}
    places = r"Figure \d+|Table \d+|Theorem \d|Appendix [A-I]\.\d|Abstract"  # as a reader of the paper finds them
    assert all(re.fullmatch(places, label) for label in covered)
    assert LABELS - covered == set(LABELS_WITHOUT)
    assert not covered & set(LABELS_WITHOUT)


def test_entries_are_complete():
    assert len(set(NAMES)) == len(NAMES) == len(ENTRIES)
    assert len({part for entry in ENTRIES for part in entry.measure}) == len(PARTS)  # no two of the same name
    for entry in ENTRIES:
        assert re.fullmatch(r"[a-z0-9-]+", entry.name)
        assert entry.measure
        assert set() < set(entry.minutes) <= {"cpu", "cuda"}
        assert all((entry.title, entry.section, entry.claim, entry.criterion))
        assert bool(entry.data) is not all(part.ready(LOOK) for part in entry.measure)


# --- Problems and rivals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [LAPLEX, PLANNED, SCANNED, DENSE, LOGS, TOEPLITZ])
def test_methods_compute_the_product(method):
    problem = testing.draw(200, 200, rows=3, seed=1)
    assert check(method, FORWARD, problem, make(method, FORWARD, problem)(), all_rows=True)["error"] < 1e-5


def test_a_wrong_method_is_left_out_and_not_timed(monkeypatch):
    monkeypatch.setattr(measuring, "make", lambda method, way, problem: _off(make(method, way, problem), method))
    result = compare(testing.draw(64, 64, rows=2), [(LAPLEX, FORWARD), (DENSE, FORWARD)], LOOK)
    assert "seconds" in result["measured"][DENSE][FORWARD]
    assert LAPLEX not in result["measured"]
    assert result["left_out"][f"{LAPLEX}, {FORWARD}"].startswith("wrong: its relative error is ")


def _off(call, method):
    return (lambda: tuple(1.001 * one for one in call())) if method == LAPLEX else call


def test_a_rival_that_is_too_large_or_out_of_memory_is_left_out(monkeypatch):
    monkeypatch.setitem(measuring.MOST, ("cpu", DENSE, FORWARD), 100)
    problem = testing.draw(64, 64, rows=2)
    result = compare(problem, [(LAPLEX, FORWARD), (DENSE, FORWARD)], LOOK)
    assert "4,096 entries" in result["left_out"][f"{DENSE}, {FORWARD}"]

    for message, shown in (("none left\nmore about it", "none left"), ("", "OutOfMemoryError")):

        def full(method, way, problem, message=message):
            raise torch.OutOfMemoryError(message)

        monkeypatch.setattr(measuring, "make", full)
        result = compare(problem, [(LAPLEX, FORWARD)], LOOK)
        assert result["measured"] == {}
        assert result["left_out"] == {f"{LAPLEX}, {FORWARD}": shown}


# --- Measurements ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(MEASUREMENTS) - {"heads-curves"}))
def test_every_measurement_runs_and_its_result_is_json(name):
    points = MEASUREMENTS[name].points(LOOK)
    assert all("seed" in one for one in points)
    result = json.loads(json.dumps(MEASUREMENTS[name].compute(points[0], LOOK)))
    assert result
    for ways in result.get("measured", {}).values():
        assert all(ways.values())


def test_the_full_sizes_are_those_of_the_paper():
    full = Request("cuda", FULL)
    largest = {name: max(point["n"] for point in MEASUREMENTS[name].points(full)) for name in ("sizes", "batch8")}
    assert largest == {"sizes": 1 << 29, "batch8": 1 << 20}
    assert {point["batch"] for point in MEASUREMENTS["batches"].points(full)} == {1 << power for power in range(9)}
    assert max(point["k"] for point in MEASUREMENTS["gram"].points(full)) == 1 << 20


def test_both_ways_are_checked_and_timed():
    result = MEASUREMENTS["batch8"].compute({"n": 100, "k": 100, "batch": 8, "seed": 3}, LOOK)["measured"]
    assert result[LAPLEX][BOTH]["error"] < 1e-6
    assert result[DENSE][BOTH]["seconds"] > 0
    assert result[LAPLEX][BOTH]["peak_bytes"] is None  # on a CPU it is not measured


def test_an_fft_has_a_time_and_no_error():
    result = MEASUREMENTS["sizes"].compute({"n": 128, "k": 128, "batch": 1, "seed": 0}, LOOK)["measured"]
    assert result[FFT][FORWARD]["seconds"] > 0
    assert "error" not in result[FFT][FORWARD]


def test_gradients_come_out_as_in_the_paper():
    for settings in MEASUREMENTS["gradients"].points(LOOK):
        result = MEASUREMENTS["gradients"].compute(settings, LOOK)
        assert result["has"] is (True if settings["paper"] is None else settings["paper"]), settings


def test_the_printed_theorem_loses_columns_and_laplex_does_not():
    result = MEASUREMENTS["theorem"].compute({"n": 8, "draws": 20, "seed": 0}, LOOK)
    assert max(result["mended"]) < 1e-13 > max(result["laplex"])
    assert max(result["strict"]) > 0.01
    assert min(result["printed"]) > 0.01


def test_curves_have_a_loss_before_the_first_epoch_and_after_each(tmp_path):
    write_features(tmp_path / "made.npz")
    request = Request("cpu", QUICK, data=tmp_path)
    points = MEASUREMENTS["heads-curves"].points(request)
    assert [(one["method"], one["start"]) for one in points[-2:]] == [("low-rank", "random"), ("full", "random")]
    result = MEASUREMENTS["heads-curves"].compute(points[0], request)
    assert {len(result[part]) for part in ("train", "val")} == {1 + curves.QUICK_EPOCHS}
    assert result["accuracy"]["diverged"] is False


# --- Experiments -----------------------------------------------------------------------------------------------------


def options(name, folder, request=LOOK):
    return PARTS[name].options(Request(request.device, request.level, data=folder))


def test_data_sets_are_found_in_a_folder(tmp_path):
    assert options("heads", tmp_path) == options("density", tmp_path) == options("heads", None) == []
    write_features(tmp_path / "made_16.npz")
    for part in ("train0", "train1", "val"):
        np.savez(tmp_path / f"imagenette_{part}.npz", jpeg=np.zeros(1), off=np.zeros(1))
    np.savez(tmp_path / "photos.npz", webp_train=np.zeros(1))
    for name, recipe in (("heads", "tuned"), ("heads-recipe", "paper")):
        (result,) = options(name, tmp_path)
        assert (result["data"], result["name"], result["recipe"]) == (str(tmp_path / "made_16.npz"), "made", recipe)
    write_features(tmp_path / "made_32.npz")
    assert list(datasets.features(tmp_path).values()) == ["made_16", "made_32"]  # "made" would be both
    (density,) = options("density", tmp_path)
    assert density["quick"]
    assert density["data"] == tuple(str(tmp_path / f"imagenette_train{part}.npz") for part in (0, 1))
    assert options("photographs", tmp_path)[0]["data"] == (f"{tmp_path / 'photos.npz'}:train",)
    assert options("projection", tmp_path)[0]["data"] == str(tmp_path)
    for part in (part for part in PARTS.values() if isinstance(part, Experiments)):
        known = experiments.module(part.experiment).Options
        for request in (LOOK, Request("cpu"), Request("cuda", FULL)):
            result = options(part.name, tmp_path, request)
            assert result
            for one in result:
                known(**one)  # it has all of them

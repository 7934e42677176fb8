"""`laplex fit`: what it writes, what it tells, and what it refuses."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from laplex import _progress
from laplex.cli import checkpoint, fit_plots
from laplex.cli.fit_report import _dips
from laplex.density import Examples, LaplexGaussian, PlacedGaussian, evaluate, files
from made_pictures import BOTH, DIM, PICTURES, SHAPE, SMALL, STEPS, WRITTEN, drawn, log, steps, write

pytest.importorskip("safetensors")
pytestmark = pytest.mark.usefixtures("one_thread")


# --- what it writes ---------------------------------------------------------------------------------------------------


def test_a_fit_writes_model_log_numbers_and_pictures(laplex, data, tmp_path):
    folder = tmp_path / "some" / "fit"
    assert laplex("fit", data, "--out", folder, *BOTH)[0] == 0
    assert sorted(os.listdir(folder)) == WRITTEN
    assert steps(folder) == STEPS
    likelihoods = [entry["log_likelihood"] for entry in log(folder) if "round" in entry]
    assert likelihoods[-1] > likelihoods[0]
    model, about = files.load(folder / "model.safetensors")
    assert isinstance(model, PlacedGaussian)
    assert (about["shape"], about["units"], about["settings"]["rank"]) == (SHAPE, "1/255", 8)
    summary = json.loads((folder / "summary.json").read_text())
    evaluation = evaluate(model, Examples(torch.from_numpy(np.load(data)).flatten(1)))
    assert summary["evaluation"]["train"] == {"count": 50} | evaluation._asdict()
    assert summary["evaluation"]["train"] == log(folder)[-1]["train"]
    assert summary["data"] == {"examples": 50, "dim": DIM, "shape": list(SHAPE), "skipped": 0}
    assert summary["parameters"] == sum(one.numel() for one in model.parameters())
    assert summary["machine"]["torch"] == torch.__version__
    seconds = [json.loads(line)["seconds"] for line in (folder / "log.jsonl").read_text().splitlines()]
    assert seconds == sorted(seconds)
    for name in PICTURES:
        with Image.open(folder / name) as image:
            assert min(image.size) > 50


def test_progress_and_table_are_told(laplex, data, tmp_path):
    status, output, progress = laplex("fit", data, "--out", tmp_path / "fit", *SMALL, "--hold-out", 0.2)
    assert status == 0, progress
    assert "EM: 0 of 4\n" in progress
    assert "bits per dimension, 0 s left" in progress
    assert "EM: 4 of 4, " in progress
    rows = [line.split() for line in output.splitlines() if line.startswith(("  train", "  validation"))]
    assert [row[:2] for row in rows] == [["train", "40"], ["validation", "10"]]
    assert f"wrote {tmp_path / 'fit' / 'model.safetensors'}" in output
    assert steps(tmp_path / "fit") == STEPS[:5]
    assert log(tmp_path / "fit")[-1]["validation"]["count"] == 10


def test_the_dips_of_annealing_are_told(laplex, data, tmp_path, monkeypatch):
    drawn, right = [], fit_plots.likelihoods

    def likelihoods(path, curves, levels, marks):
        drawn.append(marks)
        right(path, curves, levels, marks)

    monkeypatch.setattr(fit_plots, "likelihoods", likelihoods)
    options = ("--rank", 8, "--rounds", 30, "--device", "cpu")
    status, _, progress = laplex("fit", data, "--out", tmp_path, *options)
    assert status == 0, progress
    entries = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()][:-1]
    assert [entry["round"] for entry in entries if "levelled" in entry] == [3, 7, 10, 14]
    taus = [entry["tau"] for entry in entries]
    assert taus == sorted(taus, reverse=True)
    assert taus[0] > taus[14] == taus[-1]
    lines = [line for line in progress.splitlines() if line.startswith("EM: ")]
    assert [line.split()[1] for line in lines if "places levelled" in line] == ["15"]  # of those that are shown
    falls = [now for before, now in pairwise(entries[:15]) if now["log_likelihood"] < before["log_likelihood"]]
    assert 0 < len(falls) <= 4
    assert sorted(moment for moments in drawn[0].values() for moment in moments) == [one["seconds"] for one in falls]
    assert "annealing: places levelled" in drawn[0]


@pytest.mark.parametrize(("options", "rounds"), [(("--no-jump",), 10), ((), 4)])
def test_a_fit_that_is_not_annealed_says_nothing_of_it(options, rounds, laplex, data, tmp_path):
    status, _, progress = laplex("fit", data, "--out", tmp_path, *SMALL, *options, "--rounds", rounds)
    assert status == 0, progress
    assert "levelled" not in progress + (tmp_path / "log.jsonl").read_text()


def test_what_lowers_the_likelihood_is_named():
    log = [
        {"round": 0, "seconds": 0.0, "log_likelihood": 1.0, "tau": 2.0},
        {"round": 1, "seconds": 1.0, "log_likelihood": 0.9, "tau": 1.9},
        {"round": 2, "seconds": 2.0, "log_likelihood": 0.8, "tau": 1.9, "levelled": True},
        {"round": 3, "seconds": 3.0, "log_likelihood": 2.0, "tau": 1.8, "levelled": True},
        {"round": 4, "seconds": 4.0, "log_likelihood": 1.9, "tau": 1.8},  # an inflated noise may do that
        {"finished": 5, "seconds": 5.0},
    ]
    assert _dips(log) == {"annealing: tau shortened": [1.0], "annealing: places levelled": [2.0]}
    older = [{name: value for name, value in entry.items() if name != "tau"} for entry in log[:2]]
    assert _dips(older) == {}  # a log from before it said so


def test_a_folder_of_images_and_another_for_validation(laplex, tmp_path):
    for name, count in (("train", 12), ("val", 4)):
        (tmp_path / name).mkdir()
        for index, one in enumerate(drawn(count)):
            Image.fromarray(one).resize((9, 7)).save(tmp_path / name / f"{index}.png")
    (tmp_path / "train" / "broken.png").write_bytes(b"no image")
    options = ("--side", 6, "--validation", tmp_path / "val", "--places", "curve", "--no-jump", *SMALL)
    status, _, errors = laplex("fit", tmp_path / "train", "--out", tmp_path / "fit", *options)
    assert status == 0, errors
    assert "laplex fit: 1 of 13 images cannot be read and are skipped" in errors
    summary = json.loads((tmp_path / "fit" / "summary.json").read_text())
    assert (summary["data"]["examples"], summary["data"]["skipped"]) == (12, 1)
    assert summary["evaluation"]["validation"]["count"] == 4


def test_numbers_that_are_no_images(laplex, tmp_path):
    np.save(tmp_path / "rows.npy", drawn(20).reshape(20, -1).astype(np.float32) / 255)
    status, _, errors = laplex("fit", tmp_path / "rows.npy", "--out", tmp_path / "fit", *SMALL)
    assert status == 0, errors
    assert sorted(os.listdir(tmp_path / "fit")) == [name for name in WRITTEN if name not in PICTURES[2:]]
    assert files.load(tmp_path / "fit" / "model.safetensors")[1]["units"] == "1"


@pytest.mark.parametrize("components", [1, 2])
def test_the_paper_s_way(components, laplex, data, tmp_path):
    options = ("--rank", 6, "--rounds", 0, "--components", components, "--epochs", 2, "--device", "cpu", "--batch", 25)
    status, _, errors = laplex("fit", data, "--out", tmp_path, *options)
    assert status == 0, errors
    model, about = files.load(tmp_path / "model.safetensors")
    assert isinstance(model, LaplexGaussian)
    assert (model.components, about["settings"]["places"]) == (components, "raster")
    assert steps(tmp_path) == [("adam", 1), ("adam", 2), ("adam", "end")]
    first, second, _ = log(tmp_path)
    assert second["log_likelihood"] > first["log_likelihood"]


def test_adam_alone_from_a_start(laplex, data, tmp_path):
    options = ("--rank", 6, "--functions", 3, "--rounds", 0, "--places", "random", "--epochs", 1, "--device", "cpu")
    status, _, errors = laplex("fit", data, "--out", tmp_path, *options)
    assert status == 0, errors
    assert files.load(tmp_path / "model.safetensors")[0].functions == 3
    assert steps(tmp_path) == [("adam", 1), ("adam", "end")]


def test_without_pillow_the_numbers_are_there(laplex, data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    status, _, errors = laplex("fit", data, "--out", tmp_path, *SMALL)
    assert status == 0, errors
    assert "laplex fit: samples.png is not drawn: laplex.density.pictures.grid: images need Pillow" in errors
    assert "laplex fit: places.png is not drawn: plots need matplotlib" in errors
    assert sorted(os.listdir(tmp_path)) == [name for name in WRITTEN if name not in PICTURES]


# --- what is refused --------------------------------------------------------------------------------------------------


REFUSED = {
    ("--rank", 7): "--rank must be a multiple of --functions, and at least twice as large, got 7 and 2; use --rank 6",
    ("--rank", 2): "--rank must be a multiple of --functions, and at least twice as large, got 2 and 2; use --rank 4",
    ("--rank", 0): "--rank must be at least 1, got 0",
    ("--rank", 110): f"--rank must be at most {DIM}, the numbers of an example, got 110; a larger one describes",
    ("--rank", 20000): "--rank must be at most 16384, got 20000: its matrices fill the memory",
    ("--functions", 0): "--functions must be at least 1, got 0",
    ("--rounds", 0): "--rounds and --epochs must not both be 0: nothing would be fitted",
    ("--rounds", -1): "--rounds must be at least 0, got -1",
    ("--epochs", -1): "--epochs must be at least 0, got -1",
    ("--batch", 0): "--batch must be at least 1, got 0",
    ("--lr", "nan"): "--lr must be positive and finite, got nan",
    ("--every", -1): "--every must be 0 or more seconds, got -1",
    ("--side", 0): "--side must be at least 1, got 0",
    ("--side", 5): "--side and --channels must fit an array, which is not resized, got --side 5 and no --channels",
    ("--components", 2): "--components goes with --rounds 0, got --rounds 4: EM fits --functions",
    ("--components", 2, "--rounds", 0, "--epochs", 1, "--places", "tree"): "--components excludes --functions, and any",
    ("--hold-out", 1.5): "--hold-out must be between 0 and 1, got 1.5",
    ("--hold-out", 0.001): "--hold-out must leave and take at least one of the 50 examples, got 0.001",
    (
        "--hold-out",
        0.1,
        "--apart",
    ): "--apart excludes --hold-out: give the examples that are not fitted by --validation",
    ("--hold-out", 0.1, "--validation", "x"): "--validation and --hold-out exclude each other: give one of them",
    ("--validation", "x"): "--validation must be a folder of images, an image, an .npz or an ",
    ("--out", ""): "--out must name a folder, got an empty name",
    ("--seed", 1 << 70): "--seed must be a whole number from 0 to 2^63 - 1, got ",
    ("--validation", "bundled:x"): "images that come with laplex are bundled:train and bundled:val, got bundled:x",
    ("--device", "tpu"): "--device must be cpu, cuda or cuda:INDEX, got 'tpu'",
}


@pytest.mark.parametrize("options", REFUSED, ids=lambda options: " ".join(map(str, options)))
def test_options_that_make_no_sense(options, laplex, data, tmp_path):
    status, output, errors = laplex("fit", data, "--out", tmp_path / "new" / "fit", *SMALL, *options)
    assert (status, output) == (2, "")
    assert errors.startswith(f"laplex fit: {REFUSED[options]}")
    assert "Traceback" not in errors
    assert not (tmp_path / "new").exists()


def test_data_that_cannot_be_used(laplex, data, tmp_path):
    (tmp_path / "empty").mkdir()
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    Image.fromarray(drawn(1)[0]).save(mixed / "colour.png")
    Image.fromarray(drawn(1)[0][..., 0]).save(mixed / "grey.png")
    np.save(tmp_path / "other.npy", drawn(5)[:, :4])
    np.save(tmp_path / "turned.npy", drawn(5)[:, :, :4])
    np.save(tmp_path / "rows.npy", drawn(5).reshape(5, -1))
    np.save(tmp_path / "floats.npy", drawn(5).reshape(5, -1).astype(np.float32) / 255)
    np.save(tmp_path / "nan.npy", np.full((4, 30), np.nan, np.float32))
    before = sorted(os.listdir(tmp_path))
    for source, options, message in (
        ("none", (), "which does not exist"),
        ("empty", ("--side", 6), "neither it nor its subfolders have any"),
        ("mixed", (), "--side must be given for a folder"),
        ("mixed", ("--side", 6), "--channels must be given where grey images are among coloured ones"),
        ("nan.npy", (), "`values` must be finite; 30 of 30"),
        ("rows.npy", ("--places", "curve"), "--places curve needs images"),
        ("rows.npy", ("--validation", tmp_path / "other.npy"), "other.npy has examples of 72 (4 x 6 x 3) numbers"),
        ("other.npy", ("--validation", tmp_path / "turned.npy"), "of 72 (6 x 4 x 3) numbers, and "),
        ("rows.npy", ("--validation", tmp_path / "floats.npy"), "floats.npy holds torch.float32, and "),
    ):
        status, output, errors = laplex("fit", tmp_path / source, "--out", tmp_path / "fit", *SMALL, *options)
        assert (status, output) == (2, ""), source
        assert errors.startswith("laplex fit: ")
        assert message in errors
        assert sorted(os.listdir(tmp_path)) == before


def test_a_folder_that_cannot_be_written(laplex, data, tmp_path):
    (tmp_path / "file").write_text("")
    status, _, errors = laplex("fit", data, "--out", tmp_path / "file" / "fit", *SMALL)
    assert status == 2
    assert f"--out: cannot write into {tmp_path / 'file' / 'fit'}: {tmp_path / 'file'} is not a folder" in errors


def test_output_that_nobody_reads_loses_no_file(data, tmp_path):
    command = [sys.executable, "-m", "laplex", "fit", data, "--out", tmp_path, *SMALL]
    ended = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ended.stdout.close()
    assert "cannot go on" not in ended.stderr.read()
    ended.stderr.close()
    assert ended.wait(60) != 0
    assert sorted(os.listdir(tmp_path)) == WRITTEN


def test_a_folder_that_cannot_be_made(laplex, data, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", refuse)
    status, _, errors = laplex("fit", data, "--out", tmp_path / "fit", *SMALL)
    assert status == 2
    message = f"--out: cannot write into {tmp_path / 'fit'}: [Errno 28] No space left on device; give another folder"
    assert errors.endswith(f"laplex fit: {message}\n")


def test_a_folder_that_may_not_be_written(laplex, data, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    status, _, errors = laplex("fit", data, "--out", tmp_path / "fit", *SMALL)
    assert (status, os.listdir(tmp_path)) == (2, [])
    message = f"--out: cannot write into {tmp_path / 'fit'}: {tmp_path} cannot be written to; give another folder"
    assert errors == f"laplex fit: {message}\n"


def test_a_full_disk_is_told(laplex, data, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    status, _, errors = laplex("fit", data, "--out", tmp_path, *SMALL)
    assert status == 1
    assert "laplex fit: cannot continue ([Errno 28] No space left on device)" in errors


def test_a_checkpoint_of_another_fit_is_refused(laplex, data, tmp_path):
    out = tmp_path / "fit"
    assert laplex("fit", data, "--out", out, *SMALL)[0] == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    status, _, errors = laplex("fit", data, "--out", out, *SMALL, "--rank", 6, "--seed", 1)
    assert status == 2
    assert "has a checkpoint of another fit: rank 8 there and 6 here, seed 0 there and 1 here; give another" in errors
    other = write(tmp_path / "other.npy", 50, seed=1)
    status, _, errors = laplex("fit", other, "--out", out, *SMALL)
    assert status == 2
    assert "another fit: DATA, --side, --channels or --hold-out give other examples; give another folder, or" in errors
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    (out / "checkpoint.safetensors").write_bytes(b"no checkpoint at all")
    status, _, errors = laplex("fit", data, "--out", out, *SMALL)
    assert status == 2
    assert "--out: the checkpoint cannot be used (" in errors
    assert "--fresh starts over" in errors
    status, _, errors = laplex("fit", other, "--out", out, *SMALL, "--fresh", "--rank", 6)
    assert status == 0, errors
    assert files.load(out / "model.safetensors")[0].rank == 6


def test_a_checkpoint_of_another_laplex_is_refused(laplex, data, tmp_path, monkeypatch):
    assert laplex("fit", data, "--out", tmp_path, *BOTH)[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr("laplex.cli.fit.__version__", "9.9")
        status, _, errors = laplex("fit", data, "--out", tmp_path, *BOTH)
    assert status == 2
    assert "another fit: laplex 0." in errors
    right = PlacedGaussian.named_parameters
    monkeypatch.setattr(PlacedGaussian, "named_parameters", lambda self: reversed(list(right(self))))
    status, _, errors = laplex("fit", data, "--out", tmp_path, *BOTH)
    assert status == 2
    assert "--out: the checkpoint is of a laplex with other parameters; --fresh starts over" in errors


# --- parts ------------------------------------------------------------------------------------------------------------


def test_trees_come_back():
    tensors = {}
    tree = {"state": {0: {"step": torch.tensor(3.0)}}, "groups": [{"lr": 0.1, "betas": (0.9, 0.99), "none": None}]}
    text = json.dumps(checkpoint.packed(tree, tensors))
    again = checkpoint.unpacked(json.loads(text), tensors)
    assert again["state"][0]["step"] == 3.0
    assert again["groups"] == [{"lr": 0.1, "betas": [0.9, 0.99], "none": None}]


def test_durations_in_words():
    words = [_progress.duration(seconds) for seconds in (0.4, 59, 61, 3599, 3700)]
    assert words == ["0 s", "59 s", "1 min 1 s", "59 min 59 s", "1 h 1 min"]


def test_the_time_left_counts_this_process_alone(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with _progress.timed_bar("EM") as show:
        show(20, 40, "")
        now[0] += 8
        show(24, 40, "3 bits")
    assert capsys.readouterr().err == "EM: 20 of 40\nEM: 24 of 40, 3 bits, 32 s left\n"

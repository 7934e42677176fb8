"""`laplex fit` that is interrupted, killed, diverges, or runs in two processes."""

import os
import signal
import subprocess
import sys

import pytest
import torch

from laplex import cli
from laplex.cli import fitting
from laplex.density import files
from made_pictures import BOTH, SHAPE, SMALL, STEPS, WRITTEN, drawn, log, steps

pytest.importorskip("safetensors")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """The folder of a fit by both stages that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "fit"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["laplex", "fit", str(data), "--out", str(folder), *map(str, BOTH)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert ended.value.code == 0
    return folder


# --- interruptions ----------------------------------------------------------------------------------------------------


def breaking(monkeypatch, name, count, error):
    """Let the call number ``count`` of em_round, or of a step of Adam, raise."""
    owner, attribute = (fitting, "em_round") if name == "em" else (fitting.Trainer, "step")
    right, calls = getattr(owner, attribute), []

    def broken(*arguments, **options):
        calls.append(1)
        if len(calls) == count:
            raise error
        return right(*arguments, **options)

    monkeypatch.setattr(owner, attribute, broken)


def same_fit(folder, other):
    assert (folder / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    assert log(folder) == log(other)
    assert sorted(os.listdir(folder)) == WRITTEN


@pytest.mark.parametrize(("stage", "count"), [("em", 1), ("em", 3), ("adam", 1), ("adam", 5), ("adam", 9)])
def test_ctrl_c_loses_nothing(stage, count, laplex, data, whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        breaking(patch, stage, count, KeyboardInterrupt)
        status, output, told = laplex("fit", data, "--out", tmp_path, *BOTH)
    assert (status, output) == (130, "")
    some = "; the same command goes on from the last checkpoint" if (stage, count) != ("em", 1) else ""
    assert told.endswith(f"\nlaplex fit: interrupted{some}\n")
    assert not (tmp_path / "model.safetensors").exists()
    status, _, told = laplex("fit", data, "--out", tmp_path, *BOTH)
    assert status == 0, told
    if stage == "adam":
        assert "EM: 3 of 4" not in told  # no finished round is repeated
    same_fit(tmp_path, whole)


@pytest.mark.parametrize("count", [2, 5, 9])
def test_an_annealed_fit_goes_on_as_if_nothing_had_been(count, laplex, data, tmp_path, monkeypatch):
    long = ("--rank", 8, "--rounds", 12, "--device", "cpu", "--every", 0)
    assert laplex("fit", data, "--out", tmp_path / "whole", *long)[0] == 0
    with monkeypatch.context() as patch:
        breaking(patch, "em", count, KeyboardInterrupt)
        assert laplex("fit", data, "--out", tmp_path / "other", *long)[0] == 130
    assert laplex("fit", data, "--out", tmp_path / "other", *long)[0] == 0
    same_fit(tmp_path / "other", tmp_path / "whole")


def test_fresh_forgets_the_checkpoint_at_once(laplex, data, tmp_path, monkeypatch):
    assert laplex("fit", data, "--out", tmp_path, *BOTH)[0] == 0
    with monkeypatch.context() as patch:
        breaking(patch, "em", 1, KeyboardInterrupt)
        assert laplex("fit", data, "--out", tmp_path, "--fresh", *BOTH)[0] == 130
    assert not (tmp_path / "checkpoint.safetensors").exists()


def test_two_fits_in_one_folder(laplex, data, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    held = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        status, _, told = laplex("fit", data, "--out", tmp_path, *SMALL)
    finally:
        os.close(held)
    assert status == 2
    assert f"--out: another fit writes into {tmp_path} now; wait for it, or give another folder" in told
    assert os.listdir(tmp_path) == []
    assert laplex("fit", data, "--out", tmp_path, *SMALL)[0] == 0


def test_a_finished_fit_is_not_repeated(laplex, data, whole, tmp_path, monkeypatch):
    assert laplex("fit", data, "--out", tmp_path, *BOTH)[0] == 0
    monkeypatch.setattr(fitting.Trainer, "step", lambda *_: pytest.fail("a finished epoch was repeated"))
    assert laplex("fit", data, "--out", tmp_path, *BOTH)[0] == 0
    same_fit(tmp_path, whole)


def test_seldom_checkpoints_lose_what_came_after(laplex, data, whole, tmp_path, monkeypatch):
    seldom = [9999 if option == 0 else option for option in BOTH]
    with monkeypatch.context() as patch:
        breaking(patch, "adam", 8, KeyboardInterrupt)
        assert laplex("fit", data, "--out", tmp_path, *seldom)[0] == 130
    assert steps(tmp_path) == STEPS[:7]
    about = files.read(tmp_path / "checkpoint.safetensors", "checkpoint")[1]
    assert (about["stage"], len(about["log"])) == ("em", 4)  # written at the end of the stage
    status, _, told = laplex("fit", data, "--out", tmp_path, *seldom)
    assert status == 0, told
    same_fit(tmp_path, whole)


KILLED = """
import os, signal, sys
import torch
torch.set_num_threads(1)
from laplex import cli
from laplex import cli
from laplex.cli import fitting
moments = {"round": (fitting, "em_round", 3), "step": (fitting.Trainer, "step", 5), "replace": (os, "replace", 5)}
owner, name, count = moments[sys.argv.pop(1)]
right, calls = getattr(owner, name), []

def deadly(*arguments, **options):
    calls.append(1)
    if len(calls) == count:
        os.kill(os.getpid(), signal.SIGKILL)
    return right(*arguments, **options)

setattr(owner, name, deadly)
cli.main()
"""


@pytest.mark.parametrize("moment", ["round", "step", "replace"])
def test_kill_loses_no_checkpoint(moment, laplex, data, whole, tmp_path):
    command = [sys.executable, "-c", KILLED, moment, "fit", data, "--out", tmp_path, *BOTH]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]
    assert len(left) == (moment == "replace")
    assert files.read(tmp_path / "checkpoint.safetensors", "checkpoint")  # a whole one
    status, _, told = laplex("fit", data, "--out", tmp_path, *BOTH)
    assert status == 0, told
    same_fit(tmp_path, whole)


def test_a_line_cut_by_a_kill_is_mended(laplex, data, whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        breaking(patch, "em", 4, KeyboardInterrupt)
        assert laplex("fit", data, "--out", tmp_path, *BOTH)[0] == 130
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"stage": "em", "rou')
    assert laplex("fit", data, "--out", tmp_path, *BOTH)[0] == 0
    same_fit(tmp_path, whole)


# --- a likelihood that is not finite ----------------------------------------------------------------------------------


def test_em_that_fails_keeps_the_last_good_state(laplex, data, tmp_path, monkeypatch):
    breaking(monkeypatch, "em", 3, FloatingPointError("the likelihood is nan"))
    status, output, told = laplex("fit", data, "--out", tmp_path, *SMALL)
    assert (status, output) == (1, "")
    path = tmp_path / "last-good.safetensors"
    assert f"laplex fit: round 3 of EM failed: the likelihood is nan; the last good model is {path}; try " in told
    model, about = files.load(path)
    assert about["shape"] == SHAPE
    assert bool(model.log_prob(model.sample(2)).isfinite().all())
    assert not (tmp_path / "model.safetensors").exists()


def test_em_that_fails_at_once_says_so(laplex, data, tmp_path, monkeypatch):
    breaking(monkeypatch, "em", 1, torch.linalg.LinAlgError("not definite"))
    status, _, told = laplex("fit", data, "--out", tmp_path, *SMALL)
    assert status == 1
    assert "round 1 of EM failed: not definite; no round was finished; try " in told
    assert os.listdir(tmp_path) == ["log.jsonl"]


@pytest.mark.parametrize("lr", [100, 1e6])
def test_adam_that_diverges_keeps_the_last_good_state(lr, laplex, data, tmp_path):
    options = ("--rank", 6, "--rounds", 2, "--epochs", 50, "--lr", lr, "--batch", 10, "--device", "cpu")
    status, _, told = laplex("fit", data, "--out", tmp_path, *options)
    assert status == 1
    assert " of Adam failed: " in told
    assert "try a smaller --lr and --fresh" in told
    model = files.load(tmp_path / "last-good.safetensors")[0]
    assert bool(model.log_prob(torch.from_numpy(drawn(3)).flatten(1) / 255).isfinite().all())


# --- several processes ------------------------------------------------------------------------------------------------


def test_two_processes_fit_as_one(data, whole, tmp_path):
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "-m", "laplex", "fit", data]
    command = [sys.executable, *map(str, (*command, "--out", tmp_path / "two", *BOTH))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path / "two")) == WRITTEN
    assert steps(tmp_path / "two") == STEPS
    assert done.stderr.count("Adam: 3 of 3") == 1
    assert done.stdout.count("model.safetensors") == 1
    one, two = (files.load(folder / "model.safetensors")[0].state_dict() for folder in (whole, tmp_path / "two"))
    for name, value in one.items():
        assert torch.allclose(value, two[name], rtol=1e-3, atol=1e-4), name
    for mine, other in zip(log(whole), log(tmp_path / "two"), strict=True):
        if "log_likelihood" in mine:
            assert mine["log_likelihood"] == pytest.approx(other["log_likelihood"], rel=1e-5)

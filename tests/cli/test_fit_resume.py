"""`laplex fit` that is interrupted, killed, diverges, or runs in two processes."""

import os
import signal
import subprocess
import sys

import pytest
import torch

from laplex import _writing
from laplex.cli import checkpoint, fit, fitting, signals
from laplex.density import files
from made_fits import breaking, same_fit
from made_pictures import BOTH, SHAPE, SMALL, STEPS, WRITTEN, drawn, log, steps

pytest.importorskip("safetensors")
pytestmark = pytest.mark.usefixtures("one_thread", "undrawn")


# --- interruptions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stage", "count"), [("em", 1), ("em", 3), ("adam", 1), ("adam", 5), ("adam", 9)])
def test_ctrl_c_loses_nothing(stage, count, laplex, data, uninterrupted, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        breaking(patch, stage, count, KeyboardInterrupt)
        status, output, errors = laplex("fit", data, "--out", tmp_path, *BOTH)
    assert (status, output) == (130, "")
    done = {("em", 1): "0 of 4 rounds", ("em", 3): "2 of 4 rounds", ("adam", 1): "4 of 4 rounds"}
    done |= {("adam", 5): "1 of 3 epochs", ("adam", 9): "2 of 3 epochs"}
    assert errors.endswith(
        f"\nlaplex fit: interrupted after {done[stage, count]}; saving a checkpoint (another Ctrl-C ends at once)\n"
        "laplex fit: saved; the same command resumes from the checkpoint\n"
    )
    assert not (tmp_path / "model.safetensors").exists()
    status, _, errors = laplex("fit", data, "--out", tmp_path, *BOTH)
    assert status == 0, errors
    if stage == "adam":
        assert "EM: 3 of 4" not in errors  # no finished round is repeated
    same_fit(tmp_path, uninterrupted)


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
        patch.setattr(fitting, "start", lambda *_, **options: pytest.fail("the fit has begun", pytrace=False))
        with pytest.raises(pytest.fail.Exception):
            laplex("fit", data, "--out", tmp_path, "--fresh", *BOTH)
    assert not (tmp_path / "checkpoint.safetensors").exists()
    with monkeypatch.context() as patch:
        breaking(patch, "em", 3, KeyboardInterrupt)
        status, _, errors = laplex("fit", data, "--out", tmp_path, "--fresh", *BOTH)
    assert status == 130
    assert errors.endswith("laplex fit: saved; the same command without --fresh resumes from the checkpoint\n")


def test_two_fits_in_one_folder(laplex, data, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    held = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        status, _, errors = laplex("fit", data, "--out", tmp_path, *SMALL)
    finally:
        os.close(held)
    assert status == 2
    assert f"--out: another fit writes into {tmp_path} now; wait for it, or give another folder" in errors
    assert os.listdir(tmp_path) == []
    assert laplex("fit", data, "--out", tmp_path, *SMALL)[0] == 0


def test_a_folder_is_locked_before_its_checkpoint_is_read(laplex, data, tmp_path):
    """Another fit may write it at that moment: what is wrong is the folder, not the checkpoint."""
    fcntl = pytest.importorskip("fcntl")
    (tmp_path / "checkpoint.safetensors").write_bytes(b"of something else")
    held = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        status, _, errors = laplex("fit", data, "--out", tmp_path, *SMALL)
    finally:
        os.close(held)
    assert status == 2
    assert "another fit writes into" in errors
    status, _, errors = laplex("fit", data, "--out", tmp_path, *SMALL)
    assert status == 2
    assert "the checkpoint cannot be used" in errors


def test_a_finished_fit_is_not_repeated(laplex, data, uninterrupted, tmp_path, monkeypatch):
    assert laplex("fit", data, "--out", tmp_path, *BOTH)[0] == 0
    monkeypatch.setattr(fitting.Trainer, "step", lambda *_: pytest.fail("a finished epoch was repeated"))
    assert laplex("fit", data, "--out", tmp_path, *BOTH)[0] == 0
    same_fit(tmp_path, uninterrupted)


SELDOM = tuple(9999 if option == 0 else option for option in BOTH)  # no checkpoint but at the end of a stage


@pytest.fixture
def unhandled(monkeypatch):
    """Signals fail the test where the command does not catch them, and their handlers are those of before after it."""

    def fail(number, frame):
        raise AssertionError(f"signal {number} was not caught")

    before = {number: signal.signal(number, fail) for number in signals.NUMBERS}
    yield
    assert all(signal.getsignal(number) is fail for number in before)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("unhandled")
@pytest.mark.parametrize("number", signals.NUMBERS)
@pytest.mark.parametrize(("stage", "count", "lines", "rest"), [("em", 3, 2, 2), ("adam", 8, 7, 3)])  # 3 steps an epoch
def test_signals_save_before_the_command_ends(
    number, stage, count, lines, rest, laplex, data, uninterrupted, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        breaking(patch, stage, count, number)
        status, _, errors = laplex("fit", data, "--out", tmp_path, *SELDOM)
    assert status == 128 + number
    assert errors.endswith("laplex fit: saved; the same command resumes from the checkpoint\n")
    about = files.read(tmp_path / "checkpoint.safetensors", "checkpoint")[1]
    assert (about["stage"], len(about["log"])) == (stage, lines)
    with monkeypatch.context() as patch:
        breaking(patch, stage, rest + 1, AssertionError("a round or an epoch that was saved is repeated"))
        status, _, errors = laplex("fit", data, "--out", tmp_path, *SELDOM)
    assert status == 0, errors
    same_fit(tmp_path, uninterrupted)


@pytest.mark.usefixtures("unhandled")
@pytest.mark.parametrize("count", [1, 2, 3, 6, 9])  # of files that are put in their place
def test_a_signal_while_a_file_is_written(count, laplex, data, uninterrupted, tmp_path, monkeypatch):
    right, calls = os.replace, []

    def interrupted(*paths):
        calls.append(1)
        if len(calls) == count:
            signal.raise_signal(signal.SIGINT)
        right(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        status, _, errors = laplex("fit", data, "--out", tmp_path, *BOTH)
    assert (status, [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]) == (130, []), errors
    assert laplex("fit", data, "--out", tmp_path, *BOTH)[0] == 0
    same_fit(tmp_path, uninterrupted)


def test_a_terminal_that_is_closed_loses_nothing(laplex, data, uninterrupted, tmp_path, monkeypatch):
    def closed(*_, **options):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        breaking(patch, "em", 3, KeyboardInterrupt)
        patch.setattr(fit, "print", closed, raising=False)
        assert laplex("fit", data, "--out", tmp_path, *SELDOM)[0] == 130
    assert len(files.read(tmp_path / "checkpoint.safetensors", "checkpoint")[1]["log"]) == 2
    assert laplex("fit", data, "--out", tmp_path, *SELDOM)[0] == 0
    same_fit(tmp_path, uninterrupted)


def test_a_disk_that_is_full_when_the_fit_is_interrupted(laplex, data, uninterrupted, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        breaking(patch, "em", 3, KeyboardInterrupt)
        assert laplex("fit", data, "--out", tmp_path, *SELDOM)[0] == 130
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    right, calls = os.fsync, []
    with monkeypatch.context() as patch:
        breaking(patch, "em", 2, KeyboardInterrupt)
        patch.setattr(os, "fsync", lambda file: full() if calls else (calls.append(1), right(file)))  # after the log
        status, _, errors = laplex("fit", data, "--out", tmp_path, *SELDOM)
    assert status == 1
    reason = "cannot continue ([Errno 28] No space left on device)"
    assert errors.endswith(f"laplex fit: {reason}; the same command resumes from the checkpoint\n")
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before
    assert laplex("fit", data, "--out", tmp_path, *SELDOM)[0] == 0
    same_fit(tmp_path, uninterrupted)


def test_what_was_ignored_stays_ignored(laplex, data, tmp_path, monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        breaking(monkeypatch, "em", 3, signal.SIGHUP)
        assert laplex("fit", data, "--out", tmp_path, *SMALL)[0] == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_every_error_saves_before_the_command_ends(laplex, data, uninterrupted, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        breaking(patch, "em", 3, torch.OutOfMemoryError("too large"))
        status, _, errors = laplex("fit", data, "--out", tmp_path, *SELDOM)
    assert status == 1
    assert errors.endswith("laplex fit: the device has too little memory; give a smaller --rank or --batch\n")
    assert len(files.read(tmp_path / "checkpoint.safetensors", "checkpoint")[1]["log"]) == 2
    assert laplex("fit", data, "--out", tmp_path, *SELDOM)[0] == 0
    same_fit(tmp_path, uninterrupted)


def test_an_interruption_at_any_line_leaves_a_whole_checkpoint(tmp_path):
    """Of what writes: at every line that it passes, once."""
    state = {"weight": torch.arange(5.0)}
    lines, wanted = [], None

    def trace(frame, event, argument):
        if frame.f_code.co_filename not in (checkpoint.__file__, _writing.__file__, files.__file__):
            return None
        if event == "line":
            lines.append(1)
            if len(lines) == wanted:
                raise KeyboardInterrupt
        return trace

    for wanted in range(1, 200):
        folder = tmp_path / str(wanted)
        folder.mkdir()
        keeper = checkpoint.Keeper(folder, {"rounds": 2}, "data", 0.0)
        lines.clear()
        saved = 0
        sys.settrace(trace)
        try:
            for number in (1, 2):
                keeper.note(round=number)
                keeper.reached("em", {"number": number} | state, "", copied=True)
                keeper.save()
                saved = number
        except KeyboardInterrupt:
            sys.settrace(None)
            held = keeper.progress is not None
            keeper.save()
            restored = checkpoint.Keeper(folder, {"rounds": 2}, "data", 0.0).restore()
            assert (restored is not None) == held
            if restored is not None:
                assert restored.tree["number"] >= max(saved, 1)
                assert torch.equal(restored.tree["weight"], state["weight"])
            assert saved <= len((folder / "log.jsonl").read_text().splitlines()) <= saved + 1 if held else saved == 0
        else:
            break
        finally:
            sys.settrace(None)
    assert 40 < wanted < 199


KILLED = """
import os, signal, sys
import torch
torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets its background jobs ignore it
from laplex import cli
from laplex.cli import fitting
from laplex.density import _rounds
moments = {
    "round": (_rounds, "em_round", {3: signal.SIGKILL}),
    "step": (fitting.Trainer, "step", {5: signal.SIGKILL}),
    "replace": (os, "replace", {5: signal.SIGKILL}),
    "again": (os, "replace", {4: signal.SIGINT, 5: signal.SIGINT}),
}
owner, name, deaths = moments[sys.argv.pop(1)]
right, calls = getattr(owner, name), []

def deadly(*arguments, **options):
    calls.append(1)
    if len(calls) in deaths:
        os.kill(os.getpid(), deaths[len(calls)])
    return right(*arguments, **options)

setattr(owner, name, deadly)
cli.main()
"""


@pytest.mark.parametrize("moment", ["round", "step", "replace", "again"])  # the last is a second Ctrl-C, while it saves
def test_kill_loses_no_checkpoint(moment, laplex, data, uninterrupted, tmp_path):
    command = [sys.executable, "-c", KILLED, moment, "fit", data, "--out", tmp_path, *BOTH]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == -(signal.SIGINT if moment == "again" else signal.SIGKILL), done.stderr
    left = [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]
    assert len(left) == (moment in ("replace", "again"))
    assert files.read(tmp_path / "checkpoint.safetensors", "checkpoint")  # a whole one
    status, _, errors = laplex("fit", data, "--out", tmp_path, *BOTH)
    assert status == 0, errors
    same_fit(tmp_path, uninterrupted)


def test_a_line_cut_by_a_kill_is_mended(laplex, data, uninterrupted, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        breaking(patch, "em", 4, KeyboardInterrupt)
        assert laplex("fit", data, "--out", tmp_path, *BOTH)[0] == 130
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"stage": "em", "rou')
    assert laplex("fit", data, "--out", tmp_path, *BOTH)[0] == 0
    same_fit(tmp_path, uninterrupted)


# --- a likelihood that is not finite ----------------------------------------------------------------------------------


def test_em_that_fails_keeps_the_last_good_state(laplex, data, tmp_path, monkeypatch):
    breaking(monkeypatch, "em", 3, FloatingPointError("the likelihood is nan"))
    status, output, errors = laplex("fit", data, "--out", tmp_path, *SMALL)
    assert (status, output) == (1, "")
    path = tmp_path / "last-good.safetensors"
    assert f"laplex fit: round 3 of EM failed: the likelihood is nan; the last good model is {path}; try " in errors
    model, about = files.load(path)
    assert about["shape"] == SHAPE
    assert bool(model.log_prob(model.sample(2)).isfinite().all())
    assert not (tmp_path / "model.safetensors").exists()


def test_em_that_fails_at_once_says_so(laplex, data, tmp_path, monkeypatch):
    breaking(monkeypatch, "em", 1, torch.linalg.LinAlgError("not definite"))
    status, _, errors = laplex("fit", data, "--out", tmp_path, *SMALL)
    assert status == 1
    assert "round 1 of EM failed: not definite; no round was finished; try " in errors
    assert os.listdir(tmp_path) == ["log.jsonl"]


@pytest.mark.parametrize("lr", [100, 1e6])
def test_adam_that_diverges_keeps_the_last_good_state(lr, laplex, data, tmp_path):
    options = ("--rank", 6, "--rounds", 2, "--epochs", 50, "--lr", lr, "--batch", 10, "--device", "cpu")
    status, _, errors = laplex("fit", data, "--out", tmp_path, *options)
    assert status == 1
    assert " of Adam failed: " in errors
    assert "try a smaller --lr and --fresh" in errors
    model = files.load(tmp_path / "last-good.safetensors")[0]
    assert bool(model.log_prob(torch.from_numpy(drawn(3)).flatten(1) / 255).isfinite().all())


# --- several processes ------------------------------------------------------------------------------------------------


def in_two_processes(*arguments):
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "-m", "laplex", *arguments]
    command = [sys.executable, *map(str, command)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)


def test_two_processes_with_half_of_the_examples_each(data, laplex, uninterrupted, tmp_path):
    done = in_two_processes("fit", data, "--out", tmp_path, "--apart", *SMALL)
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path)) == WRITTEN
    for mine, other in zip(log(tmp_path)[:5], log(uninterrupted), strict=False):
        one, two = (entry.get("train", entry)["log_likelihood"] for entry in (mine, other))
        assert one == pytest.approx(two, rel=1e-3)  # in float32 a feature may jump to another place
    known = files.read(tmp_path / "checkpoint.safetensors", "checkpoint")[1]["data"]
    assert known == files.read(uninterrupted / "checkpoint.safetensors", "checkpoint")[1]["data"]
    status, _, errors = laplex("fit", data, "--out", tmp_path, *SMALL)
    assert (status, "apart True there and False here" in errors) == (2, True)
    assert log(tmp_path)[4]["train"]["count"] == log(uninterrupted)[4]["train"]["count"]
    adam = ("--epochs", 1, "--batch", 16)
    done = in_two_processes("fit", data, "--out", tmp_path / "both", "--apart", *SMALL, *adam)
    assert done.returncode == 0, done.stderr
    status, _, errors = laplex("fit", data, "--out", tmp_path / "both", "--apart", *SMALL, *adam[2:], "--epochs", 2)
    assert status == 0, errors  # one process goes on, with all examples
    status, _, errors = laplex("fit", data, "--out", tmp_path, "--apart", *SMALL, "--rounds", 5)
    assert status == 0, errors
    assert [entry["round"] for entry in log(tmp_path) if "round" in entry] == [0, 1, 2, 3, 4]


def test_two_processes_fit_as_one(data, uninterrupted, tmp_path, laplex):
    done = in_two_processes("fit", data, "--out", tmp_path / "two", *BOTH)
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path / "two")) == WRITTEN
    assert steps(tmp_path / "two") == STEPS
    assert done.stderr.count("Adam: 3 of 3") == 1
    assert done.stdout.count("model.safetensors") == 1
    one, two = (
        files.load(folder / "model.safetensors")[0].state_dict() for folder in (uninterrupted, tmp_path / "two")
    )
    for name, value in one.items():
        assert torch.allclose(value, two[name], rtol=1e-3, atol=1e-4), name
    for mine, other in zip(log(uninterrupted), log(tmp_path / "two"), strict=True):
        if "log_likelihood" in mine:
            assert mine["log_likelihood"] == pytest.approx(other["log_likelihood"], rel=1e-5)
    status, _, errors = laplex("fit", data, "--out", tmp_path / "two", *BOTH[:-4], "--epochs", 4, "--batch", 16)
    assert status == 0, errors  # one process adds to what two have done

"""`laplex fit` in a folder that has a fit: more rounds and more epochs."""

import pytest

from laplex.density import files
from made_fits import breaking, same_fit
from made_pictures import BOTH, SMALL, log, steps

pytest.importorskip("safetensors")
pytestmark = pytest.mark.usefixtures("one_thread", "undrawn")

LONG = ("--rank", 8, "--device", "cpu", "--every", 0)  # 12 rounds of it are annealed


def rounds_of(folder):
    return [(entry["round"], entry["log_likelihood"]) for entry in log(folder) if "round" in entry]


def test_more_rounds_follow_a_finished_fit(laplex, data, tmp_path):
    assert laplex("fit", data, "--out", tmp_path, *LONG, "--rounds", 12)[0] == 0
    first, model = rounds_of(tmp_path), (tmp_path / "model.safetensors").read_bytes()
    status, _, progress = laplex("fit", data, "--out", tmp_path, *LONG, "--rounds", 20)
    assert status == 0, progress
    assert (
        f"laplex fit: {tmp_path} has a fit of 12 rounds: 8 more follow, without annealing; --fresh would anneal 20 "
        "rounds from the start\n" in progress
    )
    assert "EM: 12 of 20\n" in progress
    rounds = rounds_of(tmp_path)
    assert rounds[:12] == first
    assert [number for number, _ in rounds] == list(range(20))
    likelihoods = [value for _, value in rounds[6:]]
    assert likelihoods == sorted(likelihoods)  # no round of the second half, nor of those added, is annealed
    assert steps(tmp_path)[-1] == ("em", "end")
    assert steps(tmp_path).count(("em", "end")) == 1
    assert (tmp_path / "model.safetensors").read_bytes() != model
    about = files.load(tmp_path / "model.safetensors")[1]["settings"]
    assert (about["rounds"], about["schedule"]) == (20, 12)


@pytest.mark.parametrize("count", [3, 11, 15])  # while it is annealed, after that, and among the rounds that are added
def test_rounds_are_added_at_any_time_to_the_same_end(count, laplex, data, tmp_path, monkeypatch):
    for rounds in (12, 16):
        assert laplex("fit", data, "--out", tmp_path / "whole", *LONG, "--rounds", rounds)[0] == 0
    other = ("fit", data, "--out", tmp_path / "other", *LONG)
    with monkeypatch.context() as patch:
        breaking(patch, "em", count, KeyboardInterrupt)
        if count > 12:
            assert laplex(*other, "--rounds", 12)[0] == 0
        assert laplex(*other, "--rounds", 16 if count > 12 else 12)[0] == 130
    status, _, errors = laplex(*other, "--rounds", 16)
    assert status == 0, errors
    same_fit(tmp_path / "other", tmp_path / "whole")


@pytest.mark.parametrize("before", [0, 1, 3])  # 0: EM alone, at first
def test_more_epochs_follow_a_finished_fit(before, laplex, data, uninterrupted, tmp_path):
    fewer = [*SMALL, "--epochs", before, "--batch", 16]
    assert laplex("fit", data, "--out", tmp_path, *fewer)[0] == 0
    assert laplex("fit", data, "--out", tmp_path, *BOTH)[0] == 0
    same_fit(tmp_path, uninterrupted)


def test_what_cannot_be_added_is_refused(laplex, data, tmp_path):
    assert laplex("fit", data, "--out", tmp_path, *BOTH)[0] == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for options, message in (
        (("--rounds", 6), f"--rounds: the fit in {tmp_path} has begun its epochs of Adam after 4 rounds, and rounds "),
        (("--rounds", 3), f"--out: {tmp_path} has a checkpoint of another fit: rounds 4 there and 3 here; give "),
        (("--epochs", 2), f"--out: {tmp_path} has a checkpoint of another fit: epochs 3 there and 2 here; give "),
        (("--epochs", 5, "--lr", 0.1), f"--out: {tmp_path} has a checkpoint of another fit: lr 0.002 there and 0.1"),
    ):
        status, _, errors = laplex("fit", data, "--out", tmp_path, *BOTH, *options)
        assert status == 2
        assert errors.startswith(f"laplex fit: {message}")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_older_checkpoint_is_read(laplex, data, tmp_path):
    assert laplex("fit", data, "--out", tmp_path, *LONG, "--rounds", 12)[0] == 0
    path = tmp_path / "checkpoint.safetensors"
    tensors, about = files.read(path, "checkpoint")
    del about["settings"]["schedule"]
    about["settings"]["start"] = about["settings"].pop("places")  # its older name
    files.write(path, "checkpoint", tensors, about)
    assert laplex("fit", data, "--out", tmp_path, *LONG, "--rounds", 40)[0] == 0
    assert files.load(tmp_path / "model.safetensors")[1]["settings"]["schedule"] == 12
    assert not any("levelled" in entry for entry in log(tmp_path)[6:])

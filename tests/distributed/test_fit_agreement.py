"""`laplex fit` by processes that do not see the same: it says what differs, and fits nothing."""

import contextlib
import io
import os
import re
import tempfile
from pathlib import Path

import gloo_processes
import numpy as np
import pytest
import torch
import torch.distributed as dist

from laplex._writing import locked
from laplex.cli import commands, fit, team

pytest.importorskip("safetensors")
pytest.importorskip("fcntl")

RANKS = 2
SMALL = ("--rank", "4", "--rounds", "2", "--device", "cpu")


def shared_folder():
    """A new folder that all processes know."""
    names = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(names)
    return Path(names[0])


def examples():
    return np.random.default_rng(0).standard_normal((40, 12)).astype(np.float32)


@contextlib.contextmanager
def here(device):
    """The processes of this test, in place of those that torchrun has started."""
    yield team.Team(dist.get_rank(), RANKS, torch.device(device))


@contextlib.contextmanager
def alone(device):
    yield team.Team(0, 1, torch.device(device))


def command(*words, joined=here):
    """The status and the messages of `laplex fit` with these words, in which % is the number of the process."""
    rank = str(dist.get_rank())
    os.environ.update(RANK=rank, WORLD_SIZE=str(RANKS))
    options = commands.parser().parse_args(["fit", *(str(word).replace("%", rank) for word in (*words, *SMALL))])
    errors = io.StringIO()
    team.joined, fit.report = joined, lambda *_: None
    with contextlib.redirect_stderr(errors):
        status = fit.run(options)
    return status, errors.getvalue()


def fit_of(*others, apart=False):
    """Process 0 has the examples; what process 1 has is in ``others``, if anything."""
    folder = shared_folder()
    for number, values in enumerate((examples(), *others)):
        np.save(folder / f"{number}.npy", values)
    dist.barrier()
    result = command(folder / "%.npy", "--out", folder / "out", *(["--apart"] if apart else []))
    assert not (folder / "out" / "checkpoint.safetensors").exists()
    return result


def other_values():
    values = examples()
    values[1] += 1
    return values


def fit_into(out, before=lambda folder: None, *words):
    folder = shared_folder()
    np.save(folder / f"{dist.get_rank()}.npy", examples())
    held = before(folder) if dist.get_rank() == 0 else None
    dist.barrier()
    result = command(folder / "%.npy", "--out", folder / out, *words)
    if held is not None:
        os.close(held)
    return result


def fit_alone(folder):
    """A checkpoint that process 0 alone finds."""
    assert command(folder / "0.npy", "--out", folder / "out 0", joined=alone)[0] == 0


def lock_it(folder):
    (folder / "out").mkdir()
    return locked(folder / "out", wait=False)


def block_it(folder):
    (folder / "out 1").touch()


CASES = {
    "no file": (fit_of, r"process 1: DATA .*/1\.npy"),
    "fewer examples": (
        lambda: fit_of(examples()[:39]),
        "DATA must give the same examples to all processes, got 40 of 12 numbers in torch.float32, .* in process 0 "
        "and 39 of 12 numbers in torch.float32, .* in process 1",
    ),
    "another dtype": (lambda: fit_of(examples().astype(float)), r"DATA must give the same .* in torch.float64,"),
    "other values": (lambda: fit_of(other_values()), "DATA must give the same examples to all processes"),
    "apart, fewer examples": (lambda: fit_of(examples()[:39], apart=True), "DATA must give .* and 39 of 12 numbers in"),
    "apart, other values": (lambda: fit_of(2 * examples(), apart=True), "DATA must give the same examples to all"),
    "folders of their own": (
        lambda: fit_into("out %", fit_alone),
        "--out must be one folder for all processes, got one with a checkpoint after .* in process 0 and one without "
        "a checkpoint in process 1",
    ),
    "a batch that cannot be shared": (
        lambda: fit_into("out", lambda folder: None, "--batch", 63, "--epochs", 1),
        "--batch must be a multiple of the 2 processes, got 63",
    ),
    "a folder that is in use": (lambda: fit_into("out", lock_it), r"--out: another fit writes into .*/out now"),
    "a folder that is a file": (lambda: fit_into("out %", block_it), r"process 1: --out: cannot write into .*/out 1"),
}


def checks():
    return {name: row[0] for name, row in CASES.items()} | {
        "all is well": lambda: fit_into("out"),
        "no epochs": lambda: fit_into("out", lambda folder: None, "--batch", 63),
    }


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return gloo_processes.start(checks, RANKS, tmp_path_factory.mktemp("agreement"))


@pytest.mark.parametrize("name", CASES)
def test_the_first_process_says_what_is_wrong_with_any(name, results):
    assert gloo_processes.failures(results, name) == {}
    assert [mine[name][0] for mine in results] == [2, 2]
    first, second = (mine[name][1] for mine in results)
    assert re.search(f"^laplex fit: {CASES[name][1]}", first), first
    assert "Traceback" not in first + second
    assert "laplex fit:" not in second


def test_processes_that_see_the_same_fit_after_that(results):
    assert gloo_processes.failures(results, "all is well") == {}
    assert [mine["all is well"][0] for mine in results] == [0, 0], results


def test_a_batch_is_shared_only_in_epochs(results):
    assert gloo_processes.failures(results, "no epochs") == {}
    assert [mine["no epochs"][0] for mine in results] == [0, 0], results

"""`torchrun --max-restarts` of a fit whose processes are killed, or asked to end, in turn; and how they meet again."""

import json
import os
import re
import signal
import subprocess
import sys
import threading

import pytest
import torch.distributed as dist

from laplex.cli import team
from made_pictures import BOTH, STEPS, WRITTEN, log, steps

pytest.importorskip("safetensors")

# Which process gets which signal before which round or step, in the order of restarts.
FAULTS = [(1, "em", 2, "SIGKILL"), (0, "em", 3, "SIGTERM"), (0, "adam", 4, "SIGKILL")]
FAULTY = f"""
import os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from laplex import cli
from laplex.cli import fit_plots, fitting
from laplex.density import _rounds, pictures

for owner, names in ((pictures, ["grid"]), (fit_plots, ["places", "spectrum", "likelihoods"])):
    for name in names:
        setattr(owner, name, lambda path, *_, **options: path.write_bytes(b""))

faults, rank = {FAULTS}, int(os.environ["RANK"])
faults = dict(enumerate(faults))
target, stage, count, name = faults.get(int(os.environ["TORCHELASTIC_RESTART_COUNT"]), (-1, "em", 0, ""))
owner, attribute = {{"em": (_rounds, "em_round"), "adam": (fitting.Trainer, "step")}}[stage]
right, calls = getattr(owner, attribute), []

def faulty(*arguments, **options):
    calls.append(1)
    if rank == target and len(calls) == count:
        os.kill(os.getpid(), getattr(signal, name))
    return right(*arguments, **options)

setattr(owner, attribute, faulty)
cli.main()
"""


def test_a_fit_outlives_the_faults_of_its_processes(data, uninterrupted, tmp_path):
    """With --fresh, which holds for the first start alone, and over a checkpoint of another fit."""
    script, out = tmp_path / "faulty.py", tmp_path / "out"
    script.write_text(FAULTY)
    out.mkdir()
    (out / "checkpoint.safetensors").write_bytes(b"of something else")
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "--monitor-interval", 0.1]
    command += ["--max-restarts", len(FAULTS), script, "fit", data, "--out", out, "--fresh", *BOTH]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, check=False, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(out)) == WRITTEN
    assert steps(out) == STEPS
    for mine, other in zip(log(uninterrupted), log(out), strict=True):
        if "log_likelihood" in mine:
            assert mine["log_likelihood"] == pytest.approx(other["log_likelihood"], rel=1e-5)
    # Whether the first process hears of the killed one or of torchrun's signal first is a matter of chance.
    assert re.search(r"interrupted after \d of 4 rounds; saving a checkpoint\n", done.stderr)
    assert "; the same command without --fresh resumes" in done.stderr
    assert json.loads((out / "summary.json").read_text())


def met(store, size, first=0):
    """What the processes agree on, each in its own thread."""
    names = [None] * size

    def member(rank):
        names[rank] = team._meeting(store, rank, size)

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(first, size)]
    for thread in threads:
        thread.start()
    return names, threads


def test_processes_do_not_meet_the_dead():
    """Others read what an earlier first process has written, and wait until the present one answers."""
    store, size = dist.HashStore(), 3
    names, threads = met(store, size)
    for thread in threads:
        thread.join(20)
    assert len({*names}) == 1
    again, waiting = met(store, size, first=1)
    waiting[0].join(0.2)
    assert all(thread.is_alive() for thread in waiting)
    name = team._meeting(store, 0, size)
    for thread in waiting:
        thread.join(20)
    assert again == [None, name, name]
    assert name != names[0]


@pytest.mark.parametrize(("rank", "missing"), [(0, "process 1 of 2"), (1, "the answer of process 0 of 2")])
def test_nobody_waits_for_ever_for_a_process_that_does_not_come(rank, missing):
    with pytest.raises(ConnectionError, match=f"{missing} did not come in 0.05 s; start as many processes"):
        team._meeting(dist.HashStore(), rank, 2, patience=0.05)


def test_a_run_is_known_by_its_name_and_parent(monkeypatch):
    alone = team.Team(0, 1, "cpu")
    for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert (alone.run, alone.run_to_continue()) == (None, None)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert (alone.run, alone.run_to_continue()) == ("job", None)  # over two machines
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert alone.run_to_continue() == f"job {os.getppid()}"


def test_signals_end_a_wait_at_once_and_are_caught_after_it():
    from laplex.cli import signals

    with signals.raised():
        with signals.ending_at_once():
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        with pytest.raises(signals.Interrupted):
            signal.raise_signal(signal.SIGTERM)
        signals.ignore()
        signal.raise_signal(signal.SIGTERM)

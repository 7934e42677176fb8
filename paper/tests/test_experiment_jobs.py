"""Processes side by side: they share the runs, stop together, and say what went wrong."""

import functools
import json
import os
import signal
import threading
import time

import pytest
import torch

from made_images import SIDE, write_files
from paper.experiments import jobs

pytestmark = pytest.mark.usefixtures("one_thread")


# --- Processes (functions at the top of the file, because fresh interpreters import them by name) --------------------


def fail_or_wait(folder, values, job, count):
    values += 1  # tensors are shared, so the first process sees this
    (folder / f".{job}.tmp").write_text(str(os.getpid()))
    (folder / f".{job}.tmp").replace(folder / str(job))
    if job == count - 1 == 1:
        while len(names(folder)) < count:
            time.sleep(0.05)
        raise ValueError("the disk is full")
    time.sleep(60)


def names(folder):
    return [path.name for path in folder.iterdir() if not path.name.startswith(".")]


def alive(folder):
    """Of the processes that wrote their number into the folder."""
    running = []
    for path in folder.iterdir():
        try:
            os.kill(int(path.read_text()), 0)
            running.append(path.name)
        except ProcessLookupError:
            pass
    return running


def test_a_job_that_fails_says_why_and_stops_the_others(tmp_path):
    values = torch.zeros(3)
    with pytest.raises(
        jobs.JobError, match=r"^job 2 of 2 failed, so all were stopped; finished runs are kept: "
    ) as errors:
        jobs.side_by_side(functools.partial(fail_or_wait, tmp_path, values), 2)
    assert "ValueError: the disk is full" in str(errors.value)
    assert values.tolist() == [2, 2, 2]
    assert sorted(names(tmp_path)) == ["0", "1"]
    assert alive(tmp_path) == []


def vanish(job, count):
    os._exit(7)


def test_a_job_that_vanishes_is_told():
    message = (
        "^job 1 of 1 failed, .* it ended with the status 7 and without a message; if memory ran out, use fewer jobs$"
    )
    with pytest.raises(jobs.JobError, match=message):
        jobs.side_by_side(vanish, 1)


@pytest.fixture
def interruptible():
    """Ctrl-C raises, even where the tests were started in the background: a shell lets those ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interruption_stops_the_jobs(tmp_path, interruptible):
    def interrupt():
        while not names(tmp_path):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        jobs.side_by_side(functools.partial(fail_or_wait, tmp_path, torch.zeros(1)), 1)
    assert names(tmp_path) == ["0"]
    assert alive(tmp_path) == []


# --- heads -----------------------------------------------------------------------------------------------------------


def results(path):
    return {json.dumps(run["settings"], sort_keys=True): run["result"] for run in json.loads(path.read_text())["runs"]}


def test_jobs_give_the_results_of_one_process_and_resume_with_another_number(file, tmp_path, command):
    options = ("--methods", "full", "low-rank", "--ranks", 2, "--quick", "--device", "cpu", "--name", "tiny")
    one, two = tmp_path / "one", tmp_path / "two"
    assert command("heads", "--data", file, "--out", one, *options)[0] == 0
    stem = "heads-tiny-tuned-quick"
    # As if a command had been killed: some runs are in the file.
    content = json.loads((one / f"{stem}.json").read_text())
    two.mkdir()
    (two / f"{stem}.json").write_text(json.dumps(content | {"runs": content["runs"][:4]}))
    status, output, errors = command("heads", "--data", file, "--out", two, *options, "--jobs", 2)
    assert status == 0, errors
    assert sorted(os.listdir(two)) == [f"{stem}.json", f"{stem}.md", f"{stem}.png"]
    assert results(two / f"{stem}.json") == results(one / f"{stem}.json")
    dates = {run["date"] for run in content["runs"][:4]}
    runs = json.loads((two / f"{stem}.json").read_text())["runs"]
    assert {run["date"] for run in runs[:4]} == dates
    assert (two / f"{stem}.md").read_text() == (one / f"{stem}.md").read_text()
    assert output.count("wrote ") == 2


def test_a_failing_job_of_heads_is_told_and_the_status_is_1(file, tmp_path, command, monkeypatch):
    def failing(work, count):
        experiment = work.args[0]
        experiment.record.run({"seed": 0}, lambda: {"test": 1.0})
        raise jobs.JobError(f"job 1 of {count} failed: no memory")

    monkeypatch.setattr(jobs, "side_by_side", failing)
    options = ("--methods", "low-rank", "--ranks", 2, "--quick", "--device", "cpu", "--name", "tiny", "--jobs", 8)
    status, output, errors = command("heads", "--data", file, "--out", tmp_path, *options)
    assert (status, output) == (1, "")
    assert (
        errors == "python -m paper experiment heads: job 1 of 2 failed: no memory\n"
    )  # there are two starts, so two jobs
    assert os.listdir(tmp_path) == ["heads-tiny-tuned-quick.json"]
    assert list(results(tmp_path / "heads-tiny-tuned-quick.json").values()) == [{"test": 1.0}]


# --- projection ------------------------------------------------------------------------------------------------------


def test_jobs_of_projection_give_the_results_of_one_process(tmp_path, command):
    folder = write_files(tmp_path)
    options = ("--methods", "placed", "pca", "trained-placed", "--widths", 3, "--quick", "--side", SIDE)
    options += ("--device", "cpu", "--name", "tiny")
    for out, count in (("one", 1), ("two", 2)):
        status, _, errors = command("projection", "--data", folder, "--out", tmp_path / out, *options, "--jobs", count)
        assert status == 0, errors
    name = "projection-tiny-quick"
    assert results(tmp_path / "two" / f"{name}.json") == results(tmp_path / "one" / f"{name}.json")
    assert sorted(os.listdir(tmp_path / "two")) == [f"{name}.json", f"{name}.md", f"{name}.png"]

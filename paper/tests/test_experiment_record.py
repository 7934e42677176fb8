"""Results files: one entry a run, written at once, resumed, never overwritten when damaged."""

import json
import os
import subprocess
import sys
import warnings

import pytest
import torch

import laplex
from laplex.testing import _machine as machine
from paper.experiments import record
from paper.experiments.record import Record


def test_a_run_is_written_at_once_and_not_repeated(tmp_path):
    path, calls = tmp_path / "runs.json", []

    def compute():
        calls.append(1)
        return {"test": 0.5}

    first = Record(path, "some")
    assert first.run({"seed": 0, "lr": 0.1}, compute) == {"test": 0.5}
    assert first.run({"lr": 0.1, "seed": 0}, compute) == {"test": 0.5}
    again = Record(path, "some")
    assert len(again) == 1
    assert again.run({"seed": 0, "lr": 0.1}, compute) == {"test": 0.5}
    assert again.get({"seed": 1, "lr": 0.1}) is None
    assert len(calls) == 1
    assert os.listdir(tmp_path) == ["runs.json"]


def test_a_record_names_machine_versions_commit_and_settings(tmp_path):
    Record(tmp_path / "runs.json", "some").run({"seed": 3}, lambda: {"test": 1.0})
    content = json.loads((tmp_path / "runs.json").read_text())
    (machine,), (run,) = content["machines"], content["runs"]
    assert content["experiment"] == "some"
    assert {"torch", "numpy", "laplex", "python", "cpu", "device", "commit"} <= set(machine)
    assert machine["torch"] == torch.__version__
    assert (run["settings"], run["result"], run["machine"]) == ({"seed": 3}, {"test": 1.0}, 0)
    assert run["seconds"] >= 0
    assert run["date"].endswith("+00:00")


def test_runs_of_several_machines_each_name_their_own(tmp_path, monkeypatch):
    path = tmp_path / "runs.json"
    Record(path, "some").run({"seed": 0}, dict)
    monkeypatch.setattr(record, "describe", lambda device: {"cpu": "another", "laplex": laplex.__version__})
    second = Record(path, "some")
    second.run({"seed": 1}, dict)
    second.run({"seed": 2}, dict)
    content = json.loads(path.read_text())
    assert [run["machine"] for run in content["runs"]] == [0, 1, 1]
    assert content["machines"][1]["cpu"] == "another"


@pytest.mark.parametrize("changed", ["laplex", "commit"])
def test_runs_of_other_code_are_kept_and_told(changed, tmp_path, monkeypatch):
    path = tmp_path / "runs.json"
    Record(path, "some").run({"seed": 0}, lambda: {"test": 1})
    with warnings.catch_warnings(action="error"):
        Record(path, "some")
    content = json.loads(path.read_text())
    content["machines"][0][changed] = "other"
    path.write_text(json.dumps(content))
    with pytest.warns(
        UserWarning, match=r"Record: 1 of 1 runs in .*runs.json are of another version or commit .* --fresh"
    ):
        assert Record(path, "some").get({"seed": 0}) == {"test": 1}
    with warnings.catch_warnings(action="error"):
        Record(path, "some", fresh=True)


def test_fresh_forgets_when_the_first_run_is_finished(tmp_path):
    path = tmp_path / "runs.json"
    Record(path, "some").run({"seed": 0}, lambda: {"test": 1})
    fresh = Record(path, "some", fresh=True)
    assert (len(fresh), len(Record(path, "some"))) == (0, 1)
    fresh.run({"seed": 1}, lambda: {"test": 2})
    assert Record(path, "some").get({"seed": 0}) is None


def test_records_side_by_side_keep_the_runs_of_each_other(tmp_path, monkeypatch):
    path = tmp_path / "runs.json"
    first = Record(path, "some")
    first.run({"seed": 0}, lambda: {"test": 0})
    monkeypatch.setattr(record, "describe", lambda device: {"cpu": "another", "laplex": laplex.__version__})
    second, fresh = Record(path, "some"), Record(path, "some", fresh=True)
    second.run({"seed": 1}, lambda: {"test": 1})
    first.run({"seed": 2}, lambda: {"test": 2})
    content = json.loads(path.read_text())
    assert [run["settings"]["seed"] for run in content["runs"]] == [0, 1, 2]
    assert ["another" in str(content["machines"][run["machine"]]) for run in content["runs"]] == [False, True, False]
    second.refresh()
    assert [second.get({"seed": seed}) for seed in range(3)] == [{"test": 0}, {"test": 1}, {"test": 2}]
    fresh.refresh()
    fresh.run({"seed": 3}, dict)
    Record(path, "some").run({"seed": 4}, dict)
    fresh.refresh()
    assert [fresh.get({"seed": seed}) for seed in range(5)] == [None, None, None, {}, {}]


def test_processes_side_by_side_lose_nothing(tmp_path):
    path = tmp_path / "runs.json"
    code = "import sys; from pathlib import Path; from paper.experiments.record import Record; made = Record("
    code += "Path(sys.argv[1]), 'some'); [made.run({'seed': s, 'job': sys.argv[2]}, dict) for s in range(20)]"
    jobs = [subprocess.Popen([sys.executable, "-W", "ignore", "-c", code, str(path), str(job)]) for job in range(3)]
    assert [job.wait() for job in jobs] == [0, 0, 0]
    assert len(json.loads(path.read_text())["runs"]) == 60
    assert os.listdir(tmp_path) == ["runs.json"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interruption_loses_the_run_in_progress_only(error, tmp_path):
    runs = Record(tmp_path / "runs.json", "some")
    runs.run({"seed": 0}, lambda: {"test": 1})

    def broken():
        raise error

    with pytest.raises(error):
        runs.run({"seed": 1}, broken)
    again = Record(tmp_path / "runs.json", "some")
    assert again.get({"seed": 0}) == {"test": 1}
    assert again.get({"seed": 1}) is None


def test_an_interruption_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    runs = Record(tmp_path / "runs.json", "some")
    runs.run({"seed": 0}, lambda: {"test": 1})
    before = (tmp_path / "runs.json").read_bytes()

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runs.run({"seed": 1}, lambda: {"test": 2})
    assert (tmp_path / "runs.json").read_bytes() == before
    assert os.listdir(tmp_path) == ["runs.json"]


DAMAGED = {
    "": "cannot be read (JSONDecodeError",
    '{"experiment": "some", "machines": [], "ru': "cannot be read (JSONDecodeError",
    "[]": "cannot be read (TypeError",
    '{"experiment": "some"}': "cannot be read (KeyError",
    '{"experiment": "some", "machines": [], "runs": [{"settings": {}}]}': "in which runs lack their settings, result",
    '{"experiment": "some", "machines": [{}], "runs": [{"settings": 1, "result": 2, "machine": 0}]}': "in which runs",
    '{"experiment": "other", "machines": [], "runs": []}': "which is of the experiment 'other'",
}


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_file_is_named_and_left_alone(text, tmp_path):
    path = tmp_path / "runs.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="must be a results file of the experiment 'some', got") as caught:
        Record(path, "some")
    errors = str(caught.value)
    assert errors.startswith("paper.experiments.Record: `path` must be")
    assert str(path) in errors
    assert DAMAGED[text] in errors
    assert errors.endswith("nothing was changed: move the file away, or start over with --fresh")
    assert path.read_text() == text
    Record(path, "some", fresh=True).run({"seed": 0}, dict)
    assert len(Record(path, "some")) == 1


def test_the_commit_is_that_of_laplex_and_of_no_other_checkout(monkeypatch):
    answers = {"ls-files": "__init__.py", "rev-parse": "abc", "status": ""}
    monkeypatch.setattr(machine, "_git", lambda folder, name, *_: answers[name])
    assert machine.commit() == "abc"
    answers["status"] = " M _plan.py"
    assert machine.commit() == "abc+"
    answers["ls-files"] = None
    assert machine.commit() is None


def test_without_git_there_is_no_commit(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert machine.commit() is None

"""The commands `python -m paper list` and `run`: what they write and print, resume, and refuse."""

import json
import subprocess
import sys
from functools import partial

import pytest

from paper.commands.run import missing_for
from paper.running import Request
from paper.sections import ENTRIES, NAMES, accuracy

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def run(paper_command):
    """The command: its exit status, what it printed, and what it wrote to stderr."""
    return partial(paper_command, "run")


def test_the_list_names_every_entry_with_its_source_and_data(paper_command):
    status, output, _ = paper_command("list")
    assert status == 0
    for entry in ENTRIES:
        assert entry.name in output
        assert entry.source in output
    assert "heads: an .npz file of features" in output


def test_a_quick_look_has_no_verdict_and_other_files(run, tmp_path):
    status, output, message = run("rounding", "theorem-1", "--quick", "--device", "cpu", "--out", tmp_path)
    assert status == 0, message
    assert output.startswith("rounding: quick look only\n    it works; ")
    assert sorted(path.name for path in (tmp_path / "quick").iterdir()) == ["cpu-rounding.json", "cpu-theorem.json"]
    assert "rounding: 5 of 5, n 256, span 10000.0" in message


def test_it_needs_torch_and_numpy_alone(tmp_path):
    absent = ("rich", "matplotlib", "PIL", "scipy", "sklearn", "safetensors", "laplex._core")
    options = ["run", "rff-gradient", "differentiability", "--quick", "--device", "cpu", "--out", str(tmp_path)]
    code = f"import sys, runpy, torch; torch.set_num_threads(1); sys.modules.update(dict.fromkeys({absent})); "
    code += f"sys.argv = {['paper', *options]}; runpy.run_module('paper', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "quick").glob("*.json")} == {"rff.json", "cpu-gradients.json"}


def test_results_have_machine_versions_commit_and_seed(run, tmp_path):
    run("theorem-1", "--device", "cpu", "--out", tmp_path, "--seed", 5)
    content = json.loads((tmp_path / "cpu-theorem.json").read_text())
    assert {"torch", "cpu", "commit", "laplex", "python"} <= set(content["machines"][0])
    assert content["runs"][0]["settings"]["seed"] == 5


def test_it_resumes_after_an_interruption(run, tmp_path, monkeypatch):
    compute = accuracy.error_result
    left = [3]

    def interrupted(problem, methods):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return compute(problem, methods)

    options = ("rounding", "--quick", "--device", "cpu", "--out", tmp_path)
    monkeypatch.setattr(accuracy, "error_result", interrupted)
    status, _, message = run(*options)
    assert status == 130
    assert "interrupted; what was measured is kept" in message
    path = tmp_path / "quick" / "cpu-rounding.json"
    before = json.loads(path.read_text())["runs"]
    assert len(before) == 3
    left[0] = 2  # so many are missing
    assert run(*options)[0] == 0
    after = json.loads(path.read_text())["runs"]
    assert after[:3] == before
    assert len(after) == 5
    left[0] = 9
    run(*options, "--fresh")
    assert left[0] == 4


def test_an_entry_without_data_or_device_is_not_run(run, tmp_path):
    status, output, _ = run("heads", "density", "--device", "cpu", "--out", tmp_path)
    assert status == 1
    assert output.startswith("heads: not run\n    it needs an .npz file of features")
    status, output, _ = run("heads", "--device", "cpu", "--out", tmp_path, "--data", tmp_path)
    assert status == 1
    assert "does not have what it needs" in output
    assert missing_for(ENTRIES[NAMES.index("cpu")], Request("cuda")) == "it runs on cpu, not on cuda"


def test_on_a_cpu_it_first_says_that_the_figures_are_of_a_gpu(run, tmp_path):
    message = (
        "runtime, gram: the paper's figures are of a GPU, an H100; those of a CPU are shown in the report, and not"
    )
    options = ("--quick", "--device", "cpu", "--out", tmp_path)
    for names, said in ((("runtime", "theorem-1", "gram"), True), (("theorem-1", "rounding"), False)):
        error = run(*names, *options)[2]
        assert error.startswith(f"python -m paper run: {message} judged\n") is said  # before anything is measured
        assert ("of a GPU" in error) is said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no-such",), "NAME must be among runtime, batch8, batch8-against-dense, "),
        (("runtime", "--device", "cuda:99"), "--device cuda:99: torch sees "),
        (("runtime", "--device", "tpu"), "--device must be cpu, cuda or cuda:INDEX, got 'tpu'"),
        (
            ("runtime", "--device", "cpu", "--data", "nowhere"),
            "--data must be a folder with the data sets, got nowhere",
        ),
        (
            ("runtime", "--device", "cpu", "--seed", 2**63),
            "--seed must be a whole number from 0 to 2^63 - 1, got 9223372036854775808",
        ),
        (("runtime", "--device", "cpu", "--seed", -1), "--seed must be a whole number from 0 to 2^63 - 1, got -1"),
    ],
)
def test_options_are_refused(run, tmp_path, arguments, message):
    status, _, error = run(*arguments, "--out", tmp_path / "out")
    assert status == 2
    assert error.startswith(f"python -m paper run: {message}")
    assert not (tmp_path / "out").exists()


def test_an_out_folder_that_cannot_be_written_is_refused(run, tmp_path):
    (tmp_path / "file").touch()
    status, _, error = run("runtime", "--device", "cpu", "--out", tmp_path / "file")
    assert status == 2
    assert error.startswith(f"python -m paper run: --out: cannot write into {tmp_path / 'file'} (")


def test_a_file_of_another_entry_may_be_corrupt(run, tmp_path):
    (tmp_path / "cpu-gram.json").write_text("{bad")
    for look in (("--quick",), ()):
        status, output, error = run("theorem-1", *look, "--device", "cpu", "--out", tmp_path)
        assert status == 0, error
        assert output.startswith(f"theorem-1: {'quick look only' if look else 'not reproduced'}\n")


@pytest.mark.parametrize("look", [("--quick",), ()])
def test_a_part_that_fails_is_told(run, tmp_path, look):
    for part in ("train", "val"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "one.png").write_bytes(b"no picture")
    options = ("--device", "cpu", "--out", tmp_path / "out", "--data", tmp_path)
    status, output, error = run("density", "rounding", *look, *options)
    assert status == 2
    assert output.startswith("density: failed\n    its part `density` ended with status 2; the message above says why")
    assert "python -m paper experiment density: " in error
    assert f"rounding: {'quick look only' if look else 'not reproduced'}" in output


def test_an_interrupted_experiment_begins_nothing_else(run, tmp_path, monkeypatch):
    from paper.experiments import rff

    def interrupted(experiment):
        raise KeyboardInterrupt

    monkeypatch.setattr(rff, "run", interrupted)
    status, _, _ = run("rff-gradient", "theorem-1", "--quick", "--device", "cpu", "--out", tmp_path)
    assert status == 130
    assert not (tmp_path / "quick" / "cpu-theorem.json").exists()


def test_a_corrupt_file_is_named(run, tmp_path):
    (tmp_path / "cpu-theorem.json").write_text("{}")
    status, _, error = run("theorem-1", "--device", "cpu", "--out", tmp_path)
    assert status == 2
    assert str(tmp_path / "cpu-theorem.json") in error

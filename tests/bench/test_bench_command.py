"""`python -m benchmarks`: what it prints, and what it says of files it cannot write or read."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_suite import SUITE, Silent

from benchmarks import report
from benchmarks.__main__ import main
from benchmarks.run import SUITES, run

ROOT = Path(__file__).parents[2]
EXTRAS = ("rich", "matplotlib", "scipy", "celerite2", "pykeops")

Bench = Callable[..., tuple[int, str]]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bench:
    """`python -m benchmarks` of the tiny suite: exit status and all output."""
    monkeypatch.setitem(SUITES, "tiny", SUITE)

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["benchmarks", "--suite", "tiny", *arguments])
        try:
            status = main()
        except SystemExit as ended:
            status = ended.code
        return status, "".join(capsys.readouterr())

    return run


def test_it_needs_nothing_but_torch_and_numpy() -> None:
    code = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS})); sys.argv = ['benchmarks', '--help']; "
    code += "from benchmarks.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "--resume" in done.stdout


def test_it_measures_saves_and_draws(bench: Bench, tmp_path: Path) -> None:
    status, output = bench("--out", str(tmp_path / "runs[1]"))
    assert status == 0, output
    assert "against dense" in output
    assert "runs[1]" in output
    assert list(tmp_path.glob("*/tiny-*.json"))


def test_without_matplotlib_it_says_what_to_install(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    status, output = bench("--out", str(tmp_path))
    assert status == 0, output
    assert "pip install matplotlib" in output


def test_it_ends_with_ctrl_c_and_says_how_to_continue(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("benchmarks.run.measure", interrupted)
    status, output = bench("--out", str(tmp_path))
    assert status == 130
    assert "--resume continues" in output


@pytest.mark.parametrize("arguments", [("--suite", "tpu"), ("--threads", "0"), ("--only", "nothing"), ("--nonsense",)])
def test_it_refuses_bad_arguments(
    arguments: tuple[str, ...], bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, output = bench(*arguments)
    assert status == 2
    assert arguments[-1].strip("-") in output
    assert not list(tmp_path.iterdir())


def unwritable(tmp_path: Path) -> Path:
    """A folder in which no file can be made; what root may do there, nobody may do in /proc."""
    if os.geteuid() == 0:
        return Path("/proc/self")
    tmp_path.chmod(0o500)
    return tmp_path


def test_an_out_folder_that_cannot_be_written(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file" / "below", unwritable(tmp_path)):
        status, output = bench("--out", str(folder))
        assert status == 2
        assert f"benchmarks: cannot write {folder}" in output
        assert "choose another folder with --out" in output
        assert "Traceback" not in output
    assert (tmp_path / "file").read_text() == "mine"


def test_a_current_folder_that_cannot_be_written(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report.SCRATCH.write_text("mine")
    status, output = bench()
    assert status == 2
    assert f"benchmarks: cannot write {report.SCRATCH.absolute()}" in output
    assert "choose another folder with --out" in output
    assert report.SCRATCH.read_text() == "mine"


def results_file(tmp_path: Path) -> Path:
    """A good one, of the tiny suite."""
    return run(SUITE, Silent(), out=tmp_path).path


UNUSABLE = {
    "empty": lambda good: b"",
    "broken": lambda good: good[:200],
    "binary": lambda good: bytes(range(256)),
    "a list": lambda good: b"[1, 2]",
    "of something else": lambda good: b'{"name": "mine", "version": 1}',
    "of another suite": lambda good: json.dumps({**json.loads(good), "suite": "cpu"}).encode(),
    "of other results": lambda good: json.dumps({**json.loads(good), "results": [{"x": 1}]}).encode(),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_resume_names_a_file_it_cannot_use_and_leaves_it(kind: str, bench: Bench, tmp_path: Path) -> None:
    path = results_file(tmp_path)
    content = UNUSABLE[kind](path.read_bytes())
    path.write_bytes(content)
    status, output = bench("--resume", "--out", str(tmp_path))
    assert status == 2
    assert f"benchmarks: --resume cannot resume from {path}" in output
    assert "move it away to keep it, or run without --resume to replace it" in output
    assert path.read_bytes() == content
    assert [file.name for file in tmp_path.iterdir() if file.suffix in (".json", ".partial")] == [path.name]


def test_a_run_that_cannot_start_leaves_the_old_results(tmp_path: Path, bench: Bench) -> None:
    path = results_file(tmp_path)
    content = path.read_bytes()
    assert bench("--out", str(tmp_path), "--only", "nothing")[0] == 2
    with pytest.raises(KeyboardInterrupt):
        run(SUITE, Silent(interrupt_at=0), out=tmp_path)
    assert path.read_bytes() == content

"""The commands: what they print, with and without their extra, and what they say of files they cannot use."""

import subprocess
import sys
from pathlib import Path

import pytest

import laplex
from laplex.bench.run import SUITES
from tiny_suite import SUITE

BLOCKED = "import sys; sys.modules.update(typer=None, rich=None, matplotlib=None); "


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BLOCKED + code], capture_output=True, text=True, check=False)


def test_the_plain_front_end_needs_nothing_but_torch() -> None:
    done = python("from laplex.bench.__main__ import main; sys.argv = ['bench', '--help']; main()")
    assert done.returncode == 0, done.stderr
    assert "--resume" in done.stdout


def test_the_command_without_its_extra_says_what_to_install() -> None:
    done = python("from laplex.cli import main; main()")
    assert done.returncode == 2
    assert 'pip install "laplex[cli]"' in done.stderr


def test_the_plain_front_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from laplex.bench.__main__ import main

    monkeypatch.setitem(SUITES, "tiny", SUITE)
    monkeypatch.setattr(sys, "argv", ["bench", "--suite", "tiny", "--out", str(tmp_path)])
    assert main() == 0
    assert "against dense" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["bench", "--suite", "tpu"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "no suite 'tpu'" in capsys.readouterr().err


def command(*arguments: str) -> tuple[int, str]:
    """The exit status and the output of `laplex` with these arguments."""
    pytest.importorskip("typer")
    pytest.importorskip("rich")
    from typer.testing import CliRunner

    from laplex.cli.app import app

    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, done.output


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUITES, "tiny", SUITE)
    status, output = command("bench", "--suite", "tiny", "--out", str(tmp_path))
    assert status == 0, output
    assert list(tmp_path.glob("tiny-*.json"))
    assert command("--version") == (0, laplex.__version__ + "\n")


@pytest.mark.parametrize("arguments", [("--suite", "tpu"), ("--threads", "0"), ("--only", "nothing"), ("--nonsense",)])
def test_the_command_refuses_bad_arguments(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, output = command("bench", *arguments)
    assert status == 2
    assert arguments[-1].strip("-") in output
    assert not list(tmp_path.iterdir())


def test_the_doctor_finds_every_backend_that_runs_healthy() -> None:
    status, output = command("doctor")
    assert status == 0, output
    for name in laplex.backends.available():
        assert name in output


def test_the_doctor_notices_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    right = laplex.linear
    monkeypatch.setattr(laplex, "linear", lambda *args, **options: 1.001 * right(*args, **options))
    status, output = command("doctor")
    assert status == 1
    assert "wrong" in output

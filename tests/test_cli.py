"""The commands: what they print, with and without their extra, and what they say of files they cannot use."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import laplex
from laplex.bench import report
from laplex.bench.run import SUITES, run
from laplex.cli import main
from tiny_suite import SUITE, Silent

EXTRAS = ("typer", "click", "rich", "matplotlib", "scipy", "celerite2", "pykeops")
BLOCKED = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS})); "


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BLOCKED + code], capture_output=True, text=True, check=False)


def test_the_plain_front_end_needs_nothing_but_torch() -> None:
    done = python("from laplex.bench.__main__ import main; sys.argv = ['bench', '--help']; main()")
    assert done.returncode == 0, done.stderr
    assert "--resume" in done.stdout


def test_python_m_laplex_doctor_works_with_the_base_install() -> None:
    alone = "import runpy, torch; torch.set_num_threads(1); "  # other tests have the other cores
    done = python(alone + "sys.argv = ['laplex', 'doctor']; runpy.run_module('laplex', run_name='__main__')")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "Products and gradients, against the definition in float64" in done.stdout
    assert all(name in done.stdout for name in laplex.backends.available())
    assert "pass" in done.stdout


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`laplex` of the base install: exit status, output and errors."""
    for name in EXTRAS:
        monkeypatch.setitem(sys.modules, name, None)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["laplex", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    return run


def test_a_command_without_its_extra_says_what_to_install(base: Callable[..., tuple[int, str, str]]) -> None:
    status, _, told = base("bench", "--quick", "--out", "nowhere")
    assert status == 2
    assert 'laplex bench: needs typer and rich: pip install "laplex[cli]"' in told
    assert "python -m laplex.bench" in told
    assert not Path("nowhere").exists()


def test_the_base_install_knows_its_version_and_its_commands(base: Callable[..., tuple[int, str, str]]) -> None:
    assert base("--version") == (0, laplex.__version__ + "\n", "")
    for arguments, expected in ((("--help",), 0), ((), 2)):
        status, output, _ = base(*arguments)
        assert status == expected
        assert "doctor" in output
        assert 'needs typer and rich: pip install "laplex[cli]"' in " ".join(output.split())
    for arguments in (("nonsense",), ("doctor", "--nonsense")):
        status, _, told = base(*arguments)
        assert status == 2
        assert "nonsense" in told


def test_make_test_says_how_long_it_takes() -> None:
    recipe = (Path(__file__).parents[1] / "Makefile").read_text().split("\ntest: ")[1].splitlines()[1:3]
    assert "minutes" in recipe[0]
    assert "pytest" in recipe[1]


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


def test_flags_read_as_flags_in_the_help() -> None:
    for arguments in (("--help",), ("bench", "--help")):
        status, output = command(*arguments)
        assert status == 0
        assert "bool" not in output
    assert "--version  " in command("--help")[1]


def test_square_brackets_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUITES, "tiny", SUITE)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    status, output = command("bench", "--suite", "tiny", "--out", str(tmp_path / "runs[1]"))
    assert status == 0, output
    assert 'pip install "laplex[cli]"' in output
    assert "runs[1]" in output


# --- files that cannot be written or read ----------------------------------------------------------------------------

Bench = Callable[..., tuple[int, str]]


@pytest.fixture(params=["rich", "plain"])
def bench(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bench:
    """`laplex bench` or `python -m laplex.bench` of the tiny suite: exit status and all output."""
    monkeypatch.setitem(SUITES, "tiny", SUITE)

    def plain(*arguments: str) -> tuple[int, str]:
        from laplex.bench.__main__ import main

        monkeypatch.setattr(sys, "argv", ["bench", *arguments])
        try:
            status = main()
        except SystemExit as ended:
            status = ended.code
        return status, "".join(capsys.readouterr())

    front = command if request.param == "rich" else plain
    return lambda *arguments: front(*(("bench",) if front is command else ()), "--suite", "tiny", *arguments)


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
        assert f"laplex bench: cannot write {folder}" in output
        assert "choose another folder with --out" in output
        assert "Traceback" not in output
    assert (tmp_path / "file").read_text() == "mine"


def test_a_current_folder_that_cannot_be_written(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report.SCRATCH.write_text("mine")
    status, output = bench()
    assert status == 2
    assert f"laplex bench: cannot write {report.SCRATCH.absolute()}" in output
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
    assert f"laplex bench: --resume cannot go on from {path}" in output
    assert "move it away to keep it, or run without --resume to replace it" in output
    assert path.read_bytes() == content
    assert [made.name for made in tmp_path.iterdir() if made.suffix in (".json", ".partial")] == [path.name]


def test_a_run_that_cannot_start_leaves_the_old_results(tmp_path: Path, bench: Bench) -> None:
    path = results_file(tmp_path)
    content = path.read_bytes()
    assert bench("--out", str(tmp_path), "--only", "nothing")[0] == 2
    with pytest.raises(KeyboardInterrupt):
        run(SUITE, Silent(interrupt_at=0), out=tmp_path)
    assert path.read_bytes() == content

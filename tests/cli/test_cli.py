"""`laplex bench` and `laplex doctor`: what they print, check and refuse. Times are never looked at."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import laplex
from laplex import cli, testing
from laplex.cli import bench, commands, doctor, layers, tables

EXTRAS = ("typer", "click", "rich", "matplotlib", "scipy", "celerite2", "pykeops")
SMALL = ("--rows", "30", "--cols", "20", "--batch", "2", "--device", "cpu")

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`laplex` with these arguments: exit status, output and errors; a shape is timed for an instant."""
    monkeypatch.setattr(bench, "SECONDS", 0.0)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["laplex", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, *capsys.readouterr()

    return run


# --- the command ----------------------------------------------------------------------------------------------------


def test_python_m_laplex_works_with_the_base_install() -> None:
    code = f"import sys, runpy, torch; torch.set_num_threads(1); sys.modules.update(dict.fromkeys({EXTRAS})); "
    code += "sys.argv = ['laplex', 'doctor']; runpy.run_module('laplex', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "Products and gradients, against the definition in float64" in done.stdout
    assert all(name in done.stdout for name in laplex.backends.available())


def test_it_knows_its_version_and_its_commands(command: Command) -> None:
    assert command("--version") == (0, laplex.__version__ + "\n", "")
    for arguments, expected in ((("--help",), 0), ((), 2)):
        status, output, _ = command(*arguments)
        assert status == expected
        assert "doctor" in output
        assert "bench" in output
    for arguments in (("nonsense",), ("doctor", "--nonsense"), ("bench", "--nonsense")):
        status, _, errors = command(*arguments)
        assert status == 2
        assert "nonsense" in errors


def test_make_test_says_how_long_it_takes() -> None:
    recipe = (Path(__file__).parents[2] / "Makefile").read_text().split("\ntest: ")[1].splitlines()[1:3]
    assert "minutes" in recipe[0]
    assert "pytest" in recipe[1]


# --- doctor ---------------------------------------------------------------------------------------------------------


def test_the_doctor_finds_every_backend_that_runs_healthy(command: Command) -> None:
    status, output, _ = command("doctor")
    assert status == 0, output
    assert all(name in output for name in laplex.backends.available())


@pytest.mark.parametrize("factor", [1.001, math.nan])
def test_the_doctor_notices_a_wrong_answer(factor: float, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    right = laplex.linear
    monkeypatch.setattr(doctor, "SHAPES", ((30, 20, 2),))
    monkeypatch.setattr(laplex, "linear", lambda *args, **options: factor * right(*args, **options))
    status, output, _ = command("doctor")
    assert status == 1
    assert "wrong" in output


# --- bench ----------------------------------------------------------------------------------------------------------


def test_bench_compares_both_layers(command: Command) -> None:
    status, output, progress = command("bench", *SMALL)
    assert status == 0, output
    for line in ("20 -> 30, batch 2", "numbers held", "12x fewer", "forward, plan kept", "forward + backward"):
        assert line in output
    assert sum(output.count(word) for word in ("x faster", "x slower", "the same")) == 3
    assert "[1/1] 20 -> 30, batch 2" in progress


@pytest.mark.parametrize("dtype", commands.DTYPES)
@pytest.mark.parametrize("phase", ["--phase", "--no-phase"])
def test_bench_checks_every_dtype_with_and_without_phases(dtype: str, phase: str, command: Command) -> None:
    status, output, _ = command("bench", *SMALL, "--dtype", dtype, phase, "--tau", "0.3")
    assert status == 0, output
    assert f"{dtype}, cpu" in output
    assert f"{100 if phase == '--phase' else 50}  " in output  # anchors and phases


@pytest.mark.parametrize("load", [0.0, 100.0])
def test_bench_says_that_the_machine_is_busy(load: float, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, load, load), raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    output = command("bench", *SMALL)[1]
    assert ("The machine is busy (load 100.0 on 2 cores): times are noisy." in output) == (load > 0)


def test_the_usual_shapes_are_those_people_train() -> None:
    given = commands.parser().parse_args(["bench", "--device", "cpu"])
    assert [str(shape) for shape in bench._shapes(given)] == [
        "64 -> 64, batch 128",
        "768 -> 1000, batch 128",
        "4096 -> 4096, batch 64",
        "150528 -> 1000, batch 64",
        "262144 -> 262144, batch 8",
    ]
    given.device = "cuda:0"
    assert bench._shapes(given)[-1] == bench.Shape(1 << 20, 1 << 20, 8)


def test_bench_says_where_nn_linear_does_not_fit(command: Command) -> None:
    status, output, _ = command("bench", *SMALL, "--memory", "1e-6")
    assert status == 0, output
    assert "20 -> 30, batch 2: nn.Linear skipped: weight and gradient take 4.8e-06 GB, and --memory is 1e-06" in output
    assert "faster" not in output
    assert "us" in output  # laplex was timed


@pytest.mark.parametrize("spoil", [lambda y: 1.01 * y, lambda y: y * math.nan])
def test_a_wrong_answer_is_never_timed(
    spoil: Callable[[torch.Tensor], torch.Tensor], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = laplex.linear
    monkeypatch.setattr(laplex, "linear", lambda *args, **options: spoil(right(*args, **options)))
    monkeypatch.setattr(testing, "interleave", None)  # a call would fail
    status, output, _ = command("bench", *SMALL)
    assert status == 1
    assert "laplex is wrong here (error" in output
    assert "nothing was timed" in output


@pytest.mark.parametrize("tau", ["1e-5", "1e-6"])
def test_results_below_the_smallest_numbers_are_no_errors(tau: str, command: Command) -> None:
    status, output, _ = command("bench", "--rows", "30", "--cols", "20", "--batch", "2", "--tau", tau)
    assert status == 0, output
    assert "wrong" not in output


def test_wrong_gradients_are_never_timed(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    right = laplex.linear
    monkeypatch.setattr(laplex, "linear", lambda x, a, **options: right(x, a.detach() + 0 * a, **options))
    status, output, _ = command("bench", *SMALL)
    assert status == 1
    assert "nothing was timed" in output


def test_the_check_sees_every_gradient() -> None:
    problem = testing.draw(30, 20, rows=2, tau=0.7, phases=True, dtype=torch.float64)
    calls = layers.laplex_calls(problem)
    assert layers.check(problem, calls)[1] < 1e-12
    gradients = calls[layers.BACKWARD]()
    assert len(gradients) == 5
    for wrong in range(5):
        spoiled = tuple(g + 0.1 * (place == wrong) for place, g in enumerate(gradients))
        error, worst = layers.check(problem, calls | {layers.BACKWARD: lambda spoiled=spoiled: spoiled})
        assert error < 1e-12
        assert worst > 1e-3
    assert layers.check(problem, layers.linear_calls(problem))[1] < 1e-12


def test_a_shape_that_fails_is_noted_and_the_others_count(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    right = testing.draw

    def draw(n: int, *others: object, **options: object) -> testing.Problem:
        if n == 5:
            raise RuntimeError("out of memory\nand a long trace")
        return right(n, *others, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(testing, "draw", draw)
    monkeypatch.setattr(bench, "_shapes", lambda given: (bench.Shape(4, 5, 1), bench.Shape(20, 30, 2)))
    status, output, _ = command("bench", "--device", "cpu")
    assert status == 1
    assert "4 -> 5, batch 1: failed: out of memory\n" in output
    assert "12x fewer" in output
    assert "Traceback" not in output


def test_ctrl_c_prints_and_writes_what_there_is(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = bench.measure

    def measure(shape: bench.Shape, *others: object) -> bench.ShapeResult:
        if shape.rows == 5:
            raise KeyboardInterrupt
        return right(shape, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(bench, "_shapes", lambda given: (bench.Shape(20, 30, 2), bench.Shape(4, 5, 1)))
    status, output, errors = command("bench", "--device", "cpu", "--json", str(tmp_path / "figures.json"))
    assert status == 130
    assert "laplex bench: interrupted; this is what was finished" in errors
    assert "20 -> 30" in output
    assert "4 -> 5" not in output
    assert len(json.loads((tmp_path / "figures.json").read_text())["results"]) == 1
    monkeypatch.setattr(bench, "_shapes", lambda given: (bench.Shape(4, 5, 1),))
    assert command("bench", "--device", "cpu")[:2] == (130, "")


def test_json_holds_the_figures_and_what_they_depend_on(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    assert command("bench", *SMALL, "--json", str(file), "--tau", "0.5")[0] == 0
    saved = json.loads(file.read_text())
    assert (saved["dtype"], saved["tau"], saved["phase"]) == ("float32", 0.5, False)
    assert saved["machine"]["torch"] == torch.__version__
    (result,) = saved["results"]
    assert result["shape"] == {"rows": 30, "cols": 20, "batch": 2}
    assert result["numbers"] == {"laplex": 50, "nn.Linear": 600}
    assert set(result["seconds"]["laplex"]) == {"forward, plan kept", "forward", "forward + backward"}
    assert set(result["seconds"]["nn.Linear"]) == {"forward", "forward + backward"}
    assert all(0 <= error < 1e-5 for error in result["errors"].values())


REFUSED = {
    ("--rows", "3"): "--rows and --cols go together: a layer has both",
    ("--cols", "3"): "--rows and --cols go together: a layer has both",
    ("--batch", "3"): "--batch goes with --rows and --cols: the usual shapes have their own",
    ("--rows", "0", "--cols", "3"): "--rows must be at least 1, got 0",
    ("--rows", "3", "--cols", "-1"): "--cols must be at least 1, got -1",
    (*SMALL, "--batch", "0"): "--batch must be at least 1, got 0",
    ("--tau", "0"): "--tau must be positive and finite, got 0",
    ("--tau", "nan"): "--tau must be positive and finite, got nan",
    ("--memory", "inf"): "--memory must be positive and finite, got inf",
    ("--device", "tpu"): "--device must be cpu, cuda or cuda:INDEX, got 'tpu'",
    ("--device", "cuda:x"): "--device must be cpu, cuda or cuda:INDEX, got 'cuda:x'",
    ("--device", "cuda:99"): "--device cuda:99: torch sees ",
    ("--json", "nowhere/figures.json"): "--json: cannot write nowhere/figures.json (No such file or directory)",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_bench_refuses_bad_input(
    arguments: tuple[str, ...], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, output, errors = command("bench", *arguments)
    assert status == 2
    assert output == ""
    assert f"laplex bench: {REFUSED[arguments]}" in errors
    assert not list(tmp_path.iterdir())


def test_words_that_are_not_numbers_or_dtypes_are_refused(command: Command) -> None:
    status, _, errors = command("bench", "--rows", "many")
    assert status == 2
    assert "argument --rows: invalid int value: 'many'" in errors
    status, _, errors = command("bench", "--dtype", "int8")
    assert status == 2
    assert "argument --dtype: invalid choice: 'int8' (choose from" in errors


def test_times_and_ratios_in_words() -> None:
    assert [bench.scaled(seconds) for seconds in (None, 2.5, 2.5e-3, 2.5e-6)] == ["-", "2.5 s", "2.5 ms", "2.5 us"]
    assert bench.compared(1.0, 12.0, "faster", "slower") == "12x faster"
    assert bench.compared(3.4, 1.0, "faster", "slower") == "3.4x slower"
    assert bench.compared(3.4, None, "faster", "slower") == "-"
    assert bench.compared(4, 4, "fewer", "more") == bench.compared(36.1, 36.0, "faster", "slower") == "the same"


def test_in_a_terminal_the_table_is_rich(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    table = tables.Table("A title", ("layer", "laplex is"), [("laplex[cli]", "2x slower")])
    tables.show(table)
    assert capsys.readouterr().out == "A title\n  layer        laplex is\n  laplex[cli]  2x slower\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    tables.show(table)
    shown = capsys.readouterr().out
    assert "laplex[cli]" in shown  # square brackets are text, not markup
    assert "┃" in shown

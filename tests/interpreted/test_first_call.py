"""One compiled program is for all sizes, and `laplex.backends.warm_up` compiles all that a call may need."""

import ast
import os
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import laplex
from laplex import _backends, _progress

pytestmark = pytest.mark.skipif(sys.platform != "linux" or bool(_backends.NO_TRITON), reason="Triton is for Linux")
CPU = torch.device("cpu")


@pytest.fixture
def ahead():
    from laplex._triton import warm_up

    return warm_up


@pytest.fixture
def launched(monkeypatch):
    """The variants that launches needed, as they ran."""
    from laplex._triton import launch

    seen, variant_of = set(), launch._variant

    def noted(*launch):
        variant = variant_of(*launch)
        seen.add(variant)
        return variant

    monkeypatch.setattr(launch, "_variant", noted)
    return seen


def random_sizes(largest, number):
    """Half of them uniform, half of them with uniform logarithms."""
    draw = random.Random(0)
    uniform = [(draw.randint(1, largest), draw.randint(1, largest)) for _ in range(number // 2)]
    return uniform + [tuple(int(largest ** draw.random()) for _ in "nk") for _ in range(number // 2)]


@pytest.mark.parametrize(("rows", "gradients"), [(1, False), (5, False), (64, False), (1, True), (8, True)])
def test_random_sizes_need_nothing_that_was_not_compiled_ahead(rows, gradients, ahead):
    request = ahead.Request(torch.float32, rows, 0, gradients)
    compiled = ahead.programs_for_all_sizes(CPU, [request], 40_000)
    assert set(ahead.survey(CPU, request, random_sizes(20_000, 300))) <= set(compiled)


@pytest.mark.parametrize("batch", [0, 3], ids=["one", "batch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_large_ones_neither(dtype, batch, ahead):
    request = ahead.Request(dtype, 8, batch)
    compiled = ahead.programs_for_all_sizes(CPU, [request], 1 << 22)
    assert set(ahead.survey(CPU, request, random_sizes(1 << 21, 300))) <= set(compiled)


def test_few_programs_are_for_all_sizes(ahead):
    """What the first calls of 200 sizes take is compiling: 111 programs before sizes were hidden from Triton."""
    programs_found = {}
    for rows in (1, 8):
        programs_found |= ahead.survey(CPU, ahead.Request(torch.float32, rows), random_sizes(20_000, 200))
    assert len(programs_found) <= 24


def test_a_variant_is_what_triton_compiles(tmp_path):
    """Compiled, without a GPU: as many files as variants, and none more for other sizes."""
    script = Path(__file__).with_name("compile_ahead.py")
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment = plain | {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def test_a_survey_launches_nothing(ahead, launched):
    from laplex._triton.launch import state

    assert ahead.survey(CPU, ahead.Request(torch.float32, 1), [(3, 4), (3000, 4000)])
    assert state.survey is None


@pytest.mark.parametrize("leaves", ["", "x", "ab", "xab", "xabt", "t"])
@pytest.mark.usefixtures("tiles")
def test_a_survey_foresees_what_public_calls_launch(leaves, ahead, launched, monkeypatch):
    """With tiny tiles, in the interpreter: sizes that are ranked, joined and sorted, and one long side."""
    monkeypatch.setattr(_backends, "cheapest", lambda work, device: "scan")
    pairs = (20, 30), (60, 50), (90, 80), (150, 5), (5, 150)
    for n, k in pairs:
        given = {"x": torch.randn(3, k), "a": torch.randn(n), "b": torch.randn(k), "t": torch.tensor(0.7).double()}
        for name in leaves:
            given[name].requires_grad_()
        y = laplex.linear(given["x"], given["a"], given["b"], given["t"], backend="triton")
        if leaves:
            y.backward(torch.randn_like(y))
    ran = set(launched)
    foreseen = ahead.survey(CPU, ahead.Request(torch.float32, 3, 0, bool(leaves)), pairs)
    assert ran
    assert ran <= set(foreseen)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_nothing_to_compile(monkeypatch):
    with pytest.raises(RuntimeError, match=r"warm_up: `device` must be a CUDA device, got cpu"):
        laplex.backends.warm_up("cpu")
    monkeypatch.setattr(_backends, "interpreted", lambda: False)
    with pytest.raises(RuntimeError, match="torch sees no CUDA device"):
        laplex.backends.warm_up()


def test_every_program_found_is_compiled_once_and_told(ahead, monkeypatch):
    compiled, reported = [], []
    monkeypatch.setattr(ahead, "compile_ahead", lambda variant, numbers: compiled.append(variant))
    calls = [ahead.Request(torch.float32, rows) for rows in (1, 8)]
    number = ahead.prepare(CPU, calls, 4096, lambda done, total: reported.append((done, total)))
    assert len(compiled) == len(set(compiled)) == number > 3
    assert reported == [(done, number) for done in range(number + 1)]


def test_a_failure_to_compile_is_not_hidden(ahead, monkeypatch):
    def fails(variant, numbers):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(ahead, "compile_ahead", fails)
    with pytest.raises(RuntimeError, match="no compiler"):
        ahead.prepare(CPU, [ahead.Request(torch.float32, 1)], 64, lambda done, total: None)


def test_progress_without_a_terminal_is_a_few_lines(capsys):
    with _progress.bar("compiling", None) as reported:
        for done in range(96):
            reported(done, 95)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "compiling: 0 of 95"
    assert lines[-1] == "compiling: 95 of 95"
    assert len(lines) <= _progress.LINES + 2


def test_progress_in_a_terminal_is_a_bar(monkeypatch, capsys):
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with _progress.bar("compiling", None) as reported:
        reported(1, 2)
        reported(2, 2)
    assert "2/2" in capsys.readouterr().err


def test_numbers_that_triton_sees():
    from laplex._triton.program import form_of

    program = SimpleNamespace(strides=[1], divisible=[2])
    assert form_of(program, (5, 1, 8)) == form_of(program, (1, 1, 9)) == (True, False)
    assert form_of(program, (16, 16, 48)) == (False, 16)
    assert form_of(program, (2**31, 2, 1)) == (False, 1, ("int64", 0))
    assert form_of(program, (2**31 - 1, 2, 0)) == (False, 16)


def test_every_program_is_declared_so_that_sizes_compile_nothing():
    folder = Path(laplex.__file__).parent / "_triton"
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py")]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    programs = [node for node in functions if node.name.endswith("_program")]
    assert len(programs) > 30
    assert [node.name for node in programs if "program(" not in map(_head, node.decorator_list)] == []


def _head(decorator):
    return ast.unparse(decorator)[: len("program(")]

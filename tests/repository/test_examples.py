"""Every script of examples/ runs as a user runs it, and its self-check holds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Small work on two threads of a busy machine waits for a core at every step, and takes ten times as long.
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def run(path, *arguments, cwd=None):
    command = [sys.executable, str(path), *arguments]
    return subprocess.run(command, cwd=cwd, env=ONE_THREAD, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, tmp_path):
    done = run(path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "OK"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_short_and_checked(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 80
    assert "assert " in text


def test_an_example_writes_where_it_is_told(tmp_path):
    path = next(path for path in EXAMPLES if path.stem == "density_of_images")
    assert run(path, str(tmp_path)).returncode == 0
    assert (tmp_path / "density.png").stat().st_size > 10_000

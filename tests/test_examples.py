"""Every script of examples/ runs as a user runs it, and its self-check holds."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, tmp_path):
    done = subprocess.run([sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "OK"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_short_and_checked(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 80
    assert "assert " in text


def test_an_example_writes_where_it_is_told(tmp_path):
    path = next(path for path in EXAMPLES if path.stem == "density_of_images")
    subprocess.run([sys.executable, str(path), str(tmp_path)], check=True, capture_output=True, timeout=120)
    assert (tmp_path / "density.png").stat().st_size > 10_000

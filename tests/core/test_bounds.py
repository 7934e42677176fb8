"""The compiled core reads and writes nothing past the end of its arrays: guard pages, in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="needs mprotect")
def test_no_access_past_the_end():
    script = Path(__file__).with_name("guarded.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    reached = done.stdout.splitlines()
    fault = f"exit {done.returncode} after {reached}\n{done.stderr}"
    assert reached == ["kernels done", "plans done", "stale plans done"], fault

"""Every kernel compiles for a GPU, on a machine without one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("compile_programs.py")


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
@pytest.mark.parametrize(
    "part", ["float64", "float32", "grams", "phases", "bfloat16_and_orders", "formed", "states", "soft"]
)
def test_every_kernel_compiles_for_a_gpu(part, tmp_path):
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, SCRIPT, part],
        env=plain | {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_DISABLE_LINE_INFO": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]

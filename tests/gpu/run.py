"""Run the tests that need a GPU, in a process for each file, all at once: `make test-gpu`, or this file by itself.

Most of their time goes into compiling programs, which is work for one core each. The Python that runs this needs torch,
triton and pytest; laplex is taken from this checkout. Arguments are passed on to pytest.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: list[str]) -> int:
    files = sorted(path.relative_to(ROOT).as_posix() for path in Path(__file__).parent.glob("test_*.py"))
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    start = time.perf_counter()
    processes = {
        file: subprocess.Popen(
            [sys.executable, "-m", "pytest", "-m", "gpu", *arguments, file],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for file in files
    }
    failed = []
    for file, process in processes.items():
        output, _ = process.communicate()
        print(f"--- {file}\n{output}", flush=True)
        if process.returncode:
            failed.append(file)
    print(f"{len(files)} files in {time.perf_counter() - start:.0f} s; failed: {', '.join(failed) or 'none'}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

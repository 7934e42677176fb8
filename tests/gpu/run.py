"""Run the tests that need a GPU, in a process for each file, all at once: `make test-gpu`, or this file by itself.

Most of their time goes into compiling programs, which is work for one core each. A file is reported as soon as it is
finished, so that an interruption loses no result. The Python that runs this needs torch, triton and pytest; laplex is
taken from this checkout. Arguments are passed on to pytest.
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_file(file: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Its tests, in a process of their own."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "gpu", *arguments, file],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def main(arguments: list[str]) -> int:
    files = sorted(path.relative_to(ROOT).as_posix() for path in Path(__file__).parent.glob("test_*.py"))
    start = time.perf_counter()
    failed = []
    with ThreadPoolExecutor(len(files)) as pool:
        waiting = {pool.submit(run_file, file, arguments): file for file in files}
        for future in as_completed(waiting):
            file, finished = waiting[future], future.result()
            print(f"--- {file}, after {time.perf_counter() - start:.0f} s\n{finished.stdout}", flush=True)
            if finished.returncode:
                failed.append(file)
    print(f"{len(files)} files in {time.perf_counter() - start:.0f} s; failed: {', '.join(failed) or 'none'}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Run the tests that need a GPU, in a process for each file, all at once: `make test-gpu`, or this file by itself.

Most of their time goes into compiling programs, which is work for one core each; the files that compile most are run
in several parts. A file is reported as soon as it is finished, so that an interruption loses no result. The Python that
runs this needs torch, triton and pytest; laplex is taken from this checkout. Arguments are passed on to pytest.
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = {"test_gpu_gp": 5, "test_gpu_soft": 4, "test_gpu": 2}  # processes of a file; one of the others


def run_part(file: str, part: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """A part of a file's tests, in a process of its own."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "gpu", "--part", part, *arguments, file],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def main(arguments: list[str]) -> int:
    files = sorted(path.relative_to(ROOT).as_posix() for path in Path(__file__).parent.glob("test_*.py"))
    parts = {file: PARTS.get(Path(file).stem, 1) for file in files}
    each = [(file, f"{i}/{count}") for file, count in parts.items() for i in range(1, count + 1)]
    start = time.perf_counter()
    failed = []
    with ThreadPoolExecutor(len(each)) as pool:
        waiting = {pool.submit(run_part, *one, arguments): one for one in each}
        for future in as_completed(waiting):
            name, finished = " ".join(waiting[future]), future.result()
            print(f"--- {name}, after {time.perf_counter() - start:.0f} s\n{finished.stdout}", flush=True)
            if finished.returncode:
                failed.append(name)
    print(f"{len(files)} files in {time.perf_counter() - start:.0f} s; failed: {', '.join(failed) or 'none'}")
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""What `import laplex` costs beyond `import torch`, in fresh interpreters, and what it does besides."""

import statistics
import subprocess
import sys

from benchmarks.problems import Row
from benchmarks.result import Measured, Result, judge, without_value
from laplex.testing import Times

PAIRS = 7

WITHOUT = "import time; start = time.perf_counter(); import torch; print(time.perf_counter() - start)"

WITH = """
import time
start = time.perf_counter()
import torch
middle = time.perf_counter()
import laplex
end = time.perf_counter()
print(end - start, end - middle)
"""

# Python tells an audit hook of every file it opens and every process it starts.
DEEDS = """
import os, sys, torch
deeds = []
def hook(event, args):
    if event == "open" and (args[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        deeds.append(f"wrote {args[0]}")
    elif event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork"):
        deeds.append(f"started {args[0] if args else event}")
sys.addaudithook(hook)
import laplex
print("; ".join(deeds))
"""


def measure_import(row: Row) -> Result:
    """Alternate interpreters with and without laplex; the value is the median import after torch's is done."""
    if deeds := _python(DEEDS):
        return without_value(row, None, "miss", f"import laplex {deeds}")
    torch_alone: list[float] = []
    both: list[float] = []
    after: list[float] = []
    for _ in range(PAIRS):
        torch_alone.append(float(_python(WITHOUT)))
        total, beyond = map(float, _python(WITH).split())
        both.append(total)
        after.append(beyond)
    sides = {
        "import laplex, after torch": Measured(time=Times.summary(after)),
        "import torch": Measured(time=Times.summary(torch_alone)),
        "import torch and laplex": Measured(time=Times.summary(both)),
    }
    return judge(row, None, statistics.median(after), sides, "starts no process and writes no file")


def _python(code: str) -> str:
    """What the code prints. Bytecode is not written (-B): this process's own imports have done so."""
    done = subprocess.run([sys.executable, "-B", "-c", code], check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"python -c failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return done.stdout.strip()

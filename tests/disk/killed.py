"""A product that is killed again and again, at random moments, until it is complete.

python tests/disk/killed.py 50        kills it fifty times, and compares the result
"""

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SIZE, MEMORY = 100_000, 2_400_000
WORK = """
import os, sys, laplex
from pathlib import Path
if sys.argv[3] == "quick":  # a kill needs no waiting for the disk, only a power cut does
    os.fsync = lambda file: None
folder = Path(sys.argv[1])
print("begin", flush=True)
laplex.disk.linear(
    *(folder / f"{name}.npy" for name in "xab"), 0.3, out=folder / "y.npy", memory=int(sys.argv[2]),
    phi=folder / "phi.npy", psi=folder / "psi.npy", progress=lambda done, total: print(done, total, flush=True),
)
"""


def prepare(folder, size=SIZE):
    generator = np.random.default_rng(0)
    for name in ("x", "a", "b", "phi", "psi"):
        np.save(folder / f"{name}.npy", generator.standard_normal((2, size) if name == "x" else size, np.float32))


def run(folder, pace, seconds=None):
    """Run the product, killed so many seconds after it began; what it reached, and whether it came to its end."""
    process = subprocess.Popen(
        [sys.executable, "-c", WORK, folder, str(MEMORY), pace], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "begin\n"
    if seconds is not None:
        time.sleep(seconds)
        process.kill()
    lines = process.stdout.read().splitlines()
    status = process.wait()
    assert status in (0, -9), "it failed by itself"
    return (int(lines[-1].split()[0]) if lines and " " in lines[-1] else 0), status == 0


def kill_and_resume(kills, pace, seed=0):
    """Whether results of killed products are those of one that was not, to the bit; and what was seen."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        begin = time.monotonic()
        assert run(folder, pace)[1]
        longest = time.monotonic() - begin
        want = (folder / "y.npy").read_bytes()
        (folder / "y.npy").unlink()
        chance, seen, killed, furthest = random.Random(seed), [], 0, 0
        while killed < kills:
            reached, complete = run(folder, pace, chance.uniform(0, longest / 2))
            if not complete:
                killed += 1
                seen.append(reached)
                assert reached == 0 or reached >= furthest, "work was lost"
                furthest = max(furthest, reached)
            if (folder / "y.npy").exists():
                assert (folder / "y.npy").read_bytes() == want
                if complete:
                    assert sorted(path.name for path in folder.iterdir()) == [
                        "a.npy",
                        "b.npy",
                        "phi.npy",
                        "psi.npy",
                        "x.npy",
                        "y.npy",
                    ]
                    (folder / "y.npy").unlink()
                    furthest = 0
        assert run(folder, pace)[1]
        return (folder / "y.npy").read_bytes() == want, seen


if __name__ == "__main__":
    same, seen = kill_and_resume(int(sys.argv[1]), "as always", int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print(f"killed {len(seen)} times, after {seen} items; the result is {'the same' if same else 'WRONG'}")
    sys.exit(not same)

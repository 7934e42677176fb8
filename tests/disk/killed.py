"""A product that is killed again and again, at random moments, until it is complete.

python tests/disk/killed.py 50            kills it fifty times, and compares the result
python tests/disk/killed.py 50 quick      the same, without waiting for the disk: only a power cut needs that
"""

import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import laplex

SIZE, MEMORY = 300_000, 2_000_000


def prepare(folder):
    generator = np.random.default_rng(0)
    for name in ("x", "a", "b", "phi", "psi"):
        np.save(folder / f"{name}.npy", generator.standard_normal((2, SIZE) if name == "x" else SIZE, np.float32))


def work(folder, lines):
    """The product, in a process of its own; a line for each item."""
    x, a, b, phi, psi = (folder / f"{name}.npy" for name in ("x", "a", "b", "phi", "psi"))
    note = lambda done, total: os.write(lines, b"%d\n" % done)  # noqa: E731
    laplex.disk.linear(x, a, b, 0.3, out=folder / "y.npy", phi=phi, psi=psi, memory=MEMORY, progress=note)


def run(folder, seconds=None):
    """Run the product, killed after so many seconds; what it reached, and whether it came to its end."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work(folder, writer)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reader) as lines:
        reached = [int(line) for line in lines]
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), "it failed by itself"
    return reached[-1] if reached else 0, status == 0


def kill_and_resume(kills, seed=0):
    """Whether results of killed products are those of one that was not, to the bit; and what each had reached."""
    torch.set_num_threads(1)  # so that there are no threads that a fork would lose
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        begin = time.monotonic()
        assert run(folder)[1]
        longest = time.monotonic() - begin
        want = (folder / "y.npy").read_bytes()
        (folder / "y.npy").unlink()
        chance, seen, furthest = random.Random(seed), [], 0
        while len(seen) < kills:
            reached, complete = run(folder, chance.uniform(0, longest / 2))
            if not complete:
                seen.append(reached)
                assert reached == 0 or reached >= furthest, "work was lost"
                furthest = max(furthest, reached)
            if (folder / "y.npy").exists():
                assert (folder / "y.npy").read_bytes() == want, "the file is not what it should be"
                workspace = folder / "y.npy.work"
                if not (workspace / "manifest.json").exists():  # complete; killed after that, its folder may be left
                    if workspace.exists():
                        workspace.rmdir()
                    assert len(list(folder.iterdir())) == 6, "something is left"
                    (folder / "y.npy").unlink()
                    furthest = 0
        assert run(folder)[1]
        return (folder / "y.npy").read_bytes() == want, seen


if __name__ == "__main__":
    if "quick" in sys.argv:
        os.fsync = lambda file: None
    same, seen = kill_and_resume(int(sys.argv[1]))
    print(f"killed {len(seen)} times, after {seen} items; the result is {'the same' if same else 'WRONG'}")
    sys.exit(not same)

"""Faults of `torchrun ... -m laplex fit`: what is left when a process is killed, or asked to end, at a random moment.

    python -m benchmarks.studies.faults            writes benchmarks/results/faults-cpu.json, in some ten minutes
    python -m benchmarks.studies.faults --quick    three faults of each kind, prints only

Two gloo processes fit small images by EM, with a checkpoint every 0.2 seconds. Moments are uniform from the start of
the processes until a few seconds after their first round: imports, the rendezvous, the fit, its report.
SIGKILL goes to one of the two; SIGTERM to one of them, or to torchrun itself, and then the same command is run again.
When a fit has ended, its model is compared with that of an undisturbed fit, and the next fit begins.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.report import conditions
from laplex.cli.checkpoint import CHECKPOINT, LOG, MODEL, PICTURES, SUMMARY
from laplex.density import files

OUT = Path(__file__).parents[1] / "results" / "faults-cpu.json"
FAULTS = 50  # of each kind
PROCESSES = 2
HANG = 60.0  # seconds
FITTING = 3.0  # seconds of a fit in which a fault may come
COUNTED = (
    "fits", "hangs", "damaged files", "checkpoints lost", "rounds and epochs repeated", "before the first checkpoint",
)  # fmt: skip
FIT = ("--rank", "8", "--rounds", "1200", "--every", "0.2", "--device", "cpu")
TORCHRUN = (
    "torch.distributed.run", "--standalone", "--nproc-per-node", str(PROCESSES), "--max-restarts", "99",
    "--monitor-interval", "0.1",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few faults; nothing is written")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "images.npy", images())
        undisturbed = Fit(folder, "undisturbed")
        undisturbed.seconds = FITTING + (waited(lambda: undisturbed.logged() > 0, 10 * HANG) or 0.0)
        undisturbed.end()
        report: dict[str, Any] = {**conditions("cpu"), "processes": PROCESSES, "fit": " ".join(FIT)}
        for number in (signal.SIGKILL, signal.SIGTERM):
            report[number.name] = faults(folder, number, undisturbed, 3 if quick else FAULTS)
            print(json.dumps(report[number.name], indent=1), flush=True)
    if not quick:
        OUT.write_text(json.dumps(report, indent=1) + "\n")


def images() -> np.ndarray:
    """120 smooth images of 6 x 6 pixels and 3 channels, and some noise."""
    generator = np.random.default_rng(0)
    patterns = generator.normal(size=(8, 6, 6, 3)).cumsum(1).cumsum(2)
    values = np.tensordot(generator.normal(size=(120, 8)), patterns, 1) + generator.normal(size=(120, 6, 6, 3))
    return np.asarray((128 + 8 * values).clip(0, 255), dtype=np.uint8)


# --- a fit ------------------------------------------------------------------------------------------------------------


class Fit:
    """A fit under torchrun, from the first command to its end."""

    def __init__(self, folder: Path, name: str) -> None:
        self.out = folder / name
        self._command = ["-m", *TORCHRUN, "-m", "laplex", "fit", str(folder / "images.npy"), "--out", str(self.out)]
        self.seconds = 0.0
        self.start()

    def start(self) -> None:
        """Run the command, or run it again."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (self.out.parent / "messages").open("a") as messages:
            self.torchrun = subprocess.Popen(
                [sys.executable, *self._command, *FIT], env=environment, stdout=messages, stderr=messages
            )

    def ranks(self) -> list[int]:
        """The processes that are fitting now."""
        return [child for child in children(self.torchrun.pid) if b"RANK=" in environment_of(child)]

    def end(self) -> None:
        """Wait for the end; RuntimeError if the fit failed."""
        if self.torchrun.wait(timeout=600):
            raise RuntimeError((self.out.parent / "messages").read_text()[-4000:])

    def steps(self) -> int:
        """How many log lines the checkpoint has; -1 if there is no checkpoint. Raises ValueError if it is damaged."""
        path = self.out / CHECKPOINT
        return len(files.read(path, "checkpoint")[1]["log"]) if path.exists() else -1

    def damaged(self) -> int:
        """How many files cannot be read."""
        readers: dict[str, Callable[[Path], object]] = {
            CHECKPOINT: lambda path: files.read(path, "checkpoint"),
            MODEL: files.load,
            SUMMARY: lambda path: json.loads(path.read_text()),
            **dict.fromkeys(PICTURES, _picture),
        }
        return sum(not _readable(self.out / name, reader) for name, reader in readers.items())

    def logged(self) -> int:
        """How many lines the log has."""
        path = self.out / LOG
        return len(path.read_text().splitlines()) if path.exists() else 0


def _readable(path: Path, reader: Callable[[Path], object]) -> bool:
    """Whether the file is as it should be, or is not there."""
    try:
        if path.exists():
            reader(path)
    except (ValueError, OSError):
        return False
    return True


def _picture(path: Path) -> None:
    with Image.open(path) as picture:
        picture.load()


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def environment_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def runs(pid: int) -> bool:
    """Whether the process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def waited(condition: Callable[[], bool], seconds: float) -> float | None:
    """Seconds until the condition holds; None if it does not."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        if condition():
            return time.monotonic() - begin
        time.sleep(0.005)
    return None


# --- faults -----------------------------------------------------------------------------------------------------------


def faults(folder: Path, number: signal.Signals, undisturbed: Fit, count: int) -> dict[str, Any]:
    """What ``count`` faults did, to as many fits as that took."""
    draw = random.Random(int(number))
    seconds: list[float] = []
    seen = dict.fromkeys(COUNTED, 0)
    equal = left = 0
    while len(seconds) + seen["hangs"] < count:
        print(f"{number.name}: {len(seconds)} of {count}", flush=True)
        seen["fits"] += 1
        fit = Fit(folder, f"{number.name}-{seen['fits']}")
        while len(seconds) + seen["hangs"] < count and _strike(fit, number, draw, undisturbed.seconds, seen, seconds):
            if fit.torchrun.poll() is not None:
                fit.start()
        fit.end()
        equal += (fit.out / MODEL).read_bytes() == (undisturbed.out / MODEL).read_bytes()
        left += sum(path.name.startswith(".") for path in fit.out.iterdir())
    seconds.sort()
    return {
        "faults": count,
        **seen,
        "models that equal the undisturbed one": equal,
        "temporary files left": left,
        "seconds until all processes had ended, median": round(seconds[len(seconds) // 2], 2),
        "seconds until all processes had ended, largest": round(seconds[-1], 2),
    }


def _strike(
    fit: Fit, number: signal.Signals, draw: random.Random, most: float, seen: dict[str, int], seconds: list[float]
) -> bool:
    """Cause one fault within ``most`` seconds, and note what it leaves; False if the fit ended before."""
    everyone = waited(lambda: len(fit.ranks()) == PROCESSES or fit.torchrun.poll() is not None, HANG)
    moment, target = draw.uniform(0, most), draw.randrange(PROCESSES + (number == signal.SIGTERM))
    members = fit.ranks()
    if everyone is None or waited(lambda: fit.torchrun.poll() is not None, moment) is not None or not members:
        return False
    before, logged = fit.steps(), fit.logged()
    try:
        os.kill([*members, fit.torchrun.pid][target], number)
    except (ProcessLookupError, IndexError):  # it has just ended
        return False
    taken = waited(lambda: not any(map(runs, members)), HANG)
    if target == PROCESSES:
        fit.torchrun.wait(timeout=HANG)
    if taken is None:
        seen["hangs"] += 1
        for one in members:
            os.kill(one, signal.SIGKILL)
        return True
    seconds.append(taken)
    damaged = fit.damaged()
    seen["damaged files"] += damaged
    if damaged:
        return True
    after = fit.steps()
    seen["checkpoints lost"] += after < before
    seen["before the first checkpoint"] += after < 0
    seen["rounds and epochs repeated"] += max(logged - max(after, 0), 0)
    return True


if __name__ == "__main__":
    main()

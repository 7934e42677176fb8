"""A product of arguments that do not fit into memory: time relative to the disk's alone, memory, and errors.

    python -m benchmarks.studies.disk                 10^9 points: writes benchmarks/results/disk-cpu.json
    python -m benchmarks.studies.disk --points 1e7    prints only

Half of the points are rows and half columns, normal draws in float32; tau = 0.1. All files are in a new folder within
--folder, take 15 bytes per point, and are deleted at the end. The arguments are dropped from the system's cache. The
product runs in its own process.

The disk's time alone is the time in which it writes and reads as many bytes in sequence, uncached. Bytes that the
system still had in its cache are read faster than that; "from the disk" says how many were not.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.report import conditions

OUT = Path(__file__).parents[1] / "results" / "disk-cpu.json"
FOLDER = Path(__file__).parents[2] / "build"
POINTS, TAU, MEMORY = 10**9, 0.1, 1280 << 20
BLOCK = 1 << 24  # numbers
PROBED = 1 << 31  # bytes with which the disk's speed is measured
CHECKED = 8  # rows
PRODUCT = """
import json, sys, time
import laplex

folder, tau, memory = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
begin = time.perf_counter()
laplex.disk.linear(*(f"{folder}/{name}.npy" for name in "xab"), tau, out=f"{folder}/y.npy", memory=memory)
seconds = time.perf_counter() - begin
values = dict(line.split(":") for file in ("io", "status") for line in open(f"/proc/self/{file}"))
print(json.dumps({
    "seconds": round(seconds, 3),
    "GB read": round(int(values["rchar"]) / 1e9, 2),
    "GB written": round(int(values["wchar"]) / 1e9, 2),
    "GB read from the disk": round(int(values["read_bytes"]) / 1e9, 2),
    "peak resident GB": round(int(values["VmHWM"].split()[0]) * 1024 / 1e9, 3),
}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--points", type=float, default=POINTS)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args()
    points = int(options.points)
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        report = measure(points, Path(folder))
    print(json.dumps(report, indent=1))
    if points == POINTS:
        OUT.write_text(json.dumps(report, indent=1) + "\n")


def measure(points: int, folder: Path) -> dict[str, Any]:
    before = disk_rates(folder)
    for seed, name in enumerate("xab"):
        make(folder / f"{name}.npy", points // 2, seed)
    command = [sys.executable, "-c", PRODUCT, str(folder), str(TAU), str(MEMORY)]
    product = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    after = disk_rates(folder)
    rates = {name: round((before[name] + after[name]) / 2, 3) for name in before}
    alone = product["GB read"] / rates["read"] + product["GB written"] / rates["write"]
    return {
        **conditions("cpu"),
        "points": points,
        "tau": TAU,
        "memory": MEMORY,
        **product,
        "points per second": round(points / product["seconds"]),
        "disk, GB per second, before": before,
        "disk, GB per second, after": after,
        "seconds of the disk alone": round(alone, 3),
        "rate over that of the disk": round(alone / product["seconds"], 3),
        "error of the sum of sizes, largest of 8 rows": largest_error(folder),
        "load": [round(value, 1) for value in os.getloadavg()],
    }


def disk_rates(folder: Path) -> dict[str, float]:
    """Gigabytes per second written and read in sequence, with nothing in the system's cache."""
    path, block = folder / "probe.bin", np.random.default_rng(0).bytes(BLOCK)
    begin = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(PROBED // BLOCK):
            file.write(block)
        os.fsync(file.fileno())
    written = time.perf_counter()
    drop(path)
    dropped = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.read(BLOCK):
            pass
    end = time.perf_counter()
    path.unlink()
    return {
        "write": round(PROBED / 1e9 / (written - begin), 3),
        "read": round(PROBED / 1e9 / (end - dropped), 3),
    }


def make(path: Path, size: int, seed: int) -> None:
    """Write normal draws to a .npy file, leaving none of it in the system's cache."""
    generator = np.random.default_rng(seed)
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (size,)})
        for first in range(0, size, BLOCK):
            file.write(generator.standard_normal(min(BLOCK, size - first), np.float32).tobytes())
        file.flush()
        os.fsync(file.fileno())
    drop(path)


def drop(path: Path) -> None:
    """Drop a file from the system's cache."""
    opened = os.open(path, os.O_RDONLY)
    os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(opened)


def largest_error(folder: Path) -> float:
    """The largest error of some rows against direct sums in float64, over the sum of the sizes of their terms."""
    x, a, b, y = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in "xaby")
    rows = np.linspace(0, len(a) - 1, CHECKED).astype(np.int64)
    targets, got = torch.from_numpy(a[rows]).double(), torch.from_numpy(y[rows]).double()
    total, sizes = torch.zeros(CHECKED, dtype=torch.float64), torch.zeros(CHECKED, dtype=torch.float64)
    for first in range(0, len(b), BLOCK // 16):
        part = slice(first, first + BLOCK // 16)
        values = torch.from_numpy(x[part].astype(np.float64))
        sources = torch.from_numpy(b[part].astype(np.float64))
        kernel = (targets[:, None] - sources).abs_().div_(-TAU).exp_()
        total += kernel @ values
        sizes += kernel @ values.abs()
    return float(f"{float(((got - total).abs() / sizes).max()):.3g}")


if __name__ == "__main__":
    main()

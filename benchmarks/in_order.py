"""A product at 2^29 with both sides in order and the plan kept, over tiles and warps, beside one cuFFT.

    PYTHONPATH=src python3 -m benchmarks.in_order --out DIR [--seconds 40]      writes DIR/in-order.json

Milliseconds are medians of ``triton.testing.do_bench``. The result of each tile is compared with that of the committed
one, which the tests hold. The traffic that is needed, each array once for each of the two passes that read it, is
about 15 GB.
"""

import argparse
import json
import time
from pathlib import Path

import torch
import triton.testing

import laplex
from benchmarks.report import git, machine, versions
from laplex._triton import replay
from laplex._triton.scan import schedule

POINTS = 1 << 29
TILES = ((512, 1), (512, 2), (1024, 2), (1024, 4), (2048, 4), (1024, 1), (2048, 8), (4096, 8))  # points and warps


def milliseconds(call: object) -> float:
    return float(triton.testing.do_bench(call, warmup=20, rep=150, return_mode="median"))


def with_tile(tile: int, warps: int) -> None:
    """Schedules of products with one row, from now on."""
    schedule.tiling = lambda *form: (tile, 1, warps)
    schedule.schedule.cache_clear()
    replay.operators.kept.clear()
    replay._calls.kept.clear()


def sweep(seconds: float) -> dict[str, float]:
    a, b = (torch.randn(POINTS, device="cuda").sort().values for _ in range(2))
    x = torch.randn(1, POINTS, device="cuda")
    plan, begun = laplex.Plan(a, b), time.perf_counter()
    found = {"cuFFT": milliseconds(lambda: torch.fft.fft(x))}
    wanted = None
    for tile, warps in TILES:
        if time.perf_counter() - begun > seconds:
            break
        with_tile(tile, warps)
        y = laplex.linear(x, a, b, 1.0, plan=plan)
        wanted = y if wanted is None else wanted
        off = float((y - wanted).abs().max() / wanted.abs().max())
        if not off < 1e-6:
            raise ArithmeticError(f"tile {tile} with {warps} warps is off by {off}")
        name = f"tile {tile}, {warps} warps"
        found[name] = milliseconds(lambda: laplex.linear(x, a, b, 1.0, plan=plan))
        print(f"{name}: {found[name]:.2f} ms, {found[name] / found['cuFFT']:.2f} of a cuFFT", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder of in-order.json")
    parser.add_argument("--seconds", type=float, default=40.0, help="after which no other tile is begun")
    given = parser.parse_args()
    with torch.no_grad():
        results = sweep(given.seconds)
    head = {"machine": machine("cuda"), "versions": versions(), "git": git()}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "in-order.json").write_text(json.dumps(head | {"milliseconds": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""The GPU half of ``crossover``: compares every constant of laplex._triton.tuning with smaller and larger values.

    python -m benchmarks.studies.crossover --gpu [--out DIR] [--only NAME ...]      writes crossover-gpu.json

A sweep sets one constant to each value in turn, compares the result with that of the committed value, and times the
workloads that the constant affects: device time between events, from a cold cache, medians in microseconds. Besides the
constants there are three comparisons: the dense product against the scan ("dense_or_scan"), whole calls and operators
with and without replay ("replay"), and Triton's public call against ours ("public_launch").

Programs are first compiled by several processes that share Triton's cache; then one process measures.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

import laplex
from benchmarks.report import conditions
from benchmarks.workloads import Call, workload
from laplex._triton import launch, replay, tuning
from laplex._triton.gram import launch as gram_launch
from laplex._triton.scan import schedule
from laplex.testing import Budget, interleave

OUT = Path(__file__).parents[1] / "results"
BUDGET = Budget(min_s=0.02, min_samples=15, max_s=0.4, turn_s=0.01)
COMPILERS = 8  # processes
P = 1 << 20

# The values a constant is measured with, and the workloads: see ``workload``.
SWEEPS: dict[str, tuple[list[Any], list[str]]] = {
    "SHORT_AXIS_RATIO": ([8, 16, 32], ["long 12 1000 64", "short 12 1000 64"]),
    "TABLE_SOURCES": ([1024, 4096], ["long 20 4000 64", "long 20 1500 64"]),
    "TABLE_FROM": ([1 << 21, 1 << 23, 1 << 25], ["long 20 1000 4", "long 20 1000 16"]),
    "ROWS_STAGED": ([4, 8, 16], ["short 20 1000 4", "short 20 1000 8"]),
    "COUNTED_PAIRS": ([1 << 24, 1 << 26, 1 << 28], ["whole 11 1", "whole 12 1", "whole 13 1"]),
    "COUNTED_IN_RUNS": ([1 << 14, 1 << 16, 1 << 18], ["whole 13 1", "whole 15 1", "whole 16 1"]),
    "RUN": ([1024, 2048, 4096], ["whole 14 1"]),
    "RANK_TILE": ([(16, 512, 128), (32, 512, 128), (32, 256, 64)], ["whole 11 1"]),
    "RUN_TILE": ([(16, 256, 32), (32, 256, 32), (32, 512, 128)], ["whole 14 1"]),
    "JOIN_TILE": ([(32, 4), (32, 8), (64, 8)], ["whole 14 1"]),
    "MERGE_TILE": ([512, 1024, 2048], ["whole 20 1"]),
    "PLACES_FROM": ([1 << 21, 1 << 23, 1 << 26], ["kept 21 1", "kept 23 1"]),
    "PLACE_TILE": ([256, 512, 1024], ["plan 24"]),
    "TILE": ([128, 256, 512], ["kept 14 8", "kept 20 8", "train 20 8"]),
    "LARGE_TILE": ([256, 512, 1024], ["kept 26 1", "kept 20 1"]),
    "LARGE_TILE_FROM": ([1 << 23, 1 << 25, 1 << 27], ["kept 25 1"]),
    "ROW_TILES": ([1 << 18, 1 << 20, 1 << 22], ["kept 19 1", "kept 20 1", "kept 21 1"]),
    "SMALL_SCAN": ([1 << 16, 1 << 18, 1 << 20], ["kept 14 8", "kept 16 4"]),
    "SMALL_LARGE_TILE": ([1 << 13, 1 << 15, 1 << 17], ["kept 14 1", "kept 16 1"]),
    "ROWS": ([2, 4, 8], ["in_order 20 8", "in_order 18 64"]),
    "ROWS_OF_SPARSE": ([4, 8, 16], ["short 20 1000 64"]),
    "PROGRAMS_WANTED": ([512, 2048, 8192], ["kept 14 8", "kept 16 8"]),
    "CARRIED_BY_TILES": ([32, 128, 512], ["kept 14 8", "kept 16 8"]),
    "CARRIED_AT_ONCE": ([256, 512, 1024], ["kept 20 1", "kept 22 1"]),
    "GROUPS_BY_TILES": ([2, 8, 16], ["kept 20 1", "kept 21 1"]),
    "GATHERED_TWICE": ([1 << 18, P, 1 << 22], ["kept 18 1", "kept 19 1"]),
    "SPANS_TOGETHER": ([1 << 11, 1 << 13, 1 << 15], ["kept 20 1", "in_order 20 8"]),
    "WIDE_TOGETHER": ([16, 64], ["kept 24 1", "train 20 8"]),
    "TILE_ADJACENT": ([128, 256, 512], ["kept 20 8", "train 20 8"]),
    "ADJACENT_FROM": ([1 << 8, 1 << 10, 1 << 12], ["kept 16 8", "kept 18 8"]),
    "COPY_TILE": ([(1024, 32), (2048, 32), (4096, 32)], ["kept 20 8"]),
    "DIRECT_TILE": ([(16, 64, 4), (32, 64, 4), (16, 128, 2)], ["whole 9 8", "whole 9 128"]),
    "SPREAD_TILE": ([(64, 32), (128, 64), (256, 128)], ["long 21 1000 64", "long 21 1000 8"]),
    "SPREAD_ROWS": ([16, 32, 64], ["long 21 1000 64"]),
    "STAGE_TILE": ([32, 64, 128], ["short 21 1000 64"]),
    "REDUCE_POINTS": ([16, 32, 64], ["short 21 1000 64"]),
    "UNSTAGE_TILE": ([256, 512, 1024], ["kept 24 1"]),
    "DISTANCE_TILE": ([256, 512, 1024], ["tau 18 8"]),
    "DISTANCE_ROWS": ([2, 4, 8], ["tau 18 8"]),
    "DISTANCE_CARRIED": ([256, 512, 1024], ["tau 20 1"]),
    "DISTANCE_WARPS": ([2, 4, 8], ["tau 18 8"]),
    "GRAM_TILES": ([((1 << 62, 256),), tuning.GRAM_TILES, ((1 << 62, 1024),)], ["gram 1024 17", "gram 1000 21"]),
    "GRAM_CARRIED": ([512, 1024], ["gram 1024 17"]),
    "GRAM_ROWS": ([4, 8], ["gram 1024 17"]),
    "GRAM_FAN": ([32, 64, 128], ["gram 1024 17"]),
    "MATRIX_TILE": ([(8, 64), (16, 64), (16, 128)], ["gram 1024 17", "gram_train 1024 17"]),
    "PULL_TARGETS": ([512, 1024], ["gram_train 1024 17"]),
    "PULL_SOURCES": ([64, 128, 256], ["gram_train 1024 20"]),
    "DOT_TILE": ([(256, 8), (512, 8), (512, 4)], ["train 20 8"]),
    "BLOCK_SUM_TILE": ([(1024, 64), (2048, 64), (2048, 32)], ["train 18 64"]),
    "EARLY_PROGRAMS": ([0, 2048, 8192], ["kept 14 8", "kept 20 1"]),
}
NOT_SWEPT = {  # constants without a sweep of device time, and what covers them instead
    "DENSE_BELOW": "dense_or_scan",
    "SORTED_AT_ONCE": "memory: a sort of 2^28 keys takes 19 GB; more keys in one sort would not fit beside the anchors",
    "ROWS_ADJACENT": "16 bytes are the widest access; programs are written for four rows",
    "COMPILED_KEPT": "host memory, a bound",
    "REPLAYS_KEPT": "host memory, a bound",
    "REPLAYED_OPERATORS": "replay",
    "REPLAYED_SORTS": "replay",
}


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda")


def forget() -> None:
    """Drop what was made with other constants."""
    schedule.schedule.cache_clear()
    gram_launch.schedule.cache_clear()
    replay.operators.by_form.clear()
    replay.calls.by_form.clear()


def with_value(name: str, value: Any, call: Call) -> Call:
    """The call with a constant set. Its caches are keyed by sizes, so they must be dropped in between."""

    def set_and_call() -> object:
        if getattr(tuning, name) != value:
            setattr(tuning, name, value)
            forget()
            call()  # an untimed one fills the caches
        return call()

    return set_and_call


def sweep(name: str, *, timed: bool) -> dict[str, dict[str, float | str]]:
    """Microseconds by workload and value, and the committed value."""
    values, workloads = SWEEPS[name]
    committed = getattr(tuning, name)
    figures: dict[str, dict[str, float | str]] = {}
    try:
        for work in workloads:
            calls, first = {}, None
            for value in values:
                setattr(tuning, name, value)
                forget()
                torch.manual_seed(0)
                call = workload(work, "cuda")
                result = leading(call())
                first = result if first is None else first
                assert torch.allclose(result, first, rtol=1e-3, atol=1e-3 * float(first.abs().max())), (
                    name,
                    work,
                    value,
                )
                calls[str(value)] = with_value(name, value, call)
            if timed:
                times = interleave(calls, "cuda", BUDGET, cold=True)
                figures[work] = {value: round(1e6 * stats.median, 2) for value, stats in times.items()}
            torch.cuda.empty_cache()
    finally:
        setattr(tuning, name, committed)
        forget()
    return figures


def leading(result: Any) -> torch.Tensor:
    """A tensor to compare: the first if there are several; a zero for a plan."""
    if isinstance(result, tuple):
        return leading(result[0])
    return result if isinstance(result, torch.Tensor) else torch.zeros(1, device="cuda")


def wall(call: Call, rounds: int = 300) -> float:
    """Median microseconds of host time, with the device idle in between."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return round(1e6 * statistics.median(times), 2)


def dense_or_scan() -> dict[str, dict[str, float]]:
    """Wall time of whole calls, by n = k and rows: the dense product, and the scan with planning."""
    figures = {}
    for n in (256, 512, 768, 1024, 1536, 2048):
        for rows in (1, 8, 128):
            call = functools.partial(laplex.linear, normal(rows, n), normal(n), normal(n), 1.0)
            ways = ("dense", "triton")
            figures[f"n = {n}, B = {rows}"] = {way: wall(functools.partial(call, backend=way)) for way in ways}
    return figures


def twice(call: Call) -> None:
    call()
    call()


def replays() -> dict[str, dict[str, float]]:
    """Wall time of calls with whole-call replay, with replay of operators only, and without."""
    figures = {}
    outer, committed = replay._replayable_call, tuning.REPLAYED_OPERATORS
    for name in ("kept 14 8", "whole 12 8", "whole 14 8", "whole 9 8", "gram 1024 17", "train 12 8", "train 14 8"):
        call, times = workload(name, "cuda"), {}
        try:
            twice(call)
            times["all"] = wall(call)
            replay._replayable_call = lambda *arguments: None
            forget()
            twice(call)
            times["operators"] = wall(call)
            tuning.REPLAYED_OPERATORS = 0
            forget()
            twice(call)
            times["none"] = wall(call)
        finally:
            replay._replayable_call, tuning.REPLAYED_OPERATORS = outer, committed
            forget()
        figures[name] = times
    return figures


def public_launch() -> dict[str, float]:
    """Host microseconds of one small launch: ours, Triton's compiled[grid](...), and program[grid](...)."""
    from laplex._triton.scan.rows import copy_program

    x, y = normal(1, 4, 64), normal(1, 4, 64)
    grid, numbers = (1, 1, 1), (4, 64, *x.stride(), *y.stride(), 256, 4)
    compiled = copy_program[grid](x, y, *numbers, num_warps=4)
    stream, ours = torch.cuda.current_stream().cuda_stream, launch.launchable(compiled)
    ways: dict[str, Call] = {
        "ours": lambda: launch.launch_compiled(ours, grid, stream, [x.data_ptr(), y.data_ptr()], numbers),
        "compiled[grid]": lambda: compiled[grid](x, y, *numbers),
        "program[grid]": lambda: copy_program[grid](x, y, *numbers, num_warps=4),
    }
    figures = {}
    for way, call in ways.items():
        call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(500):
            call()
        figures[way] = round(1e6 * (time.perf_counter() - start) / 500, 2)
        torch.cuda.synchronize()
    return figures


def compile_all(names: list[str]) -> None:
    """Run every sweep once, untimed, in several processes."""
    parts = [names[start::COMPILERS] for start in range(COMPILERS)]
    command = [sys.executable, "-m", "benchmarks.studies.crossover", "--gpu", "--compile", "--only"]
    running = [subprocess.Popen([*command, *part]) for part in parts if part]
    for process in running:
        process.wait()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.studies.crossover")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--compile", action="store_true", help="compile the programs and measure nothing")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--only", nargs="*", default=list(SWEEPS))
    options = parser.parse_args(arguments)
    if options.compile:
        for name in options.only:
            sweep(name, timed=False)
        return
    compile_all(options.only)
    results: dict[str, Any] = {**conditions("cuda"), "unit": "us"}
    results |= {"not swept": NOT_SWEPT, "public_launch": public_launch(), "replay": replays()}
    results["dense_or_scan"] = dense_or_scan()
    results["sweeps"] = {}
    for name in options.only:
        results["sweeps"][name] = {"committed": str(getattr(tuning, name)), "us": sweep(name, timed=True)}
        print(name, results["sweeps"][name], flush=True)
        (options.out / "crossover-gpu.json").write_text(json.dumps(results, indent=1) + "\n")

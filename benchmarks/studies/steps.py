"""Training steps of layers on a GPU: eager, captured and compiled, compared with nn.Linear; and products with a plan.

    python -m benchmarks.studies.steps            writes benchmarks/results/steps-nvidia-h200.json
    python -m benchmarks.studies.steps --eager    without torch.compile, which takes most of the time

A step is forward and backward, with the gradient of the input. Eager steps of both layers take turns, before anything
is compiled, because torch.compile makes later eager steps of the process slower. "captured" is the step as a CUDA
graph. Times are the least of several rounds, in milliseconds of wall time. "launches" are those of an eager step.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import laplex
from benchmarks.report import COMMITTED, conditions
from laplex.nn import LaplexLinear

LAYERS = (  # features, results, kernels, rows, whether in bfloat16 by autocast, whether compiled
    (768, 1000, 16, 128, False, True),
    (4096, 4096, 1, 64, False, False),
    (16384, 16384, 1, 64, False, False),
    (150528, 1000, 1, 64, False, False),
    (768, 3072, 8, 4096, True, True),
)
POINTS, ROWS = 1 << 20, (1, 8, 64)  # of products with a plan
ROUNDS, STEPS = 8, 40
Step = Callable[[], Any]
Layer = tuple[int, int, int, int, bool, bool]


def milliseconds(steps: dict[str, Step]) -> dict[str, float]:
    """The least time of each step, which take turns."""
    best = dict.fromkeys(steps, float("inf"))
    for step in steps.values():
        for _ in range(12):
            step()
    for _ in range(ROUNDS):
        for name, step in steps.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(STEPS):
                step()
            torch.cuda.synchronize()
            best[name] = min(best[name], (time.perf_counter() - begin) / STEPS * 1e3)
    return best


def stepper(layer: Any, x: Tensor, g: Tensor, *, half: bool) -> Step:
    """One training step without the optimizer."""
    parameters = [*layer.parameters(), x]

    def step() -> None:
        for parameter in parameters:
            parameter.grad = None
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            y = layer(x)
        y.backward(g)

    return step


def captured(step: Step) -> Step:
    """The step as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def launches(step: Step) -> list[list[Any]]:
    """The launches of a step, with microseconds on the device."""
    step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        step()
        torch.cuda.synchronize()
    on_device = [event for event in seen.events() if str(event.device_type).endswith("CUDA")]
    return [[event.name[:60], round(event.device_time, 1)] for event in on_device]


def pair(sizes: Sequence[int], half: bool) -> tuple[dict[str, nn.Module], Tensor, Tensor]:
    """Both layers, an input, and a cotangent of the result."""
    features, results, kernels, rows = sizes
    torch.manual_seed(0)
    x = torch.randn(rows, features, device="cuda", requires_grad=True)
    g = torch.randn(rows, results, device="cuda", dtype=torch.bfloat16 if half else torch.float32)
    layers = {
        "nn.Linear": nn.Linear(features, results, device="cuda"),
        "LaplexLinear": LaplexLinear(features, results, kernels=kernels, device="cuda"),
    }
    return layers, x, g


def measured(layer: Layer) -> dict[str, Any]:
    """Eager and captured steps of a layer."""
    sizes, half = layer[:4], layer[4]
    layers, x, g = pair(sizes, half)
    steps = {name: stepper(module, x, g, half=half) for name, module in layers.items()}
    eager = milliseconds(steps)
    graphs = milliseconds({name: captured(step) for name, step in steps.items()})
    row = dict(zip(("features", "results", "kernels", "rows"), sizes, strict=True)) | {"bfloat16": half}
    return row | {"eager": eager, "captured": graphs, "launches": launches(steps["LaplexLinear"])}


def compiled(layer: Layer) -> dict[str, dict[str, float]]:
    """Compiled steps of a layer, by mode."""
    sizes, half = layer[:4], layer[4]
    layers, x, g = pair(sizes, half)
    modes = {}
    for mode in ("default", "reduce-overhead"):
        torch._dynamo.reset()
        modes[mode] = milliseconds(
            {name: stepper(torch.compile(module, mode=mode), x, g, half=half) for name, module in layers.items()}
        )
    return modes


def with_a_plan(rows: int) -> dict[str, Any]:
    """A product of 2^20 anchors a side, and a copy of x."""
    a, b, x = (torch.randn(*shape, device="cuda") for shape in ((POINTS,), (POINTS,), (rows, POINTS)))
    plan = laplex.Plan(a, b)
    with torch.no_grad():
        times = milliseconds({"product": lambda: laplex.linear(x, a, b, 1.0, plan=plan), "copy": x.clone})
    return {"points": POINTS, "rows": rows} | times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--out", default=str(COMMITTED / "steps-nvidia-h200.json"))
    options = parser.parse_args()
    report: dict[str, Any] = {"conditions": conditions("cuda"), "layers": [], "products": []}
    out = Path(options.out)  # written after every row: what was measured stays
    for layer in LAYERS:
        row = measured(layer)
        report["layers"].append(row)
        out.write_text(json.dumps(report, indent=1) + "\n")
        ratios = {way: row[way]["LaplexLinear"] / row[way]["nn.Linear"] for way in ("eager", "captured")}
        print(layer[:5], {way: round(ratio, 3) for way, ratio in ratios.items()}, len(row["launches"]), flush=True)
    for rows in ROWS:
        report["products"].append(with_a_plan(rows))
        out.write_text(json.dumps(report, indent=1) + "\n")
        print(report["products"][-1], flush=True)
    for layer, row in zip(LAYERS, report["layers"], strict=True):
        if layer[-1] and not options.eager:
            row["compiled"] = compiled(layer)
            print(layer[:5], row["eager"], row["compiled"], flush=True)
        out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

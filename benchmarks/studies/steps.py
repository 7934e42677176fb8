"""Training steps of layers on a GPU: eager, captured and compiled, compared with nn.Linear; and products with a plan.

    python -m benchmarks.studies.steps            writes benchmarks/results/steps-nvidia-h200.json
    python -m benchmarks.studies.steps --eager    without torch.compile, which takes most of the time

A step is forward and backward, including the gradient of the input. Eager steps of both layers take turns, before
anything is compiled, because torch.compile makes later eager steps in the process slower. "captured" is the step as a
CUDA graph. Times are the least of several rounds, in milliseconds of wall time. "launches" are those of an eager step.

A compiled call has a fixed cost, whatever it computes. So besides single layers a network is compiled: blocks of two
layers, 768 -> 3072 -> 768, with a norm, GELU and a sum, like the MLPs of a transformer.
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
BLOCKS = 8  # of the network: its layers are 768 -> 3072 and 3072 -> 768, with kernels and rows as below
NETWORK = (768, 3072, 8, 4096, True, True)
POINTS, ROWS = 1 << 20, (1, 8, 64)  # of products with a plan
ROUNDS, STEPS = 8, 40
Step = Callable[[], Any]
Layer = tuple[int, int, int, int, bool, bool]


def milliseconds(steps: dict[str, Step]) -> dict[str, float]:
    """The least time of each step; the steps take turns."""
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


class Block(nn.Module):
    """Two layers after a norm, added to their input."""

    def __init__(self, widen: nn.Module, narrow: nn.Module, features: int) -> None:
        super().__init__()
        self.norm, self.widen, self.narrow = nn.LayerNorm(features), widen, narrow

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.narrow(nn.functional.gelu(self.widen(self.norm(x))))
        return y


def networks(sizes: Sequence[int], _half: bool) -> tuple[dict[str, nn.Module], Tensor, Tensor]:
    """Both networks, an input, and a cotangent of the result, which is float32 after a sum."""
    features, hidden, kernels, rows = sizes
    torch.manual_seed(0)
    x, g = (torch.randn(rows, features, device="cuda", requires_grad=True) for _ in range(2))
    makers: dict[str, Callable[[int, int], nn.Module]] = {
        "nn.Linear": nn.Linear,
        "LaplexLinear": lambda n, k: LaplexLinear(n, k, kernels=kernels),
    }
    stacks = {
        name: nn.Sequential(*[Block(make(features, hidden), make(hidden, features), features) for _ in range(BLOCKS)])
        for name, make in makers.items()
    }
    return {name: stack.cuda() for name, stack in stacks.items()}, x, g.detach()


Pair = Callable[[Sequence[int], bool], tuple[dict[str, nn.Module], Tensor, Tensor]]


def measured(layer: Layer, make: Pair = pair) -> dict[str, Any]:
    """Eager and captured steps of a layer."""
    sizes, half = layer[:4], layer[4]
    layers, x, g = make(sizes, half)
    steps = {name: stepper(module, x, g, half=half) for name, module in layers.items()}
    eager = milliseconds(steps)
    graphs = milliseconds({name: captured(step) for name, step in steps.items()})
    row = dict(zip(("features", "results", "kernels", "rows"), sizes, strict=True)) | {"bfloat16": half}
    return row | {"eager": eager, "captured": graphs, "launches": launches(steps["LaplexLinear"])}


def compiled(layer: Layer, make: Pair = pair) -> dict[str, dict[str, float]]:
    """Compiled steps of a layer, by mode."""
    sizes, half = layer[:4], layer[4]
    layers, x, g = make(sizes, half)
    modes = {}
    for mode in ("default", "reduce-overhead"):
        torch._dynamo.reset()
        modes[mode] = milliseconds(
            {name: stepper(torch.compile(module, mode=mode), x, g, half=half) for name, module in layers.items()}
        )
    return modes


def with_a_plan(rows: int) -> dict[str, Any]:
    """Times of a product with 2^20 anchors per side, and of a copy of x."""
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
    out = Path(options.out)  # written after every row, so that no measurement is lost
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
    report["network"] = measured(NETWORK, networks) | {"blocks": BLOCKS}
    out.write_text(json.dumps(report, indent=1) + "\n")
    rows_to_compile: list[tuple[Layer, dict[str, Any], Pair]] = [(NETWORK, report["network"], networks)]
    rows_to_compile += [(layer, row, pair) for layer, row in zip(LAYERS, report["layers"], strict=True) if layer[-1]]
    for layer, row, make in rows_to_compile:
        if not options.eager:
            row["compiled"] = compiled(layer, make)
            print(layer[:5], row["eager"], row["captured"], row["compiled"], flush=True)
        out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

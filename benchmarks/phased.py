"""Training steps of a product with phases and one long side: forward and backward, all six gradients.

    PYTHONPATH=src python3 -m benchmarks.phased --out DIR              writes DIR/phased.json
    PYTHONPATH=src python3 -m benchmarks.phased --out DIR --profile    also prints the ten longest programs

Milliseconds are medians between CUDA events. Memory is the most that torch held at once, beyond the inputs: x, the
cotangent, anchors and phases. A checked step comes first: some gradients against sums over rows of the dense matrix.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import laplex
from benchmarks.measures import peak_bytes_on_gpu
from benchmarks.report import git, machine, versions

LONG, SHORT, ROWS = 3_145_728, 1000, 64
TAU = 0.01
SHAPES = {"short to long": (LONG, SHORT), "long to short": (SHORT, LONG)}  # rows and columns of the matrix
CALLS, WARM_UP = 20, 3
CHECKED = 128  # rows of a gradient that are compared
Step = Callable[[], tuple[Tensor, ...]]


class Training:
    """A product with every argument trained."""

    def __init__(self, n: int, k: int) -> None:
        torch.manual_seed(0)
        shapes = {"x": (ROWS, k), "a": (n,), "b": (k,), "phi": (n,), "psi": (k,)}
        self.leaves = {name: torch.randn(shape, device="cuda").requires_grad_() for name, shape in shapes.items()}
        self.leaves["tau"] = torch.tensor(TAU, device="cuda", requires_grad=True)
        self.g = torch.randn(ROWS, n, device="cuda")

    def forward(self) -> Tensor:
        return laplex.linear(**self.leaves)  # type: ignore[arg-type]

    def step(self) -> tuple[Tensor, ...]:
        return torch.autograd.grad(self.forward(), list(self.leaves.values()), self.g)

    def error(self) -> float:
        """The largest error of the gradients of x and phi at some places, relative to the sizes of their terms."""
        bars = dict(zip(self.leaves, self.step(), strict=True))
        x, a, b, phi, psi = (self.leaves[name].detach().double() for name in ("x", "a", "b", "phi", "psi"))
        rows, cols = (torch.randperm(len(side), device="cuda")[:CHECKED] for side in (a, b))
        even, angle = _pairs(a, b[cols], phi, psi[cols])
        g = self.g.double()
        worst = _off(bars["x"][:, cols], g @ (even * angle.cos()), g.abs() @ even)
        even, angle = _pairs(a[rows], b, phi[rows], psi)
        turned, sizes = x @ (even * -angle.sin()).mT, x.abs() @ even.mT
        wanted, largest = (g[:, rows] * turned).sum(0), (g[:, rows].abs() * sizes).sum(0)
        return max(worst, _off(bars["phi"][rows], wanted, largest))


def _pairs(a: Tensor, b: Tensor, phi: Tensor, psi: Tensor) -> tuple[Tensor, Tensor]:
    return torch.exp(-(a[:, None] - b).abs() / TAU), phi[:, None] - psi


def _off(got: Tensor, wanted: Tensor, sizes: Tensor) -> float:
    return float(((got.double() - wanted).abs() / sizes.clamp(min=1e-300)).max())


def milliseconds(call: Callable[[], object]) -> float:
    """The median of some calls."""
    for _ in range(WARM_UP):
        call()
    pairs = []
    for _ in range(CALLS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    times: list[float] = [start.elapsed_time(end) for start, end in pairs]
    return round(statistics.median(times), 4)


def print_profile(step: Step) -> None:
    """The ten longest programs of a step."""
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    print(profiler.key_averages().table(sort_by="self_device_time_total", row_limit=10, max_name_column_width=60))


def measured(n: int, k: int, profile: bool) -> dict[str, float]:
    training = Training(n, k)
    figures = {
        "error": training.error(),
        "forward ms": milliseconds(training.forward),
        "forward + backward ms": milliseconds(training.step),
        "peak GB beyond the inputs": round(peak_bytes_on_gpu(training.step) / 1e9, 4),
    }
    if profile:
        print_profile(training.step)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder of phased.json")
    parser.add_argument("--profile", action="store_true", help="print the ten longest programs of a step")
    options = parser.parse_args()
    results = {}
    for name, (n, k) in SHAPES.items():
        results[name] = measured(n, k, options.profile)
        print(f"{name}, n = {n}, k = {k}, B = {ROWS}:", results[name], flush=True)
    head = {"machine": machine("cuda"), "versions": versions(), "git": git()}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "phased.json").write_text(json.dumps(head | {"results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()

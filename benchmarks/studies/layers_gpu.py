"""Layers of realistic sizes on a GPU: laplex, nn.Linear, and K formed under torch.compile.

    python3 -m benchmarks.studies.layers_gpu --out DIR

writes trained-layers.json: wall milliseconds of a forward and backward pass, which is what a training step waits for;
the least of several rounds, in each of which all ways take turns. Errors are against dense float64.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import laplex
from benchmarks.studies import wall
from laplex import reference

LAYERS = (  # in, out, matrices in the sum, rows
    (768, 1000, 16, 128),
    (768, 1000, 4, 128),
    (384, 150, 8, 128),
    (1280, 200, 16, 128),
    (4096, 4096, 1, 64),
    (4096, 4096, 4, 4096),
    (768, 3072, 8, 4096),
    (16384, 16384, 1, 64),
    (150528, 1000, 1, 64),
)
LARGEST_CHECKED = 30_000_000  # entries of all matrices up to which the dense float64 definition is computed


def layer(sizes: tuple[int, int, int, int], backends: list[str], rounds: int, compiled: bool) -> dict[str, Any]:
    k, n, r, rows = sizes
    torch.manual_seed(0)
    dense = torch.nn.Linear(k, n, device="cuda")
    x, g = torch.randn(rows, k, device="cuda"), torch.randn(rows, n, device="cuda")
    a, b = (torch.randn(r, size, device="cuda").requires_grad_() for size in (n, k))
    weight = torch.randn(r, device="cuda").requires_grad_()
    leaves = x.requires_grad_(), a, b, weight

    def clear() -> None:
        for leaf in leaves:
            leaf.grad = None

    def of_linear_by(function: Callable[..., Any]) -> Callable[[], None]:
        def step() -> None:
            dense.zero_grad(set_to_none=True)
            x.grad = None
            function(x).backward(g)

        return step

    def of_laplex(backend: str | None, function: Callable[..., Any] = laplex.linear) -> Callable[[], None]:
        def step() -> None:
            clear()
            function(x, a, b, 1.0, weight=weight, backend=backend).backward(g)

        return step

    def formed(x: Any, a: Any, b: Any, weight: Any) -> Any:
        return x @ (torch.exp(-(a[:, :, None] - b[:, None, :]).abs()) * weight[:, None, None]).sum(0).T

    def of_compiled(function: Callable[..., Any]) -> Callable[[], None]:
        def step() -> None:
            clear()
            function(x, a, b, weight).backward(g)

        return step

    ways = {"nn.Linear": of_linear_by(dense), "laplex": of_laplex(None)}
    ways |= {backend: of_laplex(backend) for backend in backends}
    if compiled:
        ways["K compiled"] = of_compiled(torch.compile(formed))
        ways["laplex compiled"] = of_laplex(None, torch.compile(laplex.linear))
        ways["nn.Linear compiled"] = of_linear_by(torch.compile(dense))
    result = {"in": k, "out": n, "matrices": r, "rows": rows, "milliseconds": measured(ways, rounds)}
    result["chosen"] = laplex.backends.which(x, a, b, weight=weight)
    if r * n * k <= LARGEST_CHECKED:
        result["errors"] = errors(leaves, g)
    return result


def measured(ways: dict[str, Callable[[], None]], rounds: int) -> dict[str, float | str]:
    least: dict[str, float | str] = {}
    for _ in range(rounds):
        for name, step in ways.items():
            if isinstance(least.get(name), str):
                continue
            try:
                taken = wall(step, 0.05, "cuda")
                before = least.get(name, taken)
                least[name] = min(taken, before) if isinstance(before, float) else taken
            except Exception as error:
                least[name] = f"{type(error).__name__}: {error}"[:200]
                torch.cuda.empty_cache()
    return least


def errors(leaves: tuple[Any, ...], g: Any) -> dict[str, float]:
    """Relative errors in the norm, of the value and of every gradient."""
    results = []
    for dtype in (torch.float32, torch.float64):
        x, a, b, weight = (leaf.detach().to(dtype).requires_grad_() for leaf in leaves)
        if dtype == torch.float32:
            y = laplex.linear(x, a, b, 1.0, weight=weight)
        else:
            y = reference.linear(x, a, b, 1.0, weight=weight)
        results.append((y, *torch.autograd.grad(y, (x, a, b, weight), g.to(dtype))))
    names = "y", "x", "a", "b", "weight"
    return {name: float((ours - true).norm() / true.norm()) for name, ours, true in zip(names, *results, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compiled", type=int, default=len(LAYERS), help="compile this many layers; it takes long")
    parser.add_argument("--backends", nargs="*", default=["formed", "triton"])
    given = parser.parse_args()
    torch._dynamo.config.cache_size_limit = 64
    rows = []
    for number, sizes in enumerate(LAYERS):
        rows.append(layer(sizes, given.backends, given.rounds, number < given.compiled))
        torch.cuda.empty_cache()
        print(json.dumps(rows[-1]), flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    machine = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    (given.out / "trained-layers.json").write_text(json.dumps({"machine": machine, "layers": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

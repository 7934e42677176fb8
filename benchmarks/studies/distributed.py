"""Products over processes: time relative to one process, errors against direct sums, and bytes exchanged.

    python -m benchmarks.studies.distributed            writes benchmarks/results/distributed-cpu.json
    python -m benchmarks.studies.distributed --quick    small sizes, prints only

One thread for each process, gloo, float32, tau = 0.1, plans kept. "In order" compares shards that are intervals of the
line, as a plan arranges them, with one process whose anchors are sorted; "any order" compares normal draws.
"""

import argparse
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn

import laplex
from benchmarks.report import conditions

OUT = Path(__file__).parents[1] / "results" / "distributed-cpu.json"
TAU = 0.1
REPEATS = 7
ERROR_RANKS = (1, 2, 3, 4, 8)
KINDS = ("normal", "skewed", "tied", "one rank empty")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes; nothing is written")
    quick = parser.parse_args().quick
    n = 1 << (16 if quick else 24)
    single, double = (processes(measure_times, ranks, n) for ranks in (1, 2))
    ratios = {name: round(single[name] / double[name], 3) for name in single}
    fits = {f"{ranks} ranks": processes(measure_fit, ranks, 1 << (8 if quick else 14)) for ranks in (1, 2, 4)}
    errors = {f"{ranks} ranks": processes(measure_errors, ranks, 1 << (10 if quick else 16)) for ranks in ERROR_RANKS}
    sums = {f"{ranks} ranks": processes(measure_sums, ranks, 1 << (12 if quick else 21)) for ranks in (1, 2)}
    report = {
        **conditions("cpu"),
        "n": n,
        "tau": TAU,
        "unit": "ms",
        "one process": single,
        "two processes": double,
        "one process over two": ratios,
    }
    report |= {"EM, ms a round and log-likelihood": fits}
    report |= {"Gram matrices, systems and layers, ms": sums}
    report |= {"error of the sum of sizes, largest of 256 rows": errors}
    print(json.dumps(report, indent=1))
    if not quick:
        OUT.write_text(json.dumps(report, indent=1) + "\n")


# --- processes --------------------------------------------------------------------------------------------------------


def processes(measure: Callable[[int], dict[str, float]], ranks: int, n: int) -> dict[str, float]:
    """What a function measures in a group of processes, as reported by the first of them."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_member, (measure, ranks, n, folder), nprocs=ranks)
        result: dict[str, float] = json.loads(Path(folder, "result.json").read_text())
        return result


def _member(rank: int, measure: Callable[[int], dict[str, float]], ranks: int, n: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", ranks)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    result = measure(n)
    if rank == 0:
        Path(folder, "result.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads outlive the group, and may abort Python at exit


# --- times ------------------------------------------------------------------------------------------------------------


def measure_times(n: int) -> dict[str, float]:
    """Milliseconds for a product, and for one with its gradients, by one process alone or by all together."""
    results: dict[str, float] = {}
    for name, (a, b, x) in {"in order": in_order(n), "any order": any_order(n)}.items():
        plan = laplex.Plan(a, b) if dist.get_world_size() == 1 else laplex.distributed.Plan(a, b)
        results |= {f"{name}: {what}": value for what, value in _products(x, a, b, plan).items()}
    return results


def _products(x: Tensor, a: Tensor, b: Tensor, plan: Any) -> dict[str, float]:
    linear: Callable[..., Tensor] = laplex.linear if isinstance(plan, laplex.Plan) else laplex.distributed.linear
    g = torch.randn(a.shape[-1])
    leaves = [value.clone().requires_grad_() for value in (x, a, b)]

    def gradients(inputs: list[Tensor]) -> None:
        operands = [inputs[0], *(inputs[1:] or (a, b))]
        torch.autograd.grad(linear(*operands, TAU, plan=plan), inputs, g)

    return {
        "product": _median(lambda: linear(x, a, b, TAU, plan=plan)),
        "product and gradient of x": _median(lambda: gradients(leaves[:1])),
        "product and gradients of x, a, b": _median(lambda: gradients(leaves)),
    }


def _median(call: Callable[[], object]) -> float:
    call()
    times = []
    for _ in range(REPEATS):
        dist.barrier()
        begin = time.perf_counter()
        call()
        dist.barrier()  # the slowest counts
        times.append(time.perf_counter() - begin)
    return round(1e3 * sorted(times)[REPEATS // 2], 3)


def any_order(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """This process's part of n normal draws on each side."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    generator = torch.Generator().manual_seed(rank)
    a, b, x = (torch.randn(n // ranks, generator=generator) for _ in range(3))
    return a, b, x


def in_order(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same, as a plan arranges them; sorted, if there is only one process."""
    a, b, x = any_order(n)
    if dist.get_world_size() == 1:
        return a.sort().values, b.sort().values, x
    plan = laplex.distributed.Plan(a, b)
    return plan.arrange_rows(a), plan.arrange_columns(b), plan.arrange_columns(x)


# --- Gram matrices, systems, layers -----------------------------------------------------------------------------------


def measure_sums(n: int) -> dict[str, float]:
    """Times for n columns, points or features over all processes, without kept plans. A single rank is also a group."""
    a, b, weight = torch.linspace(-3, 3, min(n // 4, 1000)), *any_order(n)[:2]
    b, weight = b.requires_grad_(), weight.abs()
    points, noise = in_order(n)[0].double().requires_grad_(), 0.1
    y = torch.randn_like(points)
    features = min(n, 150_000)
    torch.manual_seed(0)
    head = laplex.nn.SpreadLinear(laplex.nn.LaplexLinear(features, 200, kernels=4))
    x = torch.randn(64, features)[:, head.features]

    def density() -> Tensor:
        return laplex.distributed.KernelSystem(points, TAU, noise).log_likelihood(y)

    return {
        "Gram matrix": _median(lambda: laplex.distributed.gram(a, b, weight, TAU)),
        "Gram matrix and gradient of b": _median(
            lambda: torch.autograd.grad(laplex.distributed.gram(a, b, weight, TAU).sum(), b)
        ),
        "density": _median(density),
        "density and gradient of points": _median(lambda: torch.autograd.grad(density(), points)),
        "layer of 150 000 features, a step": _median(lambda: head(x).square().mean().backward()),
    }


# --- fits -------------------------------------------------------------------------------------------------------------


def measure_fit(n: int) -> dict[str, float]:
    """The time of a round of EM of rank 256 for 512 examples of n features, and the likelihood after twelve rounds.

    This is measured if all processes have the same examples, and if each has a part of them.
    """
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(64, n, generator=generator).cumsum(-1) / n**0.5  # smooth along the features
    values = torch.randn(512, 64, generator=generator) @ patterns + 0.1 * torch.randn(512, n, generator=generator)
    own = values[dist.get_rank() :: dist.get_world_size()]
    figures: dict[str, float] = {}
    for name, examples, group in (
        ("", laplex.density.Examples(values), dist.group.WORLD),
        (", examples apart", laplex.density.Examples(own, group=dist.group.WORLD), None),
    ):
        state = laplex.density.start(examples, 64 if n < 1000 else 256, places="raster")
        begin = time.perf_counter()
        history = list(laplex.density.EM(examples, state, 12, group=group))
        seconds = [done.seconds for done in history[1:]] + [time.perf_counter() - begin]
        rounds = sorted(later - earlier for earlier, later in itertools.pairwise(seconds))
        figures[f"round{name}"] = round(1e3 * rounds[len(rounds) // 2], 1)
        figures[f"log_likelihood{name}"] = history[-1].log_likelihood
    return figures


# --- errors -----------------------------------------------------------------------------------------------------------


def measure_errors(n: int) -> dict[str, float]:
    return {kind: _error(kind, n) for kind in KINDS}


def _error(kind: str, n: int) -> float:
    """The largest error of some rows against direct sums in float64, over the sum of the sizes of their terms."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(0)
    a, b, x = torch.randn(n), torch.randn(n), torch.randn(n)
    if kind == "skewed":
        a, b = a.exp(), b.exp()
    if kind == "tied":
        a, b = (4 * a).round(), (4 * b).round()
    parts = ranks - 1 if kind == "one rank empty" and ranks > 1 else ranks
    own = slice(rank, None, parts) if rank < parts else slice(0)
    y = laplex.distributed.linear(x[own], a[own], b[own], TAU)
    largest = torch.zeros(())
    for i in torch.linspace(0, len(y) - 1, min(len(y), 256 // ranks)).long():
        kernel = torch.exp(-(a[own][i].double() - b.double()).abs() / TAU)
        error = (y[i] - kernel @ x.double()).abs() / (kernel @ x.double().abs()).clamp_min(1e-300)
        largest = torch.maximum(largest, error.float())
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return float(f"{float(largest):.3g}")


if __name__ == "__main__":
    main()

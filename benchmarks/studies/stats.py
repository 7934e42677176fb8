"""Kernel statistics on the line compared with scikit-learn's KernelDensity and with geomloss, on the CPU or the GPU.

    python -m benchmarks.studies.stats            writes benchmarks/results/stats-cpu.json
    python -m benchmarks.studies.stats --quick    small sizes, nothing is written
    PYTHONPATH=src python3 -m benchmarks.studies.stats --gpu --out DIR    writes DIR/stats-gpu.json; needs torch, triton

There are n samples, and as many points or samples of the other kind, in float32, with tau = 0.1 for samples of variance
1. Before a time is taken, results are compared with sums in float64, pair by pair: 256 of the n densities, and the MMD
of the first 10^4 samples. "error" is the difference over the value, or over 1 if that is larger (densities).

Rivals: scikit-learn's KernelDensity with the same kernel and rtol=1e-4; geomloss with backend="online" (KeOps), if it
is installed; on a GPU, sums in torch over blocks of pairs. All of them take O(n^2), hours at n = 10^6. A rival that
would need more than two minutes gets a part of the problem that it can do in that time: fewer points ("rival points"),
or fewer samples ("rival n"). Its time for the part is less than its time for the whole, so our time for the whole over
it, "ratio", is an upper bound on the ratio ("bound": true). Nothing is extrapolated.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.report import COMMITTED, conditions
from laplex import stats
from laplex.testing import Budget, interleave

SIZES, QUICK_SIZES = (10**4, 10**5, 10**6), (2000,)
GPU_SIZES = (10**4, 10**5, 10**6, 10**7)
TAU, CHECKED, BLOCK = 0.1, 256, 1 << 24
LIMIT, QUICK_LIMIT = 120.0, 2.0  # seconds of a rival
PERMUTATIONS, PERMUTED = 999, 10**4
Rival = Callable[[int], Callable[[], Any]]  # of a part of n: points, or samples


def data(n: int, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    x, y = torch.randn(2, n, generator=generator).unbind()
    return x.to(device), (y + 0.1).to(device)


# --- The definitions, pair by pair in float64 -------------------------------------------------------------------------


def sums(points: Tensor, x: Tensor, tau: float, dtype: torch.dtype) -> Tensor:
    """sum over j of e^{-|p_i - x_j| / tau}, in blocks of pairs."""
    points, x = points.to(dtype), x.to(dtype)
    rows = max(BLOCK // x.numel(), 1)
    parts = [torch.exp(-(part[:, None] - x).abs() / tau).sum(-1) for part in points.split(rows)]
    return torch.cat(parts)


def blocks_kde(points: Tensor, x: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    return (sums(points, x, TAU, dtype) / (2 * TAU * x.numel())).log()


def blocks_mmd(x: Tensor, y: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    within = sums(x, x, TAU, dtype).mean() / len(x) + sums(y, y, TAU, dtype).mean() / len(y)
    return within - 2 * sums(x, y, TAU, dtype).mean() / len(y)


# --- What is measured -------------------------------------------------------------------------------------------------


def kde_row(n: int, device: str, rivals: bool, limit: float) -> dict[str, Any]:
    x, points = data(n, device)
    some = points[:CHECKED]
    want = blocks_kde(some, x)
    error = float(((stats.kde(x, points, tau=TAU)[:CHECKED] - want).abs() / want.abs().clamp(min=1.0)).max())
    row = timed("kde", n, lambda: stats.kde(x, points, tau=TAU), device) | {"error": error}
    if not rivals:
        return row
    if device == "cpu":
        from sklearn.neighbors import KernelDensity

        fitted = KernelDensity(kernel="exponential", bandwidth=TAU, rtol=1e-4).fit(x[:, None].numpy())
        flat = points[:, None].numpy()
        name, rival = "scikit-learn", lambda count: lambda: fitted.score_samples(flat[:count])
    else:
        name, rival = "blocks", lambda count: lambda: blocks_kde(points[:count], x, torch.float32)
    return row | compared(row, name, rival, "points", n, limit, device)


def mmd_row(n: int, device: str, rivals: bool, limit: float) -> dict[str, Any]:
    x, y = data(n, device)
    part_x, part_y = x[: 10**4], y[: 10**4]
    want = blocks_mmd(part_x, part_y)
    error = float((stats.mmd(part_x, part_y, tau=TAU) - want).abs() / want)
    row = timed("mmd", n, lambda: stats.mmd(x, y, tau=TAU), device) | {"error": error}
    if not rivals:
        return row
    if device == "cpu":
        try:
            from geomloss import SamplesLoss
        except ImportError as error_of_import:
            return row | {"rival": f"not measured: {error_of_import}"}
        loss = SamplesLoss("laplacian", blur=TAU, backend="online")
        name, rival = "geomloss", lambda count: lambda: loss(x[:count, None], y[:count, None])
    else:
        name, rival = "blocks", lambda count: lambda: blocks_mmd(x[:count], y[:count], torch.float32)
    return row | compared(row, name, rival, "n", n, limit, device)


def gradient_rows(n: int, device: str) -> list[dict[str, Any]]:
    """Forward and backward, with gradients for samples, points and tau."""
    x, y = (side.requires_grad_() for side in data(n, device))
    tau = torch.tensor(TAU, device=device, requires_grad=True)

    def both(value: Tensor) -> Any:
        return torch.autograd.grad(value.sum(), (x, y, tau))

    return [
        timed("kde, forward and backward", n, lambda: both(stats.kde(x, y, tau=tau)), device),
        timed("mmd, forward and backward", n, lambda: both(stats.mmd(x, y, tau=tau)), device),
    ]


def other_rows(n: int, device: str) -> list[dict[str, Any]]:
    x, y = data(n, device)
    values = torch.sin(3 * x)
    calls = {
        "kde, leave-one-out": lambda: stats.kde(x, tau=TAU),
        "nadaraya_watson": lambda: stats.nadaraya_watson(x, values, y, tau=TAU),
        "local_linear": lambda: stats.local_linear(x, values, y, tau=TAU),
        "energy_distance": lambda: stats.energy_distance(x, y),
        "bandwidth": lambda: stats.bandwidth(x),
    }
    rows = [timed(name, n, call, device) for name, call in calls.items()]
    if n == PERMUTED or device == "cuda":
        name = f"permutation_test, {PERMUTATIONS} permutations"
        rows.append(timed(name, n, lambda: stats.permutation_test(x, y, tau=TAU, permutations=PERMUTATIONS), device))
    return rows


# --- Times ------------------------------------------------------------------------------------------------------------


def timed(what: str, n: int, call: Callable[[], Any], device: str) -> dict[str, Any]:
    call()
    times = interleave({"laplex": call}, device, Budget(min_s=1.0, min_samples=3, max_s=20.0))["laplex"]
    row = {"what": what, "n": n, "seconds": times.median, "p20": times.p20, "p80": times.p80}
    print(what, n, f"{times.median:.4g} s", flush=True)
    return row


def compared(
    row: dict[str, Any], name: str, rival: Rival, part: str, n: int, limit: float, device: str
) -> dict[str, Any]:
    """The rival's time for the largest part of n that it should manage within the limit."""
    count, seconds = min(100, n), once(rival(min(100, n)), device)
    power = 1 if part == "points" else 2  # the time grows with this power of the part
    while count < n:
        larger = min(int(count * min((0.8 * limit / seconds) ** (1 / power), 10.0)), n)
        if larger < 1.5 * count and larger < n:
            break
        count, seconds = larger, once(rival(larger), device)
    bound = {"rival": name, f"rival {part}": count, "rival seconds": seconds, "bound": count < n}
    bound["ratio"] = row["seconds"] / seconds
    print(row["what"], n, bound, flush=True)
    return bound


def once(call: Callable[[], Any], device: str) -> float:
    """Seconds of a call, after a first one that compiles, if calls are short."""
    for _ in range(2):
        _wait(device)
        begun = time.perf_counter()
        call()
        _wait(device)
        seconds = time.perf_counter() - begun
        if seconds > 10:
            break
    return seconds


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Measure, and write JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, nothing is written")
    parser.add_argument("--gpu", action="store_true", help="on a GPU, with sums over blocks of pairs as the rival")
    parser.add_argument("--no-rivals", action="store_true", help="measure laplex alone")
    parser.add_argument("--out", type=Path, default=COMMITTED, help="the folder")
    options = parser.parse_args()
    device = "cuda" if options.gpu else "cpu"
    sizes = QUICK_SIZES if options.quick else GPU_SIZES if options.gpu else SIZES
    limit, rivals = QUICK_LIMIT if options.quick else LIMIT, not options.no_rivals
    report: dict[str, Any] = {**conditions(device), "tau": TAU, "limit": limit, "rows": []}
    for n in sizes:
        for rows in (
            lambda n=n: [kde_row(n, device, rivals, limit)],
            lambda n=n: [mmd_row(n, device, rivals, limit)],
            lambda n=n: gradient_rows(n, device),
            lambda n=n: other_rows(n, device),
        ):
            report["rows"] += rows()
            if not options.quick:
                options.out.mkdir(parents=True, exist_ok=True)
                name = "stats-gpu.json" if options.gpu else "stats-cpu.json"
                (options.out / name).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

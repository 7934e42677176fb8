"""Gaussian processes over time on a GPU: likelihoods, gradients, and mean and variance at the data.

    python3 -m benchmarks.studies.time_series_gpu --out DIR              writes DIR/time-series-NAME.json
    python3 -m benchmarks.studies.time_series_gpu --out DIR --sweep      also varies the constants of the programs
    python3 -m benchmarks.studies.time_series_gpu --out DIR --profile    prints what the GPU does in some calls
    python3 -m benchmarks.studies.time_series_gpu --out DIR --device cpu --quick    tries this script

"likelihood" uses a process built beforehand. "gradient" builds the process, and is the likelihood with the gradients
for times, noise and all parameters. "condition" is mean and variance at all points, given the observations. Sizes are
series x points. First every kernel is compared with the CPU; figures are wall milliseconds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.report import conditions, slug
from laplex import gp
from laplex._triton import tuning
from laplex.testing import Budget, interleave

NOISE = 0.1
SIZES = (1, 10**6), (1, 10**4), (1, 10**5), (1000, 1000)
LONG = 1, 1_800_000  # the size of tinygp's published figures
QUICK = ((1, 200), (3, 50))
COMPARED, COMPARED_QUICK = (2, 2000), (2, 100)
COMPARED_LONG = 1, 100_000
VALUE, GRADIENT = 1e-10, 1e-8  # relative errors that are accepted
KERNELS = "exponential", "sho", "matern32", "matern52", "three terms"
SWEEP: dict[str, tuple[Any, ...]] = {
    "STATE_CHUNK": (16, 32, 128),
    "STATE_LANES": ((32, 1, 1), (32, 1, 2), (32, 1, 8), (64, 2, 4), (128, 4, 4)),
    "STATE_GROUP": (8, 16, 64),
    "STATE_STAGED": (512, 2048),
}
Call = Callable[[], Any]


def kernel(name: str, one: Any = 1.0) -> gp.Kernel:
    """The kernels of ``time_series``; ``one`` multiplies every parameter."""
    kernels = {
        "exponential": lambda: gp.Exponential(1.4 * one, 1.2 * one),
        "matern32": lambda: gp.Matern32(2.0 * one, 1.2 * one),
        "matern52": lambda: gp.Matern52(2.0 * one, 1.2 * one),
        "sho": lambda: gp.SHO(3.0 * one, 4.0 * one, 1.2 * one),
        "three terms": lambda: (
            gp.Exponential(1.4 * one, 1.2 * one) + gp.Matern32(2.0 * one) + gp.SHO(3.0 * one, 4.0 * one, 1.2 * one)
        ),
    }
    return kernels[name]()


def data(size: tuple[int, int], device: str) -> tuple[Tensor, Tensor]:
    """Irregular times in order, ten per unit, and observations."""
    torch.manual_seed(size[1])
    t = torch.sort(torch.rand(size, dtype=torch.float64) * size[1] / 10).values
    y = torch.sin(t) + 0.3 * torch.randn(size, dtype=torch.float64)
    return (t.to(device), y.to(device)) if size[0] > 1 else (t[0].to(device), y[0].to(device))


def likelihood(name: str, size: tuple[int, int], device: str) -> Call:
    t, y = data(size, device)
    process = gp.GaussianProcess(kernel(name), t, diag=NOISE)
    return lambda: process.log_likelihood(y)


def gradient(name: str, size: tuple[int, int], device: str) -> Call:
    t, y = data(size, device)
    t, one = t.requires_grad_(), torch.ones((), dtype=torch.float64, device=device, requires_grad=True)
    noise = torch.full_like(t, NOISE, requires_grad=True)

    def call() -> tuple[Tensor, ...]:
        value = gp.GaussianProcess(kernel(name, one), t, diag=noise).log_likelihood(y)
        return torch.autograd.grad(value.sum(), (t, noise, one))

    return call


def condition(name: str, size: tuple[int, int], device: str) -> Call:
    t, y = data(size, device)
    process = gp.GaussianProcess(kernel(name), t, diag=NOISE)
    return lambda: process.predict(y, return_var=True)


def unsorted(name: str, size: tuple[int, int], device: str) -> Call:
    """From shuffled times to the likelihood."""
    t, y = data(size, device)
    shuffled = torch.randperm(size[1], device=device)
    late, mixed = t[..., shuffled], y[..., shuffled]
    return lambda: gp.GaussianProcess(kernel(name), late, diag=NOISE).log_likelihood(mixed)


WHAT = {"likelihood": likelihood, "gradient": gradient, "condition": condition, "unsorted": unsorted}


def compared(name: str, size: tuple[int, int], device: str, whats: tuple[str, ...] = tuple(WHAT)) -> dict[str, Any]:
    """Relative errors against the CPU, in the largest norm; raises if they are too large."""
    row: dict[str, Any] = {"kernel": name, "size": size}
    for what in whats:
        ours, theirs = (_tensors(WHAT[what](name, size, where)()) for where in (device, "cpu"))
        errors = [_error(one.cpu(), other) for one, other in zip(ours, theirs, strict=True)]
        row[what] = max(errors)
        if not max(errors) <= (VALUE if what in ("likelihood", "unsorted") else GRADIENT):
            raise RuntimeError(f"{what} of {name}: relative errors {errors}")
    print(json.dumps(row), flush=True)
    return row


def _tensors(result: Any) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def _error(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / other.abs().max())


def timed(what: str, name: str, size: tuple[int, int], device: str, seconds: float) -> dict[str, Any]:
    """A row of results, in wall milliseconds."""
    call = WHAT[what](name, size, device)
    call()
    times = interleave({"": call}, device, Budget(min_s=seconds, min_samples=5, max_s=20.0))[""]
    row = {"what": what, "kernel": name, "series": size[0], "n": size[1]}
    row |= {"ms": 1e3 * times.median, "p20": 1e3 * times.p20, "p80": 1e3 * times.p80}
    print(json.dumps(row), flush=True)
    return row


def jobs(name: str, quick: bool) -> list[tuple[str, tuple[int, int]]]:
    """What is measured for a kernel, and at which sizes."""
    sizes, long = (QUICK, QUICK[0]) if quick else (SIZES, LONG)
    rows = [("likelihood", long), ("condition", long), ("gradient", long)] if name in ("exponential", "sho") else []
    rows += [(what, size) for what in ("gradient", "likelihood") for size in sizes]
    return rows + [(what, size) for what in ("condition", "unsorted") for size in sizes if name == "sho"]


def sweep(device: str, quick: bool, seconds: float) -> list[dict[str, Any]]:
    """Compare every constant with other values, one at a time."""
    size, long = (QUICK[0], QUICK[0]) if quick else ((1, 10**6), LONG)
    measured = [("gradient", "exponential", size), ("gradient", "sho", size), ("likelihood", "sho", long)]
    measured += [("gradient", "three terms", size), ("gradient", "sho", QUICK[1] if quick else (1000, 1000))]
    from laplex._triton import replay  # a machine without Triton cannot import this

    rows = []
    for constant, values in SWEEP.items():
        before = getattr(tuning, constant)
        for value in (before, *values):
            setattr(tuning, constant, value)
            replay.operators.by_form.clear()  # else launches would be repeated with their old constants
            print(constant, value, flush=True)
            rows += [{"constant": constant, "value": value, **timed(*job, device, seconds)} for job in measured]
        setattr(tuning, constant, before)
        replay.operators.by_form.clear()
    return rows


def profile(device: str, quick: bool) -> None:
    """Print where the time goes."""
    for what, name, size in (("gradient", "sho", (1, 10**6)), ("condition", "sho", LONG)):
        call = WHAT[what](name, QUICK[0] if quick else size, device)
        call()
        with torch.profiler.profile() as watched:
            call()
            if device == "cuda":
                torch.cuda.synchronize()
        print(what, name, size)
        print(watched.key_averages().table(sort_by=f"self_{device}_time_total", row_limit=30, max_name_column_width=60))


def main() -> None:
    """Compare, then measure, and write JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--sweep", action="store_true", help="measure constants of the programs, too")
    parser.add_argument("--profile", action="store_true", help="print where the time goes, and measure nothing")
    given = parser.parse_args()
    if given.profile:
        return profile(given.device, given.quick)
    described = conditions(given.device)
    report: dict[str, Any] = {**described, "compared": [], "rows": []}
    seconds = 0.01 if given.quick else 0.2
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"time-series-{slug(described['machine'])}.json"
    for name in KERNELS:
        report["compared"].append(compared(name, COMPARED_QUICK if given.quick else COMPARED, given.device))
        if not given.quick and name == "sho":
            report["compared"].append(compared(name, COMPARED_LONG, given.device, ("likelihood",)))
        for what, size in jobs(name, given.quick):
            report["rows"].append(timed(what, name, size, given.device, seconds))
            path.write_text(json.dumps(report, indent=1) + "\n")
    if given.sweep:
        report["sweep"] = sweep(given.device, given.quick, seconds / 2)
        path.write_text(json.dumps(report, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()

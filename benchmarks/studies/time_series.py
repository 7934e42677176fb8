"""Gaussian processes over time compared with celerite2 and, if it is installed, tinygp, on the CPU.

    python -m benchmarks.studies.time_series            writes benchmarks/results/time-series-cpu.json
    python -m benchmarks.studies.time_series --quick    small sizes, nothing is written

For "likelihood" all libraries have the times sorted and checked beforehand. "gradient" is the likelihood with the
gradients for times, noise and all parameters; celerite2's is for its matrices (its ``backprop``), which leaves out the
parameters. "whole" starts with unsorted times; celerite2 gets sorted ones. "predict" is mean and variance at as many
new times, "samples" are draws of the process given observations; celerite2 forms a matrix of n^2 numbers for both, so n
is small there. Likelihoods and variances are compared with celerite2's before they are timed. tinygp compiles its
functions first, which is not counted.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from celerite2 import GaussianProcess as Celerite
from celerite2 import backprop, terms
from torch import Tensor

from benchmarks.report import COMMITTED, conditions
from laplex import gp
from laplex.testing import Budget, interleave

try:
    import jax
    import tinygp
except ImportError:
    jax = tinygp = None

SIZES, QUICK_SIZES = (10**4, 10**5, 10**6), (10**3,)
PREDICTED, LONG, QUICK_PREDICTED = (10**3, 4 * 10**3), (10**5, 10**6), (200,)
NOISE = 0.1
Call = Callable[[], Any]


def ours(name: str, one: Any = 1.0) -> gp.Kernel:
    """Our kernels; ``one`` multiplies every parameter, so that passing a tensor asks for all gradients."""
    kernels = {
        "exponential": lambda: gp.Exponential(1.4 * one, 1.2 * one),
        "matern32": lambda: gp.Matern32(2.0 * one, 1.2 * one),
        "sho": lambda: gp.SHO(3.0 * one, 4.0 * one, 1.2 * one),
        "three terms": lambda: (
            gp.Exponential(1.4 * one, 1.2 * one) + gp.Matern32(2.0 * one) + gp.SHO(3.0 * one, 4.0 * one, 1.2 * one)
        ),
    }
    return kernels[name]()


def theirs(name: str) -> Any:
    """The same for celerite2, whose Matern kernel is an approximation with two states, like ours."""
    exponential, matern = terms.RealTerm(a=1.44, c=1 / 1.4), terms.Matern32Term(sigma=1.2, rho=2.0, eps=1e-5)
    sho = terms.SHOTerm(rho=3.0, Q=4.0, sigma=1.2)
    other = terms.Matern32Term(sigma=1.0, rho=2.0, eps=1e-5)
    return {"exponential": exponential, "matern32": matern, "sho": sho, "three terms": exponential + other + sho}[name]


def jaxed(name: str, one: Any) -> Any:
    """The same for tinygp."""
    kernels = tinygp.kernels.quasisep
    exponential = kernels.Exp(scale=1.4 * one, sigma=1.2 * one)
    sho = kernels.SHO(omega=2 * np.pi / 3.0 / one, quality=4.0 * one, sigma=1.2 * one)
    choices = {
        "exponential": exponential,
        "matern32": kernels.Matern32(scale=2.0 * one, sigma=1.2 * one),
        "sho": sho,
        "three terms": exponential + kernels.Matern32(scale=2.0 * one) + sho,
    }
    return choices[name]


def data(n: int) -> tuple[Tensor, Tensor]:
    """Irregular times in order, ten per unit, and observations."""
    torch.manual_seed(n)
    t = torch.sort(torch.rand(n, dtype=torch.float64) * n / 10).values
    return t, torch.sin(t) + 0.3 * torch.randn(n, dtype=torch.float64)


def likelihoods(name: str, n: int) -> dict[str, Call]:
    """The likelihood, with all that depends only on times done beforehand."""
    t, y = data(n)
    times, values, noise = t.numpy(), y.numpy(), np.full(n, NOISE)
    celerite = Celerite(theirs(name))
    process = gp.GaussianProcess(ours(name), t, diag=NOISE)

    def by_celerite() -> Any:
        celerite.compute(times, diag=noise, check_sorted=False)
        return celerite.log_likelihood(values)

    calls: dict[str, Call] = {"laplex": lambda: process.log_likelihood(y), "celerite2": by_celerite}
    agree(float(calls["laplex"]()), float(by_celerite()), 1e-9 if "mat" not in name and "three" not in name else 1e-3)
    return calls


def gradients(name: str, n: int) -> dict[str, Call]:
    """The likelihood and its gradients."""
    t, y = data(n)
    t, one = t.requires_grad_(), torch.ones((), dtype=torch.float64, requires_grad=True)
    noise = torch.full((n,), NOISE, dtype=torch.float64, requires_grad=True)

    def by_laplex() -> Any:
        value = gp.GaussianProcess(ours(name, one), t, diag=noise).log_likelihood(y)
        return torch.autograd.grad(value, (t, noise, one))

    calls: dict[str, Call] = {"laplex": by_laplex, "celerite2": celerite_gradient(name, t.detach(), y)}
    if jax is not None:
        calls["tinygp"] = tinygp_gradient(name, t.detach(), y)
    for call in calls.values():
        call()
    return calls


def celerite_gradient(name: str, t: Tensor, y: Tensor) -> Call:
    """The gradients for c, a, U, V, t and y, by celerite2's own functions."""
    n, term = len(t), theirs(name)
    times, column = t.numpy(), y.numpy()[:, None].copy()
    size = term.get_celerite_matrices(times, np.full(n, NOISE))[2].shape[1]
    shapes = (n,), (n, size), (n, size, size), (n, size, 1), (n, 1)
    d, w, s, f, z = (np.empty(shape) for shape in shapes)
    bars = [np.empty(shape) for shape in ((n,), (size,), (n,), (n, size), (n, size))]
    solve_bars = [np.empty(shape) for shape in ((n,), (size,), (n, size), (n, size), (n, 1))]

    def call() -> Any:
        c, a, u, v = term.get_celerite_matrices(times, np.full(n, NOISE))
        backprop.factor_fwd(times, c, a, u, v, d, w, s)
        backprop.solve_lower_fwd(times, c, u, w, column, z, f)
        value = np.sum(z[:, 0] ** 2 / d) + np.sum(np.log(d))
        backprop.solve_lower_rev(times, c, u, w, column, z, f, 2 * z / d[:, None], *solve_bars)
        backprop.factor_rev(times, c, a, u, v, d, w, s, 1 / d - (z[:, 0] / d) ** 2, solve_bars[3], *bars)
        return value

    return call


def tinygp_gradient(name: str, t: Tensor, y: Tensor) -> Call:
    """value_and_grad of everything, compiled."""
    jax.config.update("jax_enable_x64", True)
    times, values = jax.numpy.asarray(t.numpy()), jax.numpy.asarray(y.numpy())
    noise = jax.numpy.full(len(t), NOISE)

    def value(one: Any, times: Any, noise: Any) -> Any:
        return tinygp.GaussianProcess(jaxed(name, one), times, diag=noise, assume_sorted=True).log_probability(values)

    both = jax.jit(jax.value_and_grad(value, argnums=(0, 1, 2)))
    return lambda: jax.block_until_ready(both(1.0, times, noise))


def from_unsorted(n: int) -> dict[str, Call]:
    """From times to the likelihood: unsorted for laplex, sorted for celerite2, which checks that."""
    t, y = data(n)
    shuffled = torch.randperm(n)
    late, mixed = t[shuffled], y[shuffled]
    times, values, noise = t.numpy(), y.numpy(), np.full(n, NOISE)
    kernel = ours("exponential")

    def by_celerite() -> Any:
        celerite = Celerite(theirs("exponential"))
        celerite.compute(times, diag=noise)
        return celerite.log_likelihood(values)

    return {
        "laplex": lambda: gp.GaussianProcess(kernel, late, diag=NOISE).log_likelihood(mixed),
        "celerite2": by_celerite,
    }


def predictions(n: int, *, rival: bool) -> dict[str, Call]:
    """Mean and variance at n new times from n observations."""
    t, y = data(n)
    new = t + 0.03
    process = gp.GaussianProcess(ours("sho"), t, diag=NOISE)
    celerite = Celerite(theirs("sho"))
    celerite.compute(t.numpy(), diag=np.full(n, NOISE))
    calls: dict[str, Call] = {"laplex": lambda: process.predict(y, new, return_var=True)}
    if rival:
        calls["celerite2"] = lambda: celerite.predict(y.numpy(), new.numpy(), return_var=True)
        agree(calls["laplex"]().variance.numpy(), calls["celerite2"]()[1], 1e-8)
    return calls


def samples(n: int, *, rival: bool) -> dict[str, Call]:
    """A draw at n new times given n observations; celerite2 first needs the covariance of its prediction."""
    t, y = data(n)
    new = t + 0.03
    process = gp.GaussianProcess(ours("sho"), t, diag=NOISE)
    calls: dict[str, Call] = {"laplex": lambda: process.condition(y).sample(t=new)}
    if rival:
        celerite = Celerite(theirs("sho"))
        celerite.compute(t.numpy(), diag=np.full(n, NOISE))
        calls["celerite2"] = lambda: celerite.condition(y.numpy(), new.numpy()).sample(regularize=1e-8)
    return calls


def agree(one: Any, other: Any, tolerance: float) -> None:
    """Raise unless both are equal."""
    np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def timed(what: str, kernel: str, n: int, calls: dict[str, Call]) -> dict[str, Any]:
    """A row of results: milliseconds for each, and ours over theirs."""
    for call in calls.values():
        call()
    times = interleave(calls, budget=Budget(min_s=1.0, min_samples=5, max_s=20.0))
    row: dict[str, Any] = {
        "what": what,
        "kernel": kernel,
        "n": n,
        "ms": {name: 1e3 * one.median for name, one in times.items()},
    }
    row["p20"] = {name: 1e3 * one.p20 for name, one in times.items()}
    row["ratio"] = {name: row["ms"]["laplex"] / ms for name, ms in row["ms"].items() if name != "laplex"}
    print(what, kernel, n, {name: f"{ms:.3g} ms" for name, ms in row["ms"].items()}, row["ratio"], flush=True)
    return row


def main() -> None:
    """Measure, and write JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, nothing is written")
    parser.add_argument("--out", type=Path, default=COMMITTED / "time-series-cpu.json")
    options = parser.parse_args()
    sizes = QUICK_SIZES if options.quick else SIZES
    kernels = ("exponential", "matern32", "sho", "three terms")
    jobs = [("likelihood", kernel, n, partial(likelihoods, kernel, n)) for kernel in kernels for n in sizes]
    jobs += [("gradient", kernel, n, partial(gradients, kernel, n)) for kernel in kernels for n in sizes]
    jobs += [("whole", "exponential", n, partial(from_unsorted, n)) for n in sizes]
    for what, function in (("predict", predictions), ("samples", samples)):
        jobs += [
            (what, "sho", n, partial(function, n, rival=True))
            for n in (QUICK_PREDICTED if options.quick else PREDICTED)
        ]
        jobs += [(what, "sho", n, partial(function, n, rival=False)) for n in (() if options.quick else LONG)]
    report: dict[str, Any] = {**conditions("cpu"), "rows": []}
    for what, kernel, n, make in jobs:
        report["rows"].append(timed(what, kernel, n, make()))
        if not options.quick:
            options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

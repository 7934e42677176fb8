"""Soft ranks, sorts and top-k compared with torchsort, with LapSum's formulas, with SoftSort's matrix and torch.sort.

    python -m benchmarks.studies.soft               on the CPU; writes benchmarks/results/soft-cpu.json
    python -m benchmarks.studies.soft --gpu         on a GPU; needs torch, Triton and numpy; writes soft-<gpu>.json
    python -m benchmarks.studies.soft --quick       small sizes, nothing is written
    python -m benchmarks.studies.soft --gpu --sweep every constant SOFT_* of tuning, compared with other values

Every time is for a forward and a backward pass, with float32 numbers; "torch.sort" is forward only. Before a row is
timed, values and gradients are compared with the definition in float64: all of them for short rows, and for long ones
200, with sums over all numbers. torchsort, which has a different definition, takes part if it is installed. "lapsum" is
written here from the formulas of LapSum's paper, in plain torch: logcumsumexp for sums, searchsorted for the threshold.
It is right only if the numbers span few tau, as these do. "softsort" forms the matrix.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.report import COMMITTED, conditions, slug
from laplex import linear, soft
from laplex._triton import tuning
from laplex.testing import Budget, interleave

try:
    import torchsort
except ImportError:
    torchsort = None

TAU, SHARE = 0.1, 0.3  # softness of standard normal numbers, and the share that top-k selects
SHORT, QUICK = ((1024, 100), (1024, 1000)), ((1, 1000), (4, 3000), (64, 100))
LONG = tuple((1, 10**power) for power in range(3, 7))
ON_GPU = ((1, 1 << 24), (1, 1 << 20), (1, 1 << 22), *SHORT, *LONG, (1, 10**7))  # important ones first: time may run out
FORMED = 1 << 26  # entries of a matrix that softsort may form
COMPARED = 1 << 22  # entries of the matrices with which all values are compared
AT_ONCE = {"cpu": 1 << 22, "cuda": 1 << 26}  # entries of one of these matrices
SAMPLED = 200  # values and gradients compared for a longer row
LIMIT = 5e-7
Call = Callable[[], Any]


# --- LapSum's formulas ------------------------------------------------------------------------------------------------


def lapsum_states(s: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """For sorted numbers: the logarithms of the sums from the left and from the right, each including the number."""
    u = s / tau
    return u.logcumsumexp(-1) - u, (-u).flip(-1).logcumsumexp(-1).flip(-1) + u


def lapsum_rank(x: Tensor, tau: float) -> Tensor:
    """Zero-based ranks by autograd through the sums."""
    s, order = x.sort(-1)
    left, right = lapsum_states(s, tau)
    ranks = torch.arange(x.shape[-1], device=x.device, dtype=x.dtype) + (right.exp() - left.exp()) / 2
    return torch.zeros_like(x).scatter(-1, order, ranks)


class LapsumTopk(torch.autograd.Function):
    """p = F((x - b) / tau), whose sum is k: b by a search among the sums, and a quadratic equation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: float, tau: float) -> Tensor:
        n, s = x.shape[-1], x.sort(-1).values
        left, right = (part.exp() for part in lapsum_states(s, tau))
        places = torch.arange(n, device=x.device, dtype=x.dtype)
        above = n - 0.5 - places + (left - right) / 2
        m = (torch.searchsorted(-above, torch.full_like(s[..., :1], -k), right=True) - 1).clamp(0, n - 2)
        c = k - (n - 1 - m)
        gap = ((s.gather(-1, m + 1) - s.gather(-1, m)) / tau).neg().exp()
        root = (c * c + left.gather(-1, m) * right.gather(-1, m + 1) * gap).sqrt()
        b = s.gather(-1, m) - tau * ((c + root) / left.gather(-1, m)).log()
        u = (x - b) / tau
        tail = u.abs().neg().exp() / 2
        ctx.save_for_backward(tail)
        ctx.tau = tau
        return torch.where(u < 0, tail, 1 - tail)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        (f,) = ctx.saved_tensors
        return f / ctx.tau * (g - (f * g).sum(-1, keepdim=True) / f.sum(-1, keepdim=True)), None, None


# --- What is timed ----------------------------------------------------------------------------------------------------


def softsort(x: Tensor) -> Tensor:
    s = x.sort(-1).values
    return (torch.softmax(-(s[..., :, None] - x[..., None, :]).abs() / TAU, -1) @ x[..., None])[..., 0]


def functions(n: int, entries: int) -> dict[str, dict[str, Callable[[Tensor], Tensor]]]:
    """The functions by what is computed and by whom; ours is "laplex"."""
    k = SHARE * n
    table: dict[str, dict[str, Callable[[Tensor], Tensor]]] = {
        "rank": {"laplex": lambda x: soft.rank(x, tau=TAU), "lapsum": lambda x: lapsum_rank(x, TAU)},
        "sort": {"laplex": lambda x: soft.sort(x, tau=TAU).values},
        "topk_mask": {"laplex": lambda x: soft.topk_mask(x, k, tau=TAU), "lapsum": lambda x: topk(x, k)},
        "topk": {"laplex": lambda x: soft.topk(x, max(int(k), 1), tau=TAU).values},
    }
    if entries <= FORMED:
        table["sort"]["softsort"] = softsort
    if torchsort is not None:
        table["rank"]["torchsort"] = lambda x: torchsort.soft_rank(x, regularization_strength=TAU)
        table["sort"]["torchsort"] = lambda x: torchsort.soft_sort(x, regularization_strength=TAU)
    return table


def topk(x: Tensor, k: float) -> Tensor:
    mask: Tensor = LapsumTopk.apply(x, k, TAU)
    return mask


def step(function: Callable[[Tensor], Tensor], x: Tensor, g: Tensor) -> Call:
    def call() -> Tensor:
        y = function(x)
        return torch.autograd.grad(y, x, g[..., : y.shape[-1]])[0]

    return call


# --- Correct first ----------------------------------------------------------------------------------------------------


def check(what: str, x: Tensor, g: Tensor, function: Callable[[Tensor], Tensor]) -> dict[str, float]:
    """The largest errors of values and gradients, relative to the largest value and gradient. Raises if too large."""
    y = function(x)
    (x_bar,) = torch.autograd.grad(y, x, g[..., : y.shape[-1]])
    row, row_bar = x.detach()[:1].double(), g[:1].double()
    errors = {name: 0.0 for name in ("value", "gradient")}
    n = x.shape[-1]
    places = torch.arange(n, device=x.device) if n * n <= COMPARED else torch.randperm(n, device=x.device)[:SAMPLED]
    places = places[~_is_tied(row[0])[places]]
    sums = prepared(what, row[0], row_bar[0])
    for place in places.split(n if what == "topk_mask" else max(1, AT_ONCE[x.device.type] // n)):
        value, bar = definition(what, row[0], row_bar[0], place, sums)
        index = place % y.shape[-1] if what == "topk" else place
        near = {"value": (y.detach()[0, index], value), "gradient": (x_bar[0, place], bar)}
        for name, (ours, exact) in near.items():
            scale = float(y.detach().abs().max() if name == "value" else x_bar.abs().max())
            errors[name] = max(errors[name], float((ours.double() - exact).abs().max()) / scale)
    for name, error in errors.items():
        if not error <= LIMIT:
            raise RuntimeError(f"{what} of {tuple(x.shape)}: the {name}'s error is {error:.1e}, more than {LIMIT:.0e}")
    return errors


def _is_tied(x: Tensor) -> Tensor:
    """Which numbers of a row occur more than once: how these share a gradient depends on how a sort orders them."""
    _, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
    tied: Tensor = counts[inverse] > 1
    return tied


def prepared(what: str, x: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    """What all places of a row share: for sorts the order, the sums of weights and the means; for masks the threshold.

    The sums are laplex's, in float64, which are compared with the definition elsewhere.
    """
    if what == "rank":
        return ()
    if what == "topk_mask":
        return (threshold(x, SHARE * len(x)),)
    s, order = x.sort(descending=what == "topk")
    sums = linear(torch.stack([torch.ones_like(x), x]), s, x, TAU)
    if what == "topk":
        g = torch.where(torch.arange(len(x), device=x.device) < max(int(SHARE * len(x)), 1), g, 0.0)
    own = torch.empty_like(order).scatter_(0, order, torch.arange(len(x), device=x.device))
    return s, own, sums[1] / sums[0], g / sums[0]


def definition(what: str, x: Tensor, g: Tensor, place: Tensor, shared: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Values and gradients of a row at some places, from sums over all numbers, in float64."""
    n = len(x)
    if what == "rank":
        u = (x[place, None] - x) / TAU
        kernel = u.abs().neg().exp()
        tail = kernel / 2
        value = 0.5 + torch.where(u < 0, tail, 1 - tail).sum(-1)
        return value, (kernel * (g[place, None] - g)).sum(-1) / (2 * TAU)
    if what == "topk_mask":
        u = (x - shared[0]) / TAU
        tail = u.abs().neg().exp() / 2
        mask, f = torch.where(u < 0, tail, 1 - tail), tail / TAU
        return mask[place], (f * (g - (f * g).sum() / f.sum()))[place]
    s, own, y, w = shared
    index = place % max(int(SHARE * n), 1) if what == "topk" else place
    weights = torch.softmax(-(s[index, None] - x).abs() / TAU, -1)
    return weights @ x, sort_gradient(x, s, own[place], (y, w), place)


def threshold(x: Tensor, k: float) -> Tensor:
    """The b at which the smoothed count of numbers above it is k, by bisection."""
    low, high = x.min() - 50 * TAU, x.max() + 50 * TAU
    for _ in range(60):
        b = (low + high) / 2
        u = (x - b) / TAU
        tail = u.abs().neg().exp() / 2
        more = torch.where(u < 0, tail, 1 - tail).sum() > k
        low, high = torch.where(more, b, low), torch.where(more, high, b)
    return b


def sort_gradient(x: Tensor, s: Tensor, own: Tensor, rows: tuple[Tensor, Tensor], place: Tensor) -> Tensor:
    """The gradient for x at some places, as a source of all rows and as the target of its own row."""
    y, w = rows
    gap = x[place, None] - s
    source = (w * (gap.abs() / TAU).neg().exp() * (1 - (x[place, None] - y) * gap.sign() / TAU)).sum(-1)
    back = x - x[place, None]
    target = w[own] * ((back.abs() / TAU).neg().exp() * (x - y[own, None]) * back.sign() / TAU).sum(-1)
    return source + target


# --- Rows of the report -----------------------------------------------------------------------------------------------


def rows(shapes: tuple[tuple[int, int], ...], device: str, budget: Budget) -> Iterator[dict[str, Any]]:
    for shape in shapes:
        torch.manual_seed(0)
        x = torch.randn(shape, device=device).requires_grad_()
        g = torch.randn(shape, device=device)
        numbers = x.detach()
        for what, by in functions(shape[1], shape[0] * shape[1] ** 2).items():
            errors = check(what, x, g, by["laplex"])
            calls = {name: step(function, x, g) for name, function in by.items()}
            calls["torch.sort"] = lambda numbers=numbers: torch.sort(numbers)  # type: ignore[misc]
            yield timed(what, shape, calls, errors, device, budget)


def timed(
    what: str, shape: tuple[int, int], calls: dict[str, Call], errors: dict[str, float], device: str, budget: Budget
) -> dict[str, Any]:
    for call in calls.values():
        call()
    times = interleave(calls, device, budget)
    milliseconds = {name: 1e3 * one.median for name, one in times.items()}
    ratios = {name: milliseconds["laplex"] / other for name, other in milliseconds.items() if name != "laplex"}
    shown = {name: f"{ms:.4g} ms" for name, ms in milliseconds.items()}
    print(what, shape, shown, f"{ratios['torch.sort']:.2f} of torch.sort", errors, flush=True)
    return {"what": what, "rows": shape[0], "n": shape[1], "ms": milliseconds,
            "p20": {name: 1e3 * one.p20 for name, one in times.items()}, "ratio": ratios, "errors": errors}  # fmt: skip


SWEPT = {
    "SOFT_SORTED": (0, 128, 256, 512, 1024, 2048),
    "SOFT_ALONE": (256, 1024, 2048, 4096),
    "SOFT_TILE": (256, 512, 1024, 2048),
    "SOFT_WARP": (32, 64, 128, 256),
    "SOFT_SPANS_APART": (1, 64, 512, 1 << 40),
    "SOFT_CARRIED": (256, 512, 1024, 2048),
    "SOFT_ELEMENTS": (512, 1024, 2048, 4096),
    "SOFT_PARTS": (128, 256, 512, 1024),
}


def sweep(budget: Budget) -> Iterator[dict[str, Any]]:
    """Vary every constant by itself, at sizes for which it may matter."""
    from laplex._triton import replay  # needs Triton

    for name, values in SWEPT.items():
        usual = getattr(tuning, name)
        for shape in (*SHORT, (1, 10**4), (1, 1 << 20), (1, 1 << 24)):
            torch.manual_seed(0)
            x, g = torch.randn(shape, device="cuda").requires_grad_(), torch.randn(shape, device="cuda")
            for what, by in functions(shape[1], math.prod(shape) ** 2).items():
                row: dict[str, Any] = {"constant": name, "usual": usual, "what": what, "shape": shape, "ms": {}}
                for value in sorted({*values, usual}):
                    setattr(tuning, name, value)
                    replay.operators.by_form.clear()  # its entries were recorded with another value
                    call = step(by["laplex"], x, g)
                    call()
                    row["ms"][value] = 1e3 * interleave({"": call}, "cuda", budget)[""].median
                setattr(tuning, name, usual)
                replay.operators.by_form.clear()
                print(row, flush=True)
                yield row


def main() -> None:
    """Measure, and write JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, nothing is written")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--sweep", action="store_true", help="the constants of the GPU programs")
    parser.add_argument("--out", type=Path, help="the file to write")
    options = parser.parse_args()
    device = "cuda" if options.gpu else "cpu"
    budget = Budget(min_s=0.02, max_s=0.1) if options.quick else Budget(min_s=0.15 if options.gpu else 1.0, max_s=5.0)
    report: dict[str, Any] = {**conditions(device), "tau": TAU, "share": SHARE, "rows": []}
    machine = slug(report["machine"]) if options.gpu else "cpu"
    out = options.out or COMMITTED / f"soft-{'sweep-' if options.sweep else ''}{machine}.json"
    if options.sweep:
        measured = sweep(Budget(min_s=0.05, max_s=0.5))
    else:
        measured = rows(QUICK if options.quick else ON_GPU if options.gpu else (*LONG, *SHORT), device, budget)
    for row in measured:
        report["rows"].append(row)
        if not options.quick:
            out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

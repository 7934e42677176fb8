"""The two layers that `laplex bench` compares, and the definition that both are checked against."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import laplex

KEPT, FORWARD, BACKWARD = "forward, plan kept", "forward", "forward + backward"
CHECKED = 16  # rows of K, and as many columns for the gradients
BLOCK = 1 << 22  # entries of K formed at once

Calls = dict[str, Callable[[], tuple[Tensor, ...]]]


@dataclass(frozen=True)
class Problem:
    """y = x K^T, and the cotangent of y that the gradients are taken with."""

    x: Tensor  # (batch, k)
    rows: tuple[Tensor, ...]  # (n,) anchors a; with phases also phi
    cols: tuple[Tensor, ...]  # (k,) anchors b; with phases also psi
    cotangent: Tensor  # (batch, n)
    tau: float


def draw(n: int, k: int, batch: int, dtype: torch.dtype, device: str, tau: float, phase: bool) -> Problem:
    """N(0, 1) numbers; anchors and phases are float32 where x has fewer digits."""
    generator = torch.Generator().manual_seed(0)
    wide = torch.float64 if dtype == torch.float64 else torch.float32

    def normal(kind: torch.dtype, *size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=wide).to(device, kind)

    sides = [tuple(normal(wide, size) for _ in range(1 + phase)) for size in (n, k)]
    return Problem(normal(dtype, batch, k), sides[0], sides[1], normal(dtype, batch, n), tau)


def laplex_calls(problem: Problem) -> Calls:
    """Inference with the plan kept, inference that sorts the anchors, and a training step."""
    x, *sides = (t.clone().requires_grad_() for t in (problem.x, *problem.rows, *problem.cols))
    trained = _named(sides[: len(problem.rows)], sides[len(problem.rows) :])
    fixed = _named(problem.rows, problem.cols)
    plan = laplex.Plan(fixed["a"], fixed["b"])
    tau = problem.tau

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad(laplex.linear(x, **trained, tau=tau), (x, *sides), problem.cotangent)

    return {
        KEPT: lambda: (laplex.linear(problem.x, **fixed, tau=tau, plan=plan),),
        FORWARD: lambda: (laplex.linear(problem.x, **fixed, tau=tau),),
        BACKWARD: step,
    }


def linear_calls(problem: Problem) -> Calls:
    """torch.nn.Linear with the weight K: inference and a training step."""
    n, k = len(problem.rows[0]), len(problem.cols[0])
    x, cols = problem.x.clone().requires_grad_(), [side.double() for side in problem.cols]
    layer = torch.nn.utils.skip_init(torch.nn.Linear, k, n, bias=False, device=x.device, dtype=x.dtype)
    with torch.no_grad():
        for at in torch.arange(n, device=x.device).split(max(1, BLOCK // k)):
            sides = _named([side[at].double() for side in problem.rows], cols)
            layer.weight[at] = laplex.reference.kernel(**sides, tau=problem.tau).to(x.dtype)

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad(layer(x), (x, layer.weight), problem.cotangent)

    return {FORWARD: torch.no_grad()(lambda: (layer(problem.x),)), BACKWARD: step}


def check(problem: Problem, calls: Calls) -> tuple[float, float]:
    """The error of y, and the worst of y and of K's gradients (of which nn.Linear has the one for x alone).

    An error is the largest on some random rows (columns), over the largest entry there.
    """
    (y,), (grad_x, *others) = calls[FORWARD](), calls[BACKWARD]()
    each = len(problem.rows)
    if len(others) != 2 * each:  # the gradient of nn.Linear's weight
        others, each = [], 0
    rows = _errors(problem, [y, *others[:each]])
    back = Problem(problem.cotangent, problem.cols, problem.rows, problem.x, problem.tau)  # a product with K^T
    cols = _errors(back, [grad_x, *others[each:]])
    return rows[0], float(torch.tensor(rows + cols).max())  # a NaN anywhere is a NaN here


def _errors(problem: Problem, got: Sequence[Tensor]) -> list[float]:
    """Of y, and of the gradients for the row anchors and phases, by autograd through the definition in float64."""
    n = len(problem.rows[0])
    at = torch.randint(n, (CHECKED,), generator=torch.Generator().manual_seed(1)).to(problem.x.device)
    leaves = [side[at].double().requires_grad_() for side in problem.rows]
    sides = _named(leaves, [side.double() for side in problem.cols])
    y = laplex.reference.linear(problem.x.double(), **sides, tau=problem.tau)
    want = y.detach(), *torch.autograd.grad(y, leaves, problem.cotangent[:, at].double())
    return [_error(one[..., at], two) for one, two in zip(got, want)]


def _error(got: Tensor, want: Tensor) -> float:
    """The largest difference, over the largest entry of ``want``.

    Where all entries are near the smallest normal number, or are 0, the format has no digits left for them. Then the
    difference is divided by ``least`` instead, so that what cannot be represented does not count as wrong.
    """
    kind = torch.finfo(got.dtype)
    least = kind.tiny / (kind.eps if kind.bits > 16 else 1.0)  # in float16 tiny / eps = 0.06 is an ordinary number
    return float((got.double() - want).abs().max() / want.abs().max().clamp_min(least))


def _named(rows: Sequence[Tensor], cols: Sequence[Tensor]) -> dict[str, Any]:
    return dict(zip(("a", "phi"), rows)) | dict(zip(("b", "psi"), cols))

"""The two layers that `laplex bench` compares, and how far their answers are from the definition."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

import laplex
from laplex import testing
from laplex.testing import Problem

PLANNED, FORWARD, BACKWARD = "forward, plan kept", "forward", "forward + backward"
CHECKED = 16  # rows of K, and as many columns for the gradients
BLOCK = 1 << 22  # entries of K formed at a time

Calls = dict[str, Callable[[], tuple[Tensor, ...]]]


def laplex_calls(problem: Problem) -> Calls:
    """Inference with a kept plan, inference that sorts the anchors, and a training step."""
    names = _trained(problem)
    leaves = {name: getattr(problem, name).clone().requires_grad_() for name in names}
    trained = replace(problem, **leaves).arguments
    plan = laplex.Plan(problem.a, problem.b)

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad(laplex.linear(**trained), tuple(leaves.values()), problem.cotangent)

    return {
        PLANNED: lambda: (laplex.linear(**problem.arguments, plan=plan),),
        FORWARD: lambda: (laplex.linear(**problem.arguments),),
        BACKWARD: step,
    }


def linear_calls(problem: Problem) -> Calls:
    """torch.nn.Linear with the weight K: inference and a training step."""
    n, k = len(problem.a), len(problem.b)
    x = problem.x.clone().requires_grad_()
    layer = torch.nn.utils.skip_init(torch.nn.Linear, k, n, bias=False, device=x.device, dtype=x.dtype)
    sides = {name: side.double() for name, side in problem.arguments.items() if name in ("a", "b", "phi", "psi")}
    with torch.no_grad():
        for rows in torch.arange(n, device=x.device).split(max(1, BLOCK // k)):
            part = {name: side[rows] if name in ("a", "phi") else side for name, side in sides.items()}
            layer.weight[rows] = laplex.reference.kernel(**part, tau=problem.tau).to(x.dtype)

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad(layer(x), (x, layer.weight), problem.cotangent)

    return {FORWARD: torch.no_grad()(lambda: (layer(problem.x),)), BACKWARD: step}


def check(problem: Problem, calls: Calls) -> tuple[float, float]:
    """The error of y, and the worst error of y and of K's gradients (nn.Linear has only the one for x).

    An error is the largest on some random rows (columns), over the largest entry there.
    """
    (y,), step = calls[FORWARD](), calls[BACKWARD]()
    names = _trained(problem)
    gradients = dict(zip(names if len(step) == len(names) else ("x",), step))
    rows, cols = (testing.sample(len(side), CHECKED, side.device) for side in (problem.a, problem.b))
    error = testing.largest_error(y[:, rows], testing.product(problem, rows))
    truth = testing.gradients(problem, rows, cols)
    errors = [
        testing.largest_error(value[..., rows if name in ("a", "phi") else cols], truth[name])
        for name, value in gradients.items()
    ]
    return error, float(torch.tensor([error, *errors]).max())  # a NaN anywhere is a NaN here


def _trained(problem: Problem) -> tuple[str, ...]:
    """The names of the arguments that have gradients."""
    return ("x", "a", "b") if problem.phi is None else ("x", "a", "b", "phi", "psi")

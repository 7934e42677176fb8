"""A `Side` made runnable: a call without arguments."""

import importlib.util
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import laplex
from benchmarks import solves
from benchmarks.inputs import suited_to, symmetric
from benchmarks.problems import OURS, SOLVES, Side
from benchmarks.runnable import Runnable
from laplex import testing
from laplex.testing import Problem
from paper.methods.products import BASELINES, Baseline, dense

PHASED_ROWS = 16  # of a phased Gram matrix looked at
LAYER_COLUMNS = 256  # of a layer's gradient for x looked at
PHASED_TRAINING = ("phased forward+backward", "phased forward+backward, tau too")


def why_not(side: Side) -> str | None:
    """Why a side cannot run here; None if it can."""
    if side.method in OURS:
        answer = "yes" if side.backend is None else laplex.backends.available()[side.backend]
        return None if answer == "yes" else answer
    needs = BASELINES[side.method].needs
    if needs is None or importlib.util.find_spec(needs) is not None:
        return None
    return f'{needs} is not installed: pip install "{needs}"'


def build(side: Side, problem: Problem) -> Runnable:
    """Set the side up; what it may keep is made here, outside the call."""
    if side.method == "laplex-gram":
        return _gram(side, problem)
    if side.mode in SOLVES or (side.method not in OURS and BASELINES[side.method].solves):
        return solves.build(side, problem)
    return _laplex(side, problem) if side.method == "laplex" else _baseline(side, problem)


def _gram(side: Side, problem: Problem) -> Runnable:
    x, a, b, tau = problem.x, problem.a, problem.b, problem.tau
    plan = laplex.Plan(a, b, backend=side.backend)
    if side.mode in ("phased", "phased forward+backward"):
        return _phased_gram(side, problem, plan.backend)
    reused_plan = plan if side.mode == "kept" else None
    call = partial(laplex.gram, a, b, x, tau, plan=reused_plan, backend=side.backend)
    return Runnable(call, problem, plan.backend, gram=True)


def _phased_gram(side: Side, problem: Problem, backend: str) -> Runnable:
    """One weight, positive; its gradients are judged by the tests."""
    a, b, weight = problem.a, problem.b, problem.x[0].abs()
    phi, psi = 2 * a.flip(0), 3 * b.flip(0)  # numbers as good as any
    if side.mode == "phased":
        call = partial(laplex.gram, a, b, weight, problem.tau, phi=phi, psi=psi, backend=side.backend)
        return Runnable(call, judge=partial(_phased_error, problem, weight, phi, psi), backend=backend)
    leaves = tuple(leaf.detach().requires_grad_() for leaf in (a, b, weight, phi, psi))
    cotangent = torch.ones(len(a), len(a), dtype=a.dtype, device=a.device)

    def both() -> tuple[Tensor, ...]:
        a, b, weight, phi, psi = leaves
        matrix = laplex.gram(a, b, weight, problem.tau, phi=phi, psi=psi, backend=side.backend)
        return torch.autograd.grad(matrix, leaves, cotangent)

    return Runnable(both, backend=backend)


def _phased_error(problem: Problem, weight: Tensor, phi: Tensor, psi: Tensor, got: Tensor) -> float:
    """Of some of the rows and columns."""
    some = torch.arange(0, len(problem.a), max(len(problem.a) // PHASED_ROWS, 1), device=got.device)
    dense = laplex.reference.kernel(
        problem.a[some].double(), problem.b.double(), problem.tau, phi=phi[some].double(), psi=psi.double()
    )
    return testing.relative_error(got[some][:, some], (dense * weight.double()) @ dense.mT)


def _laplex(side: Side, problem: Problem) -> Runnable:
    if side.mode == "symmetric":
        problem = symmetric(problem)
    x, a, b, tau = problem.x, problem.a, problem.b, problem.tau
    which = partial(laplex.backends.which, backend=side.backend)
    if side.mode in PHASED_TRAINING:
        return _phased_training(side, problem)
    if side.mode == "whole":
        return Runnable(partial(laplex.linear, x, a, b, tau, backend=side.backend), problem, which(x, a, b))
    if side.mode in ("kept", "symmetric", "graph"):
        plan = laplex.Plan(a, b)
        product = partial(laplex.linear, x, a, b, tau, plan=plan, backend=side.backend)
        return Runnable(_graph(product) if side.mode == "graph" else product, problem, which(x, a, b, plan=plan))
    leaves = x, a, b = tuple(leaf.detach().requires_grad_() for leaf in (x, a, b))
    reused_plan = laplex.Plan(a, b) if side.mode == "forward+backward" else None
    backend = which(x, a, b, plan=reused_plan)
    product = partial(laplex.linear, x, a, b, tau, plan=reused_plan, backend=side.backend)
    if side.mode == "forward+backward compiled":
        compiled = torch.compile(laplex.linear, fullgraph=True, dynamic=False)
        product = partial(compiled, x, a, b, tau, backend=side.backend)
    return Runnable(lambda: torch.autograd.grad(product(), leaves, problem.cotangent), problem, backend)


def _phased_training(side: Side, problem: Problem) -> Runnable:
    """All gradients of a product with phases; the tests judge them."""
    given = problem.x, problem.a, problem.b, 2 * problem.a.flip(0), 3 * problem.b.flip(0)  # phases as good as any
    leaves = x, a, b, phi, psi = tuple(leaf.detach().requires_grad_() for leaf in given)
    tau: Tensor = torch.tensor(problem.tau, dtype=a.dtype, device=a.device)
    if side.mode == "phased forward+backward, tau too":
        leaves = *leaves, tau.requires_grad_()

    def both() -> tuple[Tensor, ...]:
        y = laplex.linear(x, a, b, tau, phi=phi, psi=psi, backend=side.backend)
        return torch.autograd.grad(y, leaves, problem.cotangent)

    return Runnable(both, backend=laplex.backends.which(x, a, b, tau, phi=phi, psi=psi, backend=side.backend))


def _graph(product: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The call captured in a CUDA graph, and replayed."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            product()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        y = product()

    return partial(_replay, graph, y, product)


def _replay(graph: torch.cuda.CUDAGraph, y: Tensor, _product: Callable[[], Tensor]) -> Tensor:
    """The product is only held: its plan lies in memory that the graph reads."""
    graph.replay()
    return y


def _baseline(side: Side, problem: Problem) -> Runnable:
    baseline = BASELINES[side.method]
    problem = suited_to(problem, baseline)
    if side == Side("nn.Linear", "forward+backward whole"):
        return _trained_layer(problem)
    solves, tau = None if baseline.yardstick else problem, float(problem.tau)
    if side.mode == "forward+backward whole":
        leaves = x, a, b = tuple(leaf.detach().requires_grad_() for leaf in (problem.x, problem.a, problem.b))
        y = partial(_prepare_and_apply, baseline, x, a, b, tau)
        return Runnable(lambda: torch.autograd.grad(y(), leaves, problem.cotangent), solves)
    gram = baseline.computes == "gram"
    if side.mode == "whole":
        return Runnable(
            partial(_prepare_and_apply, baseline, problem.x, problem.a, problem.b, float(problem.tau)),
            solves,
            gram=gram,
        )
    return Runnable(partial(baseline.prepare(problem.a, problem.b, float(problem.tau)), problem.x), solves, gram=gram)


def _trained_layer(problem: Problem) -> Runnable:
    """Gradients of nn.Linear for x and its weight; the one for x is judged, since K has it too."""
    layer = dense.layer(problem.a, problem.b, float(problem.tau))
    x = problem.x.detach().requires_grad_()

    def error(got: tuple[Tensor, ...]) -> float:
        cols = testing.sample(len(problem.b), LAYER_COLUMNS, problem.b.device)
        return testing.relative_error(got[0][:, cols], testing.product(problem.mT, cols))

    return Runnable(lambda: torch.autograd.grad(layer(x), (x, layer.weight), problem.cotangent), judge=error)


def _prepare_and_apply(baseline: Baseline, x: Tensor, a: Tensor, b: Tensor, tau: float) -> Tensor:
    return baseline.prepare(a, b, tau)(x)

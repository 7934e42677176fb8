"""A `Side` made runnable: a call without arguments."""

import importlib.util
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import laplex
from benchmarks import oracle, solves
from benchmarks.baselines import BASELINES, Baseline
from benchmarks.baselines import layer as layers
from benchmarks.inputs import Inputs, suited_to, symmetric
from benchmarks.problems import OURS, SOLVES, Side
from benchmarks.runnable import Runnable

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


def build(side: Side, inputs: Inputs) -> Runnable:
    """Set the side up; what it may keep is made here, outside the call."""
    if side.method == "laplex-gram":
        return _gram(side, inputs)
    if side.mode in SOLVES or (side.method not in OURS and BASELINES[side.method].solves):
        return solves.build(side, inputs)
    return _laplex(side, inputs) if side.method == "laplex" else _baseline(side, inputs)


def _gram(side: Side, inputs: Inputs) -> Runnable:
    x, a, b, tau = inputs.x, inputs.a, inputs.b, inputs.tau
    plan = laplex.Plan(a, b, backend=side.backend)
    if side.mode in ("phased", "phased forward+backward"):
        return _phased_gram(side, inputs, plan.backend)
    kept = plan if side.mode == "kept" else None
    call = partial(laplex.gram, a, b, x, tau, plan=kept, backend=side.backend)
    return Runnable(call, inputs, plan.backend, gram=True)


def _phased_gram(side: Side, inputs: Inputs, backend: str) -> Runnable:
    """One weight, positive; its gradients are judged by the tests."""
    a, b, weight = inputs.a, inputs.b, inputs.x[0].abs()
    phi, psi = 2 * a.flip(0), 3 * b.flip(0)  # numbers as good as any
    if side.mode == "phased":
        call = partial(laplex.gram, a, b, weight, inputs.tau, phi=phi, psi=psi, backend=side.backend)
        return Runnable(call, judge=partial(_phased_error, inputs, weight, phi, psi), backend=backend)
    leaves = tuple(leaf.detach().requires_grad_() for leaf in (a, b, weight, phi, psi))
    cotangent = torch.ones(len(a), len(a), dtype=a.dtype, device=a.device)

    def both() -> tuple[Tensor, ...]:
        a, b, weight, phi, psi = leaves
        matrix = laplex.gram(a, b, weight, inputs.tau, phi=phi, psi=psi, backend=side.backend)
        return torch.autograd.grad(matrix, leaves, cotangent)

    return Runnable(both, backend=backend)


def _phased_error(inputs: Inputs, weight: Tensor, phi: Tensor, psi: Tensor, got: Tensor) -> float:
    """Of some of the rows and columns."""
    some = torch.arange(0, len(inputs.a), max(len(inputs.a) // PHASED_ROWS, 1), device=got.device)
    dense = laplex.reference.kernel(
        inputs.a[some].double(), inputs.b.double(), inputs.tau, phi=phi[some].double(), psi=psi.double()
    )
    return oracle.relative_error(got[some][:, some], (dense * weight.double()) @ dense.mT)


def _laplex(side: Side, inputs: Inputs) -> Runnable:
    if side.mode == "symmetric":
        inputs = symmetric(inputs)
    x, a, b, tau = inputs.x, inputs.a, inputs.b, inputs.tau
    which = partial(laplex.backends.which, backend=side.backend)
    if side.mode in PHASED_TRAINING:
        return _phased_training(side, inputs)
    if side.mode == "whole":
        return Runnable(partial(laplex.linear, x, a, b, tau, backend=side.backend), inputs, which(x, a, b))
    if side.mode in ("kept", "symmetric", "graph"):
        plan = laplex.Plan(a, b)
        product = partial(laplex.linear, x, a, b, tau, plan=plan, backend=side.backend)
        return Runnable(_graph(product) if side.mode == "graph" else product, inputs, which(x, a, b, plan=plan))
    leaves = x, a, b = tuple(leaf.detach().requires_grad_() for leaf in (x, a, b))
    kept = laplex.Plan(a, b) if side.mode == "forward+backward" else None
    backend = which(x, a, b, plan=kept)
    product = partial(laplex.linear, x, a, b, tau, plan=kept, backend=side.backend)
    if side.mode == "forward+backward compiled":
        compiled = torch.compile(laplex.linear, fullgraph=True, dynamic=False)
        product = partial(compiled, x, a, b, tau, backend=side.backend)
    return Runnable(lambda: torch.autograd.grad(product(), leaves, inputs.cotangent), inputs, backend)


def _phased_training(side: Side, inputs: Inputs) -> Runnable:
    """All gradients of a product with phases; the tests judge them."""
    given = inputs.x, inputs.a, inputs.b, 2 * inputs.a.flip(0), 3 * inputs.b.flip(0)  # phases as good as any
    leaves = x, a, b, phi, psi = tuple(leaf.detach().requires_grad_() for leaf in given)
    tau: Tensor = torch.tensor(inputs.tau, dtype=a.dtype, device=a.device)
    if side.mode == "phased forward+backward, tau too":
        leaves = *leaves, tau.requires_grad_()

    def both() -> tuple[Tensor, ...]:
        y = laplex.linear(x, a, b, tau, phi=phi, psi=psi, backend=side.backend)
        return torch.autograd.grad(y, leaves, inputs.cotangent)

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


def _baseline(side: Side, inputs: Inputs) -> Runnable:
    baseline = BASELINES[side.method]
    inputs = suited_to(inputs, baseline)
    if side == Side("nn.Linear", "forward+backward whole"):
        return _trained_layer(inputs)
    solves = None if baseline.yardstick else inputs
    if side.mode == "forward+backward whole":
        leaves = x, a, b = tuple(leaf.detach().requires_grad_() for leaf in (inputs.x, inputs.a, inputs.b))
        y = partial(_whole, baseline, x, a, b, inputs.tau)
        return Runnable(lambda: torch.autograd.grad(y(), leaves, inputs.cotangent), solves)
    gram = baseline.computes == "gram"
    if side.mode == "whole":
        return Runnable(partial(_whole, baseline, inputs.x, inputs.a, inputs.b, inputs.tau), solves, gram=gram)
    return Runnable(partial(baseline.prepare(inputs.a, inputs.b, inputs.tau), inputs.x), solves, gram=gram)


def _trained_layer(inputs: Inputs) -> Runnable:
    """Gradients of nn.Linear for x and its weight; the one for x is judged, since K has it too."""
    layer = layers.make(inputs.a, inputs.b, inputs.tau)
    x = inputs.x.detach().requires_grad_()

    def error(got: tuple[Tensor, ...]) -> float:
        cols = oracle.rows_to_check(len(inputs.b), LAYER_COLUMNS, inputs.b.device)
        transposed = Inputs(inputs.cotangent, inputs.b, inputs.a, inputs.tau, inputs.x)
        return oracle.relative_error(got[0][:, cols], oracle.product(transposed, cols))

    return Runnable(lambda: torch.autograd.grad(layer(x), (x, layer.weight), inputs.cotangent), judge=error)


def _whole(baseline: Baseline, x: Tensor, a: Tensor, b: Tensor, tau: float) -> Tensor:
    return baseline.prepare(a, b, tau)(x)

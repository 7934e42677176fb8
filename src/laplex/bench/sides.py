"""A `Side` made runnable: a call without arguments, and the error of what it returns."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

import laplex
from laplex.baselines import BASELINES, Baseline
from laplex.bench import oracle
from laplex.bench.inputs import Inputs, suited_to
from laplex.bench.problems import OURS, Side

Call = Callable[[], Tensor | tuple[Tensor, ...]]
GRAM_ROWS = 64  # of a Gram matrix looked at: a row is as much work as the whole of a product


@dataclass(frozen=True)
class Runnable:
    """A call, and the problem it claims to solve (None: a yardstick)."""

    call: Call
    solves: Inputs | None
    backend: str | None = None  # laplex's
    gram: bool = False  # a Gram matrix, not a product

    def error(self, sample: int) -> float | None:
        """The relative l2 error of one call over up to `sample` rows; of gradients, that of the worst."""
        if self.solves is None:
            return None
        got, inputs = self.call(), self.solves
        rows = oracle.rows_to_check(len(inputs.a), sample, inputs.a.device)
        if self.gram:
            rows = oracle.rows_to_check(len(inputs.a), min(sample, GRAM_ROWS), inputs.a.device)
            return oracle.relative_error(got[:, rows], oracle.gram(inputs, rows))  # type: ignore[call-overload]
        if isinstance(got, Tensor):
            return oracle.relative_error(got[:, rows], oracle.product(inputs, rows))
        cols = oracle.rows_to_check(len(inputs.b), sample, inputs.b.device)
        grad_x, grad_a, grad_b = got
        picked = grad_x[:, cols], grad_a[rows], grad_b[cols]
        return max(map(oracle.relative_error, picked, oracle.gradients(inputs, rows, cols)))


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
    return _laplex(side, inputs) if side.method == "laplex" else _baseline(side, inputs)


def _gram(side: Side, inputs: Inputs) -> Runnable:
    x, a, b, tau = inputs.x, inputs.a, inputs.b, inputs.tau
    backend = laplex.backends.which(x, a, b, backend=side.backend)
    plan = laplex.Plan(a, b) if side.mode == "kept" else None
    return Runnable(partial(laplex.gram, a, b, x, tau, plan=plan, backend=side.backend), inputs, backend, gram=True)


def _laplex(side: Side, inputs: Inputs) -> Runnable:
    x, a, b, tau = inputs.x, inputs.a, inputs.b, inputs.tau
    backend = laplex.backends.which(x, a, b, backend=side.backend)
    if side.mode == "whole":
        return Runnable(partial(laplex.linear, x, a, b, tau, backend=side.backend), inputs, backend)
    if side.mode in ("kept", "graph"):
        plan = laplex.Plan(a, b)
        product = partial(laplex.linear, x, a, b, tau, plan=plan, backend=side.backend)
        return Runnable(product if side.mode == "kept" else _graph(product), inputs, backend)
    leaves = x, a, b = tuple(leaf.detach().requires_grad_() for leaf in (x, a, b))
    kept = laplex.Plan(a, b) if side.mode == "forward+backward" else None
    product = partial(laplex.linear, x, a, b, tau, plan=kept, backend=side.backend)
    return Runnable(lambda: torch.autograd.grad(product(), leaves, inputs.cotangent), inputs, backend)


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

    def replay() -> Tensor:
        graph.replay()
        return y

    return replay


def _baseline(side: Side, inputs: Inputs) -> Runnable:
    baseline = BASELINES[side.method]
    inputs = suited_to(inputs, baseline)
    solves = None if baseline.yardstick else inputs
    if side.mode == "forward+backward whole":
        leaves = x, a, b = tuple(leaf.detach().requires_grad_() for leaf in (inputs.x, inputs.a, inputs.b))
        y = partial(_whole, baseline, x, a, b, inputs.tau)
        return Runnable(lambda: torch.autograd.grad(y(), leaves, inputs.cotangent), solves)
    gram = baseline.computes == "gram"
    if side.mode == "whole":
        return Runnable(partial(_whole, baseline, inputs.x, inputs.a, inputs.b, inputs.tau), solves, gram=gram)
    return Runnable(partial(baseline.prepare(inputs.a, inputs.b, inputs.tau), inputs.x), solves, gram=gram)


def _whole(baseline: Baseline, x: Tensor, a: Tensor, b: Tensor, tau: float) -> Tensor:
    return baseline.prepare(a, b, tau)(x)

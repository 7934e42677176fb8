"""Compiling ahead: finding which programs products of any size need, and compiling them in parallel.

The operators themselves say what they need. They run on meta tensors, which have shapes and no memory, and ``launch``
notes each program in place of launching it. So no list of programs can become wrong, and sizes for which the GPU has
no memory cost nothing. Which program a call needs changes at thresholds of n + k, of the ratio of n and k, and of the
shorter side; ``sizes`` goes past all of them in small steps.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex import _backends
from laplex._backends.cost import Work
from laplex._formed.kernels import Kernels, Needs
from laplex._scan.order import Matrix, Order
from laplex._triton.launch import Survey, Variant, compile_ahead, state

STEPS = 8  # totals n + k in each doubling
RATIO = 24  # of the two sides, past which one counts as long
SHORT = 1, 100, 700, 3000  # sizes of a short side
CUDA = torch.device("cuda")
KIND = ((torch.float64, False),)  # dtype of tau, and whether there is a weight
WAYS = "triton", "formed"  # both at every size: the choice between them may change at any


Programs = dict[Variant, tuple[float, ...]]


class Request(NamedTuple):
    """The calls to prepare for."""

    dtype: torch.dtype  # of x
    rows: int
    batch: int = 0  # matrices; 0 for one without a batch
    gradients: bool = False
    all_kinds: bool = False  # formed matrices with any tau, summed or not; else with a number, and not summed


def sizes(points: int) -> Iterator[tuple[int, int]]:
    """Pairs n, k on both sides of every threshold, with n + k up to ``points``."""
    steps = range(STEPS, math.ceil(STEPS * math.log2(points)) + 1)
    for total in sorted({min(round(2 ** (step / STEPS)), points) for step in steps}):
        for short in sorted({total // 2, total // RATIO, *SHORT} - {0}):
            if short <= total // 2:
                yield short, total - short
                yield total - short, short


def survey(device: torch.device, request: Request, pairs: Iterable[tuple[int, int]]) -> Programs:
    """The programs of products with n x k matrices, each with numbers that it may be compiled with."""
    with surveyed(device) as noted:
        for n, k in pairs:
            _multiply(n, k, request, [_backends.cheapest_backend(_work(n, k, request), CUDA)])
    return noted.programs


def _work(n: int, k: int, request: Request) -> Work:
    return Work(max(request.batch, 1), 1, request.rows, n, k, request.gradients)


@contextmanager
def surveyed(device: torch.device) -> Iterator[Survey]:
    before, state.survey = state.survey, Survey(device)
    try:
        yield state.survey
    finally:
        state.survey = before


def _multiply(n: int, k: int, request: Request, backends: Iterable[str]) -> None:
    """Run what ``laplex.linear`` and its backward run, for all sets of inputs that need a gradient."""
    batch = (request.batch,) if request.batch else ()
    anchors = torch.promote_types(request.dtype, torch.float32)
    x = torch.empty((*batch, request.rows, k), dtype=request.dtype, device="meta")
    a, b = (torch.empty((*batch, size), dtype=anchors, device="meta") for size in (n, k))
    tau = torch.empty(batch, dtype=torch.float64, device="meta")
    for chosen in backends:
        table = _backends.load(chosen, "cuda")
        if table.form is not None:
            for size in {k, -(-k // 16) * 16, max(k, 3) | 1}:  # one column, and aligned rows, have their own programs
                _form(x, a, b.new_empty((*batch, size)), table.form, request)
            continue
        order = Order.none(a, b) if table.order is None else table.order(a, b, table.layout(n, k))
        matrix = Matrix(a, b, tau, order, table)
        even, none = table.scan(x, matrix, odd=False)
        if request.gradients:
            _differentiate(table, even, none, x, matrix)


def _form(x: Tensor, a: Tensor, b: Tensor, module: Any, request: Request) -> None:
    """Form the matrix, and pull it back onto all sets of arguments: with tau as a number, or like the anchors."""
    for dtype, weighted in itertools.product({torch.float64, a.dtype}, (False, True)) if request.all_kinds else KIND:
        tau = a.new_empty(a.shape[:-1], dtype=dtype)
        kernels = Kernels(a, b, tau, a.new_empty(a.shape[:-1]) if weighted else None, None, None, 1)
        rows = x.new_empty((*x.shape[:-1], b.shape[-1]))
        written = module.entries_dtype(x.dtype, x.device, rows.numel() * a.shape[-1])
        matrix = module.form(kernels, x.dtype, written)
        y = module.multiply(rows, matrix)
        if request.gradients:
            module.matmul(y, matrix, x.dtype)
            g = module.matmul(y.mT, rows, matrix.dtype if x.dtype.itemsize >= 4 else torch.float32)
            for needs in itertools.product((True, False), (True, False), {False, weighted}):
                if any(needs):
                    module.pull(g, kernels, Needs(*needs, phase=False), x.dtype)


def _differentiate(table: Any, g: Tensor, none: Tensor, x: Tensor, matrix: Matrix) -> None:
    """Run backward for x alone, and for the anchors and tau, or some of them."""
    table.scan(g, matrix.mT, odd=False)
    _, odd_x = table.scan(x, matrix, odd=True)
    for known, to_tau in itertools.product((none, odd_x), (False, True)):
        table.pullback(g, x, known, matrix, to_tau=to_tau)


def prepare(device: torch.device, calls: list[Request], points: int, progress: Callable[[int, int], None]) -> int:
    """Compile all programs of these calls with n + k up to ``points``, and return how many there are."""
    programs = programs_for_all_sizes(device, calls, points)
    compile_all(programs, progress)
    return len(programs)


def programs_for_all_sizes(device: torch.device, calls: list[Request], points: int) -> Programs:
    """The programs of all ways that these calls may take."""
    with surveyed(device) as noted:
        for request, (n, k) in itertools.product(calls, [*sizes(points)]):
            _multiply(n, k, request._replace(all_kinds=True), WAYS)
    return noted.programs


def compile_all(programs: Programs, progress: Callable[[int, int], None]) -> None:
    """Compile in threads, which Triton allows: much of it runs outside Python. ``progress`` gets how many are done."""
    progress(0, len(programs))
    first, *others = programs.items()
    compile_ahead(*first)  # alone: with the first one Triton reads all of its own files, which threads would do again
    progress(1, len(programs))
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        compiling = [threads.submit(compile_ahead, *each) for each in others]
        for done, each in enumerate(as_completed(compiling), 2):
            each.result()
            progress(done, len(programs))

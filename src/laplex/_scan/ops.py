"""The operators PyTorch sees: their schemas, shapes and registrations, in one import-light file.

    laplex::plan(a, b, layout)                        -> row_index, row_values, col_index, col_values
    laplex::scan(x, target, ..., odd, degree)         -> even, odd       with u^degree exp(-u), u = |t - s| / tau
    laplex::pullback(g, x, odd_x, target, ..., to_tau) -> x_bar, t_bar, s_bar, tau_bar    the first backward, fused
    laplex::gram(weight, direction, target, ...)      -> M, sums                  ``_gram.sums`` says of what
    laplex::gram_pullback(g, sums, weight, ...)       -> weight_bar, direction_bar, t_bar, s_bar, tau_bar

An index is an int32 tensor (h, c, size), the order of one side; c tells what it holds:

    4  order, rank, below, upto    a side of a merged plan; below and upto in that order
    1  order                       the short side of a short-axis plan
    2  below, upto                 the long side of a short-axis plan, in the caller's order
    0  nothing                     the dense backend needs no order

The GPU has one order for both sides, kept with the rows (of the columns, size 0): an index (h, 1, n + k padded to whole
words of 32) of entries, a row's index or -1 - a column's, and values (h, 1, the same), the positions in that order.
Where both sides came in order the index is bits in place of entries (``_triton.points``). Values of size 0 are
those of anchors that may have moved since: the kernels gather them anew and check the order.

A large plan that is kept holds, with the columns, the places in that order of rows and of columns, one more int32 if
their number is even (entries are always even in number): so y is gathered, which is faster than to scatter it.

``order`` sorts the side, ``rank`` is its inverse. ``below`` and ``upto`` count the other side's anchors that are < and
<= each anchor, so a tie is ``below < upto``. Values are (h, 2, size), the anchors the plan was built from, as given and
in order, or (h, 0, size): a kernel that finds the anchors unmoved need not gather them again. ``scan`` multiplies by
K(target, source): swap the two sides, with what belongs to them, for the transpose.

Anchors are (*H, n), tau is H, x is (*X, k) and counts as (h, m, k) with h = prod(H) kernels: the kernels fold what
leads, so that autograd sees no reshaping. They are opaque to autograd: ``_autograd`` makes derivatives of the same
operators.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from laplex._shapes import flat, flat_rows, in_parts, plain, plainly_eager
from laplex._triton.replay import Repeats

HAS_TRITON = importlib.util.find_spec("triton") is not None
WORD = 32  # the GPU's order is padded to multiples of it
LAUNCH_AXIS = 65535  # programs along the second or third axis of a launch on the GPU: more kernels are done in parts
_CHANNELS = {"merged": (4, 2), "short": (1, 0), "long": (2, 0)}  # of the index and the values of a side
SIDES = {"merged": ("merged", "merged"), "short_rows": ("short", "long"), "short_cols": ("long", "short")}
_MODULES = {
    "torch": "laplex._scan.torch",
    "cpp": "laplex._scan.cpp",
    "triton": "laplex._triton.scan.launch",
    "dense": "laplex._scan.dense",
}
_ASSEMBLIES = {
    "torch": "laplex._gram.torch",
    "cpp": "laplex._gram.cpp",
    "triton": "laplex._triton.gram.matrix",
}
Planned = tuple[Tensor, Tensor, Tensor, Tensor]  # row_index, row_values, col_index, col_values

_library = torch.library.Library("laplex", "DEF")
_library.define(
    "plan(Tensor a, Tensor b, str layout, str backend) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "scan(Tensor x, Tensor target, Tensor source, Tensor tau, Tensor target_index, Tensor target_values, "
    "Tensor source_index, Tensor source_values, bool odd, int degree, str backend) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "pullback(Tensor g, Tensor x, Tensor odd_x, Tensor target, Tensor source, Tensor tau, Tensor target_index, "
    "Tensor target_values, Tensor source_index, Tensor source_values, bool to_tau, str backend) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "gram(Tensor weight, Tensor direction, Tensor target, Tensor source, Tensor tau, Tensor target_index, "
    "Tensor target_values, Tensor source_index, Tensor source_values, ScalarType dtype, str backend) "
    "-> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "gram_pullback(Tensor g, Tensor sums, Tensor weight, Tensor direction, Tensor target, Tensor source, Tensor tau, "
    "Tensor target_index, Tensor target_values, Tensor source_index, Tensor source_values, bool to_source, "
    "bool to_tau, str backend) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)

plan = torch.ops.laplex.plan.default
scan = torch.ops.laplex.scan.default
pullback = torch.ops.laplex.pullback.default
gram = torch.ops.laplex.gram.default
gram_pullback = torch.ops.laplex.gram_pullback.default


@functools.cache
def kernels(backend: str) -> ModuleType:
    """The module of kernels that a backend's name stands for."""
    return importlib.import_module(_MODULES[backend])


def assembly(backend: str) -> ModuleType:
    """The module that has the n x n part of a backend's Gram matrices."""
    return importlib.import_module(_ASSEMBLIES[backend])


def empty_plan(a: Tensor, b: Tensor, layout: str) -> Planned:
    """Tensors for the plan of a (h, n) and b (h, k), yet to be filled."""
    if layout in ("joined", "in_order"):
        h, points = a.shape[0], padded(a.shape[1] + b.shape[1])
        entries = a.new_empty((h, 1, points if layout == "joined" else points // WORD * 2), dtype=torch.int32)
        nothing = a.new_empty((h, 1, 0))
        return entries, a.new_empty((h, 1, points)), nothing.to(torch.int32), nothing
    made = []
    for side, kind in zip((a, b), SIDES[layout], strict=True):
        index, values = _CHANNELS[kind]
        made.append(side.new_empty((side.shape[0], index, side.shape[1]), dtype=torch.int32))
        made.append(side.new_empty((side.shape[0], values, side.shape[1])))
    return made[0], made[1], made[2], made[3]


def padded(points: int) -> int:
    """Whole words of points: the GPU's vector loads need no mask then."""
    return -(-points // WORD) * WORD


def holds_entries(index: Tensor) -> bool:
    """Whether a side's index on the GPU is that of the entries, not nothing, nor the places."""
    return index.shape[-1] > 0 and index.shape[-1] % 2 == 0


def empty_even(x: Tensor, size: int, tau: Tensor, backend: str) -> Tensor:
    """(*X, size) for E x. The GPU writes columns, too: the transpose of columns, if x (m, k) or (h, m, k) is one."""
    columns = x.dim() == tau.dim() + 2 <= 3 and x.shape[-2] > 1 and x.stride(-2) == 1 and x.stride(-1) != 1
    if (
        columns
        and tau.numel() <= LAUNCH_AXIS
        and (backend == "triton" or (backend == "dense" and x.is_cuda and HAS_TRITON))
    ):
        return x.new_empty((*x.shape[:-2], size, x.shape[-2])).mT
    return x.new_empty((*x.shape[:-1], size))


def empty_odd(x: Tensor, size: int) -> Tensor:
    """(*X, size) for S x, at least float32: it is saved for gradients of anchors, which are."""
    return x.new_empty((*x.shape[:-1], size), dtype=torch.promote_types(x.dtype, torch.float32))


def _plan(a: Tensor, b: Tensor, layout: str, backend: str) -> Planned:
    run = functools.partial(kernels(backend).plan, layout=layout)
    return in_parts(run, LAUNCH_AXIS, flat(a, 2), flat(b, 2))  # type: ignore[no-any-return]


def run_plan(*inputs: Any) -> Planned:
    """``plan``, past the dispatcher where only a kernel would answer there: asking it takes as long as a launch."""
    return _run(_plan, plan, inputs, 2, 2)  # type: ignore[no-any-return]


repeats = Repeats()  # of what runs on the GPU, whatever is in the tensors


def _run(kernel: Any, operator: Any, inputs: tuple[Any, ...], given: int, tensors: int) -> Any:
    if not plainly_eager() or not all(map(plain, inputs[:given])):  # the other tensors, a plan's, are ours
        return operator(*inputs)
    return _run_now(kernel, tensors, *inputs)


def _run_now(kernel: Any, tensors: int, *inputs: Any) -> Any:
    """A kernel on numbers that are there; on the GPU by launches replayed. The dispatcher, too, runs it so."""
    return repeats.run(kernel, inputs[:tensors], inputs[tensors:]) if inputs[-1] == "triton" else kernel(*inputs)


@torch.library.register_fake("laplex::plan", lib=_library)
def _plan_fake(a: Tensor, b: Tensor, layout: str, backend: str) -> Planned:
    return empty_plan(flat(a, 2), flat(b, 2), layout)


@torch.library.register_vmap("laplex::plan", lib=_library)
def _plan_vmap(
    info: Any, in_dims: tuple[int | None, ...], a: Tensor, b: Tensor, layout: str, backend: str
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    size = info.batch_size
    sides = [
        side.movedim(dim, 0) if dim is not None else side.expand(size, *side.shape)
        for side, dim in zip((a, b), in_dims, strict=False)
    ]
    made = plan(*(flat(side, 2) for side in sides), layout, backend)
    kernels = math.prod(sides[0].shape[1:-1])
    return tuple(tensor.unflatten(0, (size, kernels)) for tensor in made), (0, 0, 0, 0)


def _scan(
    x: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    target_index: Tensor,
    target_values: Tensor,
    source_index: Tensor,
    source_values: Tensor,
    odd: bool,
    degree: int,
    backend: str,
) -> tuple[Tensor, Tensor]:
    if x.numel() == 0 or target.numel() == 0:
        even = empty_even(x, target.shape[-1], tau, backend)
        return even.zero_(), empty_odd(x, target.shape[-1] if odd else 0).zero_()
    order = target_index, target_values, source_index, source_values
    return scan_now(x, target, source, tau, *order, odd=odd, degree=degree, backend=backend)


def scan_now(
    x: Tensor, target: Tensor, source: Tensor, tau: Tensor, *order: Tensor, odd: bool, degree: int = 0, backend: str
) -> tuple[Tensor, Tensor]:
    """``scan`` by a backend's kernels, of numbers that are there."""
    run = functools.partial(kernels(backend).scan, odd=odd, degree=degree)
    if tau.numel() <= LAUNCH_AXIS:
        result: tuple[Tensor, Tensor] = run(x, target, source, tau, *order)
        return result
    anchors = flat(target, 2), flat(source, 2), flat(tau, 1)
    even, odd_part = in_parts(run, LAUNCH_AXIS, flat_rows(x, tau), *anchors, *order)
    return even.reshape(*x.shape[:-1], even.shape[-1]), odd_part.reshape(*x.shape[:-1], odd_part.shape[-1])


def run_scan(*inputs: Any) -> tuple[Tensor, Tensor]:
    """``scan``, likewise."""
    return _run(_scan, scan, inputs, 4, 8)  # type: ignore[no-any-return]


@torch.library.register_fake("laplex::scan", lib=_library)
def _scan_fake(
    x: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    target_index: Tensor,
    target_values: Tensor,
    source_index: Tensor,
    source_values: Tensor,
    odd: bool,
    degree: int,
    backend: str,
) -> tuple[Tensor, Tensor]:
    n = target.shape[-1]
    return empty_even(x, n, tau, backend), empty_odd(x, n if odd else 0)


def _pullback(
    g: Tensor,
    x: Tensor,
    odd_x: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    target_index: Tensor,
    target_values: Tensor,
    source_index: Tensor,
    source_values: Tensor,
    to_tau: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if g.numel() == 0 or x.numel() == 0:
        t_bar = target.new_zeros((*target.shape[:-1], odd_x.shape[-1]))
        x_bar, tau_bar = empty_even(x, x.shape[-1], tau, backend).zero_(), empty_tau_bar(tau, to_tau).zero_()
        return x_bar, t_bar, torch.zeros_like(source), tau_bar
    order = target_index, target_values, source_index, source_values
    run = functools.partial(kernels(backend).pullback, to_tau=to_tau)
    if tau.numel() <= LAUNCH_AXIS:
        result: tuple[Tensor, Tensor, Tensor, Tensor] = run(g, x, odd_x, target, source, tau, *order)
        return result
    rows = (flat_rows(part, tau) for part in (g, x))
    odd_rows = odd_x.reshape(tau.numel(), -1, odd_x.shape[-1]) if odd_x.numel() else g.new_empty((tau.numel(), 1, 0))
    anchors = flat(target, 2), flat(source, 2), flat(tau, 1)
    x_bar, t_bar, s_bar, tau_bar = in_parts(run, LAUNCH_AXIS, *rows, odd_rows, *anchors, *order)
    t_bar = t_bar.reshape(*target.shape[:-1], t_bar.shape[-1])
    return x_bar.reshape(x.shape), t_bar, s_bar.reshape(source.shape), tau_bar.reshape(tau.shape if to_tau else (0,))


def empty_tau_bar(tau: Tensor, wanted: bool) -> Tensor:
    """As tau, or (0,) if it is not wanted."""
    return tau.new_empty(tau.shape if wanted else (0,))


def run_pullback(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``pullback``, likewise."""
    return _run(_pullback, pullback, inputs, 6, 10)  # type: ignore[no-any-return]


@torch.library.register_fake("laplex::pullback", lib=_library)
def _pullback_fake(
    g: Tensor,
    x: Tensor,
    odd_x: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    target_index: Tensor,
    target_values: Tensor,
    source_index: Tensor,
    source_values: Tensor,
    to_tau: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    t_bar = target.new_empty((*target.shape[:-1], odd_x.shape[-1]))
    x_bar, s_bar = empty_even(x, x.shape[-1], tau, backend), source.new_empty(source.shape)
    return x_bar, t_bar, s_bar, empty_tau_bar(tau, to_tau)


for _name, _kernel, _tensors in (("plan", _plan, 2), ("scan", _scan, 8), ("pullback", _pullback, 10)):
    _library.impl(_name, functools.partial(_run_now, _kernel, _tensors), "CompositeExplicitAutograd")


@torch.library.impl(_library, "gram", "CompositeExplicitAutograd")
def _gram(
    weight: Tensor,
    direction: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    target_index: Tensor,
    target_values: Tensor,
    source_index: Tensor,
    source_values: Tensor,
    dtype: torch.dtype,
    backend: str,
) -> tuple[Tensor, Tensor]:
    if weight.numel() == 0 or target.numel() == 0:
        made, sums = _empty_gram(weight, target, dtype)
        return made.zero_(), sums.zero_()
    order = target_index, target_values, source_index, source_values
    result: tuple[Tensor, Tensor] = _gram_kernels().gram(
        weight.contiguous(), direction, target, source, tau, order, dtype, backend
    )
    return result


@torch.library.register_fake("laplex::gram", lib=_library)
def _gram_fake(
    weight: Tensor,
    direction: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    target_index: Tensor,
    target_values: Tensor,
    source_index: Tensor,
    source_values: Tensor,
    dtype: torch.dtype,
    backend: str,
) -> tuple[Tensor, Tensor]:
    return _empty_gram(weight, target, dtype)


@torch.library.impl(_library, "gram_pullback", "CompositeExplicitAutograd")
def _gram_pullback(
    g: Tensor,
    sums: Tensor,
    weight: Tensor,
    direction: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    target_index: Tensor,
    target_values: Tensor,
    source_index: Tensor,
    source_values: Tensor,
    to_source: bool,
    to_tau: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    if weight.numel() == 0 or target.numel() == 0:
        made = _empty_gram_bars(weight, direction, target, source, tau, to_source, to_tau)
        return made[0].zero_(), made[1].zero_(), made[2].zero_(), made[3].zero_(), made[4].zero_()
    order = target_index, target_values, source_index, source_values
    result: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] = _gram_kernels().pullback(
        g, sums, weight.contiguous(), direction, target, source, tau, order, to_source, to_tau, backend
    )
    return result


@torch.library.register_fake("laplex::gram_pullback", lib=_library)
def _gram_pullback_fake(
    g: Tensor,
    sums: Tensor,
    weight: Tensor,
    direction: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    target_index: Tensor,
    target_values: Tensor,
    source_index: Tensor,
    source_values: Tensor,
    to_source: bool,
    to_tau: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _empty_gram_bars(weight, direction, target, source, tau, to_source, to_tau)


def _gram_kernels() -> ModuleType:
    return importlib.import_module("laplex._gram.sums")


def _empty_gram(weight: Tensor, target: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    h, m, channels, _ = weight.shape
    n = target.shape[-1]
    return weight.new_empty((h, m, n, n), dtype=dtype), weight.new_empty((h, m, channels, 4, n))


def _empty_gram_bars(
    weight: Tensor, direction: Tensor, target: Tensor, source: Tensor, tau: Tensor, to_source: bool, to_tau: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """In float64, all of them."""
    of_weight, of_source = (weight.shape, source.shape) if to_source else ((0,), (0,))
    shapes = of_weight, direction.shape, target.shape, of_source
    made = [weight.new_empty(shape) for shape in shapes]
    return made[0], made[1], made[2], made[3], empty_tau_bar(tau, to_tau)

"""Run by test_bounds in a process of its own: every array ends at a page that may not be touched."""

import ctypes
import itertools
import math
import mmap
import threading

import torch

import laplex
from laplex import _backends
from laplex._scan import cpp
from laplex._scan.order import Matrix, Order
from laplex.distributed._local import LocalPart
from laplex.distributed._local import pullback as pullback_with_ghosts

scan, pullback = torch.ops.laplex.scan, torch.ops.laplex.pullback

LAYOUTS = ("merged", "short_rows", "short_cols")
PAGE = mmap.PAGESIZE
GUARD = 256 * PAGE
libc = ctypes.CDLL(None, use_errno=True)
new_empty, empty_like = torch.Tensor.new_empty, torch.empty_like


def guarded(value):
    """A copy of a tensor whose last byte is the last of a page, before pages without access."""
    size = value.numel() * value.element_size()
    if size == 0:
        return value
    pages = math.ceil(size / PAGE)
    memory = mmap.mmap(-1, pages * PAGE + GUARD)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert libc.mprotect(ctypes.c_void_p(start + pages * PAGE), GUARD, 0) == 0
    tensor = torch.frombuffer(memory, dtype=value.dtype, count=value.numel(), offset=pages * PAGE - size)
    return tensor.view(value.shape).copy_(value)


def guard_what_the_library_allocates():
    torch.Tensor.new_empty = lambda *args, **kwargs: guarded(new_empty(*args, **kwargs))
    torch.empty_like = lambda *args, **kwargs: guarded(empty_like(*args, **kwargs))


def every_kernel(h, m, n, k, layout, dtype, tied):
    draw = (lambda *shape: torch.randint(0, 5, shape)) if tied else torch.randn
    a, b = guarded(draw(h, n).to(dtype)), guarded(draw(h, k).to(dtype))
    x, g = (guarded(torch.randn(h, m, size, dtype=dtype)) for size in (k, n))
    tau = guarded(torch.ones(h).double())
    order = Order.from_tensors([guarded(tensor) for tensor in torch.ops.laplex.plan(a, b, layout, "cpp")], layout)
    cpp.update(a, b, order)
    odd_x = guarded(scan(x, a, b, tau, *order.tensors, order.layout, "cpp", True, 0)[1])
    for degree in (0, 1):
        scan(x, a, b, tau, *order.tensors, order.layout, "cpp", False, degree)
        scan(g, *Matrix(a, b, tau, order, _backends.load("cpp", "cpu")).mT.flat, True, degree)
    pullback(g, x, odd_x, a, b, tau, *order.tensors, order.layout, "cpp", True)
    if not tied:
        scan(x, guarded(a.clone()), guarded(b + 0.0), tau, *order.tensors, order.layout, "cpp", True, 0)


def plan_of_another_dtype(made_for, used_with):
    a, b = torch.randn(3, 700).float().double(), torch.randn(3, 701).float().double()
    plan = laplex.Plan(a.to(made_for), b.to(made_for))
    order = Order.from_tensors([guarded(tensor) for tensor in plan._order.tensors], plan._order.layout)
    plan = laplex.Plan._from_order(plan.shape, order, plan._anchors)
    a, b = guarded(a.to(used_with)), guarded(b.to(used_with))
    x = guarded(torch.randn(3, 2, 701, dtype=used_with))
    y = laplex.linear(x, a, b, plan=plan, backend="cpp")
    assert torch.equal(y, laplex.linear(x, a, b, backend="cpp"))
    assert torch.equal(y, laplex.linear(x, a, b, plan=plan.update(a, b), backend="cpp"))


def a_plan_found_stale_late(n, m, dtype):
    """Anchors with ghosts, of which all but the first have moved since the plan: what was added is cleared again.

    The core's sums are in its own memory, which no guard page follows. But a thread that is new has none in store: the
    sums end where, for an odd n, malloc's own record begins, and malloc aborts when it finds that overwritten.
    """
    ghosts = torch.tensor([[-5.0, -5.0, 5.0, 5.0]])
    a, b = (torch.cat([torch.randn(1, n), ghosts], -1).to(dtype) for _ in range(2))
    local = LocalPart.planned(a, b, laplex.Plan(a, b))
    assert local.takes_tail
    moved = [torch.cat([side[:, : n - 1], side[:, n - 1 :] + 1e-6], -1) for side in (a, b)]
    tau, tail = torch.ones(1).double(), torch.randn(1, m, 4, dtype=dtype)
    g, x, odd_x = torch.randn(3, 1, m, n, dtype=dtype)
    stale, fresh = LocalPart(*moved, *local[2:]), LocalPart.planned(*moved, laplex.Plan(*moved))
    x_bars = []
    for plan in (stale, fresh):
        arguments = g, tail, x, odd_x, plan, tau
        call = threading.Thread(target=lambda given=arguments: x_bars.append(pullback_with_ghosts(*given)[0]))
        call.start()
        call.join()
    assert torch.equal(*x_bars)


if __name__ == "__main__":
    torch.manual_seed(0)
    guard_what_the_library_allocates()
    sizes = [(1, 1), (1, 40), (40, 1), (7, 5), (255, 257), (512, 512), (513, 1025), (1025, 511), (20, 3000), (3000, 20)]
    for (n, k), layout, dtype in itertools.product(sizes, LAYOUTS, (torch.float32, torch.float64)):
        for h, m, tied in ((1, 1, False), (2, 2, True), (1, 3, False), (3, 9, True)):
            every_kernel(h, m, n, k, layout, dtype, tied)
    print("kernels done", flush=True)
    plan_of_another_dtype(torch.float32, torch.float64)
    plan_of_another_dtype(torch.float64, torch.float32)
    print("plans done", flush=True)
    for n, m, dtype in itertools.product((99, 401, 3001), (1, 3), (torch.float32, torch.float64)):
        a_plan_found_stale_late(n, m, dtype)
    print("stale plans done", flush=True)

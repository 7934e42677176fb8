"""torch.library.opcheck on the operators: schema, fake kernels, dispatch, in any memory layout.

To trace an operator takes twenty times as long as the other checks together, and finds what is registered for it, which
is one for all backends: one backend is traced, and test_transforms and test_gram_grad compile the others.
"""

import pytest
import torch

import laplex  # noqa: F401  registers the operators
from cases import in_turn, named
from helpers import LAYOUTS, emptied, flat, make_order, rows_for, scan, table
from laplex import _backends
from laplex._scan.order import Matrix, Order

SIZES = [(2, 3, 5, 4), (1, 2, 3, 40)]  # h, m, n, k
UNTRACED = "test_schema", "test_autograd_registration", "test_faketensor"


def check(operator, arguments, traced):
    """Every check; that of tracing with symbolic sizes only if ``traced``."""
    torch.library.opcheck(operator, arguments, test_utils=(*UNTRACED, *["test_aot_dispatch_dynamic"] * traced))


def permuted(value):
    """The same values in memory of the reverse order."""
    dims = tuple(reversed(range(value.dim())))
    return value.permute(*dims).contiguous().permute(*dims)


def as_given(value):
    return value


MEMORY = {
    "contiguous": as_given,
    "permuted": permuted,
    "strided": lambda v: v.repeat_interleave(2, -1)[..., ::2],
}


@pytest.mark.parametrize("memory", MEMORY.values(), ids=MEMORY)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("h", "m", "n", "k"), SIZES)
def test_plan(memory, layout, h, m, n, k, scan_backend):
    a, b = memory(torch.randn(h, n)), memory(torch.randn(h, k))
    check(torch.ops.laplex.plan.default, (a, b, layout, scan_backend), traced=scan_backend == "cpp")


@pytest.mark.parametrize("memory", MEMORY.values(), ids=MEMORY)
@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize(("h", "m", "n", "k"), SIZES)
def test_scan(memory, odd, h, m, n, k, backend):
    a, b, x = torch.randn(h, n), torch.randn(h, k), torch.randn(h, m, k)
    tau = torch.rand(h).double() + 0.5
    for layout in LAYOUTS if backend != "dense" else LAYOUTS[:1]:
        order = make_order(a, b, layout, "torch")
        tensors = [memory(value) for value in (x, a, b)]
        arguments = *tensors, tau, *map(memory, order.tensors), order.layout, backend, odd, 1
        check(torch.ops.laplex.scan.default, arguments, traced=backend == "cpp")


@pytest.mark.parametrize("memory", MEMORY.values(), ids=MEMORY)
@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize(("h", "m", "n", "k"), SIZES)
def test_pullback(memory, odd, h, m, n, k, backend):
    a, b, x, g = torch.randn(h, n), torch.randn(h, k), torch.randn(h, m, k), torch.randn(h, m, n)
    tau, odd_x = torch.rand(h).double() + 0.5, torch.randn(h, m, n if odd else 0)
    for layout in LAYOUTS if backend != "dense" else LAYOUTS[:1]:
        tensors = [memory(value) for value in (g, x, odd_x, a, b)]
        order = make_order(a, b, layout, "torch")
        arguments = *tensors, tau, *map(memory, order.tensors), order.layout, backend, odd
        check(torch.ops.laplex.pullback.default, arguments, traced=backend == "cpp")


@pytest.mark.parametrize(("h", "m", "n", "k"), [(1, 2, 0, 3), (1, 2, 3, 0), (1, 0, 3, 2), (0, 1, 2, 3)])
@pytest.mark.parametrize("odd", [False, True])
def test_nothing(h, m, n, k, odd, scan_backend):
    a, b, x, tau = torch.randn(h, n), torch.randn(h, k), torch.randn(h, m, k), torch.ones(h).double()
    g, odd_x = torch.randn(h, m, n), torch.randn(h, m, n if odd else 0)
    order, traced = make_order(a, b, "merged", scan_backend), scan_backend == "cpp"
    check(
        torch.ops.laplex.pullback.default,
        (g, x, odd_x, a, b, tau, *order.tensors, order.layout, scan_backend, odd),
        traced,
    )
    check(torch.ops.laplex.scan.default, (x, a, b, tau, *order.tensors, order.layout, scan_backend, odd, 0), traced)


RANKS, FACTORED = [(1, 0), (2, 0), (2, 1), (4, 3)], [(2, 5, 3), (1, 1, 1), (1, 0, 2), (0, 3, 2)]


@pytest.mark.parametrize(("rank", "sizes", "memory"), in_turn(RANKS, FACTORED, list(MEMORY)))
def test_factors(rank, sizes, memory, scan_backend):
    (r, packed), (h, n, m), memory = rank, sizes, MEMORY[memory]
    decay, diag = torch.rand(h, n).double() - int(packed == 0), torch.rand(h, n).double() + 1
    p, mass, x = torch.randn(h, n, r).double(), torch.rand(h, n, packed).double(), torch.randn(h, n, m).double()
    p = p / p.norm(dim=-1, keepdim=True)
    order = torch.arange(n).expand(h, n)
    ops, traced = torch.ops.laplex, scan_backend == "cpp" and memory is as_given  # what is made is always contiguous
    decay, diag, p, mass, x = map(memory, (decay, diag, p, mass, x))
    check(ops.factor.default, (decay, p, p, mass, diag, False, scan_backend), traced)
    d, z, states = ops.factor(decay, p, p, mass, diag, True, scan_backend)
    check(ops.factor_pullback.default, (decay, p, mass, d, z, states, d, z, scan_backend), traced)
    check(ops.sweep.default, (decay, p, z, mass, x, True, False, scan_backend), traced)
    check(ops.quasi_solve.default, (decay, p, z, mass, d, order, x, scan_backend), traced)
    check(ops.sweep_pullback.default, (decay, p, z, mass, x, x, scan_backend), traced)


GRAMS = [*SIZES, (1, 2, 0, 3), (1, 2, 3, 0), (1, 0, 3, 2), (0, 1, 2, 3)]


@pytest.mark.parametrize(("sizes", "memory", "phased"), in_turn(GRAMS, list(MEMORY), [False, True]))
def test_gram_and_its_pullback(sizes, memory, phased, backend):
    (h, m, n, k), memory = sizes, MEMORY[memory]
    a, b, tau = torch.randn(h, n), torch.randn(h, k), torch.rand(h).double() + 0.5
    weight, direction = (
        torch.randn(h, m, 3 if phased else 1, k).double(),
        torch.randn(h, 2 if phased else 0, n).double(),
    )
    order = make_order(a, b, "merged", "torch")
    for dtype in (torch.float32, torch.float64):
        traced = backend == "cpp" and memory is as_given and dtype == torch.float32
        tensors = [*map(memory, (weight, direction, a, b)), tau, *map(memory, order.tensors), order.layout, backend]
        check(torch.ops.laplex.gram.default, (*tensors, dtype), traced)
        sums, g = torch.ops.laplex.gram(*tensors, dtype)[1], memory(torch.randn(h, m, n, n, dtype=dtype))
        for to_source in (True, False):
            arguments = g, memory(sums), *tensors, to_source, not to_source
            check(torch.ops.laplex.gram_pullback.default, arguments, traced)


# --- Triton's kernels, under its interpreter --------------------------------------------------------------------------

INTERPRETED = pytest.mark.skipif(not _backends.interpreted(), reason="with a GPU the kernels are compiled: test_gpu")


@INTERPRETED
@pytest.mark.parametrize("layout", ["joined", "in_order"])
def test_plan_of_triton(layout, tiles):
    a, b = torch.randn(2, 5).sort().values, torch.randn(2, 4).sort().values
    for memory in MEMORY.values():
        check(torch.ops.laplex.plan.default, (memory(a), memory(b), layout, "triton"), traced=memory is as_given)


@INTERPRETED
@pytest.mark.parametrize("memory", [MEMORY["contiguous"], MEMORY["permuted"]], ids=["contiguous", "permuted"])
def test_scan_and_pullback_of_triton(memory, tiles):
    tiles(32, 2)
    a, b, x, g, odd_x = (torch.randn(*shape) for shape in ((2, 5), (2, 4), (2, 2, 4), (2, 2, 5), (2, 2, 5)))
    order, tau = make_order(a, b, "joined", "triton"), torch.rand(2).double() + 0.5
    a, b, x, g, odd_x = map(memory, (a, b, x, g, odd_x))
    arguments = x, a, b, tau, *map(memory, order.tensors), order.layout, "triton", True, 1
    check(torch.ops.laplex.scan.default, arguments, traced=False)
    arguments = g, x, odd_x, *Matrix(a, b, tau, emptied(order), table("triton")).flat, True
    check(torch.ops.laplex.pullback.default, arguments, traced=False)


@INTERPRETED
@named("generic", "batched_ties")
def test_triton_in_any_memory(case, tiles):
    """An order that vmap moved or expanded is not contiguous."""
    a, b, tau = flat(*case())
    x, order = rows_for(a, b, 1), make_order(a, b, "joined", "triton")
    want = scan(x, a, b, tau, order, False, "triton")[0]
    for memory in MEMORY.values():
        moved = Order.from_tensors([*map(memory, order.tensors)], order.layout)
        got = scan(memory(x), memory(a), memory(b), memory(tau), moved, False, "triton")[0]
        assert torch.equal(got, want)


@INTERPRETED
@pytest.mark.parametrize(("h", "m", "n", "k"), [(1, 2, 0, 3), (1, 2, 3, 0), (1, 0, 3, 2), (0, 1, 2, 3)])
def test_nothing_of_triton(h, m, n, k):
    a, b, x, tau = torch.randn(h, n), torch.randn(h, k), torch.randn(h, m, k), torch.ones(h).double()
    g, order = torch.randn(h, m, n), make_order(a, b, "joined", "triton")
    check(torch.ops.laplex.scan.default, (x, a, b, tau, *order.tensors, order.layout, "triton", True, 0), traced=True)
    check(
        torch.ops.laplex.pullback.default,
        (g, x, g, a, b, tau, *order.tensors, order.layout, "triton", True),
        traced=True,
    )

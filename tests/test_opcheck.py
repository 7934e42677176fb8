"""torch.library.opcheck on the three operators: schema, fake kernels, dispatch, in any memory layout."""

import pytest
import torch

import laplex  # noqa: F401  registers the operators
from helpers import LAYOUTS, make_order

SIZES = [(2, 3, 5, 4), (1, 2, 3, 40)]  # h, m, n, k


def permuted(value):
    """The same values in memory of the reverse order."""
    dims = tuple(reversed(range(value.dim())))
    return value.permute(*dims).contiguous().permute(*dims)


MEMORY = {
    "contiguous": lambda value: value,
    "permuted": permuted,
    "strided": lambda v: v.repeat_interleave(2, -1)[..., ::2],
}


@pytest.mark.parametrize("memory", MEMORY.values(), ids=MEMORY)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("h", "m", "n", "k"), SIZES)
def test_plan(memory, layout, h, m, n, k, scan_backend):
    a, b = memory(torch.randn(h, n)), memory(torch.randn(h, k))
    torch.library.opcheck(torch.ops.laplex.plan.default, (a, b, layout, scan_backend))


@pytest.mark.parametrize("memory", MEMORY.values(), ids=MEMORY)
@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize(("h", "m", "n", "k"), SIZES)
def test_scan(memory, odd, h, m, n, k, backend):
    a, b, x = torch.randn(h, n), torch.randn(h, k), torch.randn(h, m, k)
    tau = torch.rand(h).double() + 0.5
    for layout in LAYOUTS if backend != "dense" else LAYOUTS[:1]:
        order = make_order(a, b, layout, "torch")
        tensors = [memory(value) for value in (x, a, b)]
        torch.library.opcheck(torch.ops.laplex.scan.default, (*tensors, tau, *map(memory, order), odd, backend))


@pytest.mark.parametrize("memory", MEMORY.values(), ids=MEMORY)
@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize(("h", "m", "n", "k"), SIZES)
def test_pullback(memory, odd, h, m, n, k, backend):
    a, b, x, g = torch.randn(h, n), torch.randn(h, k), torch.randn(h, m, k), torch.randn(h, m, n)
    tau, odd_x = torch.rand(h).double() + 0.5, torch.randn(h, m, n if odd else 0)
    for layout in LAYOUTS if backend != "dense" else LAYOUTS[:1]:
        tensors = [memory(value) for value in (g, x, odd_x, a, b)]
        order = make_order(a, b, layout, "torch")
        torch.library.opcheck(torch.ops.laplex.pullback.default, (*tensors, tau, *map(memory, order), backend))


@pytest.mark.parametrize(("h", "m", "n", "k"), [(1, 2, 0, 3), (1, 2, 3, 0), (1, 0, 3, 2), (0, 1, 2, 3)])
@pytest.mark.parametrize("odd", [False, True])
def test_nothing(h, m, n, k, odd, scan_backend):
    a, b, x, tau = torch.randn(h, n), torch.randn(h, k), torch.randn(h, m, k), torch.ones(h).double()
    g, odd_x = torch.randn(h, m, n), torch.randn(h, m, n if odd else 0)
    order = make_order(a, b, "merged", scan_backend)
    torch.library.opcheck(torch.ops.laplex.pullback.default, (g, x, odd_x, a, b, tau, *order, scan_backend))
    torch.library.opcheck(torch.ops.laplex.scan.default, (x, a, b, tau, *order, odd, scan_backend))

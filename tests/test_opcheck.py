"""torch.library.opcheck on the two operators: schema, fake kernels, dispatch, in any memory layout."""

import pytest
import torch

import laplex  # noqa: F401  registers the operators
from helpers import LAYOUTS, make_order

PLAN, SCAN = "laplex::plan", "laplex::scan"
SIZES = [(2, 3, 5, 4), (1, 1, 1, 1), (2, 3, 3, 40), (1, 2, 40, 3)]  # h, m, n, k


def permuted(value):
    """The same values in memory of the reverse order."""
    dims = tuple(reversed(range(value.dim())))
    return value.permute(*dims).contiguous().permute(*dims)


MEMORY = {
    "contiguous": lambda value: value,
    "permuted": permuted,
    "strided": lambda v: v.repeat_interleave(2, -1)[..., ::2],
}


def operator(name):
    return getattr(torch.ops.laplex, name.split("::")[1]).default


@pytest.mark.parametrize("memory", MEMORY.values(), ids=MEMORY)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("h", "m", "n", "k"), SIZES)
def test_plan(memory, layout, h, m, n, k, scan_backend):
    a, b = memory(torch.randn(h, n)), memory(torch.randn(h, k))
    torch.library.opcheck(operator(PLAN), (a, b, layout, scan_backend))


@pytest.mark.parametrize("memory", MEMORY.values(), ids=MEMORY)
@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize(("h", "m", "n", "k"), SIZES)
def test_scan(memory, odd, h, m, n, k, backend, dtype):
    a, b, x = (torch.randn(*shape, dtype=dtype) for shape in ((h, n), (h, k), (h, m, k)))
    tau = torch.rand(h).double() + 0.5
    for layout in LAYOUTS if backend != "dense" else LAYOUTS[:1]:
        order = make_order(a, b, layout, "torch")
        tensors = [memory(value) for value in (x, a, b)]
        torch.library.opcheck(operator(SCAN), (*tensors, tau, *map(memory, order), odd, backend))


@pytest.mark.parametrize(("h", "m", "n", "k"), [(1, 2, 0, 3), (1, 2, 3, 0), (1, 0, 3, 2), (0, 1, 2, 3)])
@pytest.mark.parametrize("odd", [False, True])
def test_scan_of_nothing(h, m, n, k, odd, scan_backend):
    a, b, x, tau = torch.randn(h, n), torch.randn(h, k), torch.randn(h, m, k), torch.ones(h).double()
    order = make_order(a, b, "merged", scan_backend)
    torch.library.opcheck(operator(SCAN), (x, a, b, tau, *order, odd, scan_backend))

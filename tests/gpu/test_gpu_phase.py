"""Products with phases on a GPU, compiled: the cases of test_phase at sizes that take every way by themselves."""

import pytest
import torch

import laplex
from helpers import error, phases_for, wide

pytestmark = pytest.mark.gpu
# Rows, columns, rows of x: few sources, few targets, tiles, and one side long with too few rows for a table.
SHAPES = {
    "spread": (200_000, 300, 48),
    "collect": (300, 200_000, 48),
    "tiles": (3000, 2500, 5),
    "few": (30_000, 200, 2),
}
WAY = pytest.mark.parametrize("way", SHAPES)
ROUNDINGS = 5 * 2.0**-23  # of the sum of the sizes of the terms: the bound that laplex.linear states, with tiles
GRADIENT = {torch.float32: 4e-7, torch.float64: 1e-14}  # of the same sums
KINDS = {
    "apart": lambda size: torch.randn(size),
    "ties": lambda size: torch.randint(0, 50, (size,)).float(),
    "one_interval": lambda size: torch.rand(size) * (1e-3 if size < 5000 else 1.0),  # most sources in one of them
}


@pytest.fixture(autouse=True)
def on_gpu():
    with torch.device("cuda"):
        yield


def drawn(way, kind, dtype):
    n, k, m = SHAPES[way]
    a, b = KINDS[kind](n).to(dtype), KINDS[kind](k).to(dtype)
    phi, psi = phases_for(a, b)
    tau = torch.tensor(0.3, dtype=dtype)
    return {"x": torch.randn(m, k, dtype=dtype), "a": a, "b": b, "tau": tau, "phi": phi, "psi": psi}


def dense(inputs, g):
    """y and the six gradients in float64, and the sums of the sizes of their terms: a few columns of K at a time."""
    x, a, b, tau, phi, psi = (wide(value) for value in inputs.values())
    g, tau = wide(g), float(tau)
    y, bars = torch.zeros_like(g), {name: torch.zeros_like(wide(value)) for name, value in inputs.items()}
    y_size, sizes = torch.zeros_like(g), {name: torch.zeros_like(bar) for name, bar in bars.items()}
    for part in torch.arange(len(b)).split(max((1 << 26) // len(a), 1)):
        gap = b[part] - a[:, None]
        u, sign = gap.abs() / tau, gap.sign()
        even, angle = torch.exp(-u), phi[:, None] - psi[part]
        kernel, turned = even * angle.cos(), even * angle.sin()
        y += x[:, part] @ kernel.mT
        y_size += x[:, part].abs() @ even.mT
        pairs, largest = g.mT @ x[:, part], g.abs().mT @ x[:, part].abs()  # the cotangent of K
        bars["x"][:, part], sizes["x"][:, part] = g @ kernel, g.abs() @ even
        for name, of_pair, size in (
            ("a", pairs * kernel * sign / tau, largest * even / tau),
            ("phi", -pairs * turned, largest * even),
        ):
            bars[name] += of_pair.sum(1)
            sizes[name] += size.sum(1)
        for name, of_pair, size in (
            ("b", -pairs * kernel * sign / tau, largest * even / tau),
            ("psi", pairs * turned, largest * even),
        ):
            bars[name][part], sizes[name][part] = of_pair.sum(0), size.sum(0)
        bars["tau"] += (pairs * kernel * u).sum() / tau
        sizes["tau"] += (largest * even * u).sum() / tau
    return y, y_size, bars, sizes


@WAY
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients(way, kind, dtype):
    inputs = drawn(way, kind, dtype)
    leaves = {name: value.requires_grad_() for name, value in inputs.items()}
    y = laplex.linear(**leaves, backend="triton")
    g = torch.randn_like(y)
    got = dict(zip(leaves, torch.autograd.grad(y, list(leaves.values()), g), strict=True))
    want, size, bars, sizes = dense(inputs, g)
    roundings = ROUNDINGS if dtype == torch.float32 else 1e-14
    assert bool(((wide(y) - want).abs() <= roundings * size).all())
    for name, exact in bars.items():
        assert got[name].dtype == dtype
        assert bool(((wide(got[name]) - exact).abs() <= GRADIENT[dtype] * sizes[name] + 1e-300).all()), name


@WAY
def test_a_gradient_that_is_differentiated_again_is_the_same(way):
    inputs = drawn(way, "ties", torch.float64)
    leaves = [value.requires_grad_() for value in inputs.values()]
    y = laplex.linear(**inputs, backend="triton")
    g = torch.randn_like(y)
    fused = torch.autograd.grad(y, leaves, g, retain_graph=True)
    composed = torch.autograd.grad(y, leaves, g, create_graph=True)
    assert all(error(one, other) <= 1e-12 for one, other in zip(fused, composed, strict=True))
    assert all(bar.requires_grad for bar in composed)


@WAY
@pytest.mark.parametrize("x_dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(way, x_dtype):
    inputs = drawn(way, "apart", torch.float32)
    inputs["x"] = inputs["x"].to(x_dtype)
    leaves = [value.requires_grad_() for value in inputs.values()]
    y = laplex.linear(**inputs, backend="triton")
    g = torch.randn_like(y)
    got = torch.autograd.grad(y, leaves, g)
    want, size, bars, sizes = dense(inputs, g)
    unit = torch.finfo(x_dtype).eps
    assert y.dtype == x_dtype
    assert bool(((wide(y) - want).abs() <= unit * size).all())
    for bar, (name, exact) in zip(got, bars.items(), strict=True):
        assert bar.dtype == inputs[name].dtype
        assert bool(((wide(bar) - exact).abs() <= (unit if name == "x" else 4e-7) * sizes[name]).all()), name


@WAY
def test_the_same_bits_at_every_call(way):
    inputs = drawn(way, "ties", torch.float32)
    leaves = [value.requires_grad_() for value in inputs.values()]
    g = torch.randn(SHAPES[way][2], SHAPES[way][0])
    runs = [torch.autograd.grad(laplex.linear(**inputs, backend="triton"), leaves, g) for _ in range(3)]
    for run in runs[1:]:
        assert all(torch.equal(one, other) for one, other in zip(run, runs[0], strict=True))


@WAY
def test_nothing_waits_for_the_device(way):
    inputs = drawn(way, "apart", torch.float32)
    leaves = [value.requires_grad_() for value in inputs.values()]
    g = torch.randn(SHAPES[way][2], SHAPES[way][0])

    def both():
        torch.autograd.grad(laplex.linear(**inputs, backend="triton"), leaves, g)

    both()
    torch.cuda.set_sync_debug_mode("error")
    try:
        both()
    finally:
        torch.cuda.set_sync_debug_mode("default")

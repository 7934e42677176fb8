"""Sums of kernel matrices formed by the compiled core: values and every gradient against dense float64."""

import math

import pytest
import torch

from helpers import error, wide
from laplex import reference
from laplex._formed import cpp
from laplex._formed.kernels import Kernels, Needs

TOLERANCE = {torch.float32: 5e-7, torch.float64: 1e-14}
ENTRY_TOLERANCE = {torch.float32: 2e-7, torch.float64: 1e-14}
NAMES = ("target", "source", "tau", "weight", "phi", "psi")
EVERYTHING = Needs(anchors=True, tau=True, weight=True, phase=True)


def uniform(*shape, span=1.0):
    return span * (torch.rand(*shape, dtype=torch.float64) - 0.5)


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def of_span(span, n=150, k=300, r=2):
    """Anchors that lie in `span` tau, in no order."""
    return lambda: (uniform(1, r, n, span=span), uniform(1, r, k, span=span), 1.0)


def in_order(span):
    """The same in order, as on a grid: tiles span less than the whole."""
    anchors = of_span(span, n=300, k=1500)
    return lambda: (anchors()[0].sort().values, anchors()[1].sort().values, 1.0)


def sizes(n, k, r=1, h=1):
    return lambda: (2.5 * normal(h, r, n), 2.5 * normal(h, r, k), 0.5 + torch.rand(h, r, dtype=torch.float64))


def ties():
    target, source = normal(1, 2, 70), normal(1, 2, 90)
    target[..., ::3] = source[..., 10:34]
    return target, source, 0.8


def duplicates():
    return torch.randint(-4, 5, (1, 3, 130)).double(), torch.randint(-4, 5, (1, 3, 270)).double(), 1.5


def far_from_zero():
    return 1e5 + uniform(1, 2, 70, span=3.0), 1e5 + uniform(1, 2, 300, span=3.0), 1.0


def clusters():
    """Three clusters, 1e9 tau apart, and one anchor far beyond."""
    target, source = uniform(1, 2, 100, span=3.0), uniform(1, 2, 300, span=3.0)
    target[..., 30:], source[..., 100:] = target[..., 30:] + 1e9, source[..., 100:] + 1e9
    target[..., 60:], source[..., 200:] = target[..., 60:] - 2e9, source[..., 200:] - 2e9
    source[..., 0] = 1e18
    return target, source, 1.0


def outlier():
    """One anchor at 1e6 tau: the tiles of its row take an exponential per entry, the others do not."""
    target, source, tau = of_span(20, n=200, k=600)()
    target[..., 17] = 1e6
    return target, source, tau


def other_units():
    return 1e-30 * normal(1, 2, 70), 1e-30 * normal(1, 2, 300), 1e-30


def hardly_apart():
    """Gaps so small beside tau that the distances of tau's gradient would be denormal in float32."""
    return 1e-30 * normal(1, 1, 70), 1e-30 * normal(1, 1, 90), 1e12


CASES = {
    "plain": sizes(120, 300),
    "sixteen": sizes(100, 300, r=16),
    "layer": sizes(200, 1280, r=2),
    "ties": ties,
    "duplicates": duplicates,
    "span of 1e-3 tau": of_span(1e-3),
    "span of 50 tau": of_span(50),
    "span of 85 tau": of_span(85),  # factors in float32,
    "span of 200 tau": of_span(200),  # in float64,
    "span of 690 tau": of_span(690),
    "span of 720 tau": of_span(720),  # and an exponential per entry
    "span of 1500 tau": of_span(1500),
    "span of 1e6 tau": of_span(1e6),
    "span of 200 tau, in order": in_order(200),
    "far from 0": far_from_zero,
    "clusters": clusters,
    "outlier": outlier,
    "other units": other_units,
    "hardly apart": hardly_apart,
    "one row": sizes(1, 700, r=3),
    "one column": sizes(700, 1, r=3),
    "one entry": sizes(1, 1, r=2),
    "batch": sizes(33, 45, r=3, h=3),
    **{f"{n} x {k}": sizes(n, k, r=2) for n, k in ((3, 7), (7, 9), (15, 17), (63, 31), (65, 257), (129, 513))},
}


@pytest.fixture(params=[False, True], ids=["unphased", "phased"])
def phased(request):
    return request.param


def kernels_of(case, dtype, phased=False, weighted=True):
    target, source, tau = CASES[case]()
    h, r, n = target.shape
    phi, psi = (normal(h, r, n).to(dtype), normal(h, r, source.shape[-1]).to(dtype)) if phased else (None, None)
    weight = normal(h, r).to(dtype) if weighted else None
    tau = torch.as_tensor(tau, dtype=torch.float64).expand(h, r)
    return Kernels(target.to(dtype), source.to(dtype), tau, weight, phi, psi, r)


def dense(target, source, tau, weight=None, phi=None, psi=None):
    """(h, r, n, k): w_q K_q by the definition."""
    each = reference.kernel(target, source, tau, phi=phi, psi=psi)
    return each if weight is None else each * weight[..., None, None]


def dense_gradients(g, kernels):
    """The gradients of sum(g * W), None for what is not given."""
    leaves = [None if value is None else wide(value).clone().requires_grad_() for value in kernels.tensors]
    total = (dense(*leaves).sum(1) * wide(g)).sum()
    bars = iter(torch.autograd.grad(total, [leaf for leaf in leaves if leaf is not None]))
    return [None if leaf is None else next(bars) for leaf in leaves]


def scales(g, kernels):
    """What the errors of gradients are measured by where they cancel: the root of the sum of squared terms.

    tau and weight have one gradient for n k terms of either sign, and cos phi cos psi + sin phi sin psi is exact to eps
    of 1, not of the cosine.
    """
    target, source, tau, weight, _, _ = (None if value is None else wide(value) for value in kernels.tensors)
    even = dense(target, source, tau, weight) * wide(g).view(kernels.shape)[:, None]
    rate = (1 / tau)[..., None, None]
    gap = (target[..., :, None] - source[..., None, :]) * rate
    rows, cols, both = ((lambda terms, dims=dims: terms.square().sum(dims).sqrt()) for dims in (-1, -2, (-1, -2)))
    odd, per_weight = even * rate * gap.sign(), even if weight is None else even / weight[..., None, None]
    return rows(odd), cols(odd), both(even * gap * rate), both(per_weight), rows(even), cols(even)


def assert_pullback(g, kernels, tolerance):
    want, by = dense_gradients(g, kernels), scales(g, kernels)
    got = cpp.pull(g, kernels, EVERYTHING)
    for name, value, bar, expected, scale in zip(NAMES, kernels.tensors, got, want, by, strict=True):
        if value is None:
            assert bar is None, name
            continue
        assert bar.dtype == value.dtype, name
        assert error(bar, expected, scale) <= tolerance, name


@pytest.mark.parametrize("case", CASES)
def test_values(case, dtype, phased):
    kernels = kernels_of(case, dtype, phased)
    got = cpp.form(kernels, dtype)
    want = dense(*map(wide, kernels.tensors)).sum(1).view(kernels.shape_of_results)
    unphased = dense(*map(wide, kernels.tensors[:4]))
    assert got.dtype == dtype
    assert error(got, want, unphased) <= TOLERANCE[dtype]


@pytest.mark.parametrize("case", CASES)
def test_gradients(case, dtype, phased):
    kernels = kernels_of(case, dtype, phased)
    g = torch.randn(kernels.shape_of_results, dtype=dtype)
    assert_pullback(g, kernels, TOLERANCE[dtype])


@pytest.mark.parametrize(("unit", "of_g"), [(1e-38, 1e-4), (3e36, 1e4)])
def test_extreme_units(unit, of_g, dtype):
    """Distances times g leave the range of float32, in which the gradients themselves are."""
    kernels = kernels_of("plain", dtype)
    scaled = [(unit * wide(value)).to(kind) for value, kind in zip(kernels[:3], (dtype, dtype, torch.float64))]
    kernels = Kernels(*scaled, *kernels[3:])
    assert_pullback(of_g * torch.randn(kernels.shape_of_results, dtype=dtype), kernels, TOLERANCE[dtype])


@pytest.mark.parametrize(
    "case", ["plain", "span of 50 tau", "span of 200 tau", "span of 720 tau", "far from 0", "clusters"]
)
def test_every_entry(case, dtype):
    """Each entry of one kernel, where float32 has a normal number for it."""
    kernels = Kernels(*(value[:, :1] for value in kernels_of(case, dtype)[:3]), None, None, None, 1)
    want = dense(*map(wide, kernels[:3]))[0, 0]
    got, normal_number = wide(cpp.form(kernels, dtype)), want > torch.finfo(torch.float32).tiny
    assert bool(normal_number.any())
    relative = (got - want).abs()[normal_number] / want[normal_number]
    assert float(relative.max()) <= ENTRY_TOLERANCE[dtype]
    assert float(got[~normal_number].sum()) <= 1e-30


def test_sign_of_close_anchors(dtype):
    """At a tie the derivative is exactly 0, and an anchor one ulp away is on the right side."""
    anchor = torch.tensor(0.7, dtype=dtype)
    near = [torch.nextafter(anchor, anchor.new_tensor(to)) for to in (-math.inf, math.inf)]
    target, source = anchor.expand(1, 1, 1), torch.stack([near[0], anchor, near[1]]).expand(1, 1, 3)
    kernels = Kernels(target, source, torch.ones(1, 1, dtype=torch.float64), None, None, None, 1)
    for column, sign in ((0, -1.0), (1, 0.0), (2, 1.0)):
        g = torch.zeros(1, 3, dtype=dtype)
        g[..., column] = 3.0
        t_bar, s_bar, tau_bar, *_ = cpp.pull(g, kernels, EVERYTHING)
        assert float(t_bar) == pytest.approx(3 * sign, rel=1e-6)
        assert float(s_bar[..., column]) == -float(t_bar)
        assert (float(tau_bar) == 0) == (sign == 0)


@pytest.mark.parametrize("case", ["sixteen", "batch", "span of 200 tau", "span of 720 tau", "one row", "129 x 513"])
def test_threads_do_not_change_bits(case, dtype, phased):
    kernels, threads = kernels_of(case, dtype, phased), torch.get_num_threads()
    g = torch.randn(kernels.shape_of_results, dtype=dtype)
    try:
        torch.set_num_threads(1)
        alone = cpp.form(kernels, dtype), *cpp.pull(g, kernels, EVERYTHING)
        torch.set_num_threads(2)
        together = cpp.form(kernels, dtype), *cpp.pull(g, kernels, EVERYTHING)
    finally:
        torch.set_num_threads(threads)
    assert all(one is two is None or torch.equal(one, two) for one, two in zip(alone, together, strict=True))


def test_only_what_is_needed():
    kernels, g = kernels_of("batch", torch.float32, phased=True), torch.randn(3, 33, 45)
    complete = cpp.pull(g, kernels, EVERYTHING)
    owner = ("anchors", "anchors", "tau", "weight", "phase", "phase")
    for need in Needs._fields:
        got = cpp.pull(g, kernels, Needs(*(field == need for field in Needs._fields)))
        for bar, expected, part in zip(got, complete, owner, strict=True):
            assert bar is None if part != need else torch.equal(bar, expected)


def test_without_weights(dtype):
    kernels = kernels_of("batch", dtype, weighted=False)
    ones = kernels._replace(weight=torch.ones(3, 3, dtype=dtype))
    assert torch.equal(cpp.form(kernels, dtype), cpp.form(ones, dtype))
    assert_pullback(torch.randn(3, 33, 45, dtype=dtype), kernels, TOLERANCE[dtype])


@pytest.mark.parametrize("anchors", [torch.float32, torch.float64])
def test_mixed_dtypes(anchors):
    """W in another dtype than the anchors: computed in the wider one."""
    other = torch.float64 if anchors == torch.float32 else torch.float32
    kernels = kernels_of("ties", anchors, phased=True)
    want = dense(*map(wide, kernels.tensors)).sum((0, 1))
    got = cpp.form(kernels, other)
    assert got.dtype == other
    assert error(got, want) <= TOLERANCE[other]
    assert_pullback(torch.randn(70, 90, dtype=other), kernels, TOLERANCE[torch.float32])


def test_strides():
    """Tensors that are not contiguous, the cotangent among them."""
    kernels = kernels_of("batch", torch.float64, phased=True)
    strided = Kernels(*(value.mT.contiguous().mT for value in kernels.tensors), kernels.summed)
    assert torch.equal(cpp.form(strided, torch.float64), cpp.form(kernels, torch.float64))
    g = torch.randn(3, 45, 33, dtype=torch.float64).mT
    for bar, expected in zip(cpp.pull(g, strided, EVERYTHING), cpp.pull(g.contiguous(), kernels, EVERYTHING)):
        assert torch.equal(bar, expected)


def test_tau_in_float32_and_half_precision():
    """tau's gradient has its dtype, and W that of x."""
    kernels = kernels_of("batch", torch.float32)
    kernels, g = kernels._replace(tau=kernels.tau.float()), torch.randn(3, 33, 45)
    assert_pullback(g, kernels, TOLERANCE[torch.float32])
    assert torch.equal(cpp.form(kernels, torch.bfloat16), cpp.form(kernels, torch.float32).bfloat16())
    half = g.bfloat16()
    for bar, expected in zip(cpp.pull(half, kernels, EVERYTHING), cpp.pull(half.float(), kernels, EVERYTHING)):
        assert bar is expected is None or torch.equal(bar, expected)


@pytest.mark.parametrize("fault", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("name", "argument"), [("target", "a"), ("source", "b")])
def test_anchors_not_finite(name, argument, fault, dtype):
    kernels, g = kernels_of("batch", dtype), torch.randn(3, 33, 45, dtype=dtype)
    getattr(kernels, name)[2, 1, 30] = fault
    for call in (lambda: cpp.form(kernels, dtype), lambda: cpp.pull(g, kernels, EVERYTHING)):
        with pytest.raises(ValueError, match=f"`{argument}` must be finite, got NaN or infinity"):
            call()


@pytest.mark.parametrize("fault", [0.0, -1.0, math.nan, math.inf, 1e-310])
def test_tau_not_a_length(fault):
    kernels, g = kernels_of("batch", torch.float32), torch.randn(3, 33, 45)
    kernels = kernels._replace(tau=kernels.tau.clone())
    kernels.tau[1, 2] = fault
    for call in (lambda: cpp.form(kernels, torch.float32), lambda: cpp.pull(g, kernels, EVERYTHING)):
        with pytest.raises(ValueError, match=r"`tau` must be positive and finite, got .* for matrix 5 of 9"):
            call()


# --- products with exact sums -----------------------------------------------------------------------------------------

LAYOUTS = {
    "plain": lambda left, right: (left, right),
    "left transposed": lambda left, right: (left.mT.contiguous().mT, right),
    "right transposed": lambda left, right: (left, right.mT.contiguous().mT),
    "strided": lambda left, right: (
        left.repeat_interleave(2, -1)[..., ::2],
        right.repeat_interleave(3, -2)[..., ::3, :],
    ),
    "expanded": lambda left, right: (left[..., :1, :].expand_as(left), right),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [(1, 1, 1), (7, 33, 5), (6, 32, 256), (193, 257, 31), (5, 3, 700), (2, 200, 2)])
@pytest.mark.parametrize("batch", [(), (3,)], ids=["one", "batch"])
def test_products_are_exact_for_all_sizes_and_layouts(size, layout, batch):
    m, n, length = size
    left, right = LAYOUTS[layout](torch.rand(*batch, m, length), torch.rand(*batch, length, n))
    true = left.double() @ right.double()
    assert ((cpp.matmul(left, right, torch.float32) - true) / true).abs().max() <= 2.5e-7


def test_products_do_not_depend_on_the_number_of_threads():
    left, right = torch.randn(300, 700), torch.randn(700, 500)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = cpp.matmul(left, right, torch.float32)
        torch.set_num_threads(4)
        assert torch.equal(alone, cpp.matmul(left, right, torch.float32))
    finally:
        torch.set_num_threads(before)


def test_products_carry_infinities_and_nan():
    left, right = torch.ones(3, 40), torch.ones(40, 5)
    left[0, 3], left[1, 7], right[39, 4] = float("inf"), float("nan"), float("-inf")
    assert torch.equal(cpp.matmul(left, right, torch.float32).isnan(), (left @ right).isnan())
    assert torch.equal(cpp.matmul(left, right, torch.float32).isinf(), (left @ right).isinf())

"""On a CUDA device: values and gradients against the dense definition in float64, in every case and at large sizes.

The kernels' own logic has its tests under the interpreter (test_triton); here they are compiled.
"""

from functools import partial

import pytest
import torch

import laplex
from cases import BY_NAME, in_turn, named
from helpers import (
    TOLERANCE,
    assert_pullback,
    assert_sums,
    emptied,
    error,
    flat,
    inputs_for,
    make_order,
    named_gradients,
    odd_kernel,
    on,
    oracle,
    phases_for,
    rows_for,
    wide,
)
from laplex import Plan, reference
from test_grad import cancellation_scales, checked, positional, second_order

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
BFLOAT16 = 4e-3  # the rounding of a result, and a little more
linear = on("triton")


@pytest.fixture(params=["triton", "dense"])
def kernels(request):
    """The scan, and the direct kernel for small matrices."""
    return request.param


def to_gpu(*values):
    return [value.to(DEVICE) if isinstance(value, torch.Tensor) else value for value in values]


def randn(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype, device=DEVICE)


# --- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kernels", "dtype"), in_turn(BY_NAME, ["triton", "dense"], [torch.float32, torch.float64])
)
def test_values(name, kernels, dtype):
    a, b, tau = to_gpu(*BY_NAME[name](dtype))
    x = rows_for(a.cpu(), b.cpu(), 3).to(DEVICE)
    y = laplex.linear(x, a, b, tau, backend=kernels)
    assert y.dtype == dtype
    assert y.is_cuda
    assert error(y, oracle(x, a, b, tau), oracle(x.abs(), a, b, tau)) <= TOLERANCE[dtype]


SUMS = [  # each is compiled anew; of few points, layouts and dtypes in turn
    ("generic", "joined", torch.float32),
    ("ties_everywhere", "in_order", torch.float64),
    ("tiny_tau_ties", "in_order", torch.float32),
    ("batched_ties", "joined", torch.float64),
    *in_turn(["long_tie_runs", "short_cols_two_chunks"], ["joined", "in_order"], [torch.float32, torch.float64]),
]


@pytest.mark.parametrize(("name", "layout", "dtype"), SUMS)
def test_sums_and_pullback_in_many_tiles_and_groups(name, layout, dtype, tiles):
    tiles(128, carried=64)
    a, b, tau = to_gpu(*flat(*BY_NAME[name](dtype)))
    if layout == "in_order":
        a, b = a.sort().values, b.sort().values
    order = make_order(a, b, layout, "triton")
    g, x = (randn(len(a), 2, side.shape[1], dtype=dtype) for side in (a, b))
    assert_sums(x, a, b, tau, order, "triton")
    assert_sums(g, b, a, tau, emptied(order).mT, "triton")
    assert_pullback(g, x, a, b, tau, order, "triton")


@pytest.mark.parametrize("x_dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128], ids=str)
def test_x_of_another_dtype_with_phases(x_dtype, kernels, dtype):
    a, b, x = randn(31, dtype=dtype), randn(27, dtype=dtype), randn(4, 27, dtype=x_dtype)
    phi, psi = phases_for(a, b)
    y = laplex.linear(x, a, b, 0.5, phi=phi, psi=psi, backend=kernels)
    assert y.dtype == x_dtype
    want, mass = oracle(x, a, b, 0.5, phi, psi), oracle(x.abs(), a, b, 0.5)
    assert error(y, want, mass) <= TOLERANCE[torch.empty(0, dtype=x_dtype).real.dtype]


@pytest.mark.parametrize(("x_dtype", "bound"), [(torch.float16, 5e-4), (torch.bfloat16, BFLOAT16)], ids=str)
def test_half_precision(x_dtype, bound, kernels):
    a, b, x = randn(1301), randn(1203), randn(4, 1203).to(x_dtype)
    leaves = [value.requires_grad_() for value in (x, a, b)]
    y = laplex.linear(x, a, b, 0.5, backend=kernels)
    assert y.dtype == x_dtype
    assert error(y, oracle(x, a, b, 0.5)) <= bound
    weight = torch.randn_like(y)
    got = torch.autograd.grad(y, leaves, weight)
    assert [bar.dtype for bar in got] == [x_dtype, torch.float32, torch.float32]
    exact = [wide(value).requires_grad_() for value in leaves]
    want = torch.autograd.grad(reference.linear(*exact, 0.5), exact, wide(weight))
    assert all(error(bar, other) <= 2 * bound for bar, other in zip(got, want))


@pytest.mark.parametrize("lead", [(), (2,)], ids=["one_kernel", "two_kernels"])
def test_columns_stay_columns(lead, kernels):
    a, b, x = randn(*lead, 1500), randn(*lead, 1400), randn(*lead, 1400, 5).mT.requires_grad_()
    y = laplex.linear(x, a, b, backend=kernels)
    assert y.mT.is_contiguous()
    assert error(y, oracle(x, a, b), oracle(x.abs(), a, b)) <= TOLERANCE[torch.float32]
    weight = randn(*lead, 1500, 5).mT
    (x_bar,) = torch.autograd.grad(y, x, weight)
    assert error(x_bar, oracle(weight, b, a), oracle(weight.abs(), b, a)) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("shape", [(2, 3, 900), (3, 2, 2, 900)])
def test_any_strides_of_x(shape, kernels):
    a, b = randn(800), randn(900)
    batch = randn(*shape)
    for x in (batch, batch.flip(0), batch.transpose(0, 1), batch.mT.contiguous().mT, batch[..., :1].expand(shape)):
        y = laplex.linear(x, a, b, backend=kernels)
        assert error(y, oracle(x, a, b), oracle(x.abs(), a, b)) <= TOLERANCE[torch.float32]


def shifted(value):
    """The same values, four or eight bytes behind an aligned address."""
    return torch.cat([value.new_zeros(1), value.reshape(-1)])[1:].view(value.shape)


def test_inputs_that_are_not_aligned(kernels, dtype):
    """After a call with aligned ones of the same sizes, whose compiled kernels are kept."""
    x, a, b, tau = randn(4, 1024, dtype=dtype), randn(1024, dtype=dtype), randn(1024, dtype=dtype), randn(1).exp()
    for sides in ((a, b), (a.sort().values, b.sort().values)):
        for make in (lambda value: value, shifted):
            inputs = [make(value).requires_grad_() for value in (x, *sides)]
            y = laplex.linear(*inputs, make(tau.double())[0], plan=Plan(*inputs[1:]), backend=kernels)
            assert error(y, oracle(*inputs, tau[0]), oracle(x.abs(), *sides, tau[0])) <= TOLERANCE[dtype]
            ones = make(torch.ones_like(y))
            (x_bar,) = torch.autograd.grad(y, inputs[:1], ones)
            assert error(x_bar, oracle(ones, *sides[::-1], tau[0])) <= TOLERANCE[dtype]


@pytest.mark.parametrize(("n", "k"), [(5, 200_003), (200_003, 5), (1, 100_000), (100_000, 1)])
def test_short_axes(n, k, kernels):
    a, b, x = randn(n), randn(k), randn(2, k)
    y = laplex.linear(x, a, b, 0.3, backend=kernels)
    assert error(y, oracle(x, a, b, 0.3), oracle(x.abs(), a, b, 0.3)) <= TOLERANCE[torch.float32]


SIZES = [(2**20, 2**20), (2**20 + 1, 3 * 2**19 - 1)]  # the second in more than one group of tiles


@pytest.mark.parametrize("tau", [0.05, 1e-5], ids=["narrow_tiles", "wide_tiles"])
@pytest.mark.parametrize(("n", "k", "ordered"), [(*SIZES[0], False), (*SIZES[1], False), (*SIZES[1], True)])
def test_single_rows_and_gradients_of_a_large_product(n, k, tau, ordered):
    a, b, x = randn(n), randn(k), randn(k)
    if ordered:
        a, b = a.sort().values, b.sort().values
    leaves = [value.requires_grad_() for value in (x, a, b)]
    y = laplex.linear(*leaves, tau, plan=Plan(a, b))
    x_bar, a_bar, b_bar = torch.autograd.grad(y, leaves, torch.ones_like(y))
    rows = torch.cat([torch.randint(n, (40,)), torch.tensor([0, n - 1, int(a.argmin()), int(a.argmax())])])
    anchors, mass = a[rows], oracle(x.abs(), a[rows], b, tau)
    assert error(y[rows], oracle(x, anchors, b, tau), mass) <= 2e-7
    assert error(a_bar[rows], wide(x) @ odd_kernel(anchors, b, tau).mT / tau, mass / tau) <= 2e-7
    cols = torch.cat([torch.randint(k, (40,)), torch.tensor([0, k - 1, int(b.argmin()), int(b.argmax())])])
    anchors, ones = b[cols], torch.ones(n, device=DEVICE)
    mass = oracle(ones, anchors, a, tau)
    assert error(x_bar[cols], mass) <= 2e-7
    pulled = (wide(ones) @ odd_kernel(anchors, a, tau).mT) * wide(x[cols]) / tau
    assert error(b_bar[cols], pulled, mass * wide(x[cols]).abs() / tau) <= 2e-7


def test_more_kernels_than_a_grid_has_blocks(kernels):
    a, b, x, tau = randn(70_000, 5), randn(70_000, 4), randn(70_000, 2, 4), randn(70_000).exp()
    y = laplex.linear(x, a, b, tau, backend=kernels)
    assert error(y, oracle(x, a, b, tau), oracle(x.abs(), a, b, tau)) <= TOLERANCE[torch.float32]


def test_more_rows_than_a_grid_has_blocks(kernels):
    a, b, x = randn(50), randn(40), randn(600_000, 40)
    y = laplex.linear(x, a, b, 0.5, backend=kernels)
    assert error(y, oracle(x, a, b, 0.5), oracle(x.abs(), a, b, 0.5)) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize(("n", "k"), [(2**20, 1000), (1000, 2**20), (2**20, 2**20)], ids=["of_y", "of_x", "of_both"])
def test_more_than_2_31_elements(n, k):
    m = 2100
    if torch.cuda.mem_get_info()[0] < 6 * m * 2**20 * 2:
        pytest.skip("needs 27 GB of free GPU memory")
    a, b, x = randn(n), randn(k), randn(m, k, dtype=torch.bfloat16)
    y = linear(x=x, a=a, b=b, tau=0.1)
    assert max(x.numel(), y.numel()) > 2**31
    few = torch.randint(n, (50,), device=DEVICE)
    for row in (0, m // 2, m - 2, m - 1):
        want, mass = oracle(x[row], a[few], b, 0.1), oracle(x[row].abs(), a[few], b, 0.1)
        assert error(y[row, few], want, 0.1 * mass) <= BFLOAT16


ORDERED = [  # kernels, rows and columns at which another way of ordering them begins, and far from it
    (1, 4096, 4095),
    (1, 4096, 4096),
    (1, 4096, 4097),
    (1, 1, 8192),
    (1, 20_000, 1),
    (1, 2**15, 2**15),
    (1, 2**15 + 1, 2**15),
    (1, 2**16, 2**16 + 1),
    (7, 5000, 4300),
    (64, 500, 525),
    (1000, 40, 30),
]


@pytest.mark.parametrize("tied", [False, True], ids=["apart", "ties"])
@pytest.mark.parametrize("sizes", ORDERED, ids=str)
def test_the_order_is_that_of_a_stable_sort(sizes, tied, dtype):
    h, n, k = sizes
    a, b = (randn(h, size, dtype=dtype) for size in (n, k))
    a, b = ((a * 99).round(), (b * 99).round()) if tied else (a, b)
    entry, position = make_order(a, b, "joined", "triton").tensors[:2]
    values, index = torch.cat([a, b], 1).sort(dim=1, stable=True)
    assert torch.equal(position[:, 0, : n + k], values)
    assert torch.equal(entry[:, 0, : n + k].long(), torch.where(index < n, index, n - 1 - index))
    assert (position[:, 0, n + k :] == values[:, -1:]).all()


# --- gradients ------------------------------------------------------------------------------------------------------


@named("generic", "ties_everywhere", "batched_ties", "short_rows_ties", "clustered", "long_tie_runs")
def test_every_gradient_is_the_dense_one(case, kernels):
    inputs = {name: value.to(DEVICE) for name, value in inputs_for(*case()).items()}
    weight = torch.randn_like(reference.linear(**inputs))
    want = named_gradients(reference.linear, inputs, weight)
    got = named_gradients(on(kernels), inputs, weight)
    scales = cancellation_scales(inputs, weight)
    for name in inputs:
        assert float((got[name] - want[name]).norm()) <= 1e-13 * scales[name], name


def test_gradcheck(kernels):
    inputs = tuple(value.detach().to(DEVICE).requires_grad_() for value in checked(5, 4))
    function = partial(positional, kernels)
    assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, inputs, check_fwd_over_rev=True, fast_mode=True)


def test_second_order_at_ties(kernels):
    a, b = torch.tensor([0.0, 1, 1, 2]).double(), torch.tensor([1.0, 0, 3]).double()
    inputs = {name: value.to(DEVICE) for name, value in inputs_for(a, b, 0.8, m=2).items()}
    weight = torch.randn_like(reference.linear(**inputs))
    direction = [torch.randn_like(value) for value in inputs.values()]
    want = second_order(reference.linear, inputs, weight, direction)
    got = second_order(on(kernels), inputs, weight, direction)
    assert all(error(got[name], want[name]) <= 1e-11 for name in inputs)


def test_vmap(kernels):
    x, a, b, tau = randn(3, 2, 70), randn(80), randn(70), torch.rand(3, device=DEVICE) + 0.5
    got = torch.func.vmap(lambda x, tau: laplex.linear(x, a, b, tau, backend=kernels))(x, tau)
    assert error(got, oracle(x, a.expand(3, 80), b.expand(3, 70), tau)) <= 1e-6

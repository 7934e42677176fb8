"""Values: every backend, case and dtype against the dense definition in float64."""

import subprocess
import sys

import pytest
import torch

import laplex
from cases import CASES, SMALL, every, named
from helpers import (
    LAYOUTS,
    TOLERANCE,
    error,
    flat,
    make_order,
    odd_kernel,
    oracle,
    phases_for,
    rows_for,
    scan,
    wide,
)
from laplex import reference
from laplex._scan.order import Order


@every()
def test_values(case, backend, dtype):
    a, b, tau = case(dtype)
    x = rows_for(a, b, 3)
    y = laplex.linear(x, a, b, tau, backend=backend)
    assert y.dtype == dtype
    assert error(y, oracle(x, a, b, tau)) <= TOLERANCE[dtype]


@every(SMALL)
def test_values_with_phases(case, backend, dtype):
    a, b, tau = case(dtype)
    x, (phi, psi) = rows_for(a, b, 3), phases_for(a, b)
    y = laplex.linear(x, a, b, tau, phi=phi, psi=psi, backend=backend)
    assert error(y, oracle(x, a, b, tau, phi, psi), oracle(x, a, b, tau)) <= TOLERANCE[dtype]


@every()
@pytest.mark.parametrize("layout", LAYOUTS)
def test_even_and_odd_sums_both_ways(case, layout, scan_backend, dtype):
    a, b, tau = flat(*case(dtype))
    plan, dense = make_order(a, b, layout, scan_backend), reference.kernel(wide(a), wide(b), tau)
    signed = odd_kernel(a, b, tau, dense)
    for target, source, order, E, S in ((a, b, plan, dense, signed), (b, a, plan.mT, dense.mT, -signed.mT)):
        x = torch.randn(a.shape[0], 2, source.shape[1], dtype=dtype)
        even, odd = scan(x, target, source, tau, order, True, scan_backend)
        assert error(even, wide(x) @ E.mT) <= TOLERANCE[dtype]
        assert error(odd, wide(x) @ S.mT) <= TOLERANCE[dtype]
        alone, none = scan(x, target, source, tau, order, False, scan_backend)
        assert torch.equal(alone, even)
        assert none.shape == (*even.shape[:2], 0)


@every(SMALL)
def test_even_and_odd_sums_of_the_dense_backend(case, dtype):
    a, b, tau = flat(*case(dtype))
    x = torch.randn(a.shape[0], 2, b.shape[1], dtype=dtype)
    even, odd = scan(x, a, b, tau, Order.none(a, b), True, "dense")
    assert error(even, oracle(x, a, b, tau)) <= TOLERANCE[dtype]
    assert error(odd, wide(x) @ odd_kernel(a, b, tau).mT) <= TOLERANCE[dtype]


@every()
@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_planners_find_the_same_order(case, layout, dtype):
    a, b, _ = flat(*case(dtype))
    orders = [make_order(a, b, layout, backend).tensors for backend in ("torch", "cpp")]
    for of_torch, of_cpp in zip(*orders, strict=True):
        assert torch.equal(of_torch, of_cpp)


@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 8, 9, 17])
@pytest.mark.parametrize(("n", "k"), [(37, 600), (600, 37), (40, 41), (3, 50), (50, 3)])
def test_any_number_of_rows(m, n, k, scan_backend, dtype):
    a, b, x = torch.randn(n, dtype=dtype), torch.randn(k, dtype=dtype), torch.randn(m, k, dtype=dtype)
    y = laplex.linear(x, a, b, 0.4, backend=scan_backend)
    assert error(y, oracle(x, a, b, 0.4)) <= TOLERANCE[dtype]


@pytest.mark.parametrize(("n", "k"), [(1_000_003, 999_983), (1_000_003, 1013), (1013, 1_000_003)])
def test_single_rows_of_a_large_product(n, k, scan_backend):
    a, b, x = torch.randn(n), torch.randn(k), torch.randn(k)
    tau = 0.05
    y = laplex.linear(x, a, b, tau, backend=scan_backend)
    for i in (0, n // 3, n - 1, int(a.argmin()), int(a.argmax())):
        want = oracle(x, a[i : i + 1], b, tau)
        mass = oracle(x.abs(), a[i : i + 1], b, tau)
        assert float((wide(y[i : i + 1]) - want).abs() / want.abs().clamp(min=1e-4 * mass)) <= 2e-7


def test_first_counter_example_to_the_paper(backend):
    y = laplex.linear(torch.ones(2), torch.tensor([0.0, 1, 2]), torch.tensor([0.5, 3]), backend=backend)
    torch.testing.assert_close(y, torch.tensor([0.656, 0.742, 0.591]), atol=5e-4, rtol=0)


def test_second_counter_example_to_the_paper(backend):
    y = laplex.linear(torch.ones(1), torch.tensor([0.0, 200.0]), torch.tensor([1.0]), backend=backend)
    torch.testing.assert_close(y, torch.tensor([-1.0, -199.0]).double().exp().float())


HALF = {torch.float16: 5e-4, torch.bfloat16: 4e-3}


@pytest.mark.parametrize("x_dtype", HALF, ids=str)
@pytest.mark.parametrize("phased", [False, True])
def test_half_precision_x(x_dtype, phased, backend, dtype):
    a, b, x = torch.randn(31, dtype=dtype), torch.randn(27, dtype=dtype), torch.randn(4, 27).to(x_dtype)
    phi, psi = phases_for(a, b) if phased else (None, None)
    y = laplex.linear(x, a, b, 0.5, phi=phi, psi=psi, backend=backend)
    assert y.dtype == x_dtype
    assert error(y, oracle(x, a, b, 0.5, phi, psi)) <= HALF[x_dtype]


@pytest.mark.parametrize("x_dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("phased", [False, True])
def test_x_of_another_dtype_than_the_anchors(x_dtype, phased, scan_backend, dtype):
    a, b, x = torch.randn(31, dtype=dtype), torch.randn(27, dtype=dtype), torch.randn(4, 27, dtype=x_dtype)
    phi, psi = phases_for(a, b) if phased else (None, None)
    y = laplex.linear(x, a, b, 0.5, phi=phi, psi=psi, backend=scan_backend)
    assert y.dtype == x_dtype
    assert error(y, oracle(x, a, b, 0.5, phi, psi)) <= TOLERANCE[torch.empty(0, dtype=x_dtype).real.dtype]


@pytest.mark.parametrize("x_dtype", [torch.float64, torch.complex64, torch.complex128], ids=str)
def test_x_of_another_dtype_with_the_dense_backend(x_dtype, dtype):
    a, b, x = torch.randn(31, dtype=dtype), torch.randn(27, dtype=dtype), torch.randn(4, 27, dtype=x_dtype)
    y = laplex.linear(x, a, b, 0.5, backend="dense")
    assert y.dtype == x_dtype
    assert error(y, oracle(x, a, b, 0.5)) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("phase_dtype", [torch.float32, torch.float64], ids=str)
def test_phases_of_another_dtype_than_the_anchors(phase_dtype, backend, dtype):
    a, b, x = torch.randn(31, dtype=dtype), torch.randn(27, dtype=dtype), torch.randn(27, dtype=dtype)
    phi, psi = torch.randn(31, dtype=phase_dtype), torch.randn(27, dtype=phase_dtype)
    y = laplex.linear(x, a, b, phi=phi, psi=psi, backend=backend)
    assert y.dtype == dtype
    assert error(y, oracle(x, a, b, 1.0, phi, psi)) <= TOLERANCE[dtype]


STRIDES = {
    "transposed": lambda: torch.randn(27, 4).T,
    "expanded": lambda: torch.randn(27).expand(4, 27),
    "strided": lambda: torch.randn(8, 54)[::2, ::2],
    "flipped_view": lambda: torch.randn(4, 54)[:, 1::2],
    "one_element_repeated": lambda: torch.randn(4, 1).expand(4, 27),
    "negative_bit": lambda: torch._neg_view(torch.randn(4, 27)),
    "imaginary_part_of_a_conjugate": lambda: torch.randn(4, 27, dtype=torch.complex64).conj().imag,
    "conjugate": lambda: torch.randn(4, 27, dtype=torch.complex64).conj(),
    "offset_storage": lambda: torch.randn(4 * 27 + 1)[1:].view(4, 27),
}


@pytest.mark.parametrize("name", STRIDES)
def test_any_strides_of_x(name, backend):
    a, b, x = torch.randn(31), torch.randn(27), STRIDES[name]()
    assert error(laplex.linear(x, a, b, backend=backend), oracle(x, a, b)) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize(("n", "k"), [(31, 27), (90, 3), (3, 90)])
def test_any_strides_of_the_anchors(n, k, backend):
    a, b = torch.randn(2, n, 2).mT[:, 0], torch.randn(k).expand(2, k)
    phi, psi = torch.randn(n, 2).T, torch.randn(2, k, 2)[..., 1]
    tau = torch.tensor(0.7).expand(2)
    x = torch.randn(k, 5, 2).permute(2, 1, 0)
    y = laplex.linear(x, a, b, tau, phi=phi, psi=psi, backend=backend)
    assert error(y, oracle(x, a, b, tau, phi, psi)) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize(
    ("n", "k", "lead"), [(0, 4, ()), (4, 0, ()), (0, 0, ()), (3, 4, (0,)), (3, 4, (2, 0)), (0, 4, (0,))]
)
@pytest.mark.parametrize("phased", [False, True])
def test_empty(n, k, lead, phased, backend):
    a, b, x = torch.randn(n), torch.randn(k), torch.randn(*lead, k)
    phi, psi = phases_for(a, b) if phased else (None, None)
    y = laplex.linear(x, a, b, phi=phi, psi=psi, backend=backend)
    assert torch.equal(y, torch.zeros(*lead, n))
    planned = laplex.linear(x, a, b, phi=phi, psi=psi, plan=laplex.Plan(a, b), backend=backend)
    assert torch.equal(planned, y)


@pytest.mark.parametrize("size", [0, 2])
def test_empty_batches_of_matrices(size, backend):
    a, b, x = torch.randn(size, 0, 5), torch.randn(size, 0, 4), torch.randn(size, 0, 3, 4)
    assert laplex.linear(x, a, b, backend=backend).shape == (size, 0, 3, 5)


SHAPES = [  # H of a, of b, of tau, leading dimensions of x
    ((), (), (), ()),
    ((), (), (), (2, 3)),
    ((3,), (3,), (), (3, 2)),
    ((3,), (), (), (3, 2)),
    ((), (3,), (), (1, 2)),
    ((3,), (3,), (3,), (2,)),
    ((3,), (), (3,), (2,)),
    ((), (), (1,), (2,)),
    ((3,), (1,), (3,), (5, 3, 2)),
    ((3,), (3,), (), (5, 4, 3, 2)),
    ((3,), (3,), (), (5, 1, 2)),
    ((2, 1), (3,), (), (2, 3, 4)),
    ((2, 1), (1, 3), (2, 1), (4,)),
    ((2, 1), (2, 1), (), (2, 5, 4)),
    ((1, 2), (1, 2), (), (5, 2, 4)),
    ((1, 2, 1), (1, 2, 1), (), (6, 5, 2, 3, 4)),
    ((1,), (1,), (1,), (4,)),
    ((1, 1), (1, 1), (), (2, 3, 4)),
]


@pytest.mark.parametrize(("of_a", "of_b", "of_tau", "of_x"), SHAPES)
@pytest.mark.parametrize("phased", [False, True])
def test_broadcasting(of_a, of_b, of_tau, of_x, phased, backend):
    n, k = 5, 4
    a, b, x = torch.randn(*of_a, n), torch.randn(*of_b, k), torch.randn(*of_x, k)
    tau = torch.rand(of_tau) + 0.5
    phi, psi = phases_for(a, b) if phased else (None, None)
    y = laplex.linear(x, a, b, tau, phi=phi, psi=psi, backend=backend)
    assert error(y, oracle(x, a, b, tau, phi, psi)) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("tau", [2.3e-308, 1e-50, 1e-300, 1e300], ids=str)
def test_extreme_tau(tau, backend, dtype):
    a, b, x = torch.tensor([0.0, 1, 2, 3, 5]), torch.tensor([3.0, 0, 0, 4, 1]), torch.randn(2, 5)
    a, b, x = a.to(dtype), b.to(dtype), x.to(dtype)
    y = laplex.linear(x, a, b, tau, backend=backend)
    dense = (wide(a)[:, None] == wide(b)).double() if tau < 1 else torch.ones(5, 5).double()
    assert error(y, wide(x) @ dense.mT) <= TOLERANCE[dtype]


def test_a_nan_stays_in_its_row(backend):
    x = torch.randn(9, 40)
    x[4, 17] = torch.nan
    a, b = torch.randn(30), torch.randn(40)
    y = laplex.linear(x, a, b, backend=backend)
    assert bool(y[4].isnan().all())
    others = [row for row in range(9) if row != 4]
    assert error(y[others], oracle(x[others], a, b)) <= TOLERANCE[torch.float32]


def test_the_arguments_are_left_alone(backend):
    inputs = [torch.randn(3, 21), torch.randn(19), torch.randn(21), torch.tensor(0.5), torch.randn(19), torch.randn(21)]
    copies = [value.clone() for value in inputs]
    x, a, b, tau, phi, psi = inputs
    laplex.linear(x, a, b, tau, phi=phi, psi=psi, backend=backend)
    assert all(torch.equal(now, before) for now, before in zip(inputs, copies))


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


SIZES = [(5003, 4999, 5), (9001, 700, 7), (700, 9001, 7), (40_001, 39_999, 1)]


@pytest.mark.parametrize(("n", "k", "m"), SIZES)
def test_the_same_bits_every_time(n, k, m, scan_backend, threads):
    threads(2)
    a, b, x = torch.randn(n), torch.randn(k), torch.randn(m, k)
    first = laplex.linear(x, a, b, 0.3, backend=scan_backend)
    assert all(torch.equal(laplex.linear(x, a, b, 0.3, backend=scan_backend), first) for _ in range(4))


@pytest.mark.parametrize(("n", "k", "m"), SIZES)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_two_threads_agree_with_one(n, k, m, batch, dtype, threads):
    a, b = torch.randn(*batch, n, dtype=dtype), torch.randn(*batch, k, dtype=dtype)
    x = torch.randn(*batch, m, k, dtype=dtype)
    results = []
    for count in (1, 2):
        threads(count)
        plan = laplex.Plan(a, b)
        results.append((plan._order.tensors, laplex.linear(x, a, b, 0.3, plan=plan, backend="cpp")))
    assert all(torch.equal(one, two) for one, two in zip(results[0][0], results[1][0]))
    assert error(results[1][1], results[0][1]) <= {torch.float32: 1e-7, torch.float64: 1e-15}[dtype]


COUNT_THREADS = """
import os, torch, laplex
torch.set_num_threads(1)
a, b, x = torch.randn(9001), torch.randn(9002), torch.randn(8, 9002)
short, y = torch.randn(100), torch.randn(8, 100)
def run():
    laplex.linear(x, a, b, backend="cpp"), laplex.linear(x, short, b, backend="cpp")
    laplex.linear(y, a, short, backend="cpp")
    return len(os.listdir("/proc/self/task"))
before = len(os.listdir("/proc/self/task"))
print(run() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_one_thread_means_one_thread():
    done = subprocess.run([sys.executable, "-c", COUNT_THREADS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


@named("generic", "ties_everywhere", "short_rows_ties", "short_cols_ties")
def test_the_transpose_is_the_swapped_product(case, backend):
    a, b, tau = case()
    x = torch.randn(3, a.shape[-1]).double()
    y = laplex.linear(x, b, a, tau, backend=backend)
    assert error(y, x @ reference.kernel(a, b, tau)) <= 1e-14


def test_the_catalogue_names_each_case_once():
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))

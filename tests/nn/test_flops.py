"""What ``torch.utils.flop_counter`` counts of layers: the multiply-adds that are done, two FLOPs each."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import laplex
from laplex.nn import LaplexLinear, parametrize

M, N, K, R = 20, 30, 40, 3


def count(function, *inputs, backward=False):
    with FlopCounterMode(display=False) as counter:
        y = function(*inputs)
        if backward:
            y.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_matrix_is_formed_and_multiplied(dtype):
    layer, x = LaplexLinear(K, N, kernels=R, dtype=dtype), torch.randn(M, K, dtype=dtype)
    form, product = 2 * R * N * K, 2 * M * N * K
    assert count(layer, x) == form + product
    assert count(layer.requires_grad_(False), x) == form + product
    layer.requires_grad_(True)
    pullback = (1 + 2 + 1) * form  # of a and b, and of mix
    assert count(layer, x, backward=True) == form + pullback + 2 * product
    assert count(layer, x.requires_grad_(), backward=True) == form + pullback + 3 * product


def test_phases_and_tau_count():
    layer, x = LaplexLinear(K, N, kernels=R, phase=True, train_tau=True), torch.randn(M, K)
    form, product = 6 * R * N * K, 2 * M * N * K
    assert count(layer, x) == form + product
    assert count(layer, x, backward=True) == form + (1 + 2 + 1 + 1 + 2) * 2 * R * N * K + 2 * product


def test_a_scan_counts_its_points():
    n, k = 2000, 2500
    layer, x = LaplexLinear(k, n, kernels=R), torch.randn(1, k, requires_grad=True)
    scan = 4 * R * (n + k)
    assert count(layer, x) == scan
    assert scan < 2 * n * k / 50
    assert count(layer, x, backward=True) == 2 * scan + 2 * R * (n + k)


def test_tau_by_a_scan_counts():
    n, k = 2000, 2500
    layer, x = LaplexLinear(k, n, kernels=R, train_tau=True), torch.randn(1, k)
    scan = 4 * R * (n + k)
    assert count(layer, x, backward=True) == scan + 3 * scan + 2 * R * (n + k) + 2 * R * n


def test_a_weight_that_is_read():
    layer, module = LaplexLinear(K, N, kernels=R), parametrize(nn.Linear(K, N), "weight", R)
    assert count(lambda: layer.weight) == 2 * R * N * K
    assert count(module, torch.randn(M, K)) == 2 * R * N * K + 2 * M * N * K


def test_shapes_alone_are_counted():
    with FakeTensorMode():
        layer, x = LaplexLinear(K, N, kernels=R), torch.randn(M, K)
        assert count(layer, x) == 2 * R * N * K + 2 * M * N * K


def test_modules_are_told_apart():
    model = nn.Sequential(LaplexLinear(K, N, kernels=R), nn.Linear(N, 5))
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(M, K))
    counts = {name: sum(each.values()) for name, each in counter.get_flop_counts().items()}
    assert counts["Sequential.0"] == 2 * R * N * K + 2 * M * N * K
    assert counts["Sequential.1"] == 2 * M * N * 5


def test_formulas_of_a_user_are_kept():
    layer, x = LaplexLinear(K, N, kernels=R), torch.randn(M, K)
    mapping = {torch.ops.laplex.form: lambda *shapes, out_shape=None, **rest: 1}
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        layer(x)
    assert counter.get_total_flops() == 1 + 2 * M * N * K


@pytest.mark.parametrize("backend", ["dense", "torch", "cpp"])
def test_pairs_count_where_they_are_summed(backend):
    a, b, x = torch.randn(N), torch.randn(K), torch.randn(M, K)

    def both(x):  # a layer brings the formulas, also for other calls
        return LaplexLinear(2, 2).weight.sum() + laplex.linear(x, a, b, backend=backend).sum()

    assert count(both, x) - 2 * 2 * 2 == (2 * M * N * K if backend == "dense" else 4 * M * (N + K))

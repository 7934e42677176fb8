"""Where layers start: units that live, results as large as those of nn.Linear, and networks that learn."""

import pytest
import torch
from torch import nn

from laplex.nn import LaplexLinear, replace_linear

pytestmark = pytest.mark.usefixtures("one_thread")

KERNELS = (1, 2, 3, 4, 8)
INPUTS = {
    "normal": lambda x: x.abs(),
    "uniform": lambda x: torch.rand_like(x),
    "constant": lambda x: x.abs()[:, :1] + 0 * x,
}


@torch.no_grad()
def live(layer, x):
    """The share of units that are positive for at least one input."""
    return float((layer(x) > 0).any(0).float().mean())


@pytest.mark.parametrize("inputs", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("phase", [False, True], ids=["plain", "phased"])
@pytest.mark.parametrize("kernels", KERNELS)
def test_no_layer_starts_dead(kernels, phase, inputs):
    x = inputs(torch.randn(256, 64))
    shares = torch.tensor([live(LaplexLinear(64, 256, kernels=kernels, phase=phase), x) for _ in range(20)])
    assert float(shares.min()) > 0.3  # for constant inputs half of the units of a dense layer live
    if inputs is not INPUTS["constant"]:
        assert float(shares.median()) >= 0.9


@pytest.mark.parametrize("sizes", [(64, 256), (512, 100), (30, 30)])
@pytest.mark.parametrize("kernels", KERNELS[1:])
def test_inputs_with_a_mean_give_results_twice_as_large_as_those_of_a_dense_layer(kernels, sizes):
    x = torch.randn(256, sizes[0]).abs()

    def size(kind, **options):
        return torch.stack([kind(*sizes, **options)(x).detach().square().mean() for _ in range(12)]).mean().sqrt()

    assert 1.2 < float(size(LaplexLinear, kernels=kernels) / size(nn.Linear)) < 2.5


@pytest.mark.parametrize("kernels", KERNELS[1:])
def test_mixing_weights_start_with_alternate_signs_and_the_sum_0(kernels):
    mix = LaplexLinear(64, 256, kernels=kernels).mix.detach()
    assert mix.sign().tolist() == [(-1.0) ** r for r in range(kernels)]
    assert abs(float(mix.sum())) <= 1e-6 * float(mix.abs().sum())


def test_a_single_kernel_starts_positive():
    assert all(float(LaplexLinear(9, 9).mix.detach()) > 0 for _ in range(8))


# --- networks ---------------------------------------------------------------------------------------------------------


def pictures(count=600, features=64, classes=10):
    """Noisy templates with values in [0, 1], and their classes."""
    y = torch.arange(count) % classes
    return (torch.rand(classes, features)[y] + 0.3 * torch.randn(count, features)).clamp(0, 1), y


def network():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))


def accuracy_after(model, x, y, epochs):
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("kernels", "reached"), [(1, 0.5), (2, 0.8), (4, 0.9), (8, 0.9)])
def test_networks_of_kernels_learn(kernels, reached, seed):
    torch.manual_seed(seed)
    model = network()
    replace_linear(model, kernels=kernels)
    assert accuracy_after(model, *pictures(), epochs=12) >= reached


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kernels", [4, 8])
def test_networks_learn_from_the_singular_vectors_of_hidden_layers(kernels, seed):
    torch.manual_seed(seed)
    (x, y), dense, model = pictures(), network(), network()
    accuracy_after(dense, x, y, epochs=4)
    replace_linear(model, kernels=kernels)
    for layer, old in zip(model, dense, strict=True):
        if isinstance(layer, LaplexLinear):
            layer.init_from(old.weight.detach())
    assert live(model[0], x) >= 0.8
    assert accuracy_after(model, x, y, epochs=10) >= 0.9


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_start_at_singular_vectors_is_as_large_as_any_other(kernels):
    weight = LaplexLinear(64, 256, kernels=kernels).init_from(torch.randn(256, 64)).to_dense().detach()
    assert float(weight.square().mean()) == pytest.approx((1 if kernels == 1 else 4) / (3 * 64), rel=1e-4)


def test_kernels_of_negative_weight_face_the_other_way():
    target = torch.randn(20, 30)
    layer = LaplexLinear(30, 20, kernels=4).init_from(target)
    for r in range(4):
        part = layer.mix[r].sign() * torch.exp(-(layer.a[r][:, None] - layer.b[r]).abs() / layer.tau[r])
        assert float((part.detach() * target).sum()) > 0

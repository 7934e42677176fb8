"""Linear layers with few parameters, and networks of them: matrices, gradients, counts and budgets."""

import pytest
import torch
from torch import nn

from paper.experiments import network_training
from paper.experiments.network_images import IMAGES
from paper.experiments.network_models import (
    EXCESS,
    METHODS,
    Candidate,
    Shape,
    TextNetwork,
    block_parameters,
    candidate_within,
    multiply_adds,
)
from paper.experiments.network_tasks import TEXT
from paper.experiments.training import seeded
from paper.methods import layers

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = Shape(width=16, heads=2, blocks=2, tokens=16, batch=4)
SIZES = {"dense": 0, "laplex": 2, "laplex-phased": 1, "low-rank": 2, "monarch": 4, "btt": 8, "kronecker": 3}
SIDES = [(16, 16), (16, 64), (64, 16), (24, 36)]


# --- Layers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", layers.METHODS)
@pytest.mark.parametrize("sides", SIDES)
def test_a_layer_has_the_parameters_that_are_counted(method, sides):
    size = next((size for size in (SIZES[method], *range(1, 9)) if layers.exists(method, *sides, size)), None)
    layer = layers.make_layer(method, *sides, size)
    assert sum(one.numel() for one in layer.parameters()) == layers.count(method, *sides, size)
    assert layer(torch.randn(2, 3, sides[0])).shape == (2, 3, sides[1])


def monarch_matrix(layer, rows, cols):
    """W by loops: a shuffled index w b + i of a block i and a place w within it."""
    blocks, width = layer.blocks, layer.first.shape[1]
    first = torch.block_diag(*layer.first)
    second = torch.block_diag(*layer.second)

    def shuffle(count):
        matrix = torch.zeros(blocks * count, blocks * count, dtype=torch.float64)
        for block in range(blocks):
            for place in range(count):
                matrix[place * blocks + block, block * count + place] = 1
        return matrix

    return shuffle(rows // blocks) @ second @ shuffle(width) @ first


def btt_matrix(layer, rows, cols):
    """W by blocks: every g-th row belongs to the same p, and neighbouring columns to the same q."""
    grid = layer.grid
    matrix = torch.zeros(rows, cols, dtype=torch.float64)
    for p in range(grid):
        for q in range(grid):
            matrix[p::grid, q * (cols // grid) : (q + 1) * (cols // grid)] = layer.left[p, :, q] @ layer.right[q, p]
    return matrix


def kronecker_matrix(layer, rows, cols):
    return sum(torch.kron(*pair) for pair in zip(layer.left, layer.right, strict=True))


@pytest.mark.parametrize(
    ("method", "sides", "size", "dense"),
    [
        ("monarch", (16, 16), 4, monarch_matrix),
        ("monarch", (16, 64), 8, monarch_matrix),
        ("monarch", (64, 16), 2, monarch_matrix),
        ("btt", (16, 16), 8, btt_matrix),
        ("btt", (16, 64), 2, btt_matrix),
        ("btt", (64, 16), 4, btt_matrix),
        ("kronecker", (16, 64), 3, kronecker_matrix),
    ],
)
@pytest.mark.parametrize("rows", [5, 70])  # fewer and more than columns: by factors, and formed
def test_a_layer_is_its_matrix_with_gradients(method, sides, size, dense, rows):
    layer = layers.make_layer(method, *sides, size).double()
    x, weights = torch.randn(rows, sides[0]).double(), torch.randn(rows, sides[1]).double()
    matrix = dense(layer, sides[1], sides[0])
    torch.testing.assert_close(layer(torch.eye(sides[0]).double()) - layer.bias, matrix.mT)
    parameters = list(layer.parameters())
    got = torch.autograd.grad((layer(x) * weights).sum(), parameters)
    want = torch.autograd.grad(((x @ matrix.mT + layer.bias) * weights).sum(), parameters)
    torch.testing.assert_close(got, want)


def test_a_start_keeps_the_size_of_inputs():
    for method in ("low-rank", "monarch", "btt", "kronecker"):
        with seeded(0):
            y = layers.make_layer(method, 256, 256, 16)(torch.randn(500, 256))
        assert 0.5 < y.std() < 2, method


def test_the_rate_of_a_core_falls_with_its_inputs():
    layer = layers.make_layer("btt", 1024, 256, 32)
    assert layer.rate_scales == {"right": 1 / 4, "left": 1 / 2}
    net = nn.Sequential(layer, nn.Linear(256, 2))
    rates = {group["peak"]: len(group["params"]) for group in network_training._groups(net, 1e-3, torch.device("cpu"))}
    assert rates == {1e-3: 3, 0.25e-3: 1, 0.5e-3: 1}


@pytest.mark.parametrize(("method", "size"), [("monarch", 3), ("btt", 1), ("low-rank", 0)])
def test_a_size_that_does_not_exist_is_refused(method, size):
    with pytest.raises(ValueError, match=rf"`size` must be one at which a {method} layer from 16 to 16 .* got {size};"):
        layers.make_layer(method, 16, 16, size)


# --- Budgets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [TEXT, IMAGES])
@pytest.mark.parametrize("budget", [8, 16, 32])
def test_every_method_has_about_the_parameters_of_laplex(shape, budget):
    want = block_parameters(Candidate("laplex", budget, budget), shape)
    for method in METHODS[1:]:
        candidate = candidate_within(method, budget, shape)
        assert 0.9 * want <= block_parameters(candidate, shape) <= EXCESS * want, candidate
        assert candidate.shape(shape).width % shape.heads == 0
    assert candidate_within("laplex", budget, shape).size == budget
    assert candidate_within("laplex-phased", budget, shape).size == budget // 2


@pytest.mark.parametrize("method", METHODS)
def test_the_blocks_of_a_network_have_the_parameters_that_are_counted(method):
    candidate = Candidate("dense", None, 0) if method == "dense" else candidate_within(method, 4, TINY)
    net = TextNetwork(candidate.shape(TINY), candidate.make)
    assert sum(one.numel() for one in net.blocks.parameters()) == block_parameters(candidate, TINY)
    assert net(torch.zeros(3, TINY.tokens, dtype=torch.long)).shape == (3, TINY.tokens, 256)


def test_a_method_without_a_network_that_small_says_so():
    with pytest.raises(ValueError, match=r"its smallest network has [\d,]+ parameters .* the budget is [\d,]+"):
        candidate_within("btt", 1, TINY)


def test_multiply_adds_of_laplex_are_dense_ones_and_forming():
    dense, ours = (multiply_adds(Candidate(method, 8, 8), TEXT, 256) for method in ("dense", "laplex"))
    entries = TEXT.blocks * 12 * TEXT.width**2
    assert dense == {"maps": entries, "elsewhere": TEXT.width * (2 * 256 * TEXT.blocks + 256), "forming": 0}
    assert ours == dense | {"forming": 8 * entries}
    assert multiply_adds(Candidate("low-rank", 8, 8), TEXT, 256)["maps"] == TEXT.blocks * 8 * 18 * TEXT.width

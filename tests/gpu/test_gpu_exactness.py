"""On a CUDA device: the default of ``laplex.linear`` gives up no more than 5e-7 in float32, in values and gradients."""

import pytest
import torch

from benchmarks.studies import errors
from test_exactness import BOUND, SIZES, shape

pytestmark = pytest.mark.gpu
MORE = {
    **SIZES,
    "many results of short sums": (3574, 27, 1831, 1),
    "a wide layer": (1000, 150_528, 64, 1),
    "a square layer": (4096, 4096, 512, 4),
    "many points": (1 << 20, 1 << 20, 4, 1),
    "many rows": (4096, 768, 4096, 1),
}


@pytest.mark.parametrize("phases", [False, True], ids=["plain", "phased"])
@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "gradients"])
@pytest.mark.parametrize("size", MORE)
def test_the_default_is_exact(size, gradients, phases):
    result = errors.point(shape(MORE[size], gradients, phases), "cuda")["errors"]
    assert max(result.values()) <= BOUND, result


def test_equal_terms_are_summed_exactly():
    x, a, b = torch.full((64, 4096), 0.1).cuda(), torch.zeros(256).cuda(), torch.zeros(4096).cuda()
    y = errors.laplex.linear(x, a, b)
    assert (y.double() / (4096 * x[0, 0].double()) - 1).abs().max() <= BOUND


@pytest.mark.parametrize("transposed", ["neither", "left", "right", "both"])
@pytest.mark.parametrize("size", [(1, 1, 1), (7, 33, 5), (193, 257, 3100), (5, 3, 700), (2000, 1000, 2)])
@pytest.mark.parametrize("batch", [(), (3,)], ids=["one", "batch"])
@pytest.mark.parametrize("doubles", [False, True], ids=["in blocks", "in float64"])
def test_products_of_our_own(size, transposed, batch, doubles, monkeypatch):
    from laplex._triton.formed import multiply

    monkeypatch.setattr(multiply, "multiplies_doubles", lambda device: doubles)
    m, n, length = size
    left, right = torch.rand(*batch, m, length, device="cuda"), torch.rand(*batch, length, n, device="cuda")
    left = left.mT.contiguous().mT if transposed in ("left", "both") else left
    right = right.mT.contiguous().mT if transposed in ("right", "both") else right
    true = left.double() @ right.double()
    assert ((multiply.matmul(left, right, torch.float32) - true) / true).abs().max() <= (6.1e-8 if doubles else 3.5e-7)


@pytest.mark.parametrize("most", [0, 1 << 62], ids=["by torch", "by our own program"])
def test_a_layer_multiplied_either_way(most, monkeypatch):
    from laplex._triton import tuning

    monkeypatch.setattr(tuning, "MULTIPLY_DOUBLES", most)
    linear = errors.laplex.linear
    monkeypatch.setattr(errors.laplex, "linear", lambda **given: linear(**given, backend="formed"))
    columns = 769 if most else 771  # other sizes, so that nothing is replayed that the other way recorded
    for gradients in (False, False, True, True):  # the second of each is replayed
        result = errors.point(shape((1001, columns, 130, 3), gradients, True), "cuda")["errors"]
        assert max(result.values()) <= BOUND, result


@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "gradients"])
def test_what_was_computed_with_tf32_is_not_replayed_without_it(gradients):
    x, a, b = (torch.rand(*size, device="cuda") for size in ((256, 2048), (1024,), (2048,)))
    x.requires_grad_(gradients)
    exact = x.double() @ errors.laplex.reference.kernel(a.double(), b.double(), 0.7).mT
    result = {}
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("high", "highest"):
            torch.set_float32_matmul_precision(precision)
            for _ in range(3):  # the last one is replayed
                y = errors.laplex.linear(x, a, b, 0.7, backend="formed")
            result[precision] = float(((y.double() - exact) / exact).abs().max())
    finally:
        torch.set_float32_matmul_precision(before)
    assert result["highest"] <= BOUND < result["high"], result

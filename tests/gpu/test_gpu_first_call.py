"""On a GPU: after `laplex.backends.warm_up` calls compile nothing, and their answers are right."""

import random

import pytest
import torch

import laplex

pytestmark = pytest.mark.gpu


def drawn(n, k, rows, gradients):
    sizes = (rows, k), (n,), (k,)
    return [torch.randn(*size, device="cuda", requires_grad=gradients) for size in sizes]


@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "backward"])
def test_calls_compile_nothing_after_a_warm_up(gradients):
    from laplex._triton import launch

    reported = []
    asked = {"rows": (1, 8), "points": 20_000, "gradients": gradients}
    programs = laplex.backends.warm_up(**asked, progress=lambda done, total: reported.append((done, total)))
    assert reported[-1] == (programs, programs)
    before, draw = set(launch.compiled), random.Random(0)
    for _ in range(30):
        n, k, rows = draw.randint(1, 10_000), draw.randint(1, 10_000), draw.choice((1, 8))
        x, a, b = drawn(n, k, rows, gradients)
        y = laplex.linear(x, a, b, 0.5)
        if gradients:
            torch.autograd.grad(y, (x, a, b), torch.ones_like(y))
        exact = laplex.reference.linear(x.double(), a.double(), b.double(), 0.5)
        assert (y - exact).norm() <= 1e-6 * exact.norm()
    assert set(launch.compiled) == before

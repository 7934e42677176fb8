"""Examples: their mean and variance, in one pass."""

import pytest
import torch

from helpers import error
from laplex.density import _examples
from laplex.density._examples import welford


@pytest.mark.parametrize("wide", [1, 50, 1 << 22])
def test_welford_is_exact_far_from_zero(wide, monkeypatch):
    monkeypatch.setattr(_examples, "WIDE", wide)
    near = torch.randn(200, 7, dtype=torch.float64)
    mean, variance = welford(iter((1e8 + near).split([3, 100, 97])))
    assert error(mean - 1e8, near.mean(0)) <= 1e-6  # 1e8 has a spacing of 1.5e-8
    assert error(variance, near.var(0, correction=0)) <= 1e-7


def test_repr():
    examples = _examples.Examples(torch.zeros(5, 7, dtype=torch.uint8) + torch.arange(5, dtype=torch.uint8)[:, None])
    assert repr(examples) == "Examples(5 of 7 features, torch.uint8, device=cpu)"


def test_welford_reads_bytes_and_float32_in_float64():
    values = torch.randint(256, (50, 9), dtype=torch.uint8)
    for stored in (values, values.float()):
        mean, variance = welford(stored.split(7))
        assert mean.dtype == variance.dtype == torch.float64
        assert error(mean, values.double().mean(0)) <= 1e-14
        assert error(variance, values.double().var(0, correction=0)) <= 1e-14
    values = torch.randn(4, 3, dtype=torch.float64)
    before = values.clone()
    welford([values])
    assert torch.equal(values, before)

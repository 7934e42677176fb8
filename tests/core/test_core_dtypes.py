"""The compiled core reads addresses: tensors that are in neither float32 nor float64 are refused."""

import pytest
import torch

from laplex._checks.core import is_double
from laplex._formed import cpp as formed
from laplex._formed.kernels import Kernels
from laplex._scan import cpp as scan
from laplex._scan.order import Matrix

A, B, TAU = torch.randn(1, 7), torch.randn(1, 5), torch.ones(1, dtype=torch.float64)
ORDER = scan.order(A, B, "merged")


def test_float32_and_float64():
    assert is_double("laplex", A.double(), B.double())
    assert not is_double("laplex", A, B)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "call",
    [
        lambda a, b: scan.order(a, b, "merged"),
        lambda a, b: scan.scan(b[:, None], Matrix(a, b, TAU, ORDER, False), odd=True),
        lambda a, b: formed.form(Kernels(a, b, TAU, None, None, None, 1), a.dtype),
    ],
    ids=["order", "scan", "form"],
)
def test_half_precision_is_refused(call, dtype):
    with pytest.raises(TypeError, match=f"must be in float32, or all in float64, got {dtype}; call .float()"):
        call(A.to(dtype), B.to(dtype))


def test_mixed_precision_is_refused():
    with pytest.raises(TypeError, match=r"got torch\.float32, torch\.float64"):
        is_double("laplex", A, B.double())

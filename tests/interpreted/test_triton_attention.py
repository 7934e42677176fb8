"""Attention by distances with Triton's programs, interpreted: values and gradients."""

import pytest
import torch

from helpers import error, table
from laplex import _anchored_sums, _backends
from laplex.nn import laplace_attention

if not _backends.interpreted() or _backends.NO_TRITON:
    pytest.skip("nothing is interpreted here", allow_module_level=True)


def results():
    """Values and gradients, with ties and a mask."""
    torch.manual_seed(0)
    q, k, v, scale = torch.randn(2, 9, 1), torch.randn(2, 70, 1), torch.randn(2, 70, 2), torch.tensor([0.3, 2.0])
    q[:, :3], k[:, 20:30] = k[:, :3], k[:, :1]
    leaves = [tensor.requires_grad_() for tensor in (q, k, v, scale)]
    y = laplace_attention(*leaves, key_padding_mask=torch.arange(70).expand(2, 70) > 60)
    return y, *torch.autograd.grad(y.square().sum(), leaves)


@pytest.mark.parametrize("backend", ["triton", "torch", "dense"])
def test_as_with_the_core(backend, monkeypatch):
    want = results()
    monkeypatch.setattr(_anchored_sums._backends, "choose", lambda *_: table(backend))
    for got, expected in zip(results(), want, strict=True):
        assert error(got, expected) <= 5e-7

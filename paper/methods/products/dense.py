"""The matrix formed and multiplied: n * k memory, the dtype of the anchors throughout."""

from collections.abc import Callable

import torch
from torch import Tensor


def form(a: Tensor, b: Tensor, tau: float) -> Tensor:
    """K[i, j] = exp(-|a_i - b_j| / tau), in place where it can be: the usual way would hold the matrix three times."""
    return (a[:, None] - b[None, :]).abs_().div_(-tau).exp_()  # (n, k)


def prepare_differentiable(a: Tensor, b: Tensor, tau: float) -> Callable[[Tensor], Tensor]:
    """Form K as autograd can take it, nothing in place; `apply` is then one matrix product."""
    kernel = (-(a[:, None] - b[None, :]).abs() / tau).exp()  # (n, k)

    def apply(x: Tensor) -> Tensor:
        return x @ kernel.mT

    return apply


def prepare_gram(a: Tensor, b: Tensor, tau: float) -> Callable[[Tensor], Tensor]:
    """Form K; `apply` is then K diag(x) K^T for every row of x: (batch, n, n)."""
    kernel = form(a, b, tau)  # (n, k)

    def apply(x: Tensor) -> Tensor:
        return (kernel * x[:, None, :]) @ kernel.mT

    return apply


def prepare(a: Tensor, b: Tensor, tau: float) -> Callable[[Tensor], Tensor]:
    """Form K; `apply` is then one matrix product."""
    kernel = form(a, b, tau)  # (n, k)

    def apply(x: Tensor) -> Tensor:
        return x @ kernel.mT

    return apply


def layer(a: Tensor, b: Tensor, tau: float) -> torch.nn.Linear:
    """`torch.nn.Linear` with the weight K(a, b) and no bias: the dense layer that a `laplex.linear` replaces."""
    linear = torch.nn.Linear(len(b), len(a), bias=False, device="meta", dtype=a.dtype)
    linear.weight = torch.nn.Parameter(form(a, b, tau))
    return linear


def prepare_layer(a: Tensor, b: Tensor, tau: float) -> Callable[[Tensor], Tensor]:
    """Form the weight, which inference keeps."""
    return layer(a, b, tau).requires_grad_(False)

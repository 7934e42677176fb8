"""The matrix formed and multiplied: n * k memory, the dtype of the anchors throughout."""

from collections.abc import Callable

from torch import Tensor


def prepare_differentiable(a: Tensor, b: Tensor, tau: float) -> Callable[[Tensor], Tensor]:
    """The same as autograd can take it, nothing in place."""
    kernel = (-(a[:, None] - b[None, :]).abs() / tau).exp()  # (n, k)

    def apply(x: Tensor) -> Tensor:
        return x @ kernel.mT

    return apply


def prepare_gram(a: Tensor, b: Tensor, tau: float) -> Callable[[Tensor], Tensor]:
    """Form K; `apply` is then K diag(x) K^T for every row of x: (batch, n, n)."""
    kernel = (a[:, None] - b[None, :]).abs_().div_(-tau).exp_()  # (n, k)

    def apply(x: Tensor) -> Tensor:
        return (kernel * x[:, None, :]) @ kernel.mT

    return apply


def prepare(a: Tensor, b: Tensor, tau: float) -> Callable[[Tensor], Tensor]:
    """Form K[i, j] = exp(-|a_i - b_j| / tau); `apply` is then one matrix product."""
    # In place where it can be: the usual way to write it would hold the matrix three times.
    kernel = (a[:, None] - b[None, :]).abs_().div_(-tau).exp_()  # (n, k)

    def apply(x: Tensor) -> Tensor:
        return x @ kernel.mT

    return apply

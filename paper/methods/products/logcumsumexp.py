r"""The paper's portable path: prefix sums in the log domain with torch.logcumsumexp.

With b ascending, the part of (K x)_i from b_j <= a_i is exp(-a_i / tau + l_m), where

    l_m = logcumsumexp_{j <= m}(b_j / tau + log x_j),    m = the last j with b_j <= a_i,

and the part from b_j > a_i is the same on the mirrored line. The logs are complex, since x has signs. Unlike the
paper's theorem this keeps the columns beyond the last a: each a looks up its own m, in both directions.

It is here to be measured, not used: the anchors are scaled before they are subtracted, so float32 loses accuracy as
span / tau grows.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def prepare(a: Tensor, b: Tensor, tau: float) -> Callable[[Tensor], Tensor]:
    """Sort b and find each a's place in it, seen from the left and from the right."""
    ascending, order = torch.sort(b)
    upto = torch.searchsorted(ascending, a, right=True)  # (n,) how many b_j <= a_i
    beyond = b.shape[-1] - upto  # (n,) how many b_j > a_i

    def apply(x: Tensor) -> Tensor:
        logs = x[..., order].to(x.dtype.to_complex()).log()  # a sign is an imaginary part, a zero -inf
        left = _one_side(logs, ascending / tau, a / tau, upto)
        right = _one_side(logs.flip(-1), -ascending.flip(0) / tau, -a / tau, beyond)
        return left + right

    return apply


def _one_side(logs: Tensor, b: Tensor, a: Tensor, count: Tensor) -> Tensor:
    """Sum over the first count_i columns of exp(b_j - a_i) x_j; b (k,) ascends, logs (..., k) = log x."""
    prefix = torch.logcumsumexp(logs + b, dim=-1)
    last = (count - 1).clamp_min(0)
    return torch.where(count > 0, torch.exp(prefix[..., last] - a).real, 0.0)

"""Attention by distance on a line: softmax over keys of -|q - k| / tau, times the values, in O(n log n)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from laplex import _autocast
from laplex._anchored_sums import weighted_means
from laplex._checks.counts import integer, positive
from laplex.nn import _attention_checks as checks
from laplex.nn._anchored import in_single, never_to_half
from laplex.nn._checks import at_least_single

SHORTEST_TAU = 1 / 16  # of the heads of a fresh module, whose queries and keys have a standard deviation of about 1


def laplace_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | Tensor = 1.0,
    normalise: bool = True,
    *,
    key_padding_mask: Tensor | None = None,
) -> Tensor:
    r"""softmax(-|q - k| / scale) v over the keys, exactly, in O((m + n) log n) time and O(m + n) memory.

    It has the name and signature of a function in the code of attentive neural processes (Kim et al. 2019), but takes
    numbers: d_k = 1, as in regression on a line. Weights are relative to the nearest key, so a query at any distance
    from all keys has the right mean, never 0 / 0. No m x n tensor is made.

    Differentiable to any order in q, k, v and scale. Where q = k, the derivative through |q - k| is 0.

    Args:
        q (*B, m, 1): queries, float32 or float64.
        k (*B, n, 1): keys, as many as values.
        v (*B, n, d_v): values. Leading dimensions of q, k and v broadcast.
        scale: the length scale tau, a positive number or a tensor that broadcasts to B.
        normalise: must be True. With False, neural processes have weights 1 + tanh, which is not a sum of
            exponentials; for sums of exponentials without the division use :func:`laplex.linear`.
        key_padding_mask (*B, n): True for keys to ignore. If all keys are ignored, the result is 0.

    Returns:
        (*B, m, d_v), in the dtype of v.

    Example:
        >>> x, y = torch.randn(8, 100, 1), torch.randn(8, 100, 3)
        >>> laplex.nn.laplace_attention(torch.randn(8, 1000, 1), x, y, scale=0.3).shape
        torch.Size([8, 1000, 3])
    """
    where = "laplex.nn.laplace_attention"
    checks.operands(where, q, k, v)
    checks.normalised(where, normalise)
    batch = checks.batch_shape(where, q, k, v)
    tau = checks.length(where, scale, batch, q)
    mask = checks.padding(where, key_padding_mask, (*batch, k.shape[-2]))
    with _autocast.off(v.device):
        return _attend(q[..., 0], k[..., 0], v, tau, mask, batch)


def _attend(q: Tensor, k: Tensor, v: Tensor, tau: Tensor, mask: Tensor | None, batch: tuple[int, ...]) -> Tensor:
    """q (*B, m), k (*B, n), v (*B, n, d), tau (*B) and mask (*B, n), or any that broadcast to these -> (*B, m, d)."""
    h, (n, d) = math.prod(batch), v.shape[-2:]
    if d == 0:
        return v.new_zeros((*batch, q.shape[-1], 0))
    positions = torch.promote_types(q.dtype, k.dtype)
    queries, keys = (side.to(positions).expand(*batch, side.shape[-1]).reshape(h, side.shape[-1]) for side in (q, k))
    values = v.to(torch.promote_types(v.dtype, torch.float32)).expand(*batch, n, d).reshape(h, n, d)
    weight = None if mask is None else (~mask).expand(*batch, n).reshape(h, n).to(values.dtype)
    means = weighted_means(values, weight, queries, keys, tau.double().expand(batch).reshape(h))
    return means.reshape(*batch, q.shape[-1], d).to(v.dtype)


class _Projection(nn.Linear):
    """A linear layer whose parameters are initialized by the attention module that it belongs to.

    So they come out the same if every module of a model is asked to reset its parameters, as after ``to_empty``.
    """

    def reset_parameters(self) -> None:
        pass


class LaplaceAttention(nn.Module):
    r"""Attention with several heads, each of which compares one number per query with one number per key.

        head_h = softmax(-|q_h - k_h| / tau_h) V_h        q_h = query w_h + c_h,  k_h = key u_h + d_h,  V_h = value W_h

    It is exact, in O(n log n) time and O(n) memory: no n x n matrix is formed. It looks both ways, as an encoder does;
    there is no causal form. It can replace ``torch.nn.MultiheadAttention`` where a few numbers tell queries and keys
    apart: an order, a time, a place, an amount. The guide has measurements that show where it falls behind.

    Queries, keys and tau stay in float32 (or float64) under autocast and ``.half()``, because numbers rounded to a
    thousandth of their size would be different places on the line. Values and the output projection are as in any
    other layer.

    Unlike ``torch.nn.MultiheadAttention`` it returns only the output, its default is batch_first=True, and it has no
    dropout of attention weights, which are never formed.

    Args:
        embed_dim: the size of a query and of the output.
        num_heads: the number of heads; must divide embed_dim.
        bias: whether the projections have biases.
        kdim, vdim: the sizes of a key and a value; None for embed_dim.
        tau: the initial length scale of all heads, a positive number. None spreads the heads from 1 to 1/16, evenly in
            the logarithm: wide ones, which average, and narrow ones, which choose. Queries and keys have a standard
            deviation of about 1 if the inputs do.
        batch_first: whether inputs are (batch, sequence, feature); if False, (sequence, batch, feature).
        device, dtype: of the parameters.

    Attributes:
        q_proj, k_proj: linear layers with num_heads outputs.
        v_proj, out_proj: linear layers with embed_dim outputs.
        log_tau (num_heads,): the logarithms of the length scales, trained.

    Example:
        >>> attention = laplex.nn.LaplaceAttention(64, 4)
        >>> attention(torch.randn(8, 1000, 64)).shape
        torch.Size([8, 1000, 64])
    """

    __module__ = "laplex.nn"  # the name that users import and that saved files hold

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        bias: bool = True,
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        tau: float | None = None,
        batch_first: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        where = "laplex.nn.LaplaceAttention"
        self.embed_dim, self.num_heads = integer(where, "embed_dim", embed_dim), integer(where, "num_heads", num_heads)
        checks.divides(where, self.num_heads, self.embed_dim)
        self.kdim = self.embed_dim if kdim is None else integer(where, "kdim", kdim)
        self.vdim = self.embed_dim if vdim is None else integer(where, "vdim", vdim)
        self.batch_first = batch_first
        self._first_tau = None if tau is None else positive(where, "tau", tau, "None")
        single = at_least_single(where, dtype)
        self.q_proj = _Projection(self.embed_dim, self.num_heads, bias, device, single)
        self.k_proj = _Projection(self.kdim, self.num_heads, bias, device, single)
        self.v_proj = _Projection(self.vdim, self.embed_dim, bias, device, dtype)
        self.out_proj = _Projection(self.embed_dim, self.embed_dim, bias, device, dtype)
        self.log_tau = nn.Parameter(torch.empty(self.num_heads, device=device, dtype=single))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Reinitialize: random projections, biases of 0, and the initial tau.

        If keys have the same size as queries, both start with the same projection, so that a query finds keys that are
        like it. Starting from two different projections, this is learned far more slowly.
        """
        for layer in (self.q_proj, self.k_proj):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
        if self.kdim == self.embed_dim:
            self.k_proj.weight.copy_(self.q_proj.weight)
        for layer in (self.v_proj, self.out_proj):
            nn.init.xavier_uniform_(layer.weight)
        for layer in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            if layer.bias is not None:
                layer.bias.zero_()
        first = SHORTEST_TAU if self._first_tau is None else self._first_tau
        last = 1.0 if self._first_tau is None else self._first_tau
        self.log_tau.copy_(torch.linspace(math.log(last), math.log(first), self.num_heads, device=self.log_tau.device))

    @property
    def tau(self) -> Tensor:
        """The length scales (num_heads,)."""
        (log_tau,) = in_single(self.log_tau)
        return log_tau.exp()  # type: ignore[no-any-return]

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            query (b, m, embed_dim): or (m, embed_dim), without a batch.
            key (b, n, kdim): None for the query, which is self-attention.
            value (b, n, vdim): None for the key.
            key_padding_mask (b, n): True for keys to ignore; this shape also with batch_first=False.

        Returns:
            (b, m, embed_dim), in the layout of the query.
        """
        where = "laplex.nn.LaplaceAttention"
        key = query if key is None else key
        value = key if value is None else value
        checks.sequences(where, self, (query, key, value))
        if query.dim() == 3 and not self.batch_first:
            query, key, value = (side.transpose(0, 1) for side in (query, key, value))
        batch = (*query.shape[:-2], self.num_heads)
        mask = checks.padding(where, key_padding_mask, tuple(key.shape[:-1]))
        with _autocast.off(query.device):
            q, k = (_numbers(layer, side).mT for layer, side in ((self.q_proj, query), (self.k_proj, key)))
        v = self.v_proj(value).unflatten(-1, (self.num_heads, -1)).transpose(-3, -2)  # (*b, heads, n, d)
        with _autocast.off(query.device):
            checks.finite(where, {"query": q, "key": k})
            heads = _attend(q, k, v, self.tau, None if mask is None else mask[..., None, :], batch)
        output: Tensor = self.out_proj(heads.transpose(-3, -2).flatten(-2))
        return output.transpose(0, 1) if output.dim() == 3 and not self.batch_first else output

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert as every module does, but keep queries, keys and tau in at least float32."""
        for layer in (self.v_proj, self.out_proj) if recurse else ():
            layer._apply(fn)
        for layer in (self.q_proj, self.k_proj) if recurse else ():
            layer._apply(never_to_half(fn))
        super()._apply(never_to_half(fn), recurse=False)
        return self

    def extra_repr(self) -> str:
        heads = f"embed_dim={self.embed_dim}, num_heads={self.num_heads}"
        if self.log_tau.is_meta:
            return heads
        tau = ", ".join(f"{value:.3g}" for value in self.tau.detach().tolist())
        return f"{heads}, tau=[{tau}], batch_first={self.batch_first}"


def _numbers(layer: nn.Linear, x: Tensor) -> Tensor:
    """The layer's outputs in the precision of its weights, but at least float32, whatever the precision of x."""
    weight, bias = in_single(layer.weight, layer.bias)
    return linear(x.to(weight.dtype), weight, bias)

r"""Maximum mean discrepancies with the Laplace kernel, as one sum of squares over the merged samples.

Merge the samples x, with masses w that add up to 1, and y, with masses -v, to z_1 <= ... <= z_N with signed masses s:

    MMD^2 = sum over x, x' of w w' k(x, x') + sum over y, y' of v v' k(y, y') - 2 sum over x, y of w v k(x, y) = s^T K s

with k(x, y) = e^{-|x - y| / tau}, so that k(x, x) = 1. The three sums nearly cancel where the samples are alike. But
with the running sums L_j = e^{-(z_j - z_{j-1}) / tau} L_{j-1} + s_j,

    s^T K s = sum over j of L_j^2 (1 - e^{-2 (z_{j+1} - z_j) / tau}),        the last factor is 1

(the squared norm of the signed measure in the space of the kernel, as an integral of squares), which is never negative,
loses no digits and costs one scan. As tau grows, tau MMD^2 tends to the energy distance.

The unbiased estimator leaves out the pairs of a sample with itself. With q the sum of w^2,

    (w^T K w - q) / (1 - q) = w^T K w - q / (1 - q) (1 - w^T K w)

and for 1 - w^T K w = 2 sum over j of w_j M_j, with M_j = sum over i <= j of w_i (1 - e^{-(z_j - z_i) / tau}), there is
again a running sum without a subtraction, M_j = e^{-u_j} M_{j-1} + C_{j-1} (1 - e^{-u_j}), with u_j the gap before z_j
over tau, and C_j the mass of all samples up to j.

    A. Gretton, K. Borgwardt, M. Rasch, B. Scholkopf, A. Smola, A kernel two-sample test, Journal of Machine Learning
        Research 13 (2012) 723-773.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from laplex import _backends
from laplex._eager import forward_mode_again
from laplex._plan import planned_matrix
from laplex._prefixes import previous
from laplex._running import cumulative, running
from laplex._scan.autograd import scan
from laplex.stats._order import sort
from laplex.stats._samples import Merged, merged


def mmd(
    x: Tensor,
    y: Tensor,
    *,
    tau: Any,
    weights_x: Tensor | None = None,
    weights_y: Tensor | None = None,
    unbiased: bool = False,
) -> Tensor:
    r"""The squared maximum mean discrepancy of two samples, with the kernel e^{-|x - y| / tau}, in O((n + m) log).

        MMD^2 = mean of k(x, x') + mean of k(y, y') - 2 mean of k(x, y)

    It is 0 for equal samples and positive otherwise, and has no factor 1/2: ``geomloss.SamplesLoss("laplacian",
    blur=tau)`` is half of it. It is a sum of squares, so it has all its digits where the samples are nearly alike.
    Differentiable to any order in x, y, tau and the weights; the derivative of the distance of equal samples is taken
    as 0.

    Args:
        x (..., n), y (..., m): samples. Leading dimensions of all arguments broadcast.
        tau: the length of the kernel, in the units of x: a positive number, or a tensor with one value for every row.
        weights_x (..., n), weights_y (..., m): not negative; only their ratios matter. None for equal ones.
        unbiased: leave out pairs of a sample with itself (the U-statistic). Its mean is 0 if both samples have the same
            distribution, so it may be negative. With False, the V-statistic, all pairs count.

    Returns:
        MMD^2 (...).

    Example:
        >>> x, y = torch.tensor([0.0, 1.0]), torch.tensor([0.0, 2.0])
        >>> laplex.stats.mmd(x, y, tau=1.0)
        tensor(0.3161)
    """
    where = "laplex.stats.mmd"
    data = merged(where, x, y, weights_x, weights_y, unbiased, tau)
    return data.result(discrepancy(data, unbiased))


def discrepancy(data: Merged, unbiased: bool) -> Tensor:
    """MMD^2 (h,)."""
    signed, unit = data.signed()
    value = squared_norm(data.z, signed, data.tau) * unit**2
    if unbiased:
        for mass, excess in data.excesses():
            value = value - excess * shortfall(data.z, mass, data.tau)
    return value


def squared_norm(z: Tensor, s: Tensor, tau: Tensor) -> Tensor:
    """s^T K s, (h,), for places z and masses s (h, n) in any order, and tau (h,)."""
    return _form(z, s, tau, False)


def shortfall(z: Tensor, w: Tensor, tau: Tensor) -> Tensor:
    """(sum of w)^2 - w^T K w, (h,), for places z and masses w (h, n) that are not negative, and tau (h,)."""
    return _form(z, w, tau, True)


def squared_norms_in_order(u: Tensor, s: Tensor) -> Tensor:
    """s^T K s, (h, c), for masses s (h, n, c) in order, and the gaps u (h, n) before them over tau."""
    beyond = pad(u[:, 1:], (0, 1), value=torch.inf)
    return (running(torch.exp(-u), s).square() * -torch.expm1(-2 * beyond)[..., None]).sum(1)


def shortfalls_in_order(u: Tensor, w: Tensor) -> Tensor:
    """(sum of w)^2 - w^T K w, (h, c), for masses w (h, n, c) in order, and the gaps u (h, n) before them over tau."""
    missing = running(torch.exp(-u), previous(cumulative(w)) * -torch.expm1(-u)[..., None])
    return 2 * (w * missing).sum(1)


def gaps(s: Tensor, tau: Tensor) -> Tensor:
    """The gap before each of the places s (h, n), which are in order, over tau (h,); 0 for the first."""
    return pad(s.diff(dim=-1), (1, 0)) / tau[:, None]


def _form(z: Tensor, s: Tensor, tau: Tensor, missing: bool) -> Tensor:
    function = _Form if torch.compiler.is_compiling() else _TransformableForm
    value: Tensor = function.apply(z, s, tau, missing)
    return value


class _Form(torch.autograd.Function):
    """Q = s^T K s, or how far it is below (sum of s)^2. The derivatives of Q are 2 K s in s, 2 s S s / tau in z, with
    the odd sums S s, and s^T A_1 s / tau in tau, with the sums weighted by distance (``laplex._scan``)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, s: Tensor, tau: Tensor, missing: bool) -> Tensor:
        places, order = sort(z)
        form = shortfalls_in_order if missing else squared_norms_in_order
        return form(gaps(places, tau), s.gather(-1, order)[..., None])[:, 0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.missing = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        z, s, tau = ctx.saved_tensors
        in_z, in_s, in_tau = _slopes(z, s, tau, ctx.missing, ctx.needs_input_grad[2])
        return (g[:, None] * in_z).to(z.dtype), g[:, None] * in_s, None if in_tau is None else g * in_tau, None


class _TransformableForm(_Form):
    """The same with forward mode, which torch.compile does not trace."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _Form.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs[:3])

    @staticmethod
    def jvp(ctx: Any, dz: Tensor | None, ds: Tensor | None, dtau: Tensor | None, _: None) -> Tensor:
        with forward_mode_again(ctx.saved_tensors) as (z, s, tau):
            in_z, in_s, in_tau = _slopes(z, s, tau, ctx.missing, dtau is not None)
            change = torch.zeros_like(tau)
            for tangent, slope in ((dz, in_z), (ds, in_s)):
                change = change if tangent is None else change + (tangent * slope).sum(-1)
            return change if dtau is None or in_tau is None else change + dtau * in_tau


def _slopes(z: Tensor, s: Tensor, tau: Tensor, missing: bool, to_tau: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """The derivatives of a form in z (h, n), s (h, n) and tau (h,), differentiable in turn."""
    z, sign = z.double(), -1.0 if missing else 1.0
    table = _backends.choose(z.device, z.shape[-1], z.shape[-1], None)
    matrix = planned_matrix("laplex.stats", (z, z), tau, tuple(z.shape[:1]), None, (table, None))
    even, odd = (part[:, 0] for part in scan(s[:, None], matrix, odd=True))
    in_s = 2 * (s.sum(-1, keepdim=True) - even) if missing else 2 * even
    in_tau = None
    if to_tau:
        stretched = scan(s[:, None], matrix, odd=False, degree=1)[0][:, 0]
        in_tau = sign * (s * stretched).sum(-1) / tau
    return sign * 2 * s * odd / tau[:, None], in_s, in_tau

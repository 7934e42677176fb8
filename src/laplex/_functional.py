"""The public functions ``linear`` and ``gram``: they check arguments, choose a way, find the order and multiply."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from laplex import _autocast, _backends, _checks
from laplex._backends import Call, WholeCall
from laplex._formed.autograd import trained_product
from laplex._formed.kernels import Kernels
from laplex._gram import autograd as gram_autograd
from laplex._plan import Plan, check_plan
from laplex._product import formed, kernels_of, product, weighted_sum
from laplex._route import Arguments, route, trained, whole
from laplex._scan import ops
from laplex._scan.order import Matrix, Order
from laplex._shapes import flat_anchors, flat_tau, fold, unfold


def linear(
    x: Tensor,
    a: Tensor,
    b: Tensor,
    tau: float | Tensor = 1.0,
    *,
    weight: Tensor | None = None,
    phi: Tensor | None = None,
    psi: Tensor | None = None,
    plan: Plan | None = None,
    backend: str | None = None,
) -> Tensor:
    r"""y = x K^T, as ``torch.nn.functional.linear`` with the weight K(a, b), in O((n + k) log(n + k)).

        K[i, j] = exp(-|a_i - b_j| / tau) * cos(phi_i - psi_j)
        y = sum over h of weight_h x K_h^T                             with a weight, for a batch of matrices K_h

    At the sizes of layers it is faster to form the sum of the matrices once and multiply by it, and that is done: at
    most 2^28 numbers, for the gradients three times as many. :func:`laplex.backends.which` tells.

    Differentiable to any order in x, a, b, tau, weight, phi and psi, in reverse and forward mode. Where a_i = b_j the
    derivative through |a_i - b_j| is 0. First derivatives in tau are accurate for all anchors. Second derivatives in
    tau come from a sum that cancels: the more tau the anchors span, the more digits they lose, in the end all.

    Args:
        x (..., k): the input, in float16, bfloat16, float32, float64 or complex. With batched anchors and no weight
            it is (*H, m, k), or anything that broadcasts to that.
        a (*H, n): row anchors, float32 or float64, in any order. Leading dimensions H are a batch of matrices.
        b (*H, k): column anchors, same dtype.
        tau: positive length scale: a number, a tensor of one element, or a tensor that broadcasts to H, one per matrix.
        weight (H): the weights of a sum over the matrices of the batch, float32 or float64; None for no sum.
        phi (*H, n), psi (*H, k): phases, both or neither.
        plan: a :class:`laplex.Plan` of these anchors, to skip the sort.
        backend: one of :mod:`laplex.backends`; None chooses what is fastest for device, sizes and gradients.

    Returns:
        y (..., n), or (*H, m, n) with batched anchors and no weight, in the dtype of x. Under autocast x is cast first,
        as F.linear casts it, unless it is float64 or complex; the other arguments are not cast.

        Accuracy: a float32 result, and all gradients, are within 5e-7 of the sum of the sizes of the terms that are
        added, sum_j exp(-|a_i - b_j| / tau) |x_j|, whatever the sizes and the backend. (A small result of large terms
        loses digits.) Scans carry their sums in float64; on CUDA, for float32 and many points, only between tiles of a
        few hundred points. Where the matrix is formed (backend "formed"), its entries are off by a few roundings, and
        blocks of its sums are added in float64. In half precision entries and results are rounded to that. If torch may
        use TF32 (``torch.set_float32_matmul_precision``), formed matrices on CUDA are multiplied with it.

        Errors on CUDA: a call does not wait for the device. Where anchors or tau are not finite, tau is not positive,
        or a plan does not describe the anchors, y is NaN throughout (in a batch, for that matrix) and nothing raises.

    Example:
        >>> a, b, x = torch.randn(1000), torch.randn(500), torch.randn(8, 500)
        >>> laplex.linear(x, a, b, tau=0.5).shape
        torch.Size([8, 1000])
        >>> a, b, weight = torch.randn(4, 1000), torch.randn(4, 500), torch.randn(4)
        >>> laplex.linear(x, a, b, tau=0.5, weight=weight).shape
        torch.Size([8, 1000])
    """
    x = _autocast.cast(x)
    given = Arguments(x, a, b, tau, weight, phi, psi, plan, backend)
    call = WholeCall() if backend is not None or trained(given) else _backends.whole_call(*whole(given))
    again = call.again()
    if again is not None:
        return again
    batch, chosen, forms, direct, kept = route(given)
    if backend is None:
        _backends.tell_without_core(a.device, x.numel() + math.prod(x.shape[:-1]) * a.shape[-1])
    # A number becomes a tensor here and not within `call`: a recording that sees it made could not be replayed.
    length = tau if isinstance(tau, Tensor) else flat_tau(tau, batch, a.device)
    if direct and plan is None:
        return trained_product(x, Kernels(a, b, length, weight, phi, psi, math.prod(batch)), chosen, kept)
    check_plan("laplex.linear", plan, (a, b), batch)
    with _autocast.off(x.device), call:  # x has been cast, and nothing else is
        if forms:
            return _formed(given._replace(tau=length), batch, (chosen, kept), call)
        tau_flat = flat_tau(tau, batch, a.device) if isinstance(tau, Tensor) else length
        call.constant(tau_flat)
        matrix = _matrix("laplex.linear", (a, b), tau_flat, batch, plan, (chosen, backend))
        phase = tuple(flat_anchors(side, batch) for side in (phi, psi) if side is not None)  # both or neither
        if weight is not None:
            return call.keep(weighted_sum(x, matrix, phase, weight.expand(batch).reshape(-1)))
        if not batch:
            return call.keep(product(x, matrix, phase))
        folded, folding = fold(x, batch)
        return unfold(product(folded, matrix, phase), folding)


def _formed(given: Arguments, batch: tuple[int, ...], how: tuple[str, dict[Any, Any]], call: WholeCall) -> Tensor:
    """The product with the matrix formed; ``how`` is the backend, and what it keeps for calls of this form."""
    phase = () if given.phi is None else (given.phi, given.psi)
    kernels = kernels_of((given.a, given.b), given.tau, batch, given.weight, phase)
    call.constant(kernels.tau)
    if given.weight is None and batch:
        return formed(given.x, kernels, batch, *how)
    return call.keep(formed(given.x, kernels, (), *how))


def gram(
    a: Tensor,
    b: Tensor,
    weight: Tensor | None = None,
    tau: float | Tensor = 1.0,
    *,
    phi: Tensor | None = None,
    psi: Tensor | None = None,
    plan: Plan | None = None,
    backend: str | None = None,
) -> Tensor:
    r"""M = K diag(weight) K^T, the weighted Gram matrix of the rows of K(a, b), in O(n^2 + (n + k) log(n + k)).

        M[i, j] = sum over l of weight_l K[i, l] K[j, l]
        K[i, l] = exp(-|a_i - b_l| / tau) * cos(phi_i - psi_l)

    Differentiable to any order in weight, a, b, tau, phi and psi. Where a_i = b_l the derivative through |a_i - b_l| is
    0. Memory: M and its gradient are the only tensors of size n * n, and none has size n * k. Derivatives of the
    gradient, forward mode and torch.func need several tensors of size n * n.

    Args:
        a (*H, n): row anchors, float32 or float64, in any order. Leading dimensions H are a batch of matrices.
        b (*H, k): column anchors, same dtype.
        weight (k,) or (..., k): float32 or float64, of any sign; None for ones. Several weights share the sort. With
            batched anchors it is (k,), the same for all matrices, or (*H, m, k), or anything that broadcasts to that.
            Weights below about 1e-28 of the largest are lost; a sum of |weight| above 2^1023 overflows.
        tau: positive length scale: a number, a tensor of one element, or a tensor that broadcasts to H, one per matrix.
        phi (*H, n), psi (*H, k): phases, both or neither.
        plan: a :class:`laplex.Plan` of these anchors, to skip the sort.
        backend: "torch", "cpp", "triton" or "dense"; None chooses by device and sizes.

    Returns:
        M (*H, n, n) for one weight, else (..., n, n) or (*H, m, n, n), symmetric to the bit. Its dtype is that of the
        weight, or without a weight that of the anchors. It is computed in float64. The gradient of the weight carries
        the rounding error of the gradient of M, so for a column many tau away from all rows it has no correct digit.
        On CUDA a fault makes M NaN and nothing raises, as in :func:`linear`.

    Example:
        >>> a, b, weight = torch.randn(100), torch.randn(50_000), torch.rand(50_000)
        >>> laplex.gram(a, b, weight, tau=0.5).shape
        torch.Size([100, 100])
    """
    given = tuple(tensor for tensor in (weight, phi, psi) if tensor is not None)
    simple = weight is not None and backend is None
    what = Call("gram", False, phi is not None)
    call = _backends.whole_call(what, tau, given if simple else (), a, b, plan)
    again = call.again()
    if again is not None:
        return again
    where = "laplex.gram"
    _checks.anchor_pair(where, a, b)
    _checks.length_scale(where, tau, a, _checks.SMALLEST_TAU_OF_SQUARES)
    batch = _checks.batch_shape(where, a, b, tau)
    _checks.phases(where, a, b, phi, psi)
    _checks.gram_weight(where, weight, b, batch)
    if backend is None:
        _backends.tell_without_core(a.device, a.shape[-1] ** 2 + b.shape[-1])
    check_plan(where, plan, (a, b), batch)
    tau_flat = flat_tau(tau, batch, a.device)
    with call:
        chosen = _backends.choose(a.device, a.shape[-1], b.shape[-1], backend)
        matrix = _matrix(where, (a, b), tau_flat, batch, plan, (chosen, backend))
        given_weight = a.new_ones(()).expand(b.shape[-1]) if weight is None else weight
        call.constant(tau_flat)
        phase = tuple(flat_anchors(side, batch) for side in (phi, psi) if side is not None)  # both or neither
        if batch:
            return _batched_gram(given_weight, phase, matrix, batch)
        one = matrix._replace(target=a[None], source=b[None], tau=tau_flat.reshape(1))  # views: nothing is copied
        m = math.prod(given_weight.shape[:-1])
        rows = given_weight.reshape(1, m, given_weight.shape[-1])
        made = gram_autograd.gram(rows, tuple(side[None] for side in phase), one)
        return call.keep(made.reshape(*given_weight.shape[:-1], *made.shape[-2:]))


def _batched_gram(weight: Tensor, phase: tuple[Tensor, ...], matrix: Matrix, batch: tuple[int, ...]) -> Tensor:
    """M (*H, n, n) for one weight, else (*H, m, n, n)."""
    n = matrix.target.shape[-1]
    folded, folding = fold(weight if weight.dim() > 1 else weight[None], batch)
    made = gram_autograd.gram(folded, phase, matrix)
    matrices = unfold(made.reshape(*made.shape[:2], n * n), folding)
    matrices = matrices.reshape(*matrices.shape[:-1], n, n)  # a view: only leading dimensions were permuted
    return matrices if weight.dim() > 1 else matrices.squeeze(-3)


def _matrix(
    where: str,
    anchors: tuple[Tensor, Tensor],
    tau: Tensor,
    batch: tuple[int, ...],
    plan: Plan | None,
    backends: tuple[str, str | None],
) -> Matrix:
    """The matrix and its order, taken from the plan if there is one; ``backends`` are the chosen and the asked for."""
    a, b = anchors
    n, k = a.shape[-1], b.shape[-1]
    chosen, backend = backends
    table = _backends.load(chosen, a.device.type)
    rows, cols = flat_anchors(a, batch), flat_anchors(b, batch)
    if plan is None:
        if table.order is None:
            return Matrix(rows, cols, tau, Order.none(rows, cols), chosen)
        order = ops.order(rows.detach(), cols.detach(), table.layout(n, k), chosen)
        return Matrix(rows, cols, tau, order, chosen)
    if table.order is not None:
        if backend is None:
            chosen = plan.backend
        elif table.joins != plan._order.joined:
            raise ValueError(_checks.other_backend(where, chosen, plan.backend))
    return Matrix(rows, cols, tau, plan._order_for(a, b), chosen)

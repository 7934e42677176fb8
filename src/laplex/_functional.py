"""The public functions ``linear`` and ``gram``: they check, choose and multiply."""

from __future__ import annotations

import math

from torch import Tensor

from laplex import _autocast, _backends, _checks
from laplex._eager import dtensor_product, is_dtensor
from laplex._gram import autograd as gram_autograd
from laplex._plan import Plan, check_plan, planned_matrix
from laplex._product import formed_product, scanned_product
from laplex._route import Arguments, find_route
from laplex._scan.order import Matrix
from laplex._shapes import flat_anchors, flat_tau, fold, unfold


@_autocast.casting
@_backends.replayable
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
    most 2^28 numbers, three times as many for gradients. :func:`laplex.backends.which` says which way a call takes.

    Differentiable to any order in x, a, b, tau, weight, phi and psi, in reverse and forward mode. Where a_i = b_j the
    derivative through |a_i - b_j| is 0. First derivatives in tau are accurate for all anchors. Second derivatives in
    tau come from a sum that cancels: the more tau the anchors span, the more digits they lose, in the end all.

    Args:
        x (..., k): the input, in float16, bfloat16, float32, float64 or complex. With batched anchors and no weight
            it is (*H, m, k), or anything that broadcasts to that. It may be a DTensor that is sharded over leading
            dimensions: then the anchors are replicated DTensors, sharded alike where they differ over a dimension of H
            that x is sharded over, and y is placed like x.
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
    if type(x) is not Tensor and is_dtensor(x):
        options = {"tau": tau, "weight": weight, "phi": phi, "psi": psi, "plan": plan, "backend": backend}
        return dtensor_product(linear, x, {"a": a, "b": b, **options})
    arguments = Arguments(x, a, b, tau, weight, phi, psi, plan, backend)
    route = find_route(arguments)  # checks the arguments and chooses the backend, once for every form of them
    check_plan("laplex.linear", plan, (a, b), route.batch)
    if route.backend.form is not None:
        return formed_product(arguments, route)
    return scanned_product(arguments, route)


@_backends.replayable
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
    where = "laplex.gram"
    _checks.anchor_pair(where, a, b)
    _checks.length_scale(where, tau, a, _checks.SMALLEST_TAU_OF_SQUARES)
    batch = _checks.batch_shape(where, a, b, tau)
    _checks.phases(where, a, b, phi, psi)
    _checks.gram_weight(where, weight, b, batch)
    check_plan(where, plan, (a, b), batch)
    if backend is None:
        _backends.tell_without_core(a.device, a.shape[-1] ** 2 + b.shape[-1])
    table = _backends.choose(a.device, a.shape[-1], b.shape[-1], backend)
    tau_flat = flat_tau(tau, batch, a.device)
    matrix = planned_matrix(where, (a, b), tau_flat, batch, plan, (table, backend))
    weights = a.new_ones(()).expand(b.shape[-1]) if weight is None else weight
    phase = tuple(flat_anchors(side, batch) for side in (phi, psi) if side is not None)  # both or neither
    if batch:
        return _batched_gram(weights, phase, matrix, batch)
    one = matrix._replace(target=a[None], source=b[None], tau=tau_flat.reshape(1))  # views: nothing is copied
    lead, k = weights.shape[:-1], weights.shape[-1]
    rows = weights.reshape(1, math.prod(lead), k)
    matrices = gram_autograd.gram(rows, tuple(side[None] for side in phase), one)
    return matrices.reshape(*lead, *matrices.shape[-2:])


def _batched_gram(weight: Tensor, phase: tuple[Tensor, ...], matrix: Matrix, batch: tuple[int, ...]) -> Tensor:
    """M (*H, n, n) for one weight, else (*H, m, n, n)."""
    n = matrix.target.shape[-1]
    folded, folding = fold(weight if weight.dim() > 1 else weight[None], batch)
    grams = gram_autograd.gram(folded, phase, matrix)
    matrices = unfold(grams.reshape(*grams.shape[:2], n * n), folding)
    matrices = matrices.reshape(*matrices.shape[:-1], n, n)  # a view: only leading dimensions were permuted
    return matrices if weight.dim() > 1 else matrices.squeeze(-3)

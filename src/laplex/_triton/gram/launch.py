"""Launches for Gram matrices M = K diag(w) K^T on the GPU, and for their derivative; ``laplex._gram`` has the formulas.

    sums_of     U, V and W at every target: three launches over the merged order       programs_sums
    assemble    M from these sums: one launch over its n x n entries                   programs_matrix
    pull        cotangents of the sums from the cotangent of M: one launch             programs_matrix
    pullback    ``pull``, then the cotangents of all inputs: two more launches         programs_pull

The targets are the row anchors a of K, the sources its column anchors b. h is the number of matrices in the batch and m
the number of weight vectors of each.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex._gram.sums import pulls
from laplex._scan.order import Matrix, padded
from laplex._triton import tuning
from laplex._triton.gram.programs_matrix import assemble_program, pull_program
from laplex._triton.gram.programs_pull import FIELDS, FIELDS_TO_TAU, gram_source_program, gram_table_program
from laplex._triton.gram.programs_sums import gram_carry_program, gram_reduce_program, gram_target_program
from laplex._triton.launch import Setup, launch, step
from laplex._triton.order.launch import joined, refreshed
from laplex._triton.program import by_name, strides_by_name
from laplex._triton.recording import call


class Bars(NamedTuple):
    """Cotangents of the inputs. The pullback's ``need`` has a flag for each, in this order."""

    weight: Tensor
    target: Tensor
    source: Tensor
    tau: Tensor
    phi: Tensor
    psi: Tensor


class GramProblem(NamedTuple):
    """All that the launches of ``sums_of`` depend on, except for the numbers in the tensors."""

    shape: tuple[int, ...]  # h, m, k: the weight's
    strides: tuple[int, ...]  # the weight's
    n: int
    exact: bool  # the weights are float64
    phased: bool
    first: bool  # the plan's rows are the targets; rows precede columns at ties
    in_order: bool  # both sides were given sorted: the order is one bit per point
    checked: bool  # the anchors may have moved since the plan was built: check its order


class GramSchedule(NamedTuple):
    """The launches of ``sums_of``."""

    tile: int  # points of the merged order per tile
    far: bool  # offsets need 64 bits
    scratch: int  # float64 numbers: two ends, four sums and four carries of every tile, weight vector and channel
    reduce: Setup
    carry: Setup
    targets: Setup


def tiling(merged: int) -> int:
    """Points per tile. Every target reads two whole tiles, so tiles are small; the carry's cost bounds their number."""
    return next(tile for points, tile in tuning.GRAM_TILES if merged < points)


@functools.lru_cache(maxsize=1024)
def schedule(problem: GramProblem, tile: int, carried: int) -> GramSchedule:
    """The launches for tiles of ``tile`` points, of which a carry scans at most ``carried`` at a time."""
    (h, m, k), n = problem.shape, problem.n
    merged, length, channels = n + k, padded(n + k), 3 if problem.phased else 1
    weights, fan = tuning.GRAM_ROWS, tuning.GRAM_FAN
    tiles, weight_blocks = -(-merged // tile), -(-m // weights)
    far = max(length + tile, k * problem.strides[2]) >= 2**31
    group = step(tiles, carried, 4, 32)
    sizes = {"m": m, "k": k, "merged": merged, "padded": length, "tiles": tiles, "bits": k.bit_length()}
    sizes |= strides_by_name(w=problem.strides)
    flags = {"EXACT": problem.exact, "PHASED": problem.phased, "FIRST": problem.first, "IN_ORDER": problem.in_order}
    shape = {"TILE": tile, "ROWS": weights}
    reduce = by_name(gram_reduce_program, **sizes, **flags, **shape, CHECKED=problem.checked, FAR=far)
    carry = by_name(gram_carry_program, rows=m * channels, tiles=tiles, EXACT=problem.exact, GROUP=group)
    steps = search_steps(merged, fan)
    targets = by_name(gram_target_program, **sizes, n=n, steps=steps, **flags, **shape, FAN=fan)
    return GramSchedule(
        tile=tile,
        far=far,
        scratch=h * tiles * (2 + 8 * m * channels),
        reduce=Setup((tiles * weight_blocks, h, 1), *reduce),
        carry=Setup((4 * m * channels, h, 1), *carry, max(group // 32, 1)),
        targets=Setup((n * weight_blocks, h, 1), *targets, 2),
    )


def search_steps(merged: int, fan: int) -> int:
    """Steps that a search needs: one step leaves fewer positions than one of ``fan`` equal parts of them."""
    steps, left = 0, merged
    while left > 0:
        steps, left = steps + 1, -(-left // fan) - 1
    return steps


def gram(weight: Tensor, phase: tuple[Tensor, ...], matrix: Matrix) -> tuple[Tensor, Tensor, Tensor]:
    """M (h, m, n, n) in the dtype of the weight (h, m, k); then the results of ``sums_of`` that it is assembled from.

    ``phase``: phi (h, n) of the targets and psi (h, k) of the sources, or nothing.
    """
    sums, direction = sums_of(weight, phase, matrix)
    return assemble(sums, direction, matrix.target, matrix.tau, weight.dtype), sums, direction


def sums_of(weight: Tensor, phase: tuple[Tensor, ...], matrix: Matrix) -> tuple[Tensor, Tensor]:
    """U, V, and the high and the low part of W at every target, (h, m, channels, 4, n), float64.

    Then cos phi and sin phi, (h, 2, n); without phases any tensor, which no program reads.
    A fault makes all sums of its matrix NaN: an anchor, weight or tau that is not finite, or a plan of another order.
    """
    (h, m, k), n = weight.shape, matrix.target.shape[-1]
    order = joined(matrix.order)
    phased, position = bool(phase), order.position
    problem = GramProblem(
        weight.shape, weight.stride(), n, exact=weight.dtype == torch.float64, phased=phased,
        first=order.first, in_order=order.in_order, checked=order.is_checked,
    )  # fmt: skip
    plan = schedule(problem, tiling(n + k), tuning.GRAM_CARRIED)
    target, tau = matrix.target.contiguous(), matrix.tau.contiguous()
    if order.is_checked:
        position = refreshed(order, matrix, plan.far, plan.tile, 4)
    largest = weight.new_empty((h, m))
    call(torch.linalg.vector_norm, weight, out=(largest,), ord=torch.inf, dim=-1)  # one launch, and no copy of |weight|
    scratch = weight.new_empty((plan.scratch,), dtype=torch.float64)
    sums = scratch.new_empty((h, m, 3 if phased else 1, 4, n))
    direction = scratch.new_empty((h, 2, n)) if phased else largest
    phi, psi = (part.contiguous() for part in phase or (tau, tau))  # without phases no program reads them
    tensors: tuple[Tensor, ...] = weight, psi, tau, largest, order.entry, position, scratch
    _launch(gram_reduce_program, tensors, plan.reduce)
    _launch(gram_carry_program, (scratch, tau), plan.carry)
    tensors = weight, phi, psi, target, tau, largest, order.entry, position, scratch, sums, direction
    _launch(gram_target_program, tensors, plan.targets)
    return sums, direction


def _launch(program: Any, tensors: tuple[Tensor, ...], setup: Setup) -> None:
    launch(program, setup.grid, tensors, setup.numbers, setup.flags, setup.warps)


def assemble(sums: Tensor, direction: Tensor, target: Tensor, tau: Tensor, dtype: torch.dtype) -> Tensor:
    """M (h, m, n, n), symmetric to the bit."""
    h, m, channels, _, n = sums.shape
    rows, cols = tuning.MATRIX_TILE
    gram_matrix = sums.new_empty((h, m, n, n), dtype=dtype)
    tensors = sums, direction.contiguous(), target.contiguous(), tau.contiguous(), gram_matrix
    grid, flags = (h * m * -(-n // rows) * -(-n // cols), 1, 1), (dtype == torch.float64, channels == 3, rows, cols)
    launch(assemble_program, grid, tensors, (m, n), flags, 4)
    return gram_matrix


def pull(g: Tensor, sums: Tensor, direction: Tensor, target: Tensor, tau: Tensor) -> Tensor:
    """The pulls (h, m, pulls, n) at every target, for the cotangent g (h, m, n, n) of M."""
    h, m, channels, _, n = sums.shape
    rows, cols = tuning.MATRIX_TILE
    pulled = sums.new_empty((h, m, sum(pulls(channels)), n))
    tensors = sums.contiguous(), direction.contiguous(), target.contiguous(), tau.contiguous(), g.contiguous(), pulled
    grid, flags = (h * m * -(-n // rows), 1, 1), (g.dtype == torch.float64, channels == 3, rows, cols)
    launch(pull_program, grid, tensors, (m, n), flags, 4)
    return pulled


def pullback(
    g: Tensor,
    parts: tuple[Tensor, Tensor],
    weight: Tensor,
    phase: tuple[Tensor, ...],
    matrix: Matrix,
    need: tuple[bool, ...],
) -> Bars:
    """The cotangents of all inputs for the cotangent g (h, m, n, n) of M, which was assembled from ``parts``.

    ``need`` says which ``Bars`` are wanted; the others hold no meaningful numbers.
    """
    (sums, direction), tau = parts, matrix.tau
    pulled = pull(g, sums, direction, matrix.target, tau)
    _, _, at_anchor, at_decay, at_direction = pulled.split_with_sizes(pulls(sums.shape[2]), 2)
    t_bar = (at_anchor[:, :, 0].sum(1) / tau[:, None]).to(matrix.target.dtype)
    phi_bar = t_bar
    if phase:
        (cos, sin), (cos_bar, sin_bar) = direction.unbind(1), at_direction.sum(1).unbind(1)
        phi_bar = (cos * sin_bar - sin * cos_bar).to(phase[0].dtype)
    to_weight, _, to_source, to_tau, _, to_psi = need
    outputs = to_weight, to_source, to_psi, to_tau
    weight_bar, s_bar, psi_bar, stretch = _source_bars(pulled, sums, weight, phase, matrix, outputs)
    tau_bar = (stretch.sum(1) + at_decay[:, :, 0].sum((1, 2))) / tau if to_tau else tau
    return Bars(weight_bar, t_bar, s_bar, tau_bar, phi_bar, psi_bar)


def _source_bars(
    pulled: Tensor,
    sums: Tensor,
    weight: Tensor,
    phase: tuple[Tensor, ...],
    matrix: Matrix,
    outputs: tuple[bool, bool, bool, bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cotangents of weight, source and psi, and parts of tau's (h, programs), as far as ``outputs`` asks for them."""
    to_weight, to_source, to_psi, to_tau = outputs
    target, source, tau = matrix[:3]
    (h, m, k), n, phased = weight.shape, target.shape[-1], bool(phase)
    sources = tuning.PULL_SOURCES
    psi, blocks = phase[1].contiguous() if phased else tau, -(-k // sources)
    weight_bar = weight.new_empty(weight.shape if to_weight else 0)
    s_bar = source.new_empty(source.shape if to_source else 0)
    psi_bar = psi.new_empty(psi.shape if to_psi else 0)
    stretch = pulled.new_empty((h, blocks if to_tau else 0))
    bars = weight_bar, s_bar, psi_bar, stretch
    if any(outputs):
        rows, exact = m * (3 if phased else 1), weight.dtype == torch.float64
        fields, group = FIELDS_TO_TAU if to_tau else FIELDS, step(n, tuning.PULL_TARGETS, 4, 32)
        position, order = target.sort(-1)
        table, tau = pulled.new_empty((h, n, rows, fields)), tau.contiguous()
        tensors: tuple[Tensor, ...] = pulled, sums, tau, position, order, table
        flags: tuple[Any, ...] = exact, phased, fields, group
        launch(gram_table_program, (fields * rows, h, 1), tensors, (m, n), flags, max(group // 32, 1))
        tensors = weight, psi, source.contiguous(), tau, position, table, *bars
        sizes, flags = (m, n, k, n.bit_length() + 1, *weight.stride()), (exact, phased, *outputs, fields, sources)
        launch(gram_source_program, (blocks, h, 1), tensors, sizes, flags, 4)
    return bars

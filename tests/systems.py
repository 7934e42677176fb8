"""Symmetric operators and their dense matrices, for the tests of solves."""

import torch

from helpers import phases_for, wide
from laplex import LaplaceOperator, reference

KINDS = ("kernel", "gram")


def normal(*shape):
    return torch.randn(shape, dtype=torch.float64)


def inputs_of(case, kind, phased, dtype=torch.float64):
    """Every tensor the matrix is made of, and the diagonal added, by name."""
    a, b, tau = case(dtype)
    batch = torch.broadcast_shapes(a.shape[:-1], b.shape[:-1])
    inputs = {"a": a, "tau": torch.as_tensor(tau, dtype=torch.float64)}
    inputs["diag"] = torch.rand(*batch, a.shape[-1], dtype=dtype) + 0.5
    phi, psi = phases_for(a, b)
    if phased:
        inputs["phi"] = phi
    if kind == "gram":
        inputs |= {"b": b, "weight": torch.rand(*batch, b.shape[-1], dtype=dtype)}
        if phased:
            inputs["psi"] = psi
    return inputs


def operator(a, tau, b=None, weight=None, phi=None, psi=None, diag=None):
    """K of a, or the Gram matrix of K(a, b)."""
    kernel = LaplaceOperator(a, b, tau, phi=phi, psi=psi)
    return kernel if b is None else kernel.gram(weight)


def dense(a, tau, b=None, weight=None, phi=None, psi=None, diag=None):
    """The matrix of `operator`, with the diagonal added, by the definition."""
    if b is None:
        matrix = reference.kernel(a, a, tau, phi=phi, psi=phi)
    else:
        factor = reference.kernel(a, b, tau, phi=phi, psi=psi)
        matrix = (factor * weight[..., None, :]) @ factor.mT
    return matrix if diag is None else matrix + torch.diag_embed(diag.expand(matrix.shape[:-1]))


def widened(inputs):
    return {name: wide(value) for name, value in inputs.items()}


def norm_and_condition(matrix):
    """The norm of a symmetric definite matrix, and its condition number; the largest of a batch."""
    values = torch.linalg.eigvalsh(matrix)
    return float(values[..., -1].max()), float((values[..., -1] / values[..., 0].clamp(min=1e-300)).max())


def condition(matrix):
    return norm_and_condition(matrix)[1]


def triangular(matrix, a):
    """C with C C^T = matrix, lower triangular in the order of a, in the caller's order."""
    order = a.detach().argsort(stable=True)
    back = order.argsort()

    def permuted(square, index):
        rows = square.gather(-2, index[..., :, None].expand(square.shape))
        return rows.gather(-1, index[..., None, :].expand(square.shape))

    return permuted(torch.linalg.cholesky(permuted(matrix, order)), back)

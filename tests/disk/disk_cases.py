"""Arguments of products on disk, and what they should give."""

import numpy as np
import torch

from laplex import reference

KINDS = ("normal", "tied", "equal", "skewed", "apart", "zeros", "sorted", "one value and more")
STRATEGIES = {"buckets": (3000, 2000), "by rows": (3000, 5), "by columns": (7, 3000)}  # n and k
MEMORY = 60_000  # bytes: some hundred anchors
TAU = 0.3


def anchors(kind, size, generator):
    values = generator.standard_normal(size)
    if kind == "tied":
        values = np.round(2 * values)
    if kind == "equal":
        values = np.ones(size)
    if kind == "skewed":
        values = np.exp(2 * values)
    if kind == "zeros":
        values[::2] = 0.0
        values[1::4] = -0.0
    if kind == "sorted":
        values.sort()
    if kind == "one value and more":
        values[: size // 2] = 0.25
    return values


def arguments(n, k, kind="normal", *, m=None, phases=False, dtype=np.float32):
    """x, a, b, phi, psi."""
    generator = np.random.default_rng(0)
    a, b = anchors(kind, n, generator), anchors(kind, k, generator)
    if kind == "apart":
        a, b = 1 + abs(a), -abs(b)
    x = generator.standard_normal(k if m is None else (m, k))
    phi, psi = (generator.standard_normal(size) for size in (n, k)) if phases else (None, None)
    return tuple(None if value is None else value.astype(dtype) for value in (x, a, b, phi, psi))


def truth(x, a, b, phi=None, psi=None, tau=TAU):
    """The product in float64, and the sizes of the terms that are added."""
    x, a, b, phi, psi = (None if value is None else torch.from_numpy(value).double() for value in (x, a, b, phi, psi))
    product = reference.linear(x, a, b, tau, phi=phi, psi=psi)
    return product.numpy(), reference.linear(x.abs(), a, b, tau).numpy()


def largest_error(y, arguments):
    want, sizes = truth(*arguments)
    assert y.shape == want.shape
    return float((abs(y - want) / (sizes + np.finfo(y.dtype).tiny)).max(initial=0))

"""Projections of many features to few that know nothing of kernels: CountSketch, Gaussian, principal components."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import Linear, Module

from laplex import _checks
from laplex._checks.counts import whole
from laplex.nn._checks import features
from laplex.nn.routing import scatter


class CountSketch(Module):
    """y_i = sum over buckets_j = i of signs_j x_j, with random buckets and signs: x (..., d) to (..., m), in O(d).

    Args:
        in_features: the number d of inputs.
        out_features: the number m of buckets.
        generator: of the random numbers; None uses torch's own.
        device: of buckets and signs.
    """

    buckets: Tensor  # (d,) int64
    signs: Tensor  # (d,) int8

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        where = "paper.methods.CountSketch"
        self.in_features = whole(where, "in_features", in_features)
        self.out_features = whole(where, "out_features", out_features)
        shape, drawn_on = (self.in_features,), _drawn_on(generator, device)
        buckets = torch.randint(self.out_features, shape, generator=generator, device=drawn_on)
        signs = 2 * torch.randint(2, shape, generator=generator, device=drawn_on, dtype=torch.int8) - 1
        self.register_buffer("buckets", buckets if device is None else buckets.to(device))
        self.register_buffer("signs", signs if device is None else signs.to(device))

    def forward(self, x: Tensor) -> Tensor:
        """x (..., d) to (..., m), in the dtype of x; half precision is summed in float32."""
        features("paper.methods.CountSketch", x, self.in_features)
        return scatter(x * self.signs, self.buckets, self.out_features)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


def gaussian(
    in_features: int,
    out_features: int,
    *,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Linear:
    """A random projection whose m x d entries are normal of variance 1 / m, so that lengths are kept on average.

    Returns:
        A frozen ``torch.nn.Linear`` without bias, from d = in_features to m = out_features.
    """
    where = "paper.methods.gaussian"
    shape = whole(where, "out_features", out_features), whole(where, "in_features", in_features)
    drawn = torch.randn(shape, generator=generator, device=_drawn_on(generator, device), dtype=dtype)
    return _frozen(drawn.div_(math.sqrt(shape[0])).to(device=device))


def principal_components(data: Tensor, out_features: int) -> Linear:
    """The projection onto the leading principal components of the data, as scikit-learn's PCA without whitening.

    The smaller one of the two Gram matrices of the centred data is decomposed, in float64, which for few samples of
    many features takes a small part of the time of a singular value decomposition. Components whose variance is below
    about 1e-12 of the largest are noise.

    Args:
        data (N, d): one row per sample, float32 or float64.
        out_features: the number of components, at most N - 1 and d, from which on the variance is 0.

    Returns:
        A frozen ``torch.nn.Linear`` that subtracts the mean and projects. Signs are such that the entry of each
        component that is largest in size is positive.
    """
    where = "paper.methods.principal_components"
    _checks.is_tensor(where, "data", data)
    if data.dim() != 2 or not data.is_floating_point():
        raise ValueError(
            f"{where}: `data` must be (N, d) and floating point, got shape {tuple(data.shape)} of {data.dtype}; "
            "use .flatten(1).float()"
        )
    samples, d = data.shape
    most = max(0, min(samples - 1, d))
    if whole(where, "out_features", out_features) > most:
        raise ValueError(
            f"{where}: `out_features` must be at most {most} for data of shape {(samples, d)}, got {out_features}; "
            "use fewer components or more samples"
        )
    mean = data.mean(0, dtype=torch.float64)
    if not bool(mean.isfinite().all()):
        raise ValueError(_checks.not_finite(where, "data"))
    centred = data - mean  # (N, d) float64
    if samples < d:
        leading = torch.linalg.eigh(centred @ centred.mT).eigenvectors[:, -out_features:].flip(1)
        components = leading.mT @ centred  # (m, d), not yet of length 1
        components /= components.norm(dim=1, keepdim=True).clamp_min(torch.finfo(components.dtype).tiny)
    else:
        components = torch.linalg.eigh(centred.mT @ centred).eigenvectors[:, -out_features:].flip(1).mT
    components = components * components.gather(1, components.abs().argmax(1, keepdim=True)).sign()
    return _frozen(components.to(data.dtype), bias=-(components @ mean).to(data.dtype))


def _drawn_on(generator: torch.Generator | None, device: torch.device | str | None) -> torch.device | str | None:
    return device if generator is None else generator.device


def _frozen(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """A layer with these tensors, that is not trained."""
    layer = Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = torch.nn.Parameter(bias, requires_grad=False)
    return layer

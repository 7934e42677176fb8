"""Projections of many features to few that know nothing of kernels: CountSketch and principal components."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Linear, Module, Parameter

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
        self.out_features, where = out_features, device if generator is None else generator.device
        buckets = torch.randint(out_features, (in_features,), generator=generator, device=where)
        signs = 2 * torch.randint(2, (in_features,), generator=generator, device=where, dtype=torch.int8) - 1
        self.register_buffer("buckets", buckets if device is None else buckets.to(device))
        self.register_buffer("signs", signs if device is None else signs.to(device))

    def forward(self, x: Tensor) -> Tensor:
        """x (..., d) to (..., m), in the dtype of x; half precision is summed in float32."""
        return scatter(x * self.signs, self.buckets, self.out_features)


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
    samples, d = data.shape
    mean = data.mean(0, dtype=torch.float64)
    centred = data - mean  # (N, d) float64
    if samples < d:
        leading = torch.linalg.eigh(centred @ centred.mT).eigenvectors[:, -out_features:].flip(1)
        components = leading.mT @ centred  # (m, d), not yet of length 1
        components /= components.norm(dim=1, keepdim=True).clamp_min(torch.finfo(components.dtype).tiny)
    else:
        components = torch.linalg.eigh(centred.mT @ centred).eigenvectors[:, -out_features:].flip(1).mT
    components = components * components.gather(1, components.abs().argmax(1, keepdim=True)).sign()
    layer = Linear(d, out_features, device="meta")
    layer.weight = Parameter(components.to(data.dtype), requires_grad=False)
    layer.bias = Parameter(-(components @ mean).to(data.dtype), requires_grad=False)
    return layer

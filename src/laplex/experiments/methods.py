"""The heads that `laplex experiment heads` compares, and what each starts from.

random     as the module draws itself
singular   LAPLEX: anchors from singular vectors of a cheap dense head, found from the train rows
reseated   LAPLEX: fitted to a dense head, a linear discriminant, by anchors that jump to their best places
svd        low rank: the best approximation of that discriminant

The last two have the least squared error of results on the train rows that they can find.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from laplex.baselines.heads import KroneckerSum, LaplexProjectionHead, LowRankLinear, PCAHead, SeededProjectionHead
from laplex.experiments.data import Features
from laplex.experiments.training import seeded
from laplex.nn import LaplexLinear
from laplex.nn._start import discriminant


@dataclass(frozen=True)
class Variant:
    """A method, one of ``laplex.baselines.heads.METHODS``, and its start."""

    method: str
    start: str = "random"

    def __str__(self) -> str:
        return self.method if self.start == "random" else f"{self.method}, {self.start}"


VARIANTS = (
    Variant("full"),
    Variant("laplex"),
    Variant("laplex", "singular"),
    Variant("laplex", "reseated"),
    Variant("laplex-phased"),
    Variant("laplex-phased", "singular"),
    Variant("low-rank"),
    Variant("low-rank", "svd"),
    Variant("kronecker"),
    Variant("seeded"),
    Variant("laplex-projection"),
    Variant("pca"),
    Variant("pca-stored"),
)


class Heads:
    """Makes heads for ``data``; what is found from the data is found once and copied for every run."""

    def __init__(self, data: Features) -> None:
        self._data = data
        self._found: dict[tuple[Variant, int], nn.Module] = {}

    def make(self, variant: Variant, size: int, seed: int) -> nn.Module:
        """A new head on the device of the data; ``seed`` decides what is random about it."""
        with seeded(seed):
            if variant.start == "random" and not variant.method.startswith("pca"):
                return self._drawn(variant.method, size, seed).to(self._data.train[0].device)
        if (variant, size) not in self._found:
            with seeded(0):
                self._found[variant, size] = self._fitted(variant, size)
        made = copy.deepcopy(self._found[variant, size])
        if isinstance(made, PCAHead):
            with seeded(seed):
                made.head.reset_parameters()
        return made

    def _drawn(self, method: str, size: int, seed: int) -> nn.Module:
        shape = self._data.width, self._data.classes
        if method == "full":
            return nn.Linear(*shape)
        if method in ("laplex", "laplex-phased"):
            return LaplexLinear(*shape, rank=size, phase=method == "laplex-phased")
        if method == "low-rank":
            return LowRankLinear(*shape, size)
        if method == "kronecker":
            return KroneckerSum(*shape, size)
        if method == "seeded":
            return SeededProjectionHead(*shape, size, seed)
        return LaplexProjectionHead(*shape, size)

    def _fitted(self, variant: Variant, size: int) -> nn.Module:
        x, y = self._data.train
        if variant.method.startswith("pca"):
            return PCAHead(x, self._data.classes, size)
        if variant.start == "singular":
            return self._singular(variant.method, size)
        dense = discriminant_head(x, y, self._data.classes)
        if variant.start == "svd":
            moments = self._data.moments
            return LowRankLinear.from_weight(dense.weight.detach(), size, dense.bias.detach(), moments=moments)
        return LaplexLinear.from_linear(dense, size, importance=self._data.moments)

    def _singular(self, method: str, size: int) -> LaplexLinear:
        x, y = self._data.train
        phased = method == "laplex-phased"
        layer = LaplexLinear(self._data.width, self._data.classes, rank=size, phase=phased, device=x.device)
        return layer.init_from((x, y))


@torch.no_grad()
def discriminant_head(x: Tensor, y: Tensor, classes: int) -> nn.Linear:
    """The head of a regularised linear discriminant analysis of the rows x (rows, in) with classes y (rows,).

    With class means m_c, their mean m and W = (m_c - m) S^-1, S the regularised covariance within classes, the score of
    class c is  (x - m) W_c - (m_c - m) W_c / 2.
    """
    weight = discriminant("laplex.experiments.heads", x, y, (classes, x.shape[1]))
    means = torch.stack([x[y == c].double().mean(0) for c in range(classes)])
    made = nn.Linear(x.shape[1], classes, device=x.device, dtype=x.dtype)
    made.weight.copy_(weight)
    made.bias.copy_(-((means + means.mean(0)) * weight).sum(1) / 2)
    return made

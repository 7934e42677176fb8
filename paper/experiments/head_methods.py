"""The heads that `python -m paper experiment heads` compares, and what each starts from.

random     as the module draws itself
singular   LAPLEX: anchors from singular vectors of a cheap dense head, found from the train rows
reseated   LAPLEX: fitted to a dense head, a linear discriminant, by anchors that jump to their best places
svd        low rank: the best approximation of that discriminant

The last two have the least squared error of results on the train rows that they can find. A head of two layers has two
layers of its method with a tanh between them, and starts at random: from train rows alone no hidden layer is known.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from laplex.nn import LaplexLinear
from laplex.nn._start import discriminant
from paper.experiments.data import Features
from paper.experiments.training import seeded
from paper.methods.heads import (
    LAYERS,
    KroneckerSum,
    LaplexProjectionHead,
    LowRankLinear,
    PCAHead,
    SeededProjectionHead,
)


@dataclass(frozen=True)
class HeadMethod:
    """A method, one of ``paper.methods.heads.METHODS``, and its start."""

    method: str
    start: str = "random"

    def __str__(self) -> str:
        return self.method if self.start == "random" else f"{self.method}, {self.start}"

    @property
    def deep(self) -> bool:
        """Whether there are heads of two layers of this kind."""
        return self.method in LAYERS and self.start == "random"


HEAD_METHODS = (
    HeadMethod("full"),
    HeadMethod("laplex"),
    HeadMethod("laplex", "singular"),
    HeadMethod("laplex", "reseated"),
    HeadMethod("laplex-phased"),
    HeadMethod("laplex-phased", "singular"),
    HeadMethod("low-rank"),
    HeadMethod("low-rank", "svd"),
    HeadMethod("kronecker"),
    HeadMethod("seeded"),
    HeadMethod("laplex-projection"),
    HeadMethod("pca"),
    HeadMethod("pca-stored"),
)


class Heads:
    """Makes heads for ``data``; what comes from the data is computed once and copied for every run.

    With ``hidden`` they have two layers, and a hidden one of that width.
    """

    def __init__(self, data: Features, hidden: int | None = None) -> None:
        self._data, self._hidden = data, hidden
        self._starts: dict[tuple[HeadMethod, int], nn.Module] = {}

    def make(self, method: HeadMethod, size: int, seed: int) -> nn.Module:
        """A new head on the device of the data; ``seed`` decides what is random about it."""
        with seeded(seed):
            if method.start == "random" and not method.method.startswith("pca"):
                return self._random(method.method, size, seed).to(self._data.train[0].device)
        if (method, size) not in self._starts:
            with seeded(0):
                self._starts[method, size] = self._start_from_data(method, size)
        head = copy.deepcopy(self._starts[method, size])
        if isinstance(head, PCAHead):
            with seeded(seed):
                head.head.reset_parameters()
        return head

    def _random(self, method: str, size: int, seed: int) -> nn.Module:
        shape = self._data.width, self._data.classes
        if self._hidden is not None:
            first, last = _layer(method, shape[0], self._hidden, size), _layer(method, self._hidden, shape[1], size)
            return nn.Sequential(first, nn.Tanh(), last)
        if method in LAYERS:
            return _layer(method, *shape, size)
        if method == "seeded":
            return SeededProjectionHead(*shape, size, seed)
        return LaplexProjectionHead(*shape, size)

    def _start_from_data(self, method: HeadMethod, size: int) -> nn.Module:
        x, y = self._data.train
        if method.method.startswith("pca"):
            return PCAHead(x, self._data.classes, size)
        if method.start == "singular":
            return self._singular(method.method, size)
        dense = discriminant_head(x, y, self._data.classes)
        if method.start == "svd":
            moments = self._data.moments
            return LowRankLinear.from_weight(dense.weight.detach(), size, dense.bias.detach(), moments=moments)
        return LaplexLinear.from_linear(dense, size, importance=self._data.moments)

    def _singular(self, method: str, size: int) -> LaplexLinear:
        x, y = self._data.train
        phased = method == "laplex-phased"
        layer = LaplexLinear(self._data.width, self._data.classes, kernels=size, phase=phased, tau=1.0, device=x.device)
        return layer.init_from((x, y))


def _layer(method: str, in_features: int, out_features: int, size: int) -> nn.Module:
    """A layer of one of the methods ``LAYERS``."""
    if method == "full":
        return nn.Linear(in_features, out_features)
    if method == "low-rank":
        return LowRankLinear(in_features, out_features, size)
    if method == "kronecker":
        return KroneckerSum(in_features, out_features, size)
    return LaplexLinear(in_features, out_features, kernels=size, phase=method == "laplex-phased", tau=1.0)


@torch.no_grad()
def discriminant_head(x: Tensor, y: Tensor, classes: int) -> nn.Linear:
    """The head of a regularised linear discriminant analysis of the rows x (rows, in) with classes y (rows,).

    With class means m_c, their mean m and W = (m_c - m) S^-1, S the regularised covariance within classes, the score of
    class c is  (x - m) W_c - (m_c - m) W_c / 2.
    """
    weight = discriminant("paper.experiments.heads", x, y, (classes, x.shape[1]))
    means = torch.stack([x[y == c].double().mean(0) for c in range(classes)])
    head = nn.Linear(x.shape[1], classes, device=x.device, dtype=x.dtype)
    head.weight.copy_(weight)
    head.bias.copy_(-((means + means.mean(0)) * weight).sum(1) / 2)
    return head

"""Losses of heads after every epoch, under the paper's recipe: `python -m paper experiment heads` keeps the last ones only.

As there, rates are scaled so that steps times rate is the paper's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from paper.experiments.data import Features
from paper.experiments.head_methods import HeadMethod, Heads
from paper.experiments.training import PAPER, PAPER_FULL, ROWS, Recipe, scaled, train
from paper.methods.heads import count, size_for_budget
from paper.reproduce._measure import FULL, QUICK, Effort, Settings

RANKS, QUICK_RANKS = (4, 8, 16), (4,)
SEEDS = {QUICK: 1, "usual": 1, FULL: 5}
QUICK_EPOCHS = 2
VARIANTS = tuple(HeadMethod(*one) for one in (("laplex", "reseated"), ("low-rank", "svd"), ("laplex",), ("low-rank",)))


class Watched(nn.Module):
    """A head that notes its losses whenever an epoch begins.

    Args:
        head: the head, which is trained through this module.
        data: the losses are those of its train and validation rows.
        steps: of an epoch.
    """

    def __init__(self, head: nn.Module, data: Features, steps: int) -> None:
        super().__init__()
        self.head, self._data, self._steps, self._done = head, data, steps, 0
        self.losses: dict[str, list[float]] = {"train": [], "val": []}

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():  # a training step: scores are computed without gradients
            if self._done % self._steps == 0:
                self.note()
            self._done += 1
        scores: Tensor = self.head(x)
        return scores

    @torch.no_grad()
    def note(self) -> None:
        """Note the losses now."""
        for name, (x, y) in (("train", self._data.train), ("val", self._data.val)):
            parts = zip(x.split(ROWS), y.split(ROWS), strict=True)
            total = sum(float(cross_entropy(self.head(part), labels, reduction="sum")) for part, labels in parts)
            self.losses[name].append(total / len(y))


def points(data: Features, effort: Effort) -> list[Settings]:
    """The heads of all variants and ranks, and a dense one, for every seed."""
    found: list[Settings] = []
    for seed in range(effort.seed, effort.seed + SEEDS[effort.level]):
        for rank in QUICK_RANKS if effort.level == QUICK else RANKS:
            for variant in VARIANTS:
                found.append(_settings(data, variant, rank, seed, effort))
        found.append(_settings(data, HeadMethod("full"), 0, seed, effort))
    return found


def _settings(data: Features, variant: HeadMethod, rank: int, seed: int, effort: Effort) -> Settings:
    epochs = QUICK_EPOCHS if effort.level == QUICK else PAPER.epochs
    found = {"data": data.digest, "method": variant.method, "start": variant.start, "rank": rank}
    return found | {"epochs": epochs, "floor": _recipe(data, variant).floor, "seed": seed}


def _recipe(data: Features, variant: HeadMethod) -> Recipe:
    """The paper's, with rates for as many rows as there are."""
    return scaled(PAPER_FULL if variant.method == "full" else PAPER, len(data.train[1]))


def compute(data: Features, settings: Settings) -> dict[str, Any]:
    """Losses before the first epoch and after each, and the accuracies at the end."""
    variant, rank, seed = HeadMethod(settings["method"], settings["start"]), settings["rank"], settings["seed"]
    recipe = replace(_recipe(data, variant), epochs=settings["epochs"])
    head = Watched(
        Heads(data).make(variant, _size(data, variant, rank), seed), data, -(-len(data.train[1]) // recipe.batch)
    )
    reached = train(head, data, recipe, seed)
    head.note()
    return {**head.losses, "accuracy": reached}


def _size(data: Features, variant: HeadMethod, rank: int) -> int:
    """The size that the parameters of LAPLEX of this rank allow."""
    if variant.method == "full":
        return 0
    shape = data.width, data.classes
    return size_for_budget(variant.method, *shape, count("laplex", *shape, rank).trained)

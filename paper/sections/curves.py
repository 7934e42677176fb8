"""Losses of heads after every epoch, under the paper's recipe: the experiment ``heads`` keeps the last ones only.

As there, rates are scaled so that steps times rate is the paper's.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from paper import datasets
from paper.entry import Entry, Figure, Outcome, Plot, Series
from paper.experiments import data
from paper.experiments.data import Features
from paper.experiments.head_methods import HeadMethod, Heads
from paper.experiments.training import PAPER, PAPER_FULL, ROWS, Recipe, scaled, train
from paper.judging import claim_verdict, outcome, unjudged
from paper.methods.heads import count, size_for_budget
from paper.results import Archive, Run
from paper.running import FULL, Measurement, Request, Result, Settings
from paper.sections.heads import RANKS, TITLES

QUICK_RANKS, QUICK_EPOCHS, FULL_SEEDS = (4,), 2, 5
FROM_DATA = {"laplex": "reseated", "low-rank": "svd"}  # starts that know the data
RANDOM = dict.fromkeys(FROM_DATA, "random")


# --- Measurement -----------------------------------------------------------------------------------------------------


class WatchedHead(nn.Module):
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


def _features(request: Request) -> Features:
    """The first file of features."""
    return _read(next(iter(datasets.features(request.data))), request.device)


@cache
def _read(path: Path, device: str) -> Features:
    return data.features(path).standardised().to(device)


def _points(request: Request) -> list[Settings]:
    """The heads of all starts and ranks, and a dense one, for every seed."""
    features, heads = _features(request), []
    for seed in range(request.seed, request.seed + (FULL_SEEDS if request.level == FULL else 1)):
        for rank in QUICK_RANKS if request.quick else RANKS:
            heads += [(method, start, rank, seed) for starts in (FROM_DATA, RANDOM) for method, start in starts.items()]
        heads.append(("full", "random", 0, seed))
    epochs = QUICK_EPOCHS if request.quick else PAPER.epochs
    return [
        {"data": features.digest, "method": method, "start": start, "rank": rank, "epochs": epochs}
        | {"floor": _recipe(features, method).floor, "seed": seed}
        for method, start, rank, seed in heads
    ]


def _recipe(features: Features, method: str) -> Recipe:
    """The paper's, with rates for as many rows as there are."""
    return scaled(PAPER_FULL if method == "full" else PAPER, len(features.train[1]))


def _compute(settings: Settings, request: Request) -> Result:
    """Losses before the first epoch and after each, and the accuracies at the end."""
    features, method, seed = _features(request), settings["method"], settings["seed"]
    recipe = replace(_recipe(features, method), epochs=settings["epochs"])
    shape, size = (features.width, features.classes), 0
    if method != "full":  # the size that the parameters of LAPLEX of this rank allow
        size = size_for_budget(method, *shape, count("laplex", *shape, settings["rank"]).trained)
    head = Heads(features).make(HeadMethod(method, settings["start"]), size, seed)
    watched = WatchedHead(head, features, -(-len(features.train[1]) // recipe.batch))
    accuracy = train(watched, features, recipe, seed)
    watched.note()
    return {**watched.losses, "accuracy": accuracy}


# --- Judge -----------------------------------------------------------------------------------------------------------


def _judge(entry: Entry, archive: Archive) -> Outcome | None:
    sources = list(archive.measurement(CURVES.name, every_seed=True).values())
    # Of one device, the GPU if it has any.
    runs = sources[0].like_last("data", "epochs", "floor").runs if sources else []
    from_data, from_random = ({rank: _share(runs, rank, starts) for rank in RANKS} for starts in (FROM_DATA, RANDOM))
    if None in from_data.values():
        return None
    more = all(share == 1.0 for share in from_random.values())
    note = "decides between reproduced and exceeded"
    figures = [
        Figure(_label(rank, "starts from data"), 1.0, share, "share", "higher", claim_verdict(share == 1.0, more))
        for rank, share in from_data.items()
    ]
    figures += [
        unjudged(_label(rank, "random starts"), 1.0, share, "share", "higher", note)
        for rank, share in from_random.items()
    ]
    reason = (
        "Other data than the paper's, under its schedule, with rates scaled so that steps times rate is the paper's. "
        f"The validation loss of LAPLEX is below that of low rank after {_in_words(from_data)} of the epochs at ranks "
        f"4, 8 and 16 from starts that know the data, and after {_in_words(from_random)} from random ones."
    )
    return outcome(entry, reason, sources, figures=figures, plots=[_plot(runs, rank) for rank in RANKS])


def _label(rank: int, starts: str) -> str:
    return f"epochs with the lower validation loss, r = {rank}, {starts}"


def _share(runs: list[Run], rank: int, starts: dict[str, str]) -> float | None:
    """The share of epochs after which LAPLEX has the lower validation loss; None where there are no such runs."""
    losses = {method: _mean_losses(runs, method, start, rank) for method, start in starts.items()}
    if not all(losses.values()):
        return None
    pairs = list(zip(losses["laplex"], losses["low-rank"], strict=True))
    return sum(ours < theirs for ours, theirs in pairs) / len(pairs)


def _mean_losses(runs: list[Run], method: str, start: str, rank: int, part: str = "val") -> list[float]:
    """The mean over seeds after each epoch; the loss before the first is left out."""
    settings = {"method": method, "start": start, "rank": rank}
    losses = [run.result[part][1:] for run in runs if settings.items() <= run.settings.items()]
    return [statistics.fmean(epoch) for epoch in zip(*losses, strict=True)]


def _in_words(shares: dict[int, float | None]) -> str:
    return ", ".join("-" if share is None else f"{share:.0%}" for share in shares.values())


def _plot(runs: list[Run], rank: int) -> Plot:
    lines = []
    for method in FROM_DATA:
        for start, word in ((FROM_DATA[method], "start from data"), ("random", "random start")):
            for part, name in (("val", "validation"), ("train", "train")):
                losses: list[float | None] = list(_mean_losses(runs, method, start, rank, part))
                epochs = [float(epoch) for epoch in range(1, len(losses) + 1)]
                lines.append(Series(f"{TITLES[method]}, {word}, {name}", epochs, losses))
    shown = [line for line in lines if line.x]
    return Plot(f"Losses of heads, r = {rank}", "epoch", "cross entropy", shown, "linear", "log10")


CURVES = Measurement("heads-curves", _points, _compute, lambda request: bool(datasets.features(request.data)))
ENTRIES = (
    Entry(
        name="heads-curves",
        title="Losses of heads while they are trained",
        section="Heads",
        source="Figure 19",
        claim="Under one schedule LAPLEX heads have a lower training and validation loss than low-rank ones from the "
        "first epochs to the last, at ranks 4, 8 and 16.",
        criterion="Reproduced if, each from its start from data, the validation loss of LAPLEX is below that of low "
        "rank after every epoch at every rank; exceeded if that also holds from random starts. Rates are scaled as in "
        "heads-recipe.",
        minutes={"cuda": 3.0, "cpu": 6.0},
        measure=(CURVES,),
        judge=_judge,
        data=datasets.FEATURES,
    ),
)

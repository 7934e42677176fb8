"""One run: a head is trained on features by a recipe, and its accuracies are the result.

The features are on the device as a whole and a batch is a set of row indices, so a step has no loader to wait for. The
order of the rows comes from a generator on the CPU: a seed means the same batches on every device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from paper.experiments.data import Features

ROWS = 8192  # scored at once


@dataclass(frozen=True)
class Recipe:
    """AdamW under a cosine schedule from ``lr`` to ``floor``; biases may have their own rate and decay."""

    lr: float
    epochs: int
    batch: int
    decay: float = 0.0
    floor: float = 1e-6
    bias_lr: float | None = None
    bias_decay: float = 0.0


# Table 5 of the paper. A dense head has the rate and decay of the biases.
PAPER = Recipe(lr=1e-4, epochs=30, batch=128, bias_lr=1e-5, bias_decay=0.05)
PAPER_FULL = replace(PAPER, lr=1e-5, decay=0.05)
PAPER_ROWS = 1_281_167  # of an epoch of the paper: the train images of ImageNet-1k
TUNED = Recipe(lr=1e-3, epochs=30, batch=256)  # its lr is replaced by each value of the grid
# Wide enough for dense heads, which like small rates, and for anchors, which like large ones.
GRID = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
DIVERGED: dict[str, Any] = {"val": 0.0, "test": 0.0, "loss": None, "diverged": True}


def scaled(recipe: Recipe, rows: int) -> Recipe:
    """A recipe of the paper for ``rows`` train rows, with all rates scaled so that steps times rate is the paper's.

    Adam moves a parameter by about its rate per step. The paper's 30 epochs of ImageNet are 300 300 steps of 1e-4,
    thirty units for an anchor; as many epochs of 15 000 rows are 3540 steps, at that rate a third of one unit.
    """
    more, fewer = (-(-count // recipe.batch) for count in (PAPER_ROWS, rows))
    scale = more / fewer
    bias_lr = None if recipe.bias_lr is None else recipe.bias_lr * scale
    return replace(recipe, lr=recipe.lr * scale, floor=recipe.floor * scale, bias_lr=bias_lr)


def train(head: nn.Module, data: Features, recipe: Recipe, seed: int) -> dict[str, Any]:
    """Train ``head`` in place, and return what it reached on validation and test rows, as fractions.

    A run whose parameters are no longer finite is stopped; it counts as diverged, with accuracies of 0.
    """
    x, y = data.train
    steps = recipe.epochs * -(-len(y) // recipe.batch)
    optimizer = torch.optim.AdamW(_groups(head, recipe), fused=True)  # one launch per step on a GPU
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=recipe.floor)
    epochs = batches(len(y), recipe.batch, recipe.epochs, seed, x.device)
    loss = descend(head, lambda rows: nn.functional.cross_entropy(head(x[rows]), y[rows]), epochs, optimizer, schedule)
    if loss is None:
        return DIVERGED
    return {"val": accuracy(head, *data.val), "test": accuracy(head, *data.test), "loss": loss, "diverged": False}


def batches(
    rows: int, batch: int, epochs: int, seed: int, device: torch.device, *, full: bool = False
) -> Iterator[tuple[Tensor, ...]]:
    """Row numbers of the batches of each epoch; ``full`` lets rows that do not fill a batch wait for another epoch."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(rows, generator=generator).to(device)
        yield order[: rows // batch * batch if full else rows].split(batch)


def descend(
    net: nn.Module,
    loss_on: Callable[[Tensor], Tensor],
    epochs: Iterable[tuple[Tensor, ...]],
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
) -> float | None:
    """One step per batch; the last loss, or None as soon as parameters are no longer finite."""
    on_cpu = next(net.parameters()).device.type == "cpu"
    loss = torch.zeros(())
    for epoch in epochs:
        for step, rows in enumerate(epoch, 1):
            optimizer.zero_grad(set_to_none=True)
            loss = loss_on(rows)
            loss.backward()
            optimizer.step()
            schedule.step()
            # Looking at parameters makes a GPU wait, so there it is done once an epoch. On the CPU it is done after
            # every step, because there laplex raises for anchors that are not finite.
            looks = on_cpu or step == len(epoch)
            if looks and not all(bool(parameter.isfinite().all()) for parameter in net.parameters()):
                return None
    return float(loss.detach())


@torch.no_grad()
def accuracy(head: nn.Module, x: Tensor, y: Tensor) -> float:
    """The fraction of the rows x (rows, in) whose largest score is that of their class y (rows,)."""
    right = [(head(part).argmax(1) == labels).sum() for part, labels in zip(x.split(ROWS), y.split(ROWS), strict=True)]
    return int(torch.stack(right).sum()) / len(y)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers from this seed inside, and the caller's own again after it."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def _groups(head: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Weights and biases with their rates and decays."""
    biases = [value for name, value in head.named_parameters() if name.split(".")[-1] == "bias"]
    others = [value for name, value in head.named_parameters() if name.split(".")[-1] != "bias"]
    if recipe.bias_lr is None:
        return [{"params": others + biases, "lr": recipe.lr, "weight_decay": recipe.decay}]
    weights = {"params": others, "lr": recipe.lr, "weight_decay": recipe.decay}
    return [weights, {"params": biases, "lr": recipe.bias_lr, "weight_decay": recipe.bias_decay}]

"""Runs of `projection`: linear heads on frozen features, and projections trained with their head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paper.experiments.images import ROWS, FlatImages
from paper.experiments.training import batches, descend, seeded

# --- Heads on frozen features ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadRecipe:
    """AdamW on all rows at once, for each weight decay."""

    lr: float = 1e-2
    steps: int = 300
    decays: tuple[float, ...] = (1e-3, 1e-1, 1.0)


def frozen_run(data: FlatImages, train: Tensor, val: Tensor, recipe: HeadRecipe, seed: int) -> dict[str, Any]:
    """Accuracies of linear heads on features train (rows, m) and val (rows, m).

    For every weight decay there are two heads: one sees the rows that are not held out, and its accuracy on the others
    chooses the decay; the other one sees all train rows, and its accuracy on the validation images is reported.

    Returns:
        "val" at the decay that was chosen, "held" on held-out rows, "decay" itself, and "best": the largest accuracy on
        the validation images over all decays, which flatters.
    """
    scale = train[data.rest].std(0)
    # A feature that is constant up to rounding must not be blown up; one that is 0 stays 0.
    scale = scale.clamp_min(max(1e-6 * float(scale.max()), torch.finfo(scale.dtype).tiny))
    train, val = train / scale, val / scale
    visible = torch.ones(len(train), 2, device=train.device)
    visible[data.held, 0] = 0
    count = len(recipe.decays)
    weight, bias = fit_heads(
        train, data.train.y, data.classes, visible.repeat_interleave(count, 1), recipe.decays * 2, recipe, seed
    )
    held = _accuracies(train[data.held], data.train.y[data.held], weight, bias)[:count]
    validated = _accuracies(val, data.val.y, weight, bias)[count:]
    choice = max(range(count), key=lambda index: held[index])  # the first of equally good ones: the smallest decay
    return {"val": validated[choice], "held": held[choice], "decay": recipe.decays[choice], "best": max(validated)}


def fit_heads(
    z: Tensor, y: Tensor, classes: int, visible: Tensor, decays: tuple[float, ...], recipe: HeadRecipe, seed: int
) -> tuple[Tensor, Tensor]:
    """H linear heads at once, in one product per step: each as ``torch.optim.AdamW`` would train it alone.

    Args:
        z (rows, m), y (rows,): features and classes.
        classes: the number c of classes.
        visible (rows, H): 1 where head h sees the row, else 0.
        decays: the weight decays of the H heads.
        recipe: its learning rate and steps.
        seed: of the start, which all heads share.

    Returns:
        Weights (H, c, m) and biases (H, c).
    """
    count = len(decays)
    with seeded(seed):
        start = nn.Linear(z.shape[1], classes)
    weight, bias = (
        one.detach().expand(count, *one.shape).to(z.device, copy=True).requires_grad_()
        for one in (start.weight, start.bias)
    )
    share = visible / visible.sum(0)
    targets = y.repeat_interleave(count)
    keep = 1 - recipe.lr * torch.tensor(decays, device=z.device)
    optimizer = torch.optim.Adam([weight, bias], recipe.lr, fused=True)
    for _ in range(recipe.steps):
        optimizer.zero_grad()
        losses = nn.functional.cross_entropy(_scores(z, weight, bias).flatten(0, 1), targets, reduction="none")
        (losses.view(-1, count) * share).sum().backward()
        with torch.no_grad():  # AdamW is Adam after this; the optimizer has one decay for a whole tensor
            weight *= keep[:, None, None]
            bias *= keep[:, None]
        optimizer.step()
    return weight.detach(), bias.detach()


def _scores(z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """z (rows, m) to scores (rows, H, c)."""
    return nn.functional.linear(z, weight.flatten(0, 1), bias.flatten()).view(-1, *bias.shape)


def _accuracies(z: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> list[float]:
    """The accuracy of each head."""
    right = (_scores(z, weight, bias).argmax(2) == y[:, None]).sum(0)
    return [int(one) / len(y) for one in right]


# --- Projections trained with their head -----------------------------------------------------------------------------


@dataclass(frozen=True)
class JointRecipe:
    """AdamW under the OneCycle schedule; the projection has its own rate and no weight decay."""

    lr: float
    epochs: int
    batch: int = 64
    head_lr: float = 3e-3
    head_decay: float = 1e-2


DIVERGED: dict[str, Any] = {"val": 0.0, "loss": None, "diverged": True}


def joint_parameters(projection: int, m: int, classes: int) -> int:
    """The trained numbers: those of the projection, of the batch norm and of the head."""
    return projection + 2 * m + (m + 1) * classes


def joint_run(projection: nn.Module, m: int, data: FlatImages, recipe: JointRecipe, seed: int) -> dict[str, Any]:
    """Train projection, BatchNorm1d and a linear head on all train images; the accuracy after the last epoch.

    A run whose parameters are no longer finite is stopped; it counts as diverged, with an accuracy of 0.
    """
    with seeded(seed):
        rest = nn.Sequential(nn.BatchNorm1d(m), nn.Linear(m, data.classes)).to(data.device)
    net = nn.Sequential(projection, rest)
    rows, batch = len(data.train.y), min(recipe.batch, len(data.train.y))
    optimizer, schedule = _optimizer(projection, rest, recipe, recipe.epochs * (rows // batch))

    def loss_on(rows: Tensor) -> Tensor:
        return nn.functional.cross_entropy(net(data.normalised(data.train.pixels[rows])), data.train.y[rows])

    epochs = batches(rows, batch, recipe.epochs, seed, data.device, full=True)
    loss = descend(net, loss_on, epochs, optimizer, schedule)
    if loss is None:
        return DIVERGED
    return {"val": _validate(net, data), "loss": loss, "diverged": False}


def _optimizer(
    projection: nn.Module, rest: nn.Module, recipe: JointRecipe, steps: int
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.OneCycleLR]:
    groups = [
        {"params": list(projection.parameters()), "weight_decay": 0.0},
        {"params": list(rest.parameters()), "weight_decay": recipe.head_decay},
    ]
    optimizer = torch.optim.AdamW(groups, fused=True)
    rates = [recipe.lr, recipe.head_lr]
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=steps)


@torch.no_grad()
def _validate(net: nn.Module, data: FlatImages) -> float:
    """The accuracy on the validation images."""
    net.eval()
    parts = zip(data.val.pixels.split(ROWS), data.val.y.split(ROWS), strict=True)
    right = [(net(data.normalised(pixels)).argmax(1) == y).sum() for pixels, y in parts]
    return int(torch.stack(right).sum()) / len(data.val.y)

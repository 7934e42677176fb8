"""Parameter groups for optimizers: anchors move along a line, and may want a different learning rate than weights."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from laplex._checks.counts import is_number
from laplex.nn._anchored import Anchored
from laplex.nn._attention import LaplaceAttention

MIXED = ("mix", "weight", "bias")  # parameters of an anchored module that are weights as in any other layer


def parameter_groups(
    model: nn.Module, lr: float, *, anchor_lr: float | None = None, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Two parameter groups for an optimizer: the anchors of all layers that have any, and everything else.

    Anchors, phases and trained tau (that of :class:`LaplaceAttention`, too) are places and scales, not weights. Here
    they get no weight decay, which would draw all places together, and may have a learning rate of their own. Neither
    is necessary: the learning rate and weight decay of the other parameters suit layers that were made with the default
    tau.

    Args:
        model: any module that contains layers such as :class:`LaplexLinear`.
        lr: the learning rate of all parameters except the anchors.
        anchor_lr: the learning rate of the anchors; ``lr`` if not given.
        weight_decay: for all parameters except the anchors.

    Returns:
        The groups "anchors" and, if there are other parameters, "others", for the first argument of an optimizer.

    Example:
        >>> head = laplex.nn.LaplexLinear(384, 150, kernels=4)
        >>> optimizer = torch.optim.AdamW(laplex.nn.parameter_groups(head, lr=1e-3, anchor_lr=2e-3))
    """
    where = "laplex.nn.parameter_groups"
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"{where}: `model` must be a torch.nn.Module, got {type(model).__name__}; pass the model itself"
        )
    rates = {"lr": lr, "anchor_lr": lr if anchor_lr is None else anchor_lr, "weight_decay": weight_decay}
    for name, value in rates.items():
        if not (is_number(value) and 0 <= value < math.inf):
            raise ValueError(f"{where}: `{name}` must be a number that is not negative, got {value!r}")
    anchors = {
        id(parameter): parameter
        for module in model.modules()
        if isinstance(module, Anchored | LaplaceAttention)
        for name, parameter in module.named_parameters(recurse=False)
        if name not in MIXED
    }
    if not anchors:
        raise ValueError(
            f"{where}: `model` must have layers with trained anchors, got none in {type(model).__name__}; pass "
            "model.parameters() to the optimizer"
        )
    others = [parameter for parameter in model.parameters() if id(parameter) not in anchors]
    groups = [{"name": "anchors", "params": [*anchors.values()], "lr": rates["anchor_lr"], "weight_decay": 0.0}]
    if others:
        groups.append({"name": "others", "params": others, "lr": lr, "weight_decay": weight_decay})
    return groups

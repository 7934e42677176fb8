"""Torch's recurrent modules, which keep a list of their weights between calls.

In this list a formed weight would be out of date after a step, and would keep a graph alive, so that the module could
not be copied. torch gives each module with parametrizations its own class; there the list becomes a property.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def read_weights_anew(module: nn.RNNBase) -> None:
    """Make a parametrized module read its weights in every call; without parametrizations it works as in torch."""
    kind: Any = type(module)
    kind._flat_weights = property(_weights, _ignore)
    kind._init_flat_weights = _forget
    kind._update_flat_weights = _nothing_to_update
    vars(module)["_flat_weights"] = [None] * len(module._flat_weights_names)  # hidden by the property; to be replaced
    _forget(module)


def _weights(module: Any) -> list[Tensor]:
    return [getattr(module, name) for name in module._flat_weights_names]


def _ignore(module: Any, weights: list[Tensor]) -> None:
    """The property's setter, which does nothing."""


def _forget(module: Any) -> None:
    """Set references to no weight: if parametrizations are removed, they tell torch that its list is out of date."""
    module._flat_weight_refs = [_no_weight] * len(module._flat_weights_names)


def _no_weight() -> None:
    """Stand for a weak reference whose tensor is gone."""


def _nothing_to_update(module: Any) -> None:
    """Do nothing: before a call there is nothing to update."""

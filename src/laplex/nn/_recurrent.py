"""Recurrent modules of torch, which hold a list of their weights between calls.

In the list a weight that is formed would be out of date after a step, and would keep a graph alive, with which a module
cannot be copied. torch gives a class of its own to a module with parametrizations; there the list becomes a property.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def read_weights_anew(module: nn.RNNBase) -> None:
    """From now on a parametrized module reads its weights in every call; without parametrizations, as torch does."""
    kind: Any = type(module)
    kind._flat_weights = property(_weights, _ignore)
    kind._init_flat_weights = _forget
    kind._update_flat_weights = _nothing_to_update
    vars(module)["_flat_weights"] = [None] * len(module._flat_weights_names)  # behind the property, to be replaced
    _forget(module)


def _weights(module: Any) -> list[Tensor]:
    return [getattr(module, name) for name in module._flat_weights_names]


def _ignore(module: Any, weights: list[Tensor]) -> None:
    """The property's setter."""


def _forget(module: Any) -> None:
    """References to no weight: without parametrizations torch sees by them that its list is out of date."""
    module._flat_weight_refs = [_no_weight] * len(module._flat_weights_names)


def _no_weight() -> None:
    """A reference whose tensor is gone."""


def _nothing_to_update(module: Any) -> None:
    """Before a call there is nothing to bring up to date."""

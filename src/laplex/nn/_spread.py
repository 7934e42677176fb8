"""A layer whose input features are spread over processes."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from laplex._eager import outside_graphs
from laplex.distributed._agreement import agree, digest, plain_arguments, ranks_in, resolved, trained
from laplex.distributed._moves import replicated, total
from laplex.distributed._ranks import Ranks
from laplex.nn._linear import LaplexLinear

SHARDED = ("b", "psi")  # parameters that belong to features; all others are on all ranks


class SpreadLinear(nn.Module):
    """A :class:`LaplexLinear` with its features spread over the ranks of a group: each has a part of x, b and psi.

    The other parameters are the same on all ranks. Every rank multiplies its own features, and one all-reduce adds the
    results; no anchor moves. It is for many features and few results: a head over 150 000 features, for instance.

    Gradients are those of the mean of all ranks' losses, as with DistributedDataParallel and ``fully_shard`` for the
    rest of a model: a, mix, bias, phi and tau get the same gradients on every rank, so that optimizers stay in step. Do
    not wrap this layer itself in these: they would average features of different ranks.

    All ranks must call it together, with the same number of rows, and if one calls backward, all must. It runs
    eagerly.

    Args:
        layer: the whole layer, the same on all ranks. It is copied.
        group: a torch.distributed.ProcessGroup; None for all processes.

    Attributes:
        features: the slice of the whole layer's features that this rank has.
        part: the layer for these features.

    Example (in a script started by torchrun):
        head = laplex.nn.SpreadLinear(laplex.nn.LaplexLinear(150_000, 200, kernels=8))
        y = head(x[:, head.features])
    """

    __module__ = "laplex.nn"
    features: slice
    part: LaplexLinear
    _ranks: Ranks

    def __init__(self, layer: LaplexLinear, *, group: Any = None) -> None:
        super().__init__()
        where = "laplex.nn.SpreadLinear"
        ranks = ranks_in(where, group)
        agree(where, ranks, lambda: _terms(where, layer))
        size = -(-layer.in_features // ranks.size)  # as torch.chunk and DTensors cut
        first = min(size * ranks.rank, layer.in_features)
        self.features = slice(first, min(first + size, layer.in_features))
        self.part = _cut(layer, self.features)
        self._ranks = ranks

    @outside_graphs
    def forward(self, x: Tensor) -> Tensor:
        """The results y (..., out_features), the same on all ranks, for x (..., features of this rank)."""
        where, x, parts = "laplex.nn.SpreadLinear", resolved(x), []

        def compute() -> dict[str, Any]:
            terms = self._check(where, x)
            parts.append(self._part_of(x))
            return terms

        agree(where, self._ranks, compute)  # on one rank the layer may refuse its parameters, or memory run out
        part = parts[0]
        half = part.dtype.itemsize < 4  # so that results are rounded once, not by every addition
        return total(part.float() if half else part, self._ranks).to(part.dtype)

    def _part_of(self, x: Tensor) -> Tensor:
        """The contribution of this rank to the results."""
        ranks = self._ranks
        parameters: dict[str, Tensor] = dict(self.part.named_parameters())
        for name, value in parameters.items():
            if value.requires_grad:  # frozen anchors stay the same tensors, whose order the layer has
                averaged = _averaged(value, ranks)
                parameters[name] = averaged if name in SHARDED else replicated(averaged, ranks)
        if "bias" in parameters:  # the bias counts once in the sum
            parameters["bias"] = parameters["bias"] * float(ranks.rank == 0)
        part: Tensor = functional_call(self.part, parameters, (_averaged(x, ranks),))
        return part

    def _check(self, where: str, x: Any) -> dict[str, Any]:
        size = self.features.stop - self.features.start
        if not isinstance(x, Tensor) or x.dim() == 0 or x.shape[-1] != size:
            got = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(
                f"{where}: `x` must be a tensor of size {size} in its last dimension, features {self.features.start} "
                f"to {self.features.stop} of the whole, got {got}; use x[..., layer.features]"
            )
        plain_arguments(where, [x])
        arguments = {"x": x, **dict(self.part.named_parameters())}
        return {
            "the shape of `x` but for its last dimension": tuple(x.shape[:-1]),
            "the dtype of `x`": x.dtype,
            "the set of arguments that require gradients": trained(arguments),
        }

    def __deepcopy__(self, memo: dict[int, Any]) -> SpreadLinear:
        """A copy of the layer on the same group, which itself cannot be copied."""
        memo[id(self._ranks)] = self._ranks
        other = self.__new__(type(self))
        memo[id(self)] = other
        other.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return other

    def extra_repr(self) -> str:
        return f"features {self.features.start} to {self.features.stop}, rank {self._ranks.rank} of {self._ranks.size}"


def _averaged(value: Tensor, ranks: Ranks) -> Tensor:
    """The value; its gradient is divided by the number of ranks, which turns a sum of losses into their mean.

    This is done here, not at the result: a gradient that is differentiated again reaches parameters in other ways, too.
    """
    view = value.view_as(value)
    if view.requires_grad:
        view.register_hook(lambda g: g / ranks.size)
    return view


def _terms(where: str, layer: Any) -> dict[str, Any]:
    if not isinstance(layer, LaplexLinear):
        raise TypeError(f"{where}: `layer` must be a laplex.nn.LaplexLinear, got {type(layer).__name__}")
    state = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
    if any(value.is_meta for value in state.values()):
        raise ValueError(f"{where}: `layer` must have its values, got a layer on the meta device; use to_empty first")
    return {
        "the shapes of `layer`": {name: tuple(value.shape) for name, value in state.items()},
        "the values of `layer` (a digest)": {name: digest(value) for name, value in state.items()},
    }


def _cut(layer: LaplexLinear, features: slice) -> LaplexLinear:
    """A copy of the layer with some of its features. Gradient factors stay those of the whole layer."""
    part = copy.deepcopy(layer)
    part.in_features = features.stop - features.start
    for name in SHARDED:
        uncut = getattr(layer, name)
        if uncut is not None:
            setattr(part, name, nn.Parameter(uncut.detach()[:, features].clone(), requires_grad=uncut.requires_grad))
    return part

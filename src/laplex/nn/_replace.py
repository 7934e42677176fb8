"""Replacing the dense layers of a model by layers of kernels."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import ParametrizationList

from laplex._checks.counts import integer
from laplex._checks.renamed import renamed
from laplex.nn._anchored import Anchored
from laplex.nn._encoders import leave_nested_tensors
from laplex.nn._linear import LaplexLinear

if TYPE_CHECKING:
    from laplex._progress import Progress

MOST_UNEXPLAINED = 0.5  # of a weight's energy; above this, a fit has missed most of the layer
MOST_NAMES = 8  # layer names in a line
SHARED = "it shares parameters with another module"
HEADER = ("layer", "in -> out", "parameters", "after", "saved", "residual", "of low rank")


class Replacement(NamedTuple):
    """One layer of a model."""

    name: str  # as in ``model.named_modules()``
    in_features: int
    out_features: int
    before: int  # parameters
    after: int
    residual: float | None  # the fraction of the weight's energy that a fit left; None without a fit
    svd_residual: float | None = None  # the fraction that a low-rank matrix with as many parameters would leave


class Remainder(NamedTuple):
    """A matrix of a model that was not replaced."""

    name: str  # of the layer, or of the parameter if it does not belong to an nn.Linear
    parameters: int
    why: str


class Candidate(NamedTuple):
    """A layer that may be replaced."""

    names: list[str]  # all its names
    layer: nn.Module
    dense: nn.Linear  # the layer, or one with its parameters


class Replacements(tuple[Replacement, ...]):
    """The layers that were replaced, or would be; prints as a table of the savings, per layer and for the model.

    ``left`` has the matrices that stay, and ``parameters`` is the number of parameters that the model had.
    """

    left: tuple[Remainder, ...]
    parameters: int

    def __new__(cls, rows: Iterable[Replacement] = (), left: Iterable[Remainder] = (), parameters: int = 0) -> Self:
        table = super().__new__(cls, rows)
        table.left, table.parameters = tuple(left), parameters
        return table

    def __str__(self) -> str:
        before, after = sum(row.before for row in self), sum(row.after for row in self)
        rows = [HEADER, *map(_cells, self), ("all", "", *_saving(before, after), "", "")]
        if self.parameters:
            rows.append(("model", "", *_saving(self.parameters, self.parameters - before + after), "", ""))
        columns = 7 if any(row.residual is not None for row in self) else 5
        widths = [max(len(row[column]) for row in rows) for column in range(columns)]
        lines = [
            "  ".join(
                cell.rjust(width) if i > 1 else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths))
            )
            for row in rows
        ]
        return "\n".join(line.rstrip() for line in [*lines, *self._reasons()])

    def _reasons(self) -> list[str]:
        """A line for each reason why matrices were left alone."""
        groups: dict[str, list[Remainder]] = {}
        for matrix in self.left:
            groups.setdefault(matrix.why, []).append(matrix)
        return [
            f"left alone: {_listed([matrix.name for matrix in group])}, "
            f"{sum(matrix.parameters for matrix in group):,} parameters: {why}"
            for why, group in groups.items()
        ]


def _cells(row: Replacement) -> tuple[str, ...]:
    shares = ("" if share is None else f"{share:.3f}" for share in (row.residual, row.svd_residual))
    return row.name, f"{row.in_features} -> {row.out_features}", *_saving(row.before, row.after), *shares


def _saving(before: int, after: int) -> tuple[str, str, str]:
    return f"{before:,}", f"{after:,}", f"{1 - after / before:.1%}" if before else ""


def _listed(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


@renamed("laplex.nn.replace_linear", rank="kernels")
def replace_linear(
    model: nn.Module,
    kernels: int = 4,
    *,
    include: str | None = None,
    exclude: str | None = None,
    phase: bool = False,
    tau: float | None = None,
    train_tau: bool = False,
    scale_gradients: bool = True,
    fit: bool = False,
    sweeps: int = 80,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Replacements:
    """Replace ``nn.Linear`` layers of a model by :class:`LaplexLinear`, in place.

    A layer that appears twice in the model is one row of the table, and is replaced by one layer in both places. The
    ``Conv1D`` of Hugging Face's transformers, an nn.Linear with its weight transposed, is replaced as well. Layers are
    left alone if they would have no fewer parameters, if they share a weight or bias with another module (tied
    embeddings), or if they are of a subclass of nn.Linear, whose additions would be lost. The table says what is left
    and why, including matrices that are not layers, such as the ``in_proj_weight`` of attention; for those there is
    :func:`parametrize`. Hooks of the old layers are dropped. A warning names layers that a fit has mostly missed.

    Args:
        model: any module. It must not be an nn.Linear itself, which would have no parent to be replaced in.
        kernels: how many kernels a layer gets.
        include, exclude: regular expressions, matched anywhere in the layers' names: "0" is in "2.0" and "10", too, and
            "^0$" only in "0". None includes all, excludes none.
        phase, tau, train_tau, scale_gradients: as for :class:`LaplexLinear`. Not with a fit.
        fit: whether the new layers are fitted to the old weights (:meth:`LaplexLinear.from_linear`); otherwise they
            start afresh, with the old bias.
        sweeps: the number of sweeps of each fit.
        dry_run: whether to make only the table.
        progress: called during each fit with the number of sweeps done and the total; None shows a bar.

    Returns:
        Replacements: one row per layer with the number of parameters before and after; print it.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
        >>> print(laplex.nn.replace_linear(model, kernels=4, include="^0$", dry_run=True))
        layer  in -> out  parameters  after  saved
        0      64 -> 128       8,320    900  89.2%
        all                    8,320    900  89.2%
        model                  9,610  2,190  77.2%
        left alone: 2, 1,290 parameters: `include` does not match
    """
    where = "laplex.nn.replace_linear"
    integer(where, "kernels", kernels)
    options = {"phase": phase, "tau": tau, "train_tau": train_tau, "scale_gradients": scale_gradients}
    defaults = inspect.signature(LaplexLinear).parameters
    changed = [name for name, value in options.items() if value != defaults[name].default]
    if fit and changed:
        raise ValueError(f"{where}: with fit=True `{', '.join(changed)}` cannot be set; leave it out, or set fit=False")
    chosen, left = _chosen(where, model, (include, exclude), lambda old: _count(_layer_like(old, kernels, options)))
    parameters, layers, rows = _count(model), [], []
    for names, _, old in chosen:
        if dry_run:
            new = _layer_like(old, kernels, options)
        elif fit:
            new = LaplexLinear.from_linear(old, kernels, sweeps=sweeps, progress=progress)
        else:
            new = _fresh(old, kernels, options)
        layers.append(new)
        sizes = old.in_features, old.out_features, _count(old), _count(new)
        rows.append(Replacement(names[0], *sizes, new.fit_residual, new.svd_residual))
    if not dry_run:  # all at the end, so that an error leaves the model as it was
        for (names, layer, old), new in zip(chosen, layers, strict=True):
            _freeze_as(new.train(layer.training), old)
            for name in names:
                model.set_submodule(name, new)
        leave_nested_tensors(model, LaplexLinear)
    _warn_of_poor_fits(where, rows)
    return Replacements(rows, left, parameters)


def _warn_of_poor_fits(where: str, rows: list[Replacement]) -> None:
    poor = [row for row in rows if row.residual is not None and row.residual > MOST_UNEXPLAINED]
    if poor:
        names = _listed([f"{row.name} ({row.residual:.0%})" for row in poor])
        warnings.warn(
            f"{where}: fits left most of the energy of {len(poor)} of {len(rows)} layers unexplained: {names}; train "
            "the model before you rely on it, or use more kernels, or `exclude` these layers",
            UserWarning,
            stacklevel=3,
        )


def _chosen(
    where: str, model: object, patterns: tuple[str | None, str | None], size_after: Callable[[nn.Linear], int]
) -> tuple[list[Candidate], list[Remainder]]:
    """The layers to be replaced, and the matrices that are left."""
    if not isinstance(model, nn.Module) or _as_linear(model) is not None or isinstance(model, nn.Linear):
        raise TypeError(
            f"{where}: `model` must be a module that contains layers, got {type(model).__name__}; "
            "for a single layer use LaplexLinear.from_linear"
        )
    include, exclude = (_pattern(where, *pair) for pair in zip(("include", "exclude"), patterns, strict=True))
    shared, candidates = _shared(model), _candidates(model)
    chosen, left = [], []
    for candidate in candidates:
        why = _reason_to_leave(candidate, include, exclude, shared)
        if why is None and size_after(candidate.dense) >= _count(candidate.layer):
            why = "it would have no fewer parameters; use fewer `kernels`"
        if why is None:
            chosen.append(candidate)
        else:
            left.append(Remainder(candidate.names[0], _count(candidate.layer), why))
    left += _other_matrices(model, candidates, shared)
    if not chosen:
        reasons = "; ".join(f"{matrix.name}: {matrix.why}" for matrix in left[:MOST_NAMES])
        raise ValueError(f"{where}: no layer to replace: {reasons or 'there is no nn.Linear in the model'}")
    return chosen, left


def _reason_to_leave(
    candidate: Candidate, include: re.Pattern[str] | None, exclude: re.Pattern[str] | None, shared: set[int]
) -> str | None:
    """Why a layer may not be replaced, whatever it would be replaced by; None if it may."""
    if include is not None and not any(include.search(name) for name in candidate.names):
        return "`include` does not match"
    if exclude is not None and any(exclude.search(name) for name in candidate.names):  # one of its names is enough
        return "`exclude` matches"
    if candidate.layer._forward_pre_hooks:
        return "it has forward pre-hooks, such as those of weight_norm, spectral_norm and pruning; remove them first"
    return SHARED if any(id(parameter) in shared for parameter in candidate.layer.parameters()) else None


def _candidates(model: nn.Module) -> list[Candidate]:
    layers: dict[nn.Module, Candidate] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if module in layers:
            layers[module].names.append(name)
        elif (dense := _as_linear(module)) is not None:
            layers[module] = Candidate([name], module, dense)
    return [*layers.values()]


def _as_linear(module: nn.Module) -> nn.Linear | None:
    """The module as an nn.Linear, if it computes what one does and nothing else.

    Besides nn.Linear itself that is ``Conv1D`` of transformers, which GPT-2 is made of: x weight + bias, with a weight
    (in, nf). It is recognized by its name and shapes, so that nothing has to be imported.
    """
    if type(module) is nn.Linear:
        return module
    if type(module).__name__ != "Conv1D" or module.state_dict().keys() != {"weight", "bias"}:
        return None
    weight, bias = module.get_parameter("weight"), module.get_parameter("bias")
    if weight.dim() != 2 or tuple(bias.shape) != (getattr(module, "nf", None),) or weight.shape[1] != len(bias):
        return None
    dense = nn.Linear(weight.shape[0], weight.shape[1], device="meta")
    dense.weight = nn.Parameter(weight.detach().T, weight.requires_grad)
    dense.bias = nn.Parameter(bias.detach(), bias.requires_grad)
    return dense


def _other_matrices(model: nn.Module, candidates: list[Candidate], shared: set[int]) -> list[Remainder]:
    """Parameters with two or more dimensions that do not belong to a layer that may be replaced."""
    named = {id(parameter) for candidate in candidates for parameter in candidate.layer.parameters()}
    matrices: dict[int, Remainder] = {}
    for path, module in model.named_modules():
        if isinstance(module, Anchored):
            continue
        if isinstance(module, nn.LazyLinear) and is_lazy(module.weight):
            matrices[id(module.weight)] = Remainder(path, 0, "it has no size yet; call the model once first")
        why = _belongs(module)
        for name, parameter in module.named_parameters(path, recurse=False):
            if not is_lazy(parameter) and parameter.dim() >= 2 and id(parameter) not in named:
                reason = SHARED if id(parameter) in shared else why
                matrices.setdefault(id(parameter), Remainder(name, parameter.numel(), reason))
    return [*matrices.values()]


def _belongs(module: nn.Module) -> str:
    """Why the parameters of this module are left alone."""
    if isinstance(module, ParametrizationList):
        return (
            "it is parametrized already, as by weight_norm or spectral_norm; torch.nn.utils.parametrize."
            "remove_parametrizations makes it an nn.Linear's weight again"
        )
    kind = "a subclass of nn.Linear" if isinstance(module, nn.Linear) else "not an nn.Linear"
    return f"it belongs to {type(module).__name__}, which is {kind}; use laplex.nn.parametrize"


def _pattern(where: str, name: str, value: str | None) -> re.Pattern[str] | None:
    try:
        return None if value is None else re.compile(value)
    except TypeError:
        raise TypeError(f"{where}: `{name}` must be a regular expression, got {value!r}; use a string") from None
    except re.error as error:
        raise ValueError(f"{where}: `{name}` must be a regular expression, got {value!r}: {error}") from None


def _shared(model: nn.Module) -> set[int]:
    """Parameters that more than one module owns."""
    owners: dict[int, set[int]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), set()).add(id(module))
    return {parameter for parameter, modules in owners.items() if len(modules) > 1}


def _layer_like(old: nn.Linear, kernels: int, options: dict[str, Any], device: Any = "meta") -> LaplexLinear:
    """A new layer of the old one's sizes; on the meta device it takes no memory, and is used to count parameters."""
    sizes = old.in_features, old.out_features, old.bias is not None
    return LaplexLinear(*sizes, kernels=kernels, device=device, dtype=old.weight.dtype, **options)


def _fresh(old: nn.Linear, kernels: int, options: dict[str, Any]) -> LaplexLinear:
    """A new layer with the old bias."""
    new = _layer_like(old, kernels, options, old.weight.device)
    if new.bias is not None:
        new.bias.data.copy_(old.bias.detach())
    return new


def _freeze_as(new: LaplexLinear, old: nn.Linear) -> None:
    """Freeze what was frozen in the old layer."""
    new.requires_grad_(old.weight.requires_grad)
    if new.bias is not None:
        new.bias.requires_grad_(old.bias.requires_grad)


def _count(layer: nn.Module) -> int:
    return sum(parameter.numel() for parameter in layer.parameters() if not is_lazy(parameter))

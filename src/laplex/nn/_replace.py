"""Swapping the dense layers of a model for layers of kernels."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from torch import nn

from laplex._checks.counts import whole
from laplex.nn._encoders import leave_nested_tensors
from laplex.nn._linear import LaplexLinear

if TYPE_CHECKING:
    from laplex._progress import Progress


OPTIONS = ("phase", "tau", "train_tau")
MOST_UNEXPLAINED = 0.5  # of a weight's energy; above, a fit has missed most of the layer
MOST_NAMES = 8  # of layers, in a line


class Replacement(NamedTuple):
    """One layer of a model."""

    name: str  # as in ``model.named_modules()``
    in_features: int
    out_features: int
    before: int  # parameters
    after: int
    residual: float | None  # the share of the weight's energy that a fit left; None without a fit
    svd_residual: float | None = None  # the share that low rank would leave, with as many parameters


class Left(NamedTuple):
    """A matrix of a model that was not replaced."""

    name: str  # of the layer, or of the parameter if it is none of an nn.Linear
    parameters: int
    why: str


class Replacements(tuple[Replacement, ...]):
    """The layers that were replaced, or would be; prints as a table. ``left`` are the matrices that stay."""

    left: tuple[Left, ...]

    def __new__(cls, rows: Iterable[Replacement] = (), left: Iterable[Left] = ()) -> Self:
        made = super().__new__(cls, rows)
        made.left = tuple(left)
        return made

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("layer", "in -> out", "parameters", "after", "residual", "of low rank")]
        rows += [_cells(each) for each in self]
        before, after = sum(each.before for each in self), sum(each.after for each in self)
        rows.append(("all", "", f"{before:,}", f"{after:,}", "", ""))
        columns = 6 if any(each.residual is not None for each in self) else 5
        widths = [max(len(row[place]) for row in rows) for place in range(columns)]
        lines = [
            "  ".join(cell.ljust(w) if place < 2 else cell.rjust(w) for place, (cell, w) in enumerate(zip(row, widths)))
            for row in rows
        ]
        return "\n".join(line.rstrip() for line in [*lines, *self._not_replaced()])

    def _not_replaced(self) -> list[str]:
        """A line for each reason."""
        reasons: dict[str, list[Left]] = {}
        for each in self.left:
            reasons.setdefault(each.why, []).append(each)
        lines = []
        for why, same in reasons.items():
            names, count = _named([each.name for each in same]), sum(each.parameters for each in same)
            lines.append(f"left alone: {names}, {count:,} parameters: {why}")
        return lines


def _cells(each: Replacement) -> tuple[str, ...]:
    shares = ("" if share is None else f"{share:.3f}" for share in (each.residual, each.svd_residual))
    return each.name, f"{each.in_features} -> {each.out_features}", f"{each.before:,}", f"{each.after:,}", *shares


def _named(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def replace_linear(
    model: nn.Module,
    kernels: int = 4,
    *,
    include: str | None = None,
    exclude: str | None = None,
    fit: bool = False,
    sweeps: int = 80,
    dry_run: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Replacements:
    """Replace ``nn.Linear`` layers of a model by :class:`LaplexLinear`, in place.

    A layer that appears twice in the model is one row of the table, and is replaced by one layer in both places. Left
    alone are layers that would have no fewer parameters, layers that share a weight or bias with another module (tied
    embeddings), and subclasses of nn.Linear, whose additions would be lost. The table says what is left and why, also
    of matrices that are no layers, such as the ``in_proj_weight`` of attention. Hooks of the old layers are dropped. A
    warning names the layers of which a fit missed most.

    Args:
        model: any module. It must not be an nn.Linear itself: that has no parent to be replaced in.
        kernels: how many kernels a layer gets.
        include, exclude: regular expressions, searched for in the layers' names; None includes all, excludes none.
        fit: whether the new layers are fitted to the old weights (:meth:`LaplexLinear.from_linear`); else they start
            anew, with the old bias.
        sweeps: of each fit.
        dry_run: whether only the table is made.
        progress: told about each fit; None shows a bar.
        options: for :class:`LaplexLinear`: ``phase``, ``tau``, ``train_tau``. Not with a fit.

    Returns:
        Replacements: one row a layer with the numbers of parameters before and after; print it.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
        >>> print(laplex.nn.replace_linear(model, kernels=4, include="0", dry_run=True))
        layer  in -> out  parameters  after  residual
        0      64 -> 128       8,320    900
        all                    8,320    900
        left alone: 2, 1,290 parameters: `include` does not match
    """
    where = "laplex.nn.replace_linear"
    whole(where, "kernels", kernels)
    if fit and options:
        raise ValueError(f"{where}: with fit=True layers have no {', '.join(options)}; leave it out, or set fit=False")
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise TypeError(
            f"{where}: `options` must be among {', '.join(OPTIONS)}, got {', '.join(unknown)}; leave it out"
        )
    chosen, left = _chosen(where, model, (include, exclude), lambda old: _count(_shape_of(old, kernels, options)))
    made: list[LaplexLinear] = []
    rows = []
    for names, old in chosen:
        if dry_run:
            new = _shape_of(old, kernels, options)
        else:
            new = _fitted(old, kernels, sweeps, progress) if fit else _anew(old, kernels, options)
        made.append(new)
        sizes = old.in_features, old.out_features, _count(old), _count(new)
        rows.append(Replacement(names[0], *sizes, new.fit_residual, new.svd_residual))
    if not dry_run:  # all at the end: an error leaves the model as it was
        for (names, _), new in zip(chosen, made, strict=True):
            for name in names:
                model.set_submodule(name, new)
        leave_nested_tensors(model, LaplexLinear)
    _warn_of_poor_fits(where, rows)
    return Replacements(rows, left)


def _warn_of_poor_fits(where: str, rows: list[Replacement]) -> None:
    poor = [row for row in rows if row.residual is not None and row.residual > MOST_UNEXPLAINED]
    if poor:
        named = _named([f"{row.name} ({row.residual:.0%})" for row in poor])
        warnings.warn(
            f"{where}: fits left most of the energy of {len(poor)} of {len(rows)} layers unexplained: {named}; train "
            "the model before you rely on it, or use more kernels, or `exclude` these layers",
            UserWarning,
            stacklevel=3,
        )


def _chosen(
    where: str, model: object, patterns: tuple[str | None, str | None], size_after: Callable[[nn.Linear], int]
) -> tuple[list[tuple[list[str], nn.Linear]], list[Left]]:
    """The layers to be replaced, each with all of its names, and what is left."""
    if not isinstance(model, nn.Module) or isinstance(model, nn.Linear):
        raise TypeError(
            f"{where}: `model` must be a module that contains layers, got {type(model).__name__}; "
            "for a single layer use LaplexLinear.from_linear"
        )
    wanted, unwanted = (_pattern(where, *each) for each in zip(("include", "exclude"), patterns, strict=True))
    named: dict[nn.Linear, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if type(module) is nn.Linear:
            named.setdefault(module, []).append(name)
    tied, free, left = _shared(model), [], []
    for layer, names in named.items():  # a layer that is excluded under one of its names stays
        after = size_after(layer)
        if wanted is not None and not any(wanted.search(name) for name in names):
            left.append(Left(names[0], _count(layer), "`include` does not match"))
        elif unwanted is not None and any(unwanted.search(name) for name in names):
            left.append(Left(names[0], _count(layer), "`exclude` matches"))
        elif any(id(one) in tied for one in layer.parameters()):
            left.append(Left(names[0], _count(layer), "it shares parameters with another module"))
        elif after >= _count(layer):
            left.append(Left(names[0], _count(layer), "it would have no fewer parameters; use fewer `kernels`"))
        else:
            free.append((names, layer))
    if not free:
        whys = "; ".join(f"{each.name}: {each.why}" for each in left[:8]) or "there is no nn.Linear in the model"
        raise ValueError(f"{where}: no layer to replace: {whys}")
    return free, left + _other_matrices(model)


def _other_matrices(model: nn.Module) -> list[Left]:
    """Parameters of two and more dimensions that belong to no nn.Linear."""
    found: dict[int, Left] = {}
    for path, module in model.named_modules():
        if type(module) is nn.Linear or isinstance(module, LaplexLinear):
            continue
        for name, parameter in module.named_parameters(path, recurse=False):
            if parameter.dim() >= 2:
                kind = "a subclass" if isinstance(module, nn.Linear) else "no nn.Linear"
                why = f"it belongs to {type(module).__name__}, which is {kind}"
                found.setdefault(id(parameter), Left(name, parameter.numel(), why))
    return [*found.values()]


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


def _fitted(old: nn.Linear, kernels: int, sweeps: int, progress: Progress | None) -> LaplexLinear:
    return _as_before(old, LaplexLinear.from_linear(old, kernels, sweeps=sweeps, progress=progress))


def _anew(old: nn.Linear, kernels: int, options: dict[str, Any]) -> LaplexLinear:
    device: Any = old.weight.device
    new = LaplexLinear(
        old.in_features,
        old.out_features,
        old.bias is not None,
        kernels=kernels,
        device=device,
        dtype=old.weight.dtype,
        **options,
    )
    if old.bias is not None and new.bias is not None:
        new.bias.data.copy_(old.bias.detach())
    return _as_before(old, new)


def _as_before(old: nn.Linear, new: LaplexLinear) -> LaplexLinear:
    """In the same mode, and frozen where the old layer was."""
    new.train(old.training).requires_grad_(old.weight.requires_grad)
    if old.bias is not None and new.bias is not None:
        new.bias.requires_grad_(old.bias.requires_grad)
    return new


def _shape_of(old: nn.Linear, kernels: int, options: dict[str, Any]) -> LaplexLinear:
    """The new layer without memory, to be counted."""
    return LaplexLinear(
        old.in_features, old.out_features, old.bias is not None, kernels=kernels, device="meta", **options
    )


def _count(layer: nn.Module) -> int:
    return sum(parameter.numel() for parameter in layer.parameters())

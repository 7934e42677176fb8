"""Swapping the dense layers of a model for layers of kernels."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from laplex._checks.counts import whole
from laplex.nn._linear import LaplexLinear

if TYPE_CHECKING:
    from laplex._progress import Told


class Replacement(NamedTuple):
    """One layer of a model."""

    name: str  # as in ``model.named_modules()``
    in_features: int
    out_features: int
    before: int  # parameters
    after: int
    residual: float | None  # the share of the weight's energy that a fit left; None without a fit


class Replacements(tuple[Replacement, ...]):
    """The layers that were replaced, or would be; prints as a table."""

    __slots__ = ()

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("layer", "in -> out", "parameters", "after", "residual")]
        rows += [_cells(each) for each in self]
        before, after = sum(each.before for each in self), sum(each.after for each in self)
        rows.append(("all", "", f"{before:,}", f"{after:,}", ""))
        widths = [max(len(row[place]) for row in rows) for place in range(5)]
        lines = [
            "  ".join(cell.ljust(w) if place < 2 else cell.rjust(w) for place, (cell, w) in enumerate(zip(row, widths)))
            for row in rows
        ]
        return "\n".join(line.rstrip() for line in lines)


def _cells(each: Replacement) -> tuple[str, ...]:
    residual = "" if each.residual is None else f"{each.residual:.3f}"
    return each.name, f"{each.in_features} -> {each.out_features}", f"{each.before:,}", f"{each.after:,}", residual


def replace_linear(
    model: nn.Module,
    rank: int = 4,
    *,
    include: str | None = None,
    exclude: str | None = None,
    fit: bool = False,
    sweeps: int = 60,
    dry_run: bool = False,
    progress: Told | None = None,
    **options: Any,
) -> Replacements:
    """Replace ``nn.Linear`` layers of a model by :class:`LaplexLinear`, in place.

    A layer that appears twice in the model is replaced by one layer in both places. Layers whose weight is shared with
    another module (tied embeddings) are left alone, and so are subclasses of nn.Linear: what they add would be lost.

    Args:
        model: any module. It must not be an nn.Linear itself: that has no parent to be replaced in.
        rank: how many kernels a layer gets.
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
        >>> print(laplex.nn.replace_linear(model, rank=4, include="0", dry_run=True))
        layer  in -> out  parameters  after  residual
        0      64 -> 128       8,320    900
        all                    8,320    900
    """
    where = "laplex.nn.replace_linear"
    whole(where, "rank", rank)
    if fit and options:
        raise ValueError(f"{where}: with fit=True layers have no {', '.join(options)}; leave it out, or set fit=False")
    found = _chosen(where, model, include, exclude)
    made: dict[int, LaplexLinear] = {}
    rows = []
    for name, old in found:
        if id(old) not in made and not dry_run:
            made[id(old)] = _fitted(old, rank, sweeps, progress) if fit else _anew(old, rank, options)
        new = made.get(id(old))
        after = _count(new) if new is not None else _count(_shape_of(old, rank, options))
        residual = None if new is None else new.fit_residual
        rows.append(Replacement(name, old.in_features, old.out_features, _count(old), after, residual))
    for name, old in found:
        if not dry_run:
            model.set_submodule(name, made[id(old)])
    return Replacements(rows)


def _chosen(where: str, model: object, include: str | None, exclude: str | None) -> list[tuple[str, nn.Linear]]:
    if not isinstance(model, nn.Module) or isinstance(model, nn.Linear):
        raise TypeError(
            f"{where}: `model` must be a module that contains layers, got {type(model).__name__}; "
            "for a single layer use LaplexLinear.from_linear"
        )
    patterns = [_pattern(where, name, value) for name, value in (("include", include), ("exclude", exclude))]
    named = [(n, m) for n, m in model.named_modules(remove_duplicate=False) if type(m) is nn.Linear]
    tied = _shared(model)
    kept = [
        (name, layer)
        for name, layer in named
        if (patterns[0] is None or patterns[0].search(name)) and not (patterns[1] and patterns[1].search(name))
    ]
    free = [(name, layer) for name, layer in kept if id(layer.weight) not in tied]
    if not free:
        why = "its weight is shared with another module" if kept else "none matches `include` and `exclude`"
        names = ", ".join(name for name, _ in named[:8]) or "none"
        raise ValueError(f"{where}: no layer to replace: {why}; nn.Linear layers of the model: {names}")
    return free


def _pattern(where: str, name: str, value: str | None) -> re.Pattern[str] | None:
    try:
        return None if value is None else re.compile(value)
    except re.error as error:
        raise ValueError(f"{where}: `{name}` must be a regular expression, got {value!r}: {error}") from None


def _shared(model: nn.Module) -> set[int]:
    """Weights that more than one module owns."""
    owners: dict[int, set[int]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), set()).add(id(module))
    return {weight for weight, modules in owners.items() if len(modules) > 1}


def _fitted(old: nn.Linear, rank: int, sweeps: int, progress: Told | None) -> LaplexLinear:
    return _as_before(old, LaplexLinear.from_linear(old, rank, sweeps=sweeps, progress=progress))


def _anew(old: nn.Linear, rank: int, options: dict[str, Any]) -> LaplexLinear:
    device: Any = old.weight.device
    new = LaplexLinear(
        old.in_features,
        old.out_features,
        old.bias is not None,
        rank=rank,
        device=device,
        dtype=old.weight.dtype,
        **options,
    )
    if old.bias is not None and new.bias is not None:
        new.bias.data.copy_(old.bias.detach())
    return _as_before(old, new)


def _as_before(old: nn.Linear, new: LaplexLinear) -> LaplexLinear:
    """In the same mode, and frozen where the old layer was."""
    return new.train(old.training).requires_grad_(old.weight.requires_grad)


def _shape_of(old: nn.Linear, rank: int, options: dict[str, Any]) -> LaplexLinear:
    """The new layer without memory, to be counted."""
    return LaplexLinear(old.in_features, old.out_features, old.bias is not None, rank=rank, device="meta", **options)


def _count(layer: nn.Module) -> int:
    return sum(parameter.numel() for parameter in layer.parameters())

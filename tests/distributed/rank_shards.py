"""Shards of a tensor on ranks, in several layouts, and products of shards compared with the dense definition."""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from helpers import error
from laplex import distributed, reference

WITH_COLUMNS = ("x", "b", "psi")  # cut along the columns; a and phi along the rows; tau and weight by nobody


@dataclass(frozen=True)
class Layout:
    """Which part of a side each rank holds: places (size,) in the order of ranks, and the ends of their parts."""

    places: torch.Tensor
    ends: list

    def mine(self, values, rank):
        first = self.ends[rank - 1] if rank else 0
        return values[..., self.places[first : self.ends[rank]]].clone()


def layout(kind, anchors, ranks):
    """`even` parts, `uneven` ones of which some are empty, all on the last rank (`one`), or `intervals` of the line."""
    size = anchors.shape[-1]
    places = torch.randperm(size, generator=torch.Generator().manual_seed(size))
    fractions = [(rank + 1) / ranks for rank in range(ranks)]
    if kind == "uneven":
        fractions = [0.0, 0.7, 0.7, 1.0][-ranks:]
    if kind == "one":
        fractions = [0.0] * (ranks - 1) + [1.0]
    if kind == "intervals":
        places = anchors.reshape(-1, size)[0].argsort(stable=True)
    return Layout(places, [round(size * fraction) for fraction in fractions])


def cut(inputs, kind, ranks, rank):
    """This rank's shards of all inputs, and the function that cuts any tensor like x or like the result."""
    rows, cols = (layout(kind, inputs[side], ranks) for side in "ab")
    if kind == "intervals":  # of both sides together: the border is the same
        borders = torch.cat([inputs["a"], inputs["b"]], -1).reshape(-1).sort().values
        borders = borders[[borders.numel() * (r + 1) // ranks - 1 for r in range(ranks)]]
        rows, cols = (
            Layout(side.places, torch.searchsorted(inputs[name][side.places], borders, right=True).tolist())
            for side, name in ((rows, "a"), (cols, "b"))
        )
    shards = {}
    for name, value in inputs.items():
        side = cols if name in WITH_COLUMNS else rows if name in ("a", "phi") else None
        shards[name] = value.clone() if side is None else side.mine(value, rank)
    return shards, lambda result: rows.mine(result, rank), lambda operand: cols.mine(operand, rank)


def sizes_of_terms(leaves, direction):
    """The gradient of tau is a sum over all pairs, which may cancel: the sum of the sizes of what is added."""
    sizes = {name: value.detach().abs() for name, value in leaves.items() if name in ("x", "weight")}
    given = {name: leaves[name].detach() for name in ("a", "b")}
    tau = leaves["tau"].detach().requires_grad_()
    return torch.autograd.grad((reference.linear(**given, **sizes, tau=tau) * direction.abs()).sum(), tau)[0]


def compare(inputs, kind, *, group=None, second=True, planned=False):
    """The errors of the result and of all gradients of this rank's shards, relative to the whole, by name.

    The loss of a rank is the sum over its rows, so the sum of all losses is that of the dense definition. What every
    rank has, the gradients of tau and weight, is counted once in all.
    """
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    leaves = {name: value.detach().clone().double().requires_grad_() for name, value in inputs.items()}
    y = reference.linear(**leaves)
    direction = torch.randn(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    shards, rows_of, cols_of = cut(inputs, kind, ranks, rank)
    shards = {name: value.requires_grad_() for name, value in shards.items()}
    plan = distributed.Plan(shards["a"].detach(), shards["b"].detach(), group=group) if planned else None
    ours = distributed.linear(**shards, plan=plan, group=group)
    errors = {"y": error(ours, rows_of(y), y)}
    names = list(inputs)
    terms = sizes_of_terms(leaves, direction)

    def mine(name, value):
        return value if name in ("tau", "weight") else cols_of(value) if name in WITH_COLUMNS else rows_of(value)

    def note(prefix, got, want):
        for name, value, truth in zip(names, got, want, strict=True):
            if not truth.isnan().any():  # the dense gradient of a tiny tau is 0 / 0
                rounded = truth.to(value.dtype)  # a float32 may underflow
                errors[prefix + name] = error(value, mine(name, rounded), terms if name == "tau" else rounded)

    theirs = torch.autograd.grad((y * direction).sum(), list(leaves.values()), create_graph=second)
    got = torch.autograd.grad(
        (ours * rows_of(direction).to(ours.dtype)).sum(), list(shards.values()), create_graph=second
    )
    note("first ", got, theirs)
    if second:
        total = sum(g.square().sum() for g in theirs)
        mine_of_it = [g.square().sum() / (ranks if name in ("tau", "weight") else 1) for name, g in zip(names, got)]
        got = torch.autograd.grad(sum(mine_of_it), list(shards.values()))
        note("second ", got, torch.autograd.grad(total, list(leaves.values())))
    return errors

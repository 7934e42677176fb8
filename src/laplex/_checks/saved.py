"""Checks of what files contain, before it is used: the compiled core and the GPU read memory wherever an index says.

A plan and a factor are mostly indices. A damaged or hostile file must be stopped here, with a ValueError, before it
reads memory that belongs to something else. The tables of ``laplex._scan.order`` and ``laplex._quasisep.arrays`` say
what must hold. The checks take O(n), as reading the file does; on CUDA they wait for the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex._checks.arguments import ANCHOR_DTYPES
from laplex._eager import plain, plainly_eager
from laplex._scan.order import JOINED, WORD, Order, Side, empty_order

LAYOUTS = JOINED | {"merged", "short_rows", "short_cols"}
CHANNELS = {(1, 0), (2, 0), (2, 1), (4, 3)}  # r and c of a quasiseparable matrix
FACTOR = {"where", "batch", "generators", "factored", "diag", "planned", "backend", "parameters", "dtype"}


class Place(NamedTuple):
    """Where a fault was found, for messages."""

    name: str  # the class that is read
    instead: str  # how to make a new one

    def require(self, holds: object, what: str) -> None:
        """Raise ValueError unless ``holds``; ``what`` says what is required."""
        if not holds:
            raise ValueError(
                f"{self.name}: the saved data are damaged, or of another version of laplex: {what}; make a new one "
                f"with {self.instead}"
            )

    def fields(self, state: Any, names: set[str]) -> dict[str, Any]:
        """The state, which must have these fields and no others."""
        self.require(isinstance(state, dict) and set(state) == names, f"its fields must be {', '.join(sorted(names))}")
        return dict(state)


PLAN = Place("laplex.Plan", "laplex.Plan(a, b)")
OPERATOR = Place("laplex.LaplaceOperator", "laplex.LaplaceOperator(a, b, tau)")
GRAM = Place("laplex.GramOperator", "K.gram(weight)")
SUM = Place("laplex.SumOperator", "s * K, K1 + K2 or K.add_diagonal(d)")
CHOLESKY = Place("laplex.CholeskyFactor", "K.cholesky(diag)")


def plan(state: Any) -> tuple[tuple[int, ...], Order]:
    """The shape and the order of a plan."""
    fields = PLAN.fields(state, {"shape", "layout", "order"})
    shape = _sizes(PLAN, "shape", fields["shape"])
    PLAN.require(len(shape) >= 2, f"its shape must be (*H, n, k), got {shape}")
    return shape, order(PLAN, shape, fields["layout"], fields["order"])


def factor(state: Any) -> dict[str, Any]:
    """The state of a factor."""
    scaled = isinstance(state, dict) and "scale" in state
    fields = CHOLESKY.fields(state, FACTOR | {"scale"} if scaled else FACTOR)
    batch = _sizes(CHOLESKY, "batch", fields["batch"])
    CHOLESKY.require(isinstance(fields["where"], str), "`where` must be a text")
    CHOLESKY.require(fields["dtype"] in ANCHOR_DTYPES, f"its dtype must be float32 or float64, got {fields['dtype']}")
    factored = fields["factored"]
    CHOLESKY.require(isinstance(factored, Sequence) and len(factored) == 7, "`factored` has 7 parts")
    *numbers, index, backend = factored
    groups = {"generators": fields["generators"], "factored": numbers, "diag": [fields["diag"]]}
    groups["parameters"] = fields["parameters"]
    groups["scale"] = [fields["scale"]] if scaled else []
    parts = {name: [_own(CHOLESKY, name, value, torch.float64) for value in _listed(name, values)]
            for name, values in groups.items()}  # fmt: skip
    (diag,), index = parts["diag"], _own(CHOLESKY, "factored", index, torch.int64)
    h, n = math.prod(batch), _last(diag)
    k = _factor_shapes(parts, h, n)
    _same_device(CHOLESKY, [diag, index, *(part for group in parts.values() for part in group)])
    CHOLESKY.require(index.shape == (h, n), f"its index must be {(h, n)}, got {tuple(index.shape)}")
    CHOLESKY.require(all(part.shape == (h,) for part in parts["scale"]), f"`scale` must be {(h,)}")
    if _readable([index]):
        CHOLESKY.require(_permutes(index), "its index must be a permutation of the points")
    planned = CHOLESKY.fields(fields["planned"], {"order", "layout"})
    sorting = order(CHOLESKY, (*batch, n, k), planned["layout"], planned["order"])
    return {
        **fields,
        "batch": batch,
        "generators": tuple(parts["generators"]),
        "factored": (*parts["factored"], index, backend),
        "diag": diag,
        "parameters": tuple(parts["parameters"]),
        **({"scale": parts["scale"][0]} if scaled else {}),
        "planned": {"order": sorting.tensors, "layout": sorting.layout},
    }


def order(place: Place, shape: tuple[int, ...], layout: Any, tensors: Any) -> Order:
    """The order of n rows and k columns for shape (*H, n, k), with tensors that nothing else can replace any more."""
    place.require(isinstance(layout, str) and layout in LAYOUTS, f"its layout must be one of {sorted(LAYOUTS)}")
    place.require(isinstance(tensors, Sequence) and len(tensors) == 4, "its order must be four tensors")
    indices = [_own(place, "order", tensor, torch.int32) for tensor in tensors[::2]]
    values = [_own(place, "order", tensor, *ANCHOR_DTYPES) for tensor in tensors[1::2]]
    place.require(values[0].dtype == values[1].dtype, "its two sides must have one dtype")
    own_order = Order.from_tensors([indices[0], values[0], indices[1], values[1]], layout)
    _same_device(place, own_order.tensors)
    *batch, n, k = shape
    h = math.prod(batch)
    if layout.endswith("_transposed"):
        _check_order(place, own_order.mT, (h, k, n))
    else:
        _check_order(place, own_order, (h, n, k))
    return own_order


# --- Orders -----------------------------------------------------------------------------------------------------------


def _check_order(place: Place, order: Order, sizes: tuple[int, int, int]) -> None:
    h, n, k = sizes
    expected = empty_order(torch.empty(h, n, device="meta"), torch.empty(h, k, device="meta"), order.layout)
    allowed = [[tensor.shape] for tensor in expected.tensors]
    if order.joined:
        allowed[1].append(torch.Size((h, 1, 0)))  # positions may be left out
        allowed[2].append(torch.Size((h, 1, n + k)))  # places may be present
    for got, shapes in zip(order.tensors, allowed, strict=True):
        place.require(got.shape in shapes, f"a tensor of its order must be {tuple(shapes[0])}, got {tuple(got.shape)}")
    if not _readable(order.tensors) or 0 in sizes:  # with no points an order is not even filled
        return
    if order.joined:
        _check_joined(place, order, n, k)
        return
    for side, other in ((order.target, order.source), (order.source, order.target)):
        _check_side(place, side, other)


def _check_side(place: Place, side: Side, other: Side) -> None:
    """Check a side that is sorted separately."""
    if side.kind == "sorted":
        index, rank, below, upto = side.indices.long().unbind(1)
        place.require(_permutes(index), "an order must be a permutation")
        place.require(torch.equal(rank, _inverse(index)), "a rank must invert its order")
        anchors, ascending = side.values.unbind(1)
        place.require(torch.equal(anchors.gather(-1, index), ascending), "sorted anchors must be the anchors, sorted")
        place.require(_rises(ascending), "sorted anchors must be finite and rise")
        _check_counts(place, ascending, below, upto, other.values[:, 1])
    elif side.kind == "short":
        place.require(_permutes(side.indices[:, 0].long()), "an order must be a permutation")
    else:
        below, upto = side.indices.unbind(1)
        within = (below >= 0) & (below <= upto) & (upto <= other.indices.shape[-1])
        place.require(within.all(), "counts must be of anchors of the other side")


def _check_counts(place: Place, own: Tensor, below: Tensor, upto: Tensor, other: Tensor) -> None:
    """Check that below and upto count the sorted anchors ``other`` that are < and <= each of ``own``."""
    within = (below >= 0) & (below <= upto) & (upto <= other.shape[-1])
    place.require(within.all(), "counts must be of anchors of the other side")
    edges = torch.nn.functional.pad(torch.nn.functional.pad(other, (1, 0), value=-math.inf), (0, 1), value=math.inf)
    exact = (edges.gather(-1, below) < own) & (own <= edges.gather(-1, below + 1))
    exact &= (edges.gather(-1, upto) <= own) & (own < edges.gather(-1, upto + 1))
    place.require(exact.all(), "counts must be those of its anchors")


def _check_joined(place: Place, order: Order, n: int, k: int) -> None:
    """Check an order with both sides in one sequence, as on the GPU."""
    entries, places = order.target.indices[:, 0], order.source.indices[:, 0].long()
    if order.target.kind == "bits":
        words, before = entries.tensor_split(2, -1)
        bits = (words[..., None] >> torch.arange(WORD, dtype=torch.int32, device=words.device)) & 1
        bits = bits.flatten(-2)
        bits[..., n + k :] = 0
        counted = bits.unflatten(-1, (-1, WORD)).sum(-1).cumsum(-1)
        place.require((counted[:, -1] == n).all(), f"its bits must mark {n} rows")
        place.require(torch.equal(before[:, 1:].long(), counted[:, :-1]), "its words must count the rows before them")
        place.require((before[:, 0] == 0).all() and places.numel() == 0, "its words must count the rows before them")
        return
    entry = entries[:, : n + k].long()
    index = torch.where(entry >= 0, entry, n - 1 - entry)  # -1 - j is column j, here n + j
    once = bool((entry < n).all()) and _permutes(index)
    place.require(once, "its entries must name every row and column once")
    if places.numel():
        place.require(torch.equal(places, _inverse(index)), "its places must invert its entries")


def _permutes(index: Tensor) -> bool:
    """Whether every row of index (h, size) is a permutation of 0 ... size - 1."""
    size = index.shape[-1]
    if not bool(((index >= 0) & (index < size)).all()):
        return False
    return bool(torch.zeros_like(index, dtype=torch.bool).scatter_(-1, index, True).all())


def _inverse(index: Tensor) -> Tensor:
    """The inverse of a permutation."""
    places = torch.arange(index.shape[-1], device=index.device).expand_as(index)
    return torch.empty_like(index).scatter_(-1, index, places)


def _rises(values: Tensor) -> bool:
    return bool((values[:, 1:] >= values[:, :-1]).all() & torch.isfinite(values).all())


# --- Factors ----------------------------------------------------------------------------------------------------------


def _factor_shapes(parts: dict[str, list[Tensor]], h: int, n: int) -> int:
    """Check the shapes of the parts of a factor of n points; returns k, the columns of its kernel matrix."""
    count = [len(parts[name]) for name in ("generators", "factored")]
    CHOLESKY.require(count == [6, 5], f"it has 6 generators and 5 arrays of its factor, got {count}")
    r, c = _last(parts["generators"][2]), _last(parts["generators"][4])
    CHOLESKY.require((r, c) in CHANNELS, f"its generators must be of a known order, got {(r, c)}")
    vector, block, mass = (h, n), (h, n, r), (h, n, c)
    shapes: dict[str, list[tuple[int, ...]]] = {
        "generators": [vector, (h,), block, block, mass, vector],
        "factored": [vector, block, block, mass, vector],
        "diag": [vector],
        "parameters": [vector, (h,)] + [vector] * (r == 2),
    }
    k = n
    if c:
        k = _last(parts["parameters"][0]) if parts["parameters"] else 0
        shapes["parameters"] = [(h, k), vector, (h, k), (h,)] + [vector, (h, k)] * (r == 4)
    for name, expected in shapes.items():
        got = [tuple(tensor.shape) for tensor in parts[name]]
        CHOLESKY.require(got == expected, f"`{name}` must have the shapes {expected}, got {got}")
    return k


# --- Tensors ----------------------------------------------------------------------------------------------------------


def _own(place: Place, name: str, value: Any, *dtypes: torch.dtype) -> Tensor:
    """The tensor as an object of our own: later parts of a file may give other memory to a tensor that they name."""
    place.require(isinstance(value, Tensor) and value.layout is torch.strided, f"`{name}` must hold dense tensors")
    place.require(value.dtype in dtypes, f"`{name}` must hold {' or '.join(map(str, dtypes))}, got {value.dtype}")
    tensor: Tensor = value.detach().contiguous()
    if plainly_eager() and not tensor.is_meta:
        place.require(plain(tensor), f"`{name}` must hold plain tensors, got {type(tensor).__name__}")
    return tensor


def _readable(tensors: Sequence[Tensor]) -> bool:
    """Whether there are values to look at: not on the meta device, nor while a graph is traced."""
    return plainly_eager() and not any(tensor.is_meta for tensor in tensors)


def _same_device(place: Place, tensors: Sequence[Tensor]) -> None:
    devices = sorted({str(tensor.device) for tensor in tensors})
    place.require(len(devices) == 1, f"its tensors must be on one device, got {' and '.join(devices)}")


def _sizes(place: Place, name: str, value: Any) -> tuple[int, ...]:
    fits = isinstance(value, tuple) and all(type(size) is int and size >= 0 for size in value)
    place.require(fits, f"`{name}` must be a tuple of sizes, got {value!r}")
    return tuple(value)


def _listed(name: str, values: Any) -> Sequence[Any]:
    CHOLESKY.require(isinstance(values, Sequence), f"`{name}` must be a sequence of tensors")
    return values  # type: ignore[no-any-return]


def _last(tensor: Tensor) -> int:
    return tensor.shape[-1] if tensor.dim() else 0

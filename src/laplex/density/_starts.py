"""Where features start on the line, and the state of a fit before its first round."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from laplex._checks import counts
from laplex._checks.counts import integer
from laplex._seriation import seriate
from laplex.density._em import State
from laplex.density._examples import Examples, check_fitted
from laplex.density._places import evenly
from laplex.distributed._agreement import agree_if_spread

NAMED_PLACES = ("tree", "curve", "raster", "random")
NOISE = 0.25  # of the variance of each feature, at the start
KNOTS_IN_TAU = 2.0  # tau in units of the knots' spacing
TREE_ROWS = 4096  # how many examples the order is found from: the time grows with their square


def start(
    examples: Examples,
    rank: int,
    *,
    functions: int = 2,
    places: str | Tensor = "tree",
    shape: tuple[int, ...] | None = None,
    seed: int = 0,
) -> State:
    """The state of a fit before its first round. If examples are spread over processes, all must call this.

    Args:
        examples: the examples to fit.
        rank: the rank of the covariance without its diagonal; a multiple of ``functions``.
        functions: q, how many functions each place has.
        places: where the features start: "tree", the order of :func:`laplex.seriate`, which uses only the examples;
            "curve", a Hilbert curve over the positions of pixels; "raster", in the order given; "random"; or places
            (n,) in [0, 1].
        shape: (height, width, channels) of an image, for "curve".
        seed: determines random places and weights.
    """
    where = "laplex.density.start"
    spread = examples.ranks if isinstance(examples, Examples) else None
    agree_if_spread(where, spread, lambda: start_terms(examples, rank, functions, places, shape, seed))
    generator = torch.Generator().manual_seed(int(seed))
    a = _places(places, examples, shape, generator)
    like: dict[str, Any] = {"dtype": examples.dtype, "device": examples.device}
    count = rank // functions
    deviation = examples.variance.sqrt()
    drawn = torch.randn(functions, examples.dim, generator=generator, device="cpu").to(**like)
    # Neighbours vary together, so a single function starts as their mean; several must start out different.
    shares = drawn if functions > 1 else torch.ones_like(drawn)
    return State(
        a=a,
        weight=shares * deviation / math.sqrt(KNOTS_IN_TAU * functions),
        noise=examples.noise_at_least(NOISE * examples.variance),
        root=torch.eye(rank, dtype=torch.float64, device=examples.device),
        knots=torch.linspace(0, 1, count, **like),
        tau=KNOTS_IN_TAU / (count - 1),
        round=0,
    )


def start_terms(
    examples: Examples, rank: int, functions: int, places: str | Tensor, shape: tuple[int, ...] | None, seed: int
) -> dict[str, Any]:
    """Check the arguments of :func:`start`, and return what must be the same on all processes that fit together."""
    where = "laplex.density.start"
    check_fitted(where, examples)
    integer(where, "rank", rank)
    integer(where, "functions", functions)
    if rank % functions or rank // functions < 2:
        raise ValueError(
            f"{where}: `rank` must be a multiple of `functions`, and at least twice as large, got {rank} and "
            f"{functions}; use rank={max(rank // functions, 2) * functions}"
        )
    counts.seed(where, seed)
    _refuse_places(where, places, examples.dim, shape)
    named = places if isinstance(places, str) else "a tensor"
    return {"`rank` and `functions`": (int(rank), int(functions)), "`places`": named}


def _refuse_places(where: str, places: str | Tensor, n: int, shape: tuple[int, ...] | None) -> None:
    if isinstance(places, Tensor):
        if tuple(places.shape) != (n,) or not bool(((places >= 0) & (places <= 1)).all()):
            reach = f", from {float(places.min()):g} to {float(places.max()):g}" if places.numel() else ""
            got = f"{tuple(places.shape)}{reach}"
            raise ValueError(f"{where}: `places` must be ({n},), from 0 to 1, got {got}; scale them")
    elif not (isinstance(places, str) and places in NAMED_PLACES):
        raise ValueError(f"{where}: `places` must be one of {', '.join(NAMED_PLACES)}, or a tensor, got {places!r}")
    elif places == "curve" and (shape is None or len(shape) != 3 or math.prod(shape) != n):
        raise ValueError(f'{where}: `shape` must be (height, width, channels) of {n} features for "curve", got {shape}')


def _places(
    places: str | Tensor, examples: Examples, shape: tuple[int, ...] | None, generator: torch.Generator
) -> Tensor:
    n = examples.dim
    like: dict[str, Any] = {"dtype": examples.dtype, "device": examples.device}
    if isinstance(places, Tensor):
        return places.to(**like).clone()
    if places == "tree":
        return seriate(examples.sample(TREE_ROWS)).to(**like)
    if places == "random":
        return torch.rand(n, generator=generator, device="cpu").to(**like)
    order = torch.arange(n, device="cpu") if shape is None or places == "raster" else _hilbert(shape)
    return evenly(order).to(**like)


def _hilbert(shape: tuple[int, ...]) -> Tensor:
    """The features (n,) of an image in the order of a Hilbert curve over its pixels, the channels of each together."""
    height, width, channels = shape
    feature = torch.arange(math.prod(shape), device="cpu")
    channel, x, y = feature % channels, feature // channels % width, feature // (channels * width)
    bits = max(1, (max(height, width) - 1).bit_length())
    along = torch.zeros_like(feature)
    for level in reversed(range(bits)):
        side = 1 << level
        right, below = x >= side, y >= side
        x, y = x - side * right, y - side * below
        along = along * 4 + (3 * right.long() ^ below.long())
        # Each quarter holds the curve of the level below, turned in the two quarters where the curve begins and ends.
        mirrored = ~below & right
        x, y = torch.where(mirrored, side - 1 - x, x), torch.where(mirrored, side - 1 - y, y)
        x, y = torch.where(below, x, y), torch.where(below, y, x)
    return (along * channels + channel).argsort()

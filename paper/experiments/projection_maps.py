"""The projections that `python -m paper experiment projection` compares.

countsketch, gaussian   random, know nothing of the data
laplex                  frozen, random anchors, for five tau, with and without phases and signs
placed                  frozen, pixels placed by laplex.seriate, outputs on an even grid
pca                     the leading principal components
trained-...             start there and are trained with the head; dense is torch.nn.Linear

What is found from the data (places, components) is found from the train rows that are not held out, without classes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from laplex import seriate
from laplex.nn import LaplexProjection
from paper.experiments.images import ROWS, FlatImages
from paper.experiments.training import seeded
from paper.methods.sketch import CountSketch, principal_components

TAUS = (0.01, 0.05, 0.1, 0.5, 1.0)
PLACED_TAU = 0.002
COLUMNS = 4096  # rows of the Gaussian matrix that exist at a time
FROZEN = ("countsketch", "laplex", "placed", "pca", "gaussian")
TRAINED = ("trained-laplex", "trained-placed", "trained-dense")
METHODS = (*FROZEN, *TRAINED)
TITLES = {
    "countsketch": "CountSketch",
    "laplex": "LAPLEX, random",
    "placed": "LAPLEX, placed",
    "pca": "PCA",
    "gaussian": "Gaussian",
    "trained-laplex": "LAPLEX, random start",
    "trained-placed": "LAPLEX, placed start",
    "trained-dense": "dense",
}


@dataclass(frozen=True)
class Projection:
    """A projection; ``tau`` is that of LAPLEX, None for the others and for 1 / m."""

    method: str  # one of METHODS
    tau: float | None = None
    phase: bool = False
    signs: bool = False

    def __str__(self) -> str:
        extras = " and ".join(name for name, on in (("phases", self.phase), ("signs", self.signs)) if on)
        tau = "1/m" if self.tau is None else f"{self.tau:g}"
        has_tau = self.method.endswith(("laplex", "placed"))
        parts = [TITLES[self.method], f"tau = {tau}" if has_tau else "", f"with {extras}" if extras else ""]
        return ", ".join(part for part in parts if part)

    @property
    def random(self) -> bool:
        """Whether the seed changes the projection; else it changes the head alone."""
        return self.method not in ("placed", "pca", "trained-placed")


PROJECTIONS = (
    Projection("countsketch"),
    *(Projection("laplex", tau, phase, signs) for tau in TAUS for phase in (False, True) for signs in (False, True)),
    Projection("placed", PLACED_TAU),
    Projection("placed"),
    Projection("pca"),
    Projection("gaussian"),
    Projection("trained-laplex", 0.1),
    Projection("trained-placed", 0.01),
    Projection("trained-dense"),
)


def stored(projection: Projection, d: int, m: int) -> int:
    """The numbers that a projection from d to m stores. A Gaussian one is drawn again from its seed."""
    if projection.method == "gaussian":
        return 1
    if projection.method == "countsketch":
        return 2 * d
    if projection.method in ("pca", "trained-dense"):
        return m * d + m
    return (d + m) * (2 if projection.phase else 1) + (d if projection.signs else 0) + 1


class Maps:
    """Makes projections for ``data``; what is found from the data is found once.

    Args:
        data: the images.
        widest: the largest width m that will be asked for.
    """

    def __init__(self, data: FlatImages, widest: int) -> None:
        self.data = data
        self._components = min(widest, data.most_components)
        self._last: tuple[tuple[Projection, int], tuple[Tensor, Tensor]] | None = None

    @cached_property
    def places(self) -> Tensor:
        """Places of the pixels (d,)."""
        # Every uint8 is a float16. seriate standardises each pixel itself and computes in float32 or better.
        return seriate(self.data.train.pixels[self.data.rest].half())

    @cached_property
    def components(self) -> nn.Linear:
        """The leading principal components; those of a smaller width are the first ones."""
        rows = self.data.normalised(self.data.train.pixels[self.data.rest])
        return principal_components(rows, self._components)

    def prepare(self, methods: Collection[str]) -> None:
        """Find now what these methods need of the data."""
        if {"placed", "trained-placed"} & set(methods):
            _ = self.places
        if "pca" in methods:
            _ = self.components

    @torch.no_grad()
    def features(self, projection: Projection, m: int, seed: int) -> tuple[Tensor, Tensor]:
        """All train and all validation images, projected by a frozen one: (rows, m) each."""
        if not projection.random and self._last is not None and self._last[0] == (projection, m):
            return self._last[1]
        if projection.method == "gaussian":
            features = self._gaussian(m, seed)
        else:
            project, splits = self.frozen(projection, m, seed), (self.data.train, self.data.val)
            train, val = (
                torch.cat([project(self.data.normalised(rows)) for rows in split.pixels.split(ROWS)])
                for split in splits
            )
            features = train, val
        if not projection.random:  # serves the other seeds
            self._last = (projection, m), features
        return features

    def frozen(self, projection: Projection, m: int, seed: int) -> Callable[[Tensor], Tensor]:
        """A frozen projection of normalised images (rows, d) to (rows, m); the Gaussian one has no such form."""
        generator = torch.Generator().manual_seed(seed)
        if projection.method == "countsketch":
            return CountSketch(self.data.width, m, generator=generator, device=self.data.device)
        if projection.method == "pca":
            bias = self.components.bias[:m]
            return partial(nn.functional.linear, weight=self.components.weight[:m], bias=bias)
        return self._laplex(projection, m, generator)

    def trainable(self, projection: Projection, m: int, seed: int) -> nn.Module:
        """A projection to train, at its start."""
        if projection.method == "trained-dense":
            with seeded(seed):
                return nn.Linear(self.data.width, m).to(self.data.device)
        return self._laplex(projection, m, torch.Generator().manual_seed(seed))

    def _laplex(self, projection: Projection, m: int, generator: torch.Generator) -> LaplexProjection:
        layer = LaplexProjection(
            self.data.width,
            m,
            tau=projection.tau,
            phase=projection.phase,
            signs=projection.signs,
            trainable=projection.method in TRAINED,
            generator=generator,
            device=self.data.device,
        )
        if projection.method.endswith("placed"):
            with torch.no_grad():  # as LaplexProjection.place, which would seriate again for every width
                layer.b.copy_(self.places)
                layer.a.copy_((torch.arange(m, dtype=torch.float64) + 0.5) / m)
        return layer

    def _gaussian(self, m: int, seed: int) -> tuple[Tensor, Tensor]:
        """Products with normal numbers of variance 1 / m, drawn in blocks, so that d x m numbers never exist."""
        data, generator = self.data, torch.Generator().manual_seed(seed)
        train, val = (torch.zeros(len(split.y), m, device=data.device) for split in (data.train, data.val))
        for first in range(0, data.width, COLUMNS):
            columns = slice(first, min(first + COLUMNS, data.width))
            drawn = torch.randn(columns.stop - first, m, generator=generator).div_(m**0.5).to(data.device)
            for total, split in ((train, data.train), (val, data.val)):
                total += data.normalised(split.pixels[:, columns], columns) @ drawn
        return train, val

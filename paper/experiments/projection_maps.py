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
from paper.methods.sketch import CountSketch, principal_components
from paper.experiments.flat_images import ROWS, FlatImages
from paper.experiments.training import seeded
from laplex.nn import LaplexProjection

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
class Variant:
    """A projection; ``tau`` is that of LAPLEX, None for the others and for 1 / m."""

    method: str  # one of METHODS
    tau: float | None = None
    phase: bool = False
    signs: bool = False

    def __str__(self) -> str:
        with_ = " and ".join(name for name, on in (("phases", self.phase), ("signs", self.signs)) if on)
        tau = "1/m" if self.tau is None else f"{self.tau:g}"
        has_tau = self.method.endswith(("laplex", "placed"))
        parts = [TITLES[self.method], f"tau = {tau}" if has_tau else "", f"with {with_}" if with_ else ""]
        return ", ".join(part for part in parts if part)

    @property
    def random(self) -> bool:
        """Whether the seed changes the projection; else it changes the head alone."""
        return self.method not in ("placed", "pca", "trained-placed")


VARIANTS = (
    Variant("countsketch"),
    *(Variant("laplex", tau, phase, signs) for tau in TAUS for phase in (False, True) for signs in (False, True)),
    Variant("placed", PLACED_TAU),
    Variant("placed"),
    Variant("pca"),
    Variant("gaussian"),
    Variant("trained-laplex", 0.1),
    Variant("trained-placed", 0.01),
    Variant("trained-dense"),
)


def stored(variant: Variant, d: int, m: int) -> int:
    """The numbers that a projection from d to m stores. A Gaussian one is drawn again from its seed."""
    if variant.method == "gaussian":
        return 1
    if variant.method == "countsketch":
        return 2 * d
    if variant.method in ("pca", "trained-dense"):
        return m * d + m
    return (d + m) * (2 if variant.phase else 1) + (d if variant.signs else 0) + 1


class Maps:
    """Makes projections for ``data``; what is found from the data is found once.

    Args:
        data: the images.
        widest: the largest width m that will be asked for.
    """

    def __init__(self, data: FlatImages, widest: int) -> None:
        self.data = data
        self._components = min(widest, data.most_components)
        self._kept: tuple[tuple[Variant, int], tuple[Tensor, Tensor]] | None = None

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
    def features(self, variant: Variant, m: int, seed: int) -> tuple[Tensor, Tensor]:
        """All train and all validation images, projected by a frozen variant: (rows, m) each."""
        if not variant.random and self._kept is not None and self._kept[0] == (variant, m):
            return self._kept[1]
        if variant.method == "gaussian":
            found = self._gaussian(m, seed)
        else:
            project, splits = self.frozen(variant, m, seed), (self.data.train, self.data.val)
            train, val = (
                torch.cat([project(self.data.normalised(rows)) for rows in split.pixels.split(ROWS)])
                for split in splits
            )
            found = train, val
        if not variant.random:  # serves the other seeds
            self._kept = (variant, m), found
        return found

    def frozen(self, variant: Variant, m: int, seed: int) -> Callable[[Tensor], Tensor]:
        """A frozen projection of normalised images (rows, d) to (rows, m); the Gaussian one has no such form."""
        generator = torch.Generator().manual_seed(seed)
        if variant.method == "countsketch":
            return CountSketch(self.data.width, m, generator=generator, device=self.data.device)
        if variant.method == "pca":
            bias = self.components.bias[:m]
            return partial(nn.functional.linear, weight=self.components.weight[:m], bias=bias)
        return self._laplex(variant, m, generator)

    def trainable(self, variant: Variant, m: int, seed: int) -> nn.Module:
        """A projection to train, at its start."""
        if variant.method == "trained-dense":
            with seeded(seed):
                return nn.Linear(self.data.width, m).to(self.data.device)
        return self._laplex(variant, m, torch.Generator().manual_seed(seed))

    def _laplex(self, variant: Variant, m: int, generator: torch.Generator) -> LaplexProjection:
        made = LaplexProjection(
            self.data.width,
            m,
            tau=variant.tau,
            phase=variant.phase,
            signs=variant.signs,
            trainable=variant.method in TRAINED,
            generator=generator,
            device=self.data.device,
        )
        if variant.method.endswith("placed"):
            with torch.no_grad():  # as LaplexProjection.place, which would seriate again for every width
                made.b.copy_(self.places)
                made.a.copy_((torch.arange(m, dtype=torch.float64) + 0.5) / m)
        return made

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

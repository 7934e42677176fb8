"""Flattened images for projections: uint8 on the device, normalised batch by batch.

A pixel is centred by its mean over the train images, and all pixels are divided by one standard deviation. A tenth of
the train images of each class is held out to choose by; the validation images choose nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paper.experiments.data import HELD_OUT, Images, held_out_rows

ROWS = 256  # images that are float32 at a time


class Split(NamedTuple):
    """Images and their classes."""

    pixels: Tensor  # (rows, d) uint8
    y: Tensor  # (rows,) int64


@dataclass(frozen=True)
class FlatImages:
    """Train and validation images of d pixel values each, on one device."""

    train: Split
    val: Split
    held: Tensor  # numbers of the train rows that are held out
    rest: Tensor  # numbers of the others
    mean: Tensor  # (d,) float32, over the train rows
    deviation: float
    classes: int
    digest: str  # of all pixels and classes: runs on other data are other runs

    @property
    def width(self) -> int:
        """The number d of pixel values of an image."""
        return len(self.mean)

    @property
    def most_components(self) -> int:
        """The number of principal components of the train rows that are not held out."""
        return min(len(self.rest) - 1, self.width)

    @property
    def device(self) -> torch.device:
        """Where the images are."""
        return self.mean.device

    def normalised(self, pixels: Tensor, columns: slice = slice(None)) -> Tensor:
        """Pixels (rows, columns) uint8, which may be some columns of the images, as float32 of mean 0."""
        return pixels.float().sub_(self.mean[columns]).div_(self.deviation)


def flattened(train: Images, val: Images, device: str) -> FlatImages:
    """The images on a device. ValueError where no class has enough train images to hold one out."""
    held, rest = held_out_rows(train.y)
    if len(held) == 0:
        raise ValueError(
            f"paper.experiments.flattened: `train` must have {HELD_OUT} images of some class, got fewer of every "
            "class; one in ten is held out to choose the weight decay, so add images"
        )
    seen, other = (Split(one.pixels.flatten(1).to(device), one.y.to(device)) for one in (train, val))
    mean, deviation = _moments(seen.pixels)
    if deviation == 0:
        raise ValueError(
            "paper.experiments.flattened: `train` must have images that differ, got equal ones; check the files"
        )
    held, rest = held.to(device), rest.to(device)
    return FlatImages(seen, other, held, rest, mean, deviation, len(train.classes), _digest(train, val))


def _moments(pixels: Tensor) -> tuple[Tensor, float]:
    """The mean of each pixel, and the root of the mean square around it over all pixels, by exact sums of integers."""
    total = torch.zeros(pixels.shape[1], dtype=torch.int64, device=pixels.device)
    squares = torch.zeros_like(total)
    for rows in pixels.split(ROWS):
        whole = rows.int()  # a square is below 2^16, so ROWS of them are far below 2^31
        total += whole.sum(0)
        squares += whole.square_().sum(0)
    # N sum x^2 - (sum x)^2 is N^2 times the variance: an integer, and 0 where a pixel is constant.
    variances = (len(pixels) * squares - total.square()).double() / len(pixels) ** 2
    return (total.double() / len(pixels)).float(), float(variances.mean().sqrt())


def _digest(*splits: Images) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of pixels and classes."""
    found = hashlib.sha256()
    for split in splits:
        found.update(repr((tuple(split.pixels.shape), split.classes)).encode())
        found.update(np.ascontiguousarray(split.pixels.numpy()).data)
        found.update(split.y.numpy().astype("<i8").data)
    return found.hexdigest()[:16]

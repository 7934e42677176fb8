"""Images for densities: those that are fitted, those that choose, and those that choose nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from laplex.density import Examples
from laplex.density._examples import digest
from laplex.density.images import Pictures, Shape, load


class Data:
    """Examples on one device, all less the mean of those to fit.

    Args:
        values: (N, n) of the images to fit, of those to choose by, and of those that choose nothing, which may be none.
        shape: (height, width, channels), if it is known.
        device: where the work is done.
        name: runs on data of another name are other runs; made from the values if not given.

    Attributes:
        train, val: examples to fit, and to choose by.
        train_sample: the first of the train examples, as many as ``val`` has, to evaluate.
        test: examples that choose nothing, or None.
        read_seconds: how long it took to read the images, if that is known.
    """

    read_seconds: float | None = None

    def __init__(
        self, values: Sequence[Tensor], shape: Shape | None, device: torch.device | str, name: str | None = None
    ) -> None:
        self.name = "-".join(digest(one.cpu())[:16] for one in values) if name is None else name
        self.shape, self._values = shape, [one.to(device) for one in values]
        train, val, test = self._values
        self.train = Examples(train)
        self.train_sample = self._less_mean(train[: len(val)])
        self.val = self._less_mean(val)
        self.test = self._less_mean(test) if len(test) else None

    @property
    def dim(self) -> int:
        """The number n of values of an image."""
        return self.train.dim

    @property
    def device(self) -> torch.device:
        """Where the work is done."""
        return self.train.device

    @cached_property
    def permuted(self) -> Data:
        """The same with the values of an image in a random order, which is the same every time."""
        order = torch.randperm(self.dim, generator=torch.Generator().manual_seed(0)).to(self.device)
        return Data([one[:, order] for one in self._values], self.shape, self.device, f"{self.name}-permuted")

    def _less_mean(self, values: Tensor) -> Examples:
        return Examples(values, mean=self.train.mean)


def read(option: str, sources: Sequence[str], side: int | None, channels: int | None) -> Pictures:
    """The images of all sources that an option names, one after the other."""
    parts = [load(source, side=side, channels=channels) for source in sources]
    first = parts[0]
    for source, one in zip(sources, parts, strict=True):
        got, want = ((each.values.shape[1], each.values.dtype) for each in (one, first))
        if got != want:
            raise ValueError(
                f"--{option} must have images of {want[0]} values ({want[1]}), as {sources[0]}, got {got[0]} "
                f"({got[1]}) in {source}; use --side"
            )
    if len(parts) == 1:
        return first
    skipped = tuple(name for one in parts for name in one.skipped)
    return Pictures(torch.cat([one.values for one in parts]), first.shape, skipped)


def held_out(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Images (N, n) without ``count`` of them, and those; the same ones every time."""
    if not 0 < count < len(values):
        raise ValueError(f"--hold-out must be from 1 to {len(values) - 1} for {len(values)} images, got {count}")
    order = torch.from_numpy(np.random.RandomState(0).permutation(len(values)))
    return values[order[count:]], values[order[:count]]

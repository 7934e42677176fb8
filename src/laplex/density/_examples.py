"""Examples as rows of numbers, which are read in parts and never copied all at once."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from laplex import _checks
from laplex.distributed import _agreement
from laplex.distributed._agreement import agree_if_spread, ranks_in, run_on_all
from laplex.distributed._ranks import Ranks

BLOCK = 1 << 26  # numbers held in float32 at a time
WIDE = 1 << 22  # numbers held in float64 at a time
DIGESTED = 1 << 26  # bytes that a thread hashes at a time
LEAST_NOISE = 1e-4  # of a feature's variance, and of the mean variance; without noise a likelihood is unbounded


class Examples:
    """N examples of n features each, less their mean, with the mean and the variance of every feature.

    Args:
        values (N, n): floating point, or uint8, which counts in units of 1/255. They may be on the CPU, for instance in
            a file that is mapped into memory, while the work is done on another device.
        device: where the work is done; the device of the values if not given.
        mean (n,): subtracted; the mean of the examples if not given, which is what a fit wants.
        group: a torch.distributed.ProcessGroup whose processes each have a part of the examples; ``values`` is the part
            of this process, with at least one example. All must construct theirs together, and then fit and evaluate
            together. None: ``values`` are all examples.

    Attributes:
        values: as given.
        mean, variance (n,): float64 for float64 values, else float32. The variance is around the mean. Both are over
            all processes if each has a part.
        count: N, over all processes; ``len`` counts those of this one.
        most: the largest number of examples that any process has.
        ranks: the processes that each have a part, or None.
    """

    def __init__(
        self,
        values: Tensor,
        device: torch.device | str | None = None,
        mean: Tensor | None = None,
        *,
        group: Any = None,
    ) -> None:
        where = "laplex.density.Examples"
        self.ranks = None if group is None else ranks_in(where, group)
        agree_if_spread(where, self.ranks, lambda: _check(where, values, device, mean))
        self.values = values
        self.device = values.device if device is None else torch.device(device)
        self.dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
        self.count = self.most = len(values)
        own, variance = self._own_moments(where)
        if self.ranks is not None:
            own, variance = self._joined(self.ranks, own, variance)
        self.mean = own.to(self.dtype) if mean is None else mean.to(self.device, self.dtype)
        self.variance = (variance + (own - self.mean).square_()).to(self.dtype)  # around the mean that is subtracted
        _refuse_not_finite(where, own, self.mean, self.variance)

    def __repr__(self) -> str:
        here = "" if self.ranks is None else f", {len(self)} of them on rank {self.ranks.rank} of {self.ranks.size}"
        return f"Examples({self.count} of {self.dim} features, {self.values.dtype}{here}, device={self.device})"

    def __len__(self) -> int:
        return len(self.values)

    @property
    def dim(self) -> int:
        """The number n of features of an example."""
        return self.values.shape[1]

    def some(self, rows: Tensor | slice) -> Tensor:
        """Some examples (few, n), with the mean left in."""
        return self._read(self.values[rows], isinstance(rows, slice))

    def rows(self, part: slice) -> Tensor:
        """Some examples, less the mean (few, n)."""
        return self.some(part).sub_(self.mean)

    def features(self, part: slice) -> Tensor:
        """Some features of all examples, less the mean (N, few)."""
        return self._read(self.values[:, part], True).sub_(self.mean[part])

    def bits_per_dim(self, log_likelihood: float) -> float:
        """Bits needed to store a feature with a precision of 1/255 for uint8, of 1 for others."""
        steps = 255 if self.values.dtype == torch.uint8 else 1
        return math.log2(steps) - log_likelihood / self.dim / math.log(2)

    def noise_at_least(self, noise: Tensor) -> Tensor:
        """Variances of noise (n,), clamped from below so that the likelihood stays bounded."""
        least = LEAST_NOISE * self.variance.mean()
        return torch.maximum(noise, LEAST_NOISE * self.variance).clamp_min(least)

    def row_parts(self, within: slice | None = None) -> list[slice]:
        """Slices of examples to read at a time, covering all of them or those within a slice."""
        return _parts(within or slice(0, len(self)), max(1, BLOCK // self.dim))

    def feature_parts(self, most: int, within: slice | None = None) -> list[slice]:
        """Slices of at most ``most`` features to read at a time, covering all of them or those within a slice."""
        return _parts(within or slice(0, self.dim), min(most, self.features_at_once))

    @property
    def features_at_once(self) -> int:
        """The largest number of features read at a time, the same on all processes."""
        return max(1, BLOCK // self.most)

    def sample(self, most: int) -> Tensor:
        """Up to about ``most`` examples (few, n), taken evenly from all processes, the same on each."""
        few = self.values[:: -(-self.count // most)].to(self.device)
        if self.ranks is None:
            return few
        sizes = self.ranks.gathered(torch.tensor(len(few), device=self.device)).tolist()
        everyone = self.ranks.gathered(pad(few, (0, 0, 0, max(sizes) - len(few))))
        return torch.cat([theirs[:size] for theirs, size in zip(everyone, sizes, strict=True)])

    def _own_moments(self, where: str) -> tuple[Tensor, Tensor]:
        """The mean and the variance of this process's values. If one cannot read its own, all processes raise."""
        return run_on_all(where, self.ranks, lambda: welford(self.some(part) for part in self.row_parts()))

    def _joined(self, ranks: Ranks, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """The mean and the variance over all processes, joined from those of each as ``welford`` joins its parts."""
        own = len(self)
        counts = ranks.gathered(torch.tensor(own, device=self.device))
        self.count, self.most = int(counts.sum()), int(counts.max())
        joint = ranks.total(mean * (own / self.count))
        apart = (mean - joint).square_()
        return joint, ranks.total((variance + apart) * (own / self.count))

    def _read(self, values: Tensor, is_view: bool) -> Tensor:
        """Values on the device, in floating point, never sharing the caller's memory."""
        moved = values.to(self.device)
        if moved.dtype == torch.uint8:
            return moved.to(self.dtype).div_(255)
        return moved.to(self.dtype, copy=is_view and moved.device == values.device)


@torch.no_grad()
def welford(parts: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """The mean (n,) and the variance (n,) of all rows of all parts (few, n), in float64; the variance divides by N.

    Sums of squares are taken around the mean of a few rows and then joined (Welford; Chan, Golub, LeVeque), so that
    nothing is lost if the mean is far larger than the deviation. Each part is read once.
    """
    count = 0
    for part in parts:
        for rows in part.split(max(1, WIDE // part.shape[1])):
            block = rows.double()
            block_mean = block.mean(0)
            block_squares = (block - block_mean).square_().sum(0)
            if count == 0:
                mean, squares = block_mean, block_squares
            else:
                apart, total = block_mean - mean, count + len(block)
                mean += apart * (len(block) / total)
                squares += block_squares + apart.square_() * (count / total * len(block))
            count += len(block)
    return mean, squares / count


def _check(where: str, values: Tensor, device: torch.device | str | None, mean: Tensor | None) -> dict[str, Any]:
    """Check the arguments, and return what must be the same on all processes that have a part each."""
    _checks.check_tensor(where, "values", values)
    if values.dim() != 2 or 0 in values.shape:
        raise ValueError(
            f"{where}: `values` must be (N, n), with at least one example and one feature, got shape "
            f"{tuple(values.shape)}; use .flatten(1)"
        )
    if not values.is_floating_point() and values.dtype != torch.uint8:
        raise TypeError(f"{where}: `values` must be floating point or uint8, got {values.dtype}; call .float()")
    if "meta" in (values.device.type, torch.device(device or values.device).type):
        raise ValueError(f"{where}: `values` and `device` must not be on the meta device, which has no numbers")
    if mean is not None:
        _checks.check_tensor(where, "mean", mean)
    if mean is not None and tuple(mean.shape) != (values.shape[1],):
        raise ValueError(
            f"{where}: `mean` must be ({values.shape[1]},), one number per feature of `values`, got "
            f"{tuple(mean.shape)}; examples of one model have the same features"
        )
    return {
        "the number of features and the dtype of `values`": (values.shape[1], values.dtype),
        "`mean` (a digest of its values)": None if mean is None else _agreement.digest(mean.double()),
    }


def _refuse_not_finite(where: str, own: Tensor, mean: Tensor, variance: Tensor) -> None:
    """Raise unless the examples' own mean, the subtracted mean and the variance around it, (n,) each, are finite."""
    count = int((~own.isfinite()).sum())
    if count:
        raise ValueError(
            f"{where}: `values` must be finite; {count} of {len(own)} features have NaN or infinity in some example; "
            "use .nan_to_num()"
        )
    if not bool(mean.isfinite().all()):
        raise ValueError(
            f"{where}: `mean` must be finite, got NaN or infinity in {int((~mean.isfinite()).sum())} features"
        )
    if not bool(variance.isfinite().all()):
        raise ValueError(
            f"{where}: `values` must have squares that {variance.dtype} holds, got larger ones; scale them"
        )


def check_fitted(where: str, examples: Examples) -> None:
    """Raise unless these are examples that differ from one another, as a fit needs."""
    check_examples(where, examples)
    if bool(examples.variance.any()):  # as one example has around a mean that is given
        return
    if examples.count == 1:
        raise ValueError(f"{where}: `examples` must be at least two that differ, got 1; give more of them")
    raise ValueError(
        f"{where}: `examples` must differ from one another, got {examples.count} that are equal, or whose squared "
        f"differences {examples.dtype} cannot hold; give more of them, or scale them"
    )


def check_examples(where: str, examples: object) -> None:
    """Raise TypeError unless these are examples."""
    if not isinstance(examples, Examples):
        raise TypeError(
            f"{where}: `examples` must be a laplex.density.Examples, got {type(examples).__name__}; use "
            "laplex.density.Examples(values)"
        )


def digest(values: Tensor, ranks: Ranks | None = None) -> str:
    """A hash of examples (N, n); if several processes see them all, each reads and hashes a part."""
    rows = max(1, DIGESTED // max(1, values[:1].nbytes))
    blocks = values.split(rows)
    own = blocks if ranks is None else blocks[ranks.rank :: ranks.size]
    with ThreadPoolExecutor() as pool:  # hashing releases Python's lock
        parts = list(pool.map(lambda part: hashlib.sha256(part.contiguous().numpy()).digest(), own))
    if ranks is not None:
        everyone = ranks.objects(parts)
        parts = [everyone[number % ranks.size][number // ranks.size] for number in range(len(blocks))]
    total = hashlib.sha256(b"".join(parts))
    total.update(f"{values.dtype} {tuple(values.shape)}".encode())
    return total.hexdigest()[:32]


def _parts(within: slice, few: int) -> list[slice]:
    return [slice(first, min(first + few, within.stop)) for first in range(within.start, within.stop, few)]

"""Mean and variance of a stream of examples, in one pass."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from laplex import _checks

WIDE = 1 << 22  # numbers that are float64 at a time


@torch.no_grad()
def welford(parts: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """The mean (n,) and the variance (n,) of all rows of all parts, in float64; the variance divides by their number.

    Sums of squares are taken around the mean of a few rows and then joined (Welford; Chan, Golub, LeVeque), so that
    nothing is lost where the mean is far larger than the deviation. Each part is read once.

    Args:
        parts: tensors (few, n), on one device, of any real dtype.
    """
    where = "laplex.density.welford"
    count, mean, squares = 0, torch.empty(0), torch.empty(0)
    for part in parts:
        _check(where, part, len(mean) if count else None)
        for rows in part.split(max(1, WIDE // max(1, part.shape[1]))) if len(part) else ():
            wide = rows.double()
            own = wide.mean(0)
            own_squares = (wide - own).square_().sum(0)
            if count == 0:
                count, mean, squares = len(rows), own, own_squares
                continue
            apart, total = own - mean, count + len(rows)
            mean += apart * (len(rows) / total)
            squares += own_squares + apart.square_() * (count / total * len(rows))
            count = total
    if count == 0:
        raise ValueError(f"{where}: `parts` must have at least one row, got none; check what is read")
    return mean, squares / count


def _check(where: str, part: Tensor, width: int | None) -> None:
    """Some rows, as wide as those before."""
    _checks.is_tensor(where, "parts", part)
    if part.dim() != 2 or (width is not None and part.shape[1] != width):
        expected = "n" if width is None else width
        raise ValueError(f"{where}: `parts` must be (few, {expected}) each, got {tuple(part.shape)}; use .flatten(1)")

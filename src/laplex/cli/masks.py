"""What `laplex inpaint` hides: a part given by name, or the white pixels of an image."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from laplex._images import Source, decoder
from laplex.density.images import Shape

KINDS = "half, centre, random: and a fraction such as random:0.5, or an image file whose white pixels are hidden"
HIDDEN = 128  # pixels are hidden from this brightness up, of 255


def mask(name: str, shape: Shape, seed: int) -> Tensor:
    """Which numbers (n,) of an image are known; a pixel is known or hidden with all its channels."""
    height, width, _ = shape
    known = torch.ones(height, width, dtype=torch.bool)
    kind, _, fraction = name.partition(":")
    if name == "half":
        known[height // 2 :] = False
    elif name == "centre":
        known[height // 4 : height - height // 4, width // 4 : width - width // 4] = False
    elif kind == "random" and 0 < _number(fraction) < 1:
        hidden = torch.randperm(height * width, generator=torch.Generator().manual_seed(seed))
        known.view(-1)[hidden[: round(_number(fraction) * height * width)]] = False
    else:
        known = _drawn(name, height, width)
    if not known.any() or known.all():
        amount = "none" if known.all() else "all"
        raise ValueError(
            f"--mask must hide some of the {height} x {width} pixels, got {name}, which hides {amount} of them"
        )
    return known[..., None].expand(shape).flatten()


def _drawn(name: str, height: int, width: int) -> Tensor:
    """The dark pixels (height, width) of an image file, which is turned, resized and cropped as photographs are."""
    path = Path(name)
    if not path.is_file():
        raise ValueError(f"--mask must be {KINDS}, got {name!r}, which is not a file")
    square = decoder("--mask", height, width=width, channels=1, upright=True, nearest=True)
    pixels = square(Source(name, path.read_bytes))
    if pixels is None:
        raise ValueError(f"--mask must be {KINDS}, got {name}, which is not an image that Pillow can read")
    return torch.tensor(pixels[..., 0] < HIDDEN)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0

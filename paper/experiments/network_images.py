"""The images that networks learn to classify: small squares, shifted and mirrored at random.

A packed file has them decoded, so that a machine without Pillow can read it: pixels as differences of neighbours, which
compress better, with classes and their names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from laplex._writing import replaced
from paper.experiments.data import read_npz
from paper.experiments.images import Images, Listing, decode, images_digest, listings, split_paths
from paper.experiments.network_models import Candidate, ImageNetwork, Shape
from paper.experiments.network_tasks import QUICK, WHERE

PATCH = 8  # side of a patch
IMAGES = Shape(width=192, heads=4, blocks=6, tokens=64, batch=128)
SIDE = PATCH * round(IMAGES.tokens**0.5)
TRAIN, VALIDATION = 4000, 1000  # images, at most
SHIFT = 6  # pixels that a train image is moved by in each direction, at most
CHOICE_SEED = 0
ROWS = 500  # validated at once
KEYS = ("train", "train_y", "val", "val_y", "classes")


@dataclass(frozen=True)
class ImageTask:
    """Classes of images, in validation accuracy."""

    train: Images  # on the device
    val: Images
    mean: Tensor  # (3,) of the train images, by channel
    deviation: Tensor  # (3,)
    digest: str
    shape: Shape
    ends: int = 3 * PATCH**2  # of the embedding of a patch

    @property
    def facts(self) -> dict[str, int]:
        """Sizes of the data."""
        return {"train_images": len(self.train.y), "validation_images": len(self.val.y), "side": SIDE}

    def network(self, candidate: Candidate) -> nn.Module:
        """A network with maps of the candidate, on the CPU."""
        return ImageNetwork(candidate.shape(self.shape), candidate.make, PATCH, len(self.train.classes))

    def draws(self, steps: int, seed: int) -> Tensor:
        """Of each image of each batch (steps, batch, 4): its number, how far it is moved, and whether it is mirrored.

        Every image is used once before one is used again.
        """
        generator = torch.Generator().manual_seed(seed)
        count, size = steps * self.shape.batch, len(self.train.y)
        orders = [torch.randperm(size, generator=generator) for _ in range(-(-count // size))]
        shifts = torch.randint(-SHIFT, SHIFT + 1, (count, 2), generator=generator)
        mirrored = torch.randint(0, 2, (count, 1), generator=generator)
        drawn = torch.cat([torch.cat(orders)[:count, None], shifts, mirrored], 1)
        return drawn.view(steps, self.shape.batch, 4).to(self.mean.device)

    def loss(self, net: nn.Module, draw: Tensor) -> Tensor:
        """The mean cross entropy of the class, in nats."""
        number, down, right, mirrored = draw.unbind(1)
        side = torch.arange(SIDE, device=draw.device)
        # What a shift uncovers is filled up with the pixels at the border.
        rows = (side + down[:, None]).clamp(0, SIDE - 1)
        cols = (side + right[:, None]).clamp(0, SIDE - 1)
        cols = torch.where(mirrored[:, None] == 1, SIDE - 1 - cols, cols)
        pixels = self.train.pixels[number[:, None, None], rows[:, :, None], cols[:, None, :]]
        return nn.functional.cross_entropy(net(self._normalised(pixels)).float(), self.train.y[number])

    def validate(self, net: nn.Module) -> dict[str, float]:
        """Loss and accuracy on the validation images as they are."""
        parts = zip(self.val.pixels.split(ROWS), self.val.y.split(ROWS), strict=True)
        scores = [(net(self._normalised(pixels)).float(), y) for pixels, y in parts]
        losses = [nn.functional.cross_entropy(part, y, reduction="sum") for part, y in scores]
        right = [(part.argmax(1) == y).sum() for part, y in scores]
        count = len(self.val.y)
        return {"loss": float(torch.stack(losses).sum()) / count, "accuracy": int(torch.stack(right).sum()) / count}

    def _normalised(self, pixels: Tensor) -> Tensor:
        return (pixels.float() - self.mean) / self.deviation

    def pack(self, path: Path) -> None:
        """Write the images into a packed file."""
        arrays = {"train": _differences(self.train), "train_y": self.train.y.cpu().numpy().astype(np.uint16)}
        arrays |= {"val": _differences(self.val), "val_y": self.val.y.cpu().numpy().astype(np.uint16)}
        with replaced(path) as file:
            np.savez_compressed(file, **arrays, classes=np.array(self.train.classes))  # type: ignore[arg-type]


def image_task(path: str, device: str, *, quick: bool) -> ImageTask:
    """Images out of a packed file, or some of those in a folder with train and validation images, on a device."""
    if not path:
        raise ValueError("--images must be given for this task: a packed file, or a folder with train and val images")
    train, val = _from_folder(Path(path)) if Path(path).is_dir() else _unpacked(Path(path))
    pixels = train.pixels.double()
    digest = images_digest(train, val)
    train, val = (replace(one, pixels=one.pixels.to(device), y=one.y.to(device)) for one in (train, val))
    mean, deviation = (one.float().to(device) for one in (pixels.mean((0, 1, 2)), pixels.std((0, 1, 2)).clamp_min(1)))
    return ImageTask(train, val, mean, deviation, digest, replace(IMAGES, **QUICK) if quick else IMAGES)


def _from_folder(root: Path) -> tuple[Images, Images]:
    """Some images of each part, the same ones every time, as small squares."""
    parts = listings(*split_paths(root))
    train, val = (decode(_some(part, count), SIDE) for part, count in zip(parts, (TRAIN, VALIDATION), strict=True))
    return train, val


def _some(listing: Listing, count: int) -> Listing:
    generator = torch.Generator().manual_seed(CHOICE_SEED)
    order = torch.randperm(len(listing.sources), generator=generator).tolist()
    return replace(listing, sources=[listing.sources[index] for index in order[:count]])


# --- Packed files ----------------------------------------------------------------------------------------------------


def _differences(images: Images) -> np.ndarray:
    """Differences along rows, columns and channels, modulo 256."""
    values = images.pixels.cpu().numpy().astype(np.uint8)
    for axis in (1, 2, 3):
        values = np.diff(values, axis=axis, prepend=np.uint8(0))
    return values


def _unpacked(path: Path) -> tuple[Images, Images]:
    arrays = read_npz(WHERE, path, KEYS)
    classes = tuple(str(name) for name in arrays["classes"])
    parts = []
    for name in ("train", "val"):
        differences, labels = arrays[name], arrays[f"{name}_y"]
        if differences.dtype != np.uint8 or differences.shape != (len(labels), SIDE, SIDE, 3) or len(labels) == 0:
            raise ValueError(
                f"{WHERE}: `{name}` must be uint8 of shape ({len(labels)}, {SIDE}, {SIDE}, 3), got {differences.dtype} "
                f"of shape {differences.shape} in {path}; write the file with --pack"
            )
        pixels = differences
        for axis in (1, 2, 3):
            pixels = np.cumsum(pixels, axis=axis, dtype=np.uint8)
        parts.append(Images(torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64)), classes))
    return parts[0], parts[1]

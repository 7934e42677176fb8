"""Images with a known answer, as packed JPEGs and as folders: a class is a smooth pattern under strong noise."""

import io

import numpy as np
from PIL import Image

from paper.experiments.images import decode, flatten, listings, split_paths

SIDE, CLASSES = 12, 4
D = SIDE * SIDE * 3  # pixel values of an image


def patterns():
    """One smooth pattern a class (CLASSES, SIDE, SIDE): waves of low frequency."""
    u, v = np.meshgrid(np.linspace(0, 1, SIDE), np.linspace(0, 1, SIDE), indexing="ij")
    return np.stack([np.cos(np.pi * u), np.cos(np.pi * v), np.cos(np.pi * (u + v)), np.cos(np.pi * (u - v))])


def drawn(each, seed):
    """Images (CLASSES * each, SIDE, SIDE, 3) uint8, and their classes.

    Smooth random waves make neighbouring pixels alike; independent noise hides the pattern in any one pixel.
    """
    generator = np.random.default_rng(seed)
    waves = patterns()
    y = np.arange(CLASSES * each) % CLASSES
    smooth = np.einsum("nc,chw->nhw", generator.normal(size=(len(y), CLASSES)), waves)
    clean = 30 * waves[y] + 12 * smooth
    noisy = 128 + clean[..., None] + 40 * generator.normal(size=(len(y), SIDE, SIDE, 3))
    return noisy.clip(0, 255).astype(np.uint8), y


def pack(path, each, seed, classes=CLASSES):
    """Write a packed file; lossless PNG bytes do, since the decoder knows formats by their content."""
    pixels, y = drawn(each, seed)
    parts = []
    for one in pixels:
        stream = io.BytesIO()
        Image.fromarray(one).save(stream, "PNG")
        parts.append(stream.getvalue())
    ends = np.cumsum([0, *map(len, parts)])
    names = np.array([f"class{c}" for c in range(classes)])
    np.savez(path, jpeg=np.frombuffer(b"".join(parts), np.uint8), off=ends, y=y, classes=names)
    return path


def unpack(root, each, seed):
    """Write the same images as a folder with one folder a class."""
    pixels, y = drawn(each, seed)
    for index, (one, label) in enumerate(zip(pixels, y, strict=True)):
        folder = root / f"class{label}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(one).save(folder / f"{index:04}.png")
    return root


def write_files(root):
    """A folder with two train files, of 200 images each, and a validation file of 400."""
    for name, each, seed in (("train0", 50, 0), ("train1", 50, 1), ("val", 100, 2)):
        pack(root / f"some_{name}.npz", each, seed)
    return root


def load_files(root):
    """Its images, flattened."""
    train, val = (decode(one, SIDE, progress=lambda *_: None) for one in listings(*split_paths(root)))
    return flatten(train, val, "cpu")

"""The data sets that are in the folder of --data.

Features are .npz files with x_train. Images of ImageNette are in the folder itself or in one below it, as folders train
and val or as packed files. Photographs are packed files photos*.npz with a part train, or the folders of DIV2K.
"""

from __future__ import annotations

import zipfile
from collections import Counter
from pathlib import Path

FEATURES = "an .npz file of features of a frozen network (x_train, y_train, x_test, y_test)"
IMAGES = "images of ImageNette: folders train and val, or packed *train*.npz and *val*.npz"
PHOTOGRAPHS = "photographs, 1024 x 1024: DIV2K_train_HR and DIV2K_valid_HR, or packed photos*.npz"


def features(data: Path | None) -> dict[Path, str]:
    """Files of features, each with the name of its data set.

    The name is that of the file up to its first underscore, or all of it where another file begins with the same.
    """
    paths = [] if data is None else [path for path in sorted(data.glob("*.npz")) if _has(path, "x_train.npy")]
    short = {path: path.stem.partition("_")[0] for path in paths}
    counts = Counter(short.values())
    return {path: name if counts[name] == 1 else path.stem for path, name in short.items()}


def imagenette(data: Path | None) -> Path | None:
    """The folder that has train and validation images."""
    if data is None:
        return None
    folders = [data, *(path for path in sorted(data.iterdir()) if path.is_dir() and "nette" in path.name)]
    return next((folder for folder in folders if all(images(folder, part) for part in ("train", "val"))), None)


def images(folder: Path, part: str) -> tuple[str, ...]:
    """A folder of images, or packed files, of one part."""
    if (folder / part).is_dir():
        return (str(folder / part),)
    return tuple(str(path) for path in sorted(folder.glob(f"*{part}*.npz")) if _has(path, "jpeg.npy"))


def _has(path: Path, member: str) -> bool:
    """Whether an .npz file has an array; its content is not read."""
    try:
        with zipfile.ZipFile(path) as file:
            return member in file.namelist()
    except (OSError, zipfile.BadZipFile):
        return False

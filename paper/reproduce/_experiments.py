"""Entries that are experiments of `python -m paper experiment`: their command lines, from a folder with the data sets.

Features are .npz files with x_train. Images of ImageNette are in the folder itself or in one below it, as folders train
and val or as packed files. Photographs are packed files photos*.npz with a part train, or the folders of DIV2K.
"""

from __future__ import annotations

import zipfile
from collections import Counter
from pathlib import Path

from paper.reproduce._measure import FULL, QUICK, RFF_SIZE, Effort

HELD_OUT = 46  # photographs that are not fitted, where a packed file has one part
VALIDATION = 500  # images that choose the ridge of the empirical Gaussian; the others choose nothing

Line = list[str]  # of `python -m paper experiment`


def lines(name: str, data: Path | None, effort: Effort) -> list[Line]:
    """The commands of an entry; none where its data are missing."""
    if name == "rff":
        return [_rff(effort)]
    if data is None:
        return []
    makers = {
        "heads": _heads,
        "heads-recipe": _heads_recipe,
        "projection": _projection,
        "density": _density,
        "density-adam": _density_adam,
        "photographs": _photographs,
    }
    found = makers[name](data, effort)
    return [[*line, "--quick"] if effort.level == QUICK else line for line in found]


def features(data: Path) -> list[Path]:
    """Files of features in a folder."""
    return [path for path in sorted(data.glob("*.npz")) if _has(path, "x_train.npy")]


def _rff(effort: Effort) -> Line:
    if effort.level == QUICK:
        return ["rff", "--size", "256", "--features", "1", "4", "16", "--seeds", "3"]
    return ["rff", "--size", str(RFF_SIZE[effort.kind])]


def _heads(data: Path, effort: Effort) -> list[Line]:
    return [["heads", *one, "--recipe", "tuned"] for one in _named(data)]


def _heads_recipe(data: Path, effort: Effort) -> list[Line]:
    """The heads that the paper compares, at its ranks."""
    compared = ["--methods", "full", "laplex", "low-rank", "--ranks", "4", "8", "16"]
    return [["heads", *one, "--recipe", "paper", *compared] for one in _named(data)]


def _named(data: Path) -> list[Line]:
    """Files of features, each with the name of its data set."""
    return [["--data", str(path), "--name", name] for path, name in _names(features(data)).items()]


def _names(paths: list[Path]) -> dict[Path, str]:
    """Names of data sets: a file's name up to its first underscore, or all of it where another begins alike."""
    short = {path: path.stem.partition("_")[0] for path in paths}
    counts = Counter(short.values())
    return {path: name if counts[name] == 1 else path.stem for path, name in short.items()}


def _projection(data: Path, effort: Effort) -> list[Line]:
    folder = _imagenette(data)
    return [] if folder is None else [["projection", "--data", str(folder), "--name", "imagenette224"]]


def _density(data: Path, effort: Effort) -> list[Line]:
    methods = ["em", "em-adam", "diagonal", "low-rank", "ppca"] if effort.level == FULL else ["em", "ppca"]
    fits = [] if effort.level == FULL else ["--fits", "q1", "q2", "q3", "q4"]
    return [[*line, "--methods", *methods, *fits] for line in _on_imagenette(data, "imagenette224")]


def _density_adam(data: Path, effort: Effort) -> list[Line]:
    """The paper's model by Adam, which takes far longer than EM: a file of its own."""
    return [[*line, "--methods", "adam"] for line in _on_imagenette(data, "imagenette224-adam")]


def _on_imagenette(data: Path, name: str) -> list[Line]:
    folder = _imagenette(data)
    if folder is None:
        return []
    parts = {part: _sources(folder, part) for part in ("train", "val")}
    line = ["density", "--data", *parts["train"], "--val", *parts["val"], "--val-count", str(VALIDATION)]
    return [[*line, "--name", name, "--side", "224", "--channels", "3", "--studied", "none"]]


def _photographs(data: Path, effort: Effort) -> list[Line]:
    packed = sorted(data.glob("photos*.npz"))
    train, val = data / "DIV2K_train_HR", data / "DIV2K_valid_HR"
    if train.is_dir() and val.is_dir():
        line = ["density", "--data", str(train), "--val", str(val), "--side", "1024", "--channels", "3"]
    elif packed:
        line = ["density", "--data", f"{packed[0]}:train", "--hold-out", str(HELD_OUT)]
    else:
        return []
    line += ["--name", "photos1024", "--studied", "none", "--fits", "q2", "--dense-ranks", "4"]
    methods = ["em", "ppca", "low-rank"] if effort.kind == "cuda" else ["em", "ppca"]
    return [[*line, "--rounds", "20" if effort.kind == "cuda" else "6", "--methods", *methods]]


def _imagenette(data: Path) -> Path | None:
    """The folder that has train and validation images."""
    folders = [data, *(path for path in sorted(data.iterdir()) if path.is_dir() and "nette" in path.name)]
    return next((one for one in folders if all(_sources(one, part) for part in ("train", "val"))), None)


def _sources(folder: Path, part: str) -> list[str]:
    """A folder of images, or packed files, of one part."""
    if (folder / part).is_dir():
        return [str(folder / part)]
    return [str(path) for path in sorted(folder.glob(f"*{part}*.npz")) if _has(path, "jpeg.npy")]


def _has(path: Path, member: str) -> bool:
    """Whether an .npz file has an array; its content is not read."""
    try:
        with zipfile.ZipFile(path) as file:
            return member in file.namelist()
    except (OSError, zipfile.BadZipFile):
        return False

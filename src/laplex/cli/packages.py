"""The packages that commands need beside torch and numpy: all that are missing are named at once."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Needs(NamedTuple):
    """Packages, by the names that pip knows."""

    always: tuple[str, ...] = ()
    for_images: tuple[str, ...] = ()  # where DATA is images: arrays do without
    for_plots: tuple[str, ...] = ()  # without them the command works, and says what it does not draw


NEEDS = {
    "fit": Needs(("safetensors",), ("pillow",), ("matplotlib",)),
    "sample": Needs(("safetensors", "pillow")),
    "reconstruct": Needs(("safetensors", "pillow")),
    "inpaint": Needs(("safetensors", "pillow")),
    "evaluate": Needs(("safetensors",), ("pillow",)),
}
MODULES = {"pillow": "PIL"}  # where the name to import is another


def refuse(command: str, sources: Sequence[str] = ()) -> None:
    """Raise ImportError where a package is missing that the command needs for these sources of examples."""
    needs = NEEDS.get(command, Needs())
    required = [*needs.always, *(needs.for_images if any(map(_is_images, sources)) else ())]
    missing = [name for name in required if not _is_there(name)]
    if not missing:
        return
    plots = [name for name in needs.for_plots if not _is_there(name)]
    also = f" (and {' and '.join(plots)}, for plots)" if plots else ""
    verb = "is" if len(missing) == 1 else "are"
    raise ImportError(
        f"it needs {' and '.join(missing)}{also}, which {verb} missing; pip install {' '.join([*missing, *plots])}"
        f"{_version(missing)}"
    )


def _version(missing: Sequence[str]) -> str:
    """Which torchvision it must be: it is compiled for one torch."""
    if "torchvision" not in missing:
        return ""
    name = ", torchvision" if len(missing) > 1 else ","
    return f"{name} in the version that belongs to torch {importlib.metadata.version('torch')}"


def _is_images(source: str) -> bool:
    """Whether examples are read as images for certain: a file may hold arrays."""
    return source.startswith("bundled:") or Path(source).is_dir()


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(MODULES.get(package, package)) is not None
    except ValueError:  # a module that was put into sys.modules without a spec
        return True

"""The packages that commands need besides torch and numpy: all missing ones are named at once."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DRAWING = ("sample", "reconstruct", "inpaint")  # commands that always write images
MODULES = {"pillow": "PIL"}  # if the name to import differs


def refuse(command: str, *sources: str | None) -> None:
    """Raise ImportError if the command lacks a package for these sources of examples; arrays need no Pillow."""
    images = command in DRAWING or any(map(_is_images, filter(None, sources)))
    missing = [name for name in ("safetensors", *(("pillow",) if images else ())) if not _is_installed(name)]
    if not missing:
        return
    plots = ["matplotlib"] if command == "fit" and not _is_installed("matplotlib") else []
    also = " (and matplotlib, for plots)" if plots else ""
    verb = "is" if len(missing) == 1 else "are"
    raise ImportError(
        f"it needs {' and '.join(missing)}{also}, which {verb} missing; pip install {' '.join([*missing, *plots])}"
    )


def _is_images(source: str) -> bool:
    """Whether the examples are certain to be images: a file may hold arrays instead."""
    return source.startswith("bundled:") or Path(source).is_dir()


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(MODULES.get(package, package)) is not None
    except ValueError:  # the module was put into sys.modules without a spec
        return True

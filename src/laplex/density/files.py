"""Model files: the tensors of a density as safetensors, with what is needed to make it again in the metadata.

The metadata has one entry, "laplex", a JSON object with sorted keys. With two entries safetensors might write either
one first, and equal models would have files of different bytes. Every file is written under a temporary name and then
renamed, so an interruption leaves the old file or the new one.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from laplex._version import __version__
from laplex._writing import replaced
from laplex.density._gaussian import LaplexGaussian, PlacedGaussian

FORMAT = 1  # of these files; a later one is refused
Model = LaplexGaussian | PlacedGaussian
MODELS: dict[str, type[Model]] = {"LaplexGaussian": LaplexGaussian, "PlacedGaussian": PlacedGaussian}
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def save(path: Path | str, model: Model, shape: tuple[int, ...] | None = None, **about: Any) -> None:
    """Write a model to a file, in one step.

    Args:
        path: the file; its folder must exist.
        model: a :class:`laplex.density.LaplexGaussian` or :class:`laplex.density.PlacedGaussian`.
        shape: (height, width, channels) of an image; None if examples are not images.
        about: anything else that JSON can represent, such as ``units="1/255"``; :func:`load` returns it.
    """
    name = type(model).__name__
    if MODELS.get(name) is not type(model):
        raise TypeError(f"laplex.density.files.save: `model` must be one of {', '.join(MODELS)}, got {name}")
    if shape is not None:
        _refuse_shape(tuple(shape), model.dim)
    known = {"class": name, "arguments": _arguments(model), "shape": None if shape is None else list(shape)}
    write(path, "model", dict(model.state_dict()), about | known)


def _refuse_shape(shape: tuple[int, ...], dim: int) -> None:
    if len(shape) != 3 or not all(isinstance(one, int) and one > 0 for one in shape) or math.prod(shape) != dim:
        raise ValueError(
            f"laplex.density.files.save: `shape` must be (height, width, channels) of {dim} numbers, as the model has, "
            f"got {shape}; leave it out if examples are not images"
        )


def load(path: Path | str, device: torch.device | str = "cpu") -> tuple[Model, dict[str, Any]]:
    """A model from a file written by :func:`save`, and what the file says about it.

    Args:
        path: the file.
        device: where the model is put.

    Returns:
        the model, and a dictionary: "shape" of an image, or None; "laplex", the version that wrote the file; "class"
        and "arguments" of the model; and anything else that ``save`` was given.
    """
    tensors, about = read(path, "model")
    if about.get("class") not in MODELS:
        raise ValueError(
            _refused(path, "model", f"of the class {about.get('class')!r}, which laplex {__version__} does not have")
        )
    try:
        arguments = dict(about["arguments"])
        dtype = DTYPES[arguments.pop("dtype")]
        # On the device "meta" nothing is allocated, and the user's random numbers are not touched.
        model = MODELS[about["class"]](**arguments, dtype=dtype, device="meta")
        model.load_state_dict({name: one.to(device) for name, one in tensors.items()}, assign=True)
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(_refused(path, "model", f"whose parts do not fit together ({error})")) from None
    shape = about.get("shape")
    return model, about | {"shape": None if shape is None else tuple(shape)}


def _arguments(model: Model) -> dict[str, Any]:
    """The arguments with which the constructor makes the same model."""
    arguments: dict[str, Any] = {"dim": model.dim, "rank": model.rank, "dtype": str(model.mean.dtype).split(".")[1]}
    if isinstance(model, LaplexGaussian):
        return arguments | {"components": model.components, "phase": model.phi is not None, "latent": model.latent}
    return arguments | {"functions": model.functions}


# --- any tensors ------------------------------------------------------------------------------------------------------


def write(path: Path | str, kind: str, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write tensors, and a dictionary for JSON, to one of our files, of this kind."""
    library = require("laplex.density.files.save")
    content = {"format": FORMAT, "kind": kind, "laplex": __version__, "about": about}
    parts = {name: one.detach().cpu().contiguous() for name, one in tensors.items()}
    content_bytes = library.save(parts, metadata={"laplex": json.dumps(content, sort_keys=True)})
    with replaced(Path(path)) as file:
        file.write(content_bytes)


def read(path: Path | str, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors, on the CPU, and the dictionary in a file of this kind; ValueError if it is not one of ours."""
    require("laplex.density.files.load")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            content = json.loads((file.metadata() or {})["laplex"])
            # Torch's own memory is aligned; that of the file is not, which may change the last bit of sums.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise ValueError(_refused(path, kind, f"which cannot be read ({error.strerror or error})")) from None
    except (SafetensorError, UnicodeDecodeError) as error:
        raise ValueError(_refused(path, kind, f"which is damaged or not a safetensors file ({error})")) from None
    except (KeyError, json.JSONDecodeError):
        raise ValueError(_refused(path, kind, "which laplex did not write")) from None
    return tensors, _about(path, kind, content)


def _about(path: Path | str, kind: str, content: Any) -> dict[str, Any]:
    """The dictionary of a file whose metadata are ``content``."""
    if not isinstance(content, dict) or not isinstance(content.get("about"), dict):
        raise ValueError(_refused(path, kind, "which laplex did not write"))
    if content.get("format") != FORMAT:
        version = f"of format {content.get('format')}, by laplex {content.get('laplex')}"
        raise ValueError(_refused(path, kind, f"{version}; laplex {__version__} reads format {FORMAT}: upgrade it"))
    if content.get("kind") != kind:
        raise ValueError(_refused(path, kind, f"which is a {content.get('kind')}"))
    return dict(content["about"]) | {"laplex": content.get("laplex")}


def _refused(path: Path | str, kind: str, why: str) -> str:
    return f"laplex.density.files.load: `path` must be a {kind} file of laplex, got {path}, {why}"


def require(where: str) -> Any:
    """The library that writes the files; raises if it is missing."""
    try:
        import safetensors.torch
    except ImportError:
        raise ImportError(
            f"{where}: files of models need safetensors, which is missing; pip install safetensors"
        ) from None
    return safetensors.torch

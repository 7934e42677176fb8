"""Fits that are interrupted, a comparison of what they leave behind, a small model, and what commands draw of it."""

import os
import signal
import sys

import numpy as np
import pytest
import torch

from laplex import cli
from laplex.cli import fitting
from laplex.density import Examples, _rounds, files, fit, pictures
from made_pictures import BOTH, SHAPE, WRITTEN, log


def breaking(monkeypatch, name, count, error):
    """Let the call number ``count`` of em_round, or of a step of Adam, raise an error or a signal."""
    owner, attribute = (_rounds, "em_round") if name == "em" else (fitting.Trainer, "step")
    right, calls = getattr(owner, attribute), []

    def broken(*arguments, **options):
        calls.append(1)
        if len(calls) == count and isinstance(error, int):
            signal.raise_signal(error)
        elif len(calls) == count:
            raise error
        return right(*arguments, **options)

    monkeypatch.setattr(owner, attribute, broken)


def same_fit(folder, other):
    assert (folder / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    assert log(folder) == log(other)
    assert sorted(os.listdir(folder)) == WRITTEN


def fit_both(data, folder):
    """A fit by both stages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["laplex", "fit", str(data), "--out", str(folder), *map(str, BOTH)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert ended.value.code == 0
    return folder


# --- a model ----------------------------------------------------------------------------------------------------------


def fit_model(data):
    """Of the images of a file."""
    examples = Examples(torch.from_numpy(np.load(data)).flatten(1))
    return fit(examples, 8, rounds=4, progress=lambda done, total: None).model


def save_model(model, folder):
    """The file of it."""
    files.save(folder / "model.safetensors", model, SHAPE, units="1/255")
    return folder / "model.safetensors"


def record_grids(monkeypatch):
    """What is drawn from here on: (rows, shape) of every grid."""
    grids, right = [], pictures.grid

    def grid(path, rows, shape):
        grids.append((rows, shape))
        right(path, rows, shape)

    monkeypatch.setattr(pictures, "grid", grid)
    return grids


def images_of(grid, label):
    """The images of a grid under a label."""
    return torch.cat([one for name, one in grid[0] if name == label])

"""Fits that are interrupted, and a comparison of what they leave behind."""

import os
import signal
import sys

import pytest

from laplex import cli
from laplex.cli import fitting
from made_pictures import BOTH, WRITTEN, log


def breaking(monkeypatch, name, count, error):
    """Let the call number ``count`` of em_round, or of a step of Adam, raise an error or a signal."""
    owner, attribute = (fitting, "em_round") if name == "em" else (fitting.Trainer, "step")
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

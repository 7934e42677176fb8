"""Small images of a known kind for the commands of densities, and the commands as functions."""

import sys

import numpy as np
import pytest

SHAPE = (6, 6, 3)
DIM = 6 * 6 * 3


def drawn(count, seed=0):
    """Images (count, 6, 6, 3) uint8: a few waves, each with a random amplitude, and some noise."""
    generator = np.random.default_rng(seed)
    u, v = np.meshgrid(np.linspace(0, np.pi, 6), np.linspace(0, np.pi, 6), indexing="ij")
    waves = np.stack([np.cos(u), np.cos(v), np.cos(u + v), np.cos(2 * u)])
    smooth = np.einsum("nwc,whk->nhkc", generator.normal(size=(count, 4, 3)), waves)
    noise = generator.normal(size=(count, *SHAPE))
    return (128 + 25 * smooth + 6 * noise).clip(0, 255).astype(np.uint8)


def write(path, count, seed=0):
    """The same as an .npy file."""
    np.save(path, drawn(count, seed))
    return path


def commands(monkeypatch, capsys):
    """`laplex` as a function of its arguments: exit status, output and errors."""
    from laplex import cli

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["laplex", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, *capsys.readouterr()

    return run

"""Small images of a known kind for the commands of densities, the commands as functions, and what a fit writes."""

import json
import sys

import numpy as np
import pytest

SHAPE = (6, 6, 3)
DIM = 6 * 6 * 3
SMALL = ("--rank", 8, "--rounds", 4, "--device", "cpu", "--every", 0)
BOTH = (*SMALL, "--epochs", 3, "--batch", 16)
PICTURES = ["likelihood.png", "spectrum.png", "places.png", "reconstructions.png", "samples.png"]
WRITTEN = sorted(["checkpoint.safetensors", "log.jsonl", "model.safetensors", "summary.json", *PICTURES])
STEPS = [*(("em", step) for step in (0, 1, 2, 3, "end")), *(("adam", step) for step in (1, 2, 3, "end"))]  # of BOTH


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


def log(folder):
    """The lines of the log of a fit, less the times."""
    entries = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in entry.items() if name != "seconds"} for entry in entries]


def steps(folder):
    """The stage and the number of each line."""
    return [(entry["stage"], entry.get("round", entry.get("epoch", "end"))) for entry in log(folder)]

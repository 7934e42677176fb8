"""The commands of densities: `laplex fit`, `sample`, `reconstruct`, `inpaint` and `evaluate`.

This module has their options, and imports no torch: help is there at once. What they do is imported when one runs.
"""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from laplex.cli.parsing import add_device

PLACES = ("tree", "curve", "raster", "random")  # those of laplex.density, which imports torch
DATA = (
    "a folder of images, one image, an .npz file of packed images or of an array, with :PART if it has several, or an "
    ".npy file; bundled:train and bundled:val come with laplex; transparent pixels are white"
)
MODEL = "the folder of a `laplex fit`, or a model.safetensors"
MASK = """what is hidden: half, centre, random:FRACTION, or an image file, whose white and transparent pixels are
hidden; it is resized and cropped as images are; half if not given"""
SAMPLES = "draws of every filling, shown beside its mean; 0 if not given"
HELP = {
    "fit": "Fit a Gaussian of Laplace kernels to images.",
    "sample": "Draw images from a fitted model.",
    "reconstruct": "Show images beside what a fitted model makes of them.",
    "inpaint": "Hide a part of images, and fill it by its mean given the rest, and by draws.",
    "evaluate": "Say how likely examples are to a fitted model.",
}
OTHERS = tuple(name for name in HELP if name != "fit")
FIT = """Fit a Gaussian with a structured covariance to images, or to any rows of numbers: rounds of EM, in which
pixels jump to their best places, then epochs of Adam if --epochs is given. Ctrl-C saves a checkpoint, and the same
command resumes from it; so it does after any other end. With more --rounds or --epochs it adds them to a fit that has
ended; rounds that are added are not annealed. Under torchrun several processes share the batches of Adam."""


def add_to(commands: Any) -> None:
    """Add the five commands."""
    _add_fit(commands)
    _add_others(commands)


def run(given: argparse.Namespace) -> int:
    """Run one of them; the exit status."""
    module = importlib.import_module("laplex.cli.fit" if given.command == "fit" else "laplex.cli.density_commands")
    return int(module.run(given))


def _add_fit(commands: Any) -> None:
    made = commands.add_parser("fit", help=HELP["fit"], description=FIT)
    made.add_argument("data", metavar="DATA", help=DATA)
    made.add_argument("--out", required=True, metavar="FOLDER", help="for model, log, numbers and pictures")
    made.add_argument("--rank", type=int, required=True, metavar="R", help="of the covariance without its diagonal")
    made.add_argument("--functions", type=int, metavar="Q", help="functions at every place; 2 if not given")
    made.add_argument("--rounds", type=int, default=40, metavar="N", help="of EM; 40 if not given")
    made.add_argument("--places", choices=PLACES, help="where pixels start on the line; tree if not given")
    made.add_argument(
        "--jump", action=argparse.BooleanOptionalAction, default=True, help="let pixels leave their places"
    )
    made.add_argument("--epochs", type=int, default=0, metavar="N", help="of Adam, after EM; 0 if not given")
    made.add_argument("--components", type=int, metavar="I", help="fit the paper's model; goes with --rounds 0")
    made.add_argument("--lr", type=float, default=2e-3, help="learning rate of Adam; 0.002 if not given")
    made.add_argument("--batch", type=int, default=64, metavar="B", help="examples of a step of Adam; 64 if not given")
    made.add_argument("--side", type=int, metavar="S", help="pixels of a side: images are resized and cropped")
    made.add_argument("--channels", type=int, choices=(1, 3), help="1 for grey, 3 for colour")
    made.add_argument("--validation", metavar="DATA", help="examples that are evaluated and not fitted")
    made.add_argument("--hold-out", type=float, metavar="FRACTION", help="take those from DATA, at random")
    add_device(made)
    made.add_argument("--seed", type=int, default=0, help="of everything random; 0 if not given")
    made.add_argument("--fresh", action="store_true", help="forget the checkpoint in FOLDER")
    made.add_argument(
        "--every", type=float, default=30.0, metavar="SECONDS", help="between checkpoints; 30 if not given"
    )


def _add_others(commands: Any) -> None:
    for name in OTHERS:
        about = HELP[name]
        made = commands.add_parser(name, help=about, description=about)
        made.add_argument("model", metavar="MODEL", help=MODEL)
        if name != "sample":
            made.add_argument("data", metavar="DATA", help=DATA)
        if name == "evaluate":
            made.add_argument("--json", metavar="FILE", help="write the numbers there, too")
        else:
            made.add_argument("--out", metavar="FILE.png", help="one picture of all images")
            made.add_argument("--files", metavar="FOLDER", help="a PNG file for each image, of its own size")
            count = 16 if name == "sample" else 8
            made.add_argument("--count", type=int, default=count, metavar="N", help=f"images; {count} if not given")
        if name == "inpaint":
            made.add_argument("--mask", default="half", help=MASK)
            made.add_argument("--samples", type=int, default=0, metavar="N", help=SAMPLES)
        if name in ("sample", "inpaint"):
            made.add_argument("--seed", type=int, default=0, help="of what is random; 0 if not given")
        add_device(made)

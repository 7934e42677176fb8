"""The commands and their options. Nothing here imports torch, so that help appears at once."""

from __future__ import annotations

import argparse
from typing import Any

from laplex._version import __version__
from laplex.cli.parsing import Parser, add_device

DTYPES = ("float32", "float64", "float16", "bfloat16")
PLACES = ("tree", "curve", "raster", "random")  # the same as in laplex.density, which imports torch
SHELLS = ("bash", "zsh")
HELP = {
    "doctor": "Say what can run here, and check that its answers are right.",
    "bench": "Time laplex.linear against torch.nn.Linear.",
    "fit": "Fit a Gaussian of Laplace kernels to images.",
    "sample": "Draw images from a fitted model.",
    "reconstruct": "Show images next to what a fitted model makes of them.",
    "inpaint": "Hide a part of images, and fill it by its mean given the rest, and by draws.",
    "evaluate": "Say how likely examples are to a fitted model.",
    "completion": "Print a script that completes commands and options at the TAB key.",
}
BENCH = """Time laplex.linear against torch.nn.Linear on this machine: at shapes people train, or at your own with
--rows and --cols. Every answer is checked before a time is printed."""
FIT = """Fit a Gaussian with a structured covariance to images, or to any rows of numbers: rounds of EM, in which
pixels jump to their best places, then epochs of Adam if --epochs is given. Ctrl-C saves a checkpoint, and the same
command resumes from it; so it does after any other end. With more --rounds or --epochs it adds them to a fit that has
ended; added rounds are not annealed. Under torchrun several processes share the rounds of EM, and the
batches of Adam."""
COMPLETION = """Print a script that completes commands, options and names at the TAB key. Write it to a file, as in
laplex completion bash > ~/.laplex-completion, and let every shell read it, with the line `source ~/.laplex-completion`
in ~/.bashrc, or in ~/.zshrc for zsh."""
DATA = (
    "a folder of images, one image, an .npz file of packed images or of an array, with :PART if it has several, or an "
    ".npy file; bundled:train and bundled:val come with laplex; transparent pixels are white"
)
MODEL = "the folder of a `laplex fit`, or a model.safetensors"
MASK = """what is hidden: half, centre, random:FRACTION, or an image file, whose white and transparent pixels are
hidden; it is resized and cropped as images are"""


def parser() -> Parser:
    """The parser of the command line."""
    parser = Parser(prog="laplex", description="Exact, trainable Laplace-kernel matrices for PyTorch.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    about = HELP | {"bench": BENCH, "fit": FIT, "completion": COMPLETION}
    parsers = {name: commands.add_parser(name, help=HELP[name], description=about[name]) for name in HELP}
    _add_bench(parsers["bench"].add_argument)
    add_device(parsers["bench"])
    _add_fit(parsers["fit"].add_argument)
    add_device(parsers["fit"])
    for name in ("sample", "reconstruct", "inpaint", "evaluate"):
        _add_model(name, parsers[name].add_argument)
        add_device(parsers[name])
    parsers["completion"].add_argument("shell", choices=SHELLS, metavar="SHELL", help=" or ".join(SHELLS))
    return parser


def _add_bench(add: Any) -> None:
    usual = "the usual shapes if not given"
    add("--rows", type=int, metavar="N", help=f"outputs of your layer: K has N rows; {usual}")
    add("--cols", type=int, metavar="K", help=f"inputs of your layer: K has K columns; {usual}")
    add("--batch", type=int, metavar="B", help="inputs multiplied at once; 64 if not given")
    add("--dtype", default="float32", choices=DTYPES, metavar="DTYPE", help=f"of x: {', '.join(DTYPES)}")
    add("--tau", type=float, default=1.0, help="length scale; anchors are N(0, 1)")
    add("--phase", action=argparse.BooleanOptionalAction, default=False, help="with phases phi and psi")
    add("--memory", type=float, default=4.0, metavar="GB", help="the most nn.Linear may hold")
    add("--json", metavar="FILE", help="write the figures there, too")


def _add_fit(add: Any) -> None:
    add("data", metavar="DATA", help=DATA)
    add("--out", required=True, metavar="FOLDER", help="for model, log, numbers and pictures")
    add("--rank", type=int, required=True, metavar="R", help="of the covariance without its diagonal")
    add("--functions", type=int, metavar="Q", help="functions at every place; 2 if not given")
    add("--rounds", type=int, default=40, metavar="N", help="of EM")
    add("--places", choices=PLACES, help="where pixels start on the line; tree if not given")
    add("--jump", action=argparse.BooleanOptionalAction, default=True, help="let pixels leave their places")
    add("--epochs", type=int, default=0, metavar="N", help="of Adam, after EM")
    add("--components", type=int, metavar="I", help="fit the paper's model; goes with --rounds 0")
    add("--lr", type=float, default=2e-3, help="learning rate of Adam")
    add("--batch", type=int, default=64, metavar="B", help="examples per step of Adam")
    add("--side", type=int, metavar="S", help="pixels of a side: images are resized and cropped")
    add("--channels", type=int, choices=(1, 3), help="1 for grey, 3 for colour")
    add("--validation", metavar="DATA", help="examples that are evaluated and not fitted")
    add("--hold-out", type=float, metavar="FRACTION", help="take those from DATA, at random")
    add("--apart", action="store_true", help="of several processes each holds a part of the examples")
    add("--seed", type=int, default=0, help="of everything random")
    add("--fresh", action="store_true", help="forget the checkpoint in FOLDER")
    add("--every", type=float, default=30.0, metavar="SECONDS", help="between checkpoints")


def _add_model(name: str, add: Any) -> None:
    """Add the options of a command that takes a fitted model."""
    add("model", metavar="MODEL", help=MODEL)
    if name != "sample":
        add("data", metavar="DATA", help=DATA)
    if name == "evaluate":
        add("--json", metavar="FILE", help="write the numbers there, too")
    else:
        add("--out", metavar="FILE.png", help="one picture of all images")
        add("--files", metavar="FOLDER", help="a PNG file for each image, of its own size")
        add("--count", type=int, default=16 if name == "sample" else 8, metavar="N", help="images")
    if name == "inpaint":
        add("--mask", default="half", help=MASK)
        add("--samples", type=int, default=0, metavar="N", help="draws of every filling, shown next to its mean")
    if name in ("sample", "inpaint"):
        add("--seed", type=int, default=0, help="of what is random")

"""The options of the `laplex` command, and what is refused."""

import argparse
import math
from pathlib import Path

from laplex._version import __version__
from laplex.cli import completion, density
from laplex.cli.machine import refuse_device
from laplex.cli.parsing import Parser, add_device, did_you_mean

ABOUT = "Exact, trainable Laplace-kernel matrices for PyTorch."
DOCTOR = "Say what can run here, and check that its answers are right."
BENCH = """Time laplex.linear beside torch.nn.Linear on this machine: at shapes people train, or at your own with --rows
and --cols. Every answer is checked before a time is printed."""
DTYPES = ("float32", "float64", "float16", "bfloat16")


def parser() -> Parser:
    """The commands; `doctor` has no options, and those of others are in their modules."""
    made = Parser(prog="laplex", description=ABOUT)
    made.add_argument("--version", action="version", version=__version__)
    commands = made.add_subparsers(dest="command", metavar="COMMAND")
    commands.add_parser("doctor", help=DOCTOR, description=DOCTOR)
    _add_bench(commands.add_parser("bench", help="Time laplex.linear beside torch.nn.Linear.", description=BENCH))
    for module in (density, completion):
        module.add_to(commands)
    return made


def _add_bench(bench: argparse.ArgumentParser) -> None:
    usual = "the usual shapes if not given"
    bench.add_argument("--rows", type=int, metavar="N", help=f"outputs of your layer: K has N rows; {usual}")
    bench.add_argument("--cols", type=int, metavar="K", help=f"inputs of your layer: K has K columns; {usual}")
    bench.add_argument("--batch", type=int, metavar="B", help="inputs multiplied at once; 64 if not given")
    bench.add_argument("--dtype", default="float32", help=f"of x: {', '.join(DTYPES)}")
    add_device(bench)
    bench.add_argument("--tau", type=float, default=1.0, help="length scale; anchors are N(0, 1)")
    bench.add_argument("--phase", action=argparse.BooleanOptionalAction, default=False, help="with phases phi and psi")
    bench.add_argument("--memory", type=float, default=4.0, metavar="GB", help="the most nn.Linear may hold")
    bench.add_argument("--json", metavar="FILE", help="write the figures there, too")


def refuse(given: argparse.Namespace) -> None:
    """Raise ValueError where the options of `bench` make no sense."""
    if (given.rows is None) != (given.cols is None):
        raise ValueError("--rows and --cols go together: a layer has both")
    if given.batch is not None and given.rows is None:
        raise ValueError("--batch goes with --rows and --cols: the usual shapes have their own")
    for name in ("rows", "cols", "batch"):
        value = getattr(given, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")
    for name in ("tau", "memory"):
        value = getattr(given, name)
        if not 0 < value < math.inf:
            raise ValueError(f"--{name} must be positive and finite, got {value:g}")
    if given.dtype not in DTYPES:
        hint = did_you_mean(given.dtype, DTYPES)
        raise ValueError(f"--dtype must be one of {', '.join(DTYPES)}, got {given.dtype!r}{hint}")
    refuse_device(given.device)
    if given.json is not None:
        try:
            Path(given.json).open("a").close()  # before anything is measured
        except OSError as error:
            raise ValueError(f"--json: cannot write {given.json} ({error.strerror or error})") from None

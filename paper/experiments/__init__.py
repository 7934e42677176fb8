"""Experiments on data that the user brings, run as ``python -m paper experiment NAME`` or by :func:`run`.

    heads        accuracy of classification heads against their parameters: head_methods, head_tables
    compress     a trained weight replaced by LAPLEX, and by its truncated SVD
    projection   flattened images projected to few numbers, then a linear head: projection_maps, projection_training,
                 projection_tables
    density      likelihoods of Gaussians over flattened images: density_data, density_runs, density_tables
    rff          errors of random Fourier features against their number
    features     what enters the head of a frozen image network: trunks
    networks     LAPLEX as the linear maps inside networks: network_models, network_tasks, network_training,
                 network_tables

What they share: options (of the command line), data (features), images, training (one run of a head), record
(results in a JSON file that grows run by run), jobs (processes side by side), report (tables and plots), published
(the paper's own figures).
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from laplex.cli.machine import refuse_device
from laplex.cli.parsing import as_command
from paper.experiments.jobs import JobError
from paper.experiments.options import add_options, parsed_values
from paper.experiments.record import Target

NAMES = ("heads", "compress", "projection", "density", "rff", "features", "networks")  # to add one, write its module
ARGUMENTS = {"side": "--side", "channels": "--channels"}  # of functions, and the options that set them


class Module(Protocol):
    """What the module of an experiment has."""

    ABOUT: str
    Options: type  # see options.py

    def prepare(self, options: Any, target: Target) -> Any:
        """Check the options and read the data; ValueError or ImportError where something is wrong. Writes nothing."""

    def run(self, experiment: Any) -> int:
        """Run what ``prepare`` returned; the exit status. An interruption must keep all finished runs."""


def module(name: str) -> Module:
    """The module of an experiment."""
    return cast(Module, importlib.import_module(f"paper.experiments.{name}"))


def add_to(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of an experiment to its parser; those that all have are the caller's."""
    add_options(parser, module(name).Options)


def run_parsed(name: str, arguments: argparse.Namespace) -> int:
    """:func:`run` with the arguments of a command line."""
    options = parsed_values(module(name).Options, arguments)
    return run(name, options, arguments.out, arguments.device, arguments.fresh)


def run(name: str, options: Mapping[str, Any], out: str | Path, device: str = "cpu", fresh: bool = False) -> int:
    """Run an experiment, or resume it: finished runs are read from the results in ``out``.

    Args:
        name: one of ``NAMES``.
        options: values of the fields of the module's ``Options``, such as {"data": file, "ranks": (4, 8)}.
        out: the folder for results, table and plot.
        device: where runs are computed.
        fresh: forget earlier results of the same name.

    Returns:
        The exit status: 2 where the options or the data are refused, 1 where a job fails, 130 after Ctrl-C.
    """
    target = Target(Path(out), device, fresh)
    experiment = module(name)
    try:
        refuse_device(device)
        work = experiment.prepare(experiment.Options(**options), target)
        _make_folder(target.out)
    except (ValueError, ImportError) as error:
        return _tell(name, as_command(re.sub(r"^paper\.[\w.]+: ", "", str(error)), ARGUMENTS), 2)
    try:
        return experiment.run(work)
    except KeyboardInterrupt:
        return _tell(name, "interrupted; finished runs are kept, and the same command resumes from there", 130)
    except JobError as error:
        return _tell(name, str(error), 1)


def _tell(name: str, message: str, status: int) -> int:
    print(f"python -m paper experiment {name}: {message}", file=sys.stderr)
    return status


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out: cannot write into {path} ({error.strerror or error})") from None

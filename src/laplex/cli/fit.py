"""`laplex fit`: a Gaussian of Laplace kernels, fitted to images or to any rows of numbers."""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import torch

from laplex._version import __version__
from laplex.cli import density_data, signals, team
from laplex.cli.checkpoint import CHECKPOINT, LAST_GOOD, Keeper, Point
from laplex.cli.density_commands import refuse_folder
from laplex.cli.fit_report import report
from laplex.cli.fitting import DivergedError, Job, Settings, fitted
from laplex.cli.machine import refuse_device, refuse_seed
from laplex.cli.parsing import as_command
from laplex.density import files

LARGEST_RANK = 1 << 14  # its matrices in float64, of which EM has several, take 2 GB each


def run(given: argparse.Namespace) -> int:
    """The command: 2 where options or data are refused, 1 where the fit diverges, 130 after Ctrl-C, 143 after kill."""
    with signals.raised():
        try:
            refuse(given)
            with team.joined(given.device) as us:
                return _run(given, us)
        except (ValueError, TypeError, ImportError) as error:
            return _told(as_command(error), 2)
        except torch.OutOfMemoryError:
            return _told("the device has too little memory; give a smaller --rank or --batch", 1)
        except BrokenPipeError:  # nobody reads the output any more
            raise
        except OSError as error:
            return _told(f"cannot go on ({error}){_resumed(given)}", 1)
        except KeyboardInterrupt as error:
            return _told(f"interrupted{_resumed(given)}", _status(error))


def _resumed(given: argparse.Namespace) -> str:
    """How the fit is resumed, if there is a checkpoint."""
    there = (Path(given.out) / CHECKPOINT).exists()
    return f"; the same command{' without --fresh' if given.fresh else ''} resumes from the checkpoint" if there else ""


def _run(given: argparse.Namespace, us: team.Team) -> int:
    data = density_data.for_fit(given, us.device, quiet=not us.leads)
    settings = _settings(given, us)
    _refuse_for(settings, data)
    known = asdict(settings) | {"laplex": __version__}
    keeper = Keeper(Path(given.out), known, data.digest, given.every, writes=us.leads)
    point = None if given.fresh else keeper.restore()
    if point is not None:
        settings = _continued(settings, point, given.out)
    us.wait()  # before the checkpoint is replaced, all have read it
    keeper.folder.mkdir(parents=True, exist_ok=True)
    job = Job(data, settings, keeper, us)
    try:
        keeper.begin(fresh=given.fresh)
        found = fitted(job, point)
        if us.leads:
            report(job, found)
    except DivergedError as error:
        return _diverged(job, error)
    except KeyboardInterrupt as error:
        return _interrupted(given, job, error)
    except BaseException:
        keeper.save()
        raise
    finally:
        keeper.close()
    return 0


def _continued(settings: Settings, point: Point, folder: str) -> Settings:
    """The settings with the schedule of the checkpoint; more rounds than it was made for follow without annealing."""
    before, schedule = point.settings["rounds"], point.settings["schedule"]
    more = settings.rounds - before
    if more and point.stage == "adam":
        raise ValueError(
            f"--rounds: the fit in {folder} has begun its epochs of Adam after {before} rounds, and rounds come before "
            f"epochs; give --rounds {before} and more --epochs, another folder, or --fresh to start over"
        )
    if more:
        _told(
            f"{folder} has a fit of {before} rounds: {more} more follow, without annealing; --fresh would anneal "
            f"{settings.rounds} rounds from the start",
            0,
        )
    return replace(settings, schedule=schedule)


def _interrupted(given: argparse.Namespace, job: Job, error: KeyboardInterrupt) -> int:
    """Save what was reached. A second signal ends the process at once, and leaves the checkpoint as it was."""
    signals.end_at_once()
    if job.keeper.progress is None:
        return _told(f"interrupted{_resumed(given)}", _status(error))
    _told(f"interrupted after {job.keeper.progress}; saving a checkpoint (another Ctrl-C ends at once)", 0)
    job.keeper.save()
    return _told(f"saved{_resumed(given)}", _status(error))


def _status(error: KeyboardInterrupt) -> int:
    return error.status if isinstance(error, signals.Interrupted) else 128 + signal.SIGINT


def _diverged(job: Job, error: DivergedError) -> int:
    kept = "no round was finished"
    if error.model is not None and job.team.leads:
        path = job.keeper.folder / LAST_GOOD
        files.save(path, error.model, job.data.shape, units=job.data.units)
        kept = f"the last good model is {path}"
    hint = "a smaller --lr and --fresh" if job.settings.epochs else "fewer --rounds and --fresh, or look at the data"
    return _told(f"{error}; {kept}; try {hint}", 1) if job.team.leads else 1


def _told(message: str, status: int) -> int:
    if os.environ.get("RANK", "0") == "0":  # set by torchrun; all processes fail alike, and one says so
        with suppress(OSError):  # a terminal that was closed; what is to be saved is saved all the same
            print(f"laplex fit: {message}", file=sys.stderr)
    return status


def _settings(given: argparse.Namespace, us: team.Team) -> Settings:
    paper = given.components is not None
    return Settings(
        rank=given.rank,
        functions=None if paper else given.functions or 2,
        components=given.components,
        rounds=given.rounds,
        schedule=given.rounds,
        places=given.places or ("raster" if paper else "tree"),
        jump=given.jump,
        epochs=given.epochs,
        lr=given.lr,
        batch=given.batch,
        seed=given.seed,
        device=us.device.type,
        processes=us.size,
    )


# --- what is refused --------------------------------------------------------------------------------------------------


def refuse(given: argparse.Namespace) -> None:
    """Raise ValueError where the options make no sense, before anything is read."""
    for name, least in (("rank", 1), ("functions", 1), ("components", 1), ("rounds", 0), ("epochs", 0), ("batch", 1)):
        value = getattr(given, name)
        if value is not None and value < least:
            raise ValueError(f"--{name} must be at least {least}, got {value}")
    if given.rounds == given.epochs == 0:
        raise ValueError("--rounds and --epochs must not both be 0: nothing would be fitted")
    if not 0 < given.lr < math.inf:
        raise ValueError(f"--lr must be positive and finite, got {given.lr:g}")
    if not 0 <= given.every < math.inf:
        raise ValueError(f"--every must be 0 or more seconds, got {given.every:g}")
    if given.side is not None and given.side < 1:
        raise ValueError(f"--side must be at least 1, got {given.side}")
    _refuse_model(given)
    if given.validation is not None and given.hold_out is not None:
        raise ValueError("--validation and --hold-out exclude each other: give one of them")
    if given.hold_out is not None and not 0 < given.hold_out < 1:
        raise ValueError(f"--hold-out must be between 0 and 1, got {given.hold_out:g}")
    refuse_device(given.device)
    refuse_seed(given.seed)
    refuse_folder("--out", given.out)
    files.require("--out")  # else it would be missed at the first checkpoint, after minutes


def _refuse_model(given: argparse.Namespace) -> None:
    """The two kinds of models: EM fits one with functions, the paper's has components."""
    if given.rank > LARGEST_RANK:
        raise ValueError(f"--rank must be at most {LARGEST_RANK}, got {given.rank}: its matrices fill the memory")
    if given.components is None:
        functions = given.functions or 2
        if given.rank % functions or given.rank < 2 * functions:
            fits = max(given.rank // functions, 2) * functions
            raise ValueError(
                f"--rank must be a multiple of --functions, and at least twice as large, got {given.rank} and "
                f"{functions}; use --rank {fits}"
            )
    elif given.rounds:
        raise ValueError(f"--components goes with --rounds 0, got --rounds {given.rounds}: EM fits --functions")
    elif given.functions is not None or given.places not in (None, "raster"):
        raise ValueError("--components excludes --functions, and any --places but raster")


def _refuse_for(settings: Settings, data: density_data.Data) -> None:
    """Raise ValueError where the options do not fit the data or the processes."""
    if settings.batch % settings.processes:
        raise ValueError(f"--batch must be a multiple of the {settings.processes} processes, got {settings.batch}")
    if settings.rank > data.train.dim:
        raise ValueError(
            f"--rank must be at most {data.train.dim}, the numbers of an example, got {settings.rank}; a larger one "
            "describes nothing more"
        )
    if settings.places == "curve" and data.shape is None:
        raise ValueError("--places curve needs images: the numbers of DATA have no height and width; give --side")

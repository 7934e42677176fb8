"""`laplex fit`: fits a Gaussian of Laplace kernels to images or to any rows of numbers."""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import traceback
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import torch

from laplex._version import __version__
from laplex.cli import density_data, packages, signals, team
from laplex.cli.checkpoint import CHECKPOINT, LAST_GOOD, Checkpoint, Keeper
from laplex.cli.density_commands import refuse_folder
from laplex.cli.fit_report import report
from laplex.cli.fitting import DivergedError, Job, Settings, fitted
from laplex.cli.machine import refuse_device, refuse_seed
from laplex.cli.parsing import as_command
from laplex.density import files

LARGEST_RANK = 1 << 14  # matrices of this size in float64, of which EM keeps several, take 2 GB each


class _Ended(Exception):
    """Raised to end the command with a status, without waiting for other processes."""


def run(options: argparse.Namespace) -> int:
    """Run it. Returns 2 if options or data are refused, 1 if the fit diverges, 130 after Ctrl-C, 143 after kill."""
    with signals.raised():
        try:
            refuse_device(options.device)
            with team.joined(options.device) as processes:
                return _run(options, processes)
        except _Ended as ended:
            return int(ended.args[0])
        except (ValueError, TypeError, ImportError) as error:
            return _say(as_command(error), 2)
        except torch.OutOfMemoryError:
            return _say("the device has too little memory; give a smaller --rank or --batch", 1)
        except BrokenPipeError:  # no one reads the output any more
            raise
        except OSError as error:
            return _say(f"cannot continue ({error}){_resumed(options)}", 1)
        except RuntimeError:
            if not team.several():
                raise
            traceback.print_exc()  # it comes from an exchange if another process has died
            return _say(f"cannot continue (the error is above){_resumed(options)}", 1)
        except KeyboardInterrupt as error:
            return _say(f"interrupted{_resumed(options)}", _status(error))


def _resumed(options: argparse.Namespace) -> str:
    """A hint how to resume the fit, if there is a checkpoint."""
    there = (Path(options.out) / CHECKPOINT).exists()
    return (
        f"; the same command{' without --fresh' if options.fresh else ''} resumes from the checkpoint" if there else ""
    )


def _run(options: argparse.Namespace, processes: team.Team) -> int:
    processes.attempt(lambda: refuse(options))
    data = density_data.for_fit(options, processes)
    settings = _settings(options, processes)
    _refuse_for(settings, data)
    known = asdict(settings) | {"laplex": __version__}
    keeper = Keeper(Path(options.out), known, data.digest, options.every, writes=processes.leads, run=processes.run)
    try:
        processes.attempt(keeper.lock)  # from here on no other fit replaces the checkpoint
        fresh = options.fresh and not keeper.is_of(processes.run_to_continue())  # a restart must not start over
        point = processes.attempt(lambda: None if fresh else keeper.restore())  # all read it before it is replaced
        processes.agree_on("--out must be one folder for all processes", keeper.described(point))
        if point is not None:
            settings = _continued(settings, point, options.out)
        return _begun(options, Job(data, settings, keeper, processes), point, fresh=fresh)
    finally:
        keeper.close()


def _begun(options: argparse.Namespace, job: Job, point: Checkpoint | None, *, fresh: bool) -> int:
    try:
        job.keeper.begin(fresh=fresh)
        _fit(job, point)
    except DivergedError as error:
        return _diverged(job, error)
    except KeyboardInterrupt as error:
        raise _Ended(_interrupted(options, job, error)) from None
    return 0


def _fit(job: Job, point: Checkpoint | None) -> None:
    """Fit, and write the report. An error saves a checkpoint; divergence and signals are left to the caller."""
    try:
        result = fitted(job, point)
        if job.team.leads:
            report(job, result)
    except (DivergedError, KeyboardInterrupt):
        raise
    except BaseException:
        job.keeper.save()
        raise


def _continued(settings: Settings, point: Checkpoint, folder: str) -> Settings:
    """The settings with the checkpoint's schedule; rounds beyond those of that schedule follow without annealing."""
    before, schedule = point.settings["rounds"], point.settings["schedule"]
    more = settings.rounds - before
    if more and point.stage == "adam":
        raise ValueError(
            f"--rounds: the fit in {folder} has begun its epochs of Adam after {before} rounds, and rounds come before "
            f"epochs; give --rounds {before} and more --epochs, another folder, or --fresh to start over"
        )
    if more:
        _say(
            f"{folder} has a fit of {before} rounds: {more} more follow, without annealing; --fresh would anneal "
            f"{settings.rounds} rounds from the start",
            0,
        )
    return replace(settings, schedule=schedule)


def _interrupted(options: argparse.Namespace, job: Job, error: KeyboardInterrupt) -> int:
    """Save what was reached. A second signal ends the process at once, and leaves the checkpoint as it was.

    Under torchrun it does not: there a second signal follows by itself, to a process that has already received the
    first, and a process that does not end within 30 seconds is killed.
    """
    alone = job.team.size == 1
    (signals.end_at_once if alone else signals.ignore)()
    if job.keeper.progress is None:
        return _say(f"interrupted{_resumed(options)}", _status(error))
    another = " (another Ctrl-C ends at once)" if alone else ""
    _say(f"interrupted after {job.keeper.progress}; saving a checkpoint{another}", 0)
    job.keeper.save()
    return _say(f"saved{_resumed(options)}", _status(error))


def _status(error: KeyboardInterrupt) -> int:
    return error.status if isinstance(error, signals.Interrupted) else 128 + signal.SIGINT


def _diverged(job: Job, error: DivergedError) -> int:
    left = "no round was finished"
    if error.model is not None and job.team.leads:
        path = job.keeper.folder / LAST_GOOD
        files.save(path, error.model, job.data.shape, units=job.data.units)
        left = f"the last good model is {path}"
    hint = "a smaller --lr and --fresh" if job.settings.epochs else "fewer --rounds and --fresh, or look at the data"
    return _say(f"{error}; {left}; try {hint}", 1) if job.team.leads else 1


def _say(message: str, status: int) -> int:
    if os.environ.get("RANK", "0") == "0":  # set by torchrun; all processes fail in the same way, so one reports it
        with suppress(OSError):  # the terminal may be closed; saving goes ahead
            print(f"laplex fit: {message}", file=sys.stderr)
    return status


def _settings(options: argparse.Namespace, processes: team.Team) -> Settings:
    paper = options.components is not None
    return Settings(
        rank=options.rank,
        functions=None if paper else options.functions or 2,
        components=options.components,
        rounds=options.rounds,
        schedule=options.rounds,
        places=options.places or ("raster" if paper else "tree"),
        jump=options.jump,
        epochs=options.epochs,
        lr=options.lr,
        batch=options.batch,
        seed=options.seed,
        device=processes.device.type,
        processes=processes.size,
        apart=options.apart,
    )


# --- what is refused --------------------------------------------------------------------------------------------------


def refuse(options: argparse.Namespace) -> None:
    """Raise if the options make no sense or need packages that are missing, before anything is read."""
    packages.refuse("fit", options.data, options.validation)
    for name, least in (("rank", 1), ("functions", 1), ("components", 1), ("rounds", 0), ("epochs", 0), ("batch", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise ValueError(f"--{name} must be at least {least}, got {value}")
    if options.rounds == options.epochs == 0:
        raise ValueError("--rounds and --epochs must not both be 0: nothing would be fitted")
    if not 0 < options.lr < math.inf:
        raise ValueError(f"--lr must be positive and finite, got {options.lr:g}")
    if not 0 <= options.every < math.inf:
        raise ValueError(f"--every must be 0 or more seconds, got {options.every:g}")
    if options.side is not None and options.side < 1:
        raise ValueError(f"--side must be at least 1, got {options.side}")
    _refuse_model(options)
    if options.validation is not None and options.hold_out is not None:
        raise ValueError("--validation and --hold-out exclude each other: give one of them")
    if options.apart and options.hold_out is not None:
        raise ValueError("--apart excludes --hold-out: give the examples that are not fitted by --validation")
    if options.hold_out is not None and not 0 < options.hold_out < 1:
        raise ValueError(f"--hold-out must be between 0 and 1, got {options.hold_out:g}")
    refuse_seed(options.seed)
    refuse_folder("--out", options.out)


def _refuse_model(options: argparse.Namespace) -> None:
    """Raise ValueError if the model's options do not fit its kind: EM fits functions, the paper's has components."""
    if options.rank > LARGEST_RANK:
        raise ValueError(f"--rank must be at most {LARGEST_RANK}, got {options.rank}: its matrices fill the memory")
    if options.components is None:
        functions = options.functions or 2
        if options.rank % functions or options.rank < 2 * functions:
            fits = max(options.rank // functions, 2) * functions
            raise ValueError(
                f"--rank must be a multiple of --functions, and at least twice as large, got {options.rank} and "
                f"{functions}; use --rank {fits}"
            )
    elif options.rounds:
        raise ValueError(f"--components goes with --rounds 0, got --rounds {options.rounds}: EM fits --functions")
    elif options.functions is not None or options.places not in (None, "raster"):
        raise ValueError("--components excludes --functions, and any --places but raster")


def _refuse_for(settings: Settings, data: density_data.FitData) -> None:
    """Raise ValueError if the options do not fit the data or the processes."""
    if settings.epochs and settings.batch % settings.processes:
        raise ValueError(f"--batch must be a multiple of the {settings.processes} processes, got {settings.batch}")
    if settings.rank > data.train.dim:
        raise ValueError(
            f"--rank must be at most {data.train.dim}, the numbers of an example, got {settings.rank}; a larger one "
            "describes nothing more"
        )
    if settings.places == "curve" and data.shape is None:
        raise ValueError("--places curve needs images: the numbers of DATA have no height and width; give --side")

"""The folder of a fit: its log, and the checkpoint that must survive an interruption.

    FOLDER/log.jsonl                one JSON object per line: what each round or epoch found
    FOLDER/checkpoint.safetensors   tensors, settings, and the log so far
    FOLDER/model.safetensors        and summary.json and pictures, when the fit has ended

A checkpoint is replaced in one step, so at every moment the folder has a complete one or none. The latest state is also
held in memory, so that a fit that is interrupted between two checkpoints can save it. Lines are added to the log; those
written after the checkpoint are dropped when a fit is resumed, because those rounds are repeated.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from laplex._writing import locked, write_whole
from laplex.density import files

CHECKPOINT, LOG = "checkpoint.safetensors", "log.jsonl"
MODEL, LAST_GOOD, SUMMARY = "model.safetensors", "last-good.safetensors", "summary.json"
PICTURES = ("likelihood.png", "spectrum.png", "samples.png", "reconstructions.png", "places.png")
GROWING = ("rounds", "epochs")  # settings that a later command may increase
LATER = {"apart": False}  # settings missing from older checkpoints, and the values they had then
FREE = {"schedule", "processes"}  # settings that may differ: the schedule is taken from the checkpoint


class Checkpoint(NamedTuple):
    """Where a fit is: its stage, a tree of dictionaries, lists, numbers and tensors, and the fit's settings."""

    stage: str
    tree: dict[str, Any]
    settings: dict[str, Any]


class Reached(NamedTuple):
    """A state that can be saved."""

    about: dict[str, Any]
    tensors: dict[str, Tensor]
    progress: str  # in words, such as "3 of 40 rounds"


class Keeper:
    """Writes the log and the checkpoints of one fit.

    Args:
        folder: where they are. It must exist when something is written.
        settings: a dictionary of options which, with ``data``, a checkpoint must agree with to be resumed. Settings in
            GROWING may be smaller in the checkpoint, those in FREE may differ, and "schedule" is taken from it.
        every: seconds between checkpoints.
        writes: whether this process writes; of several that fit together, one does.
        run: the run of `torchrun`, if there is one.
    """

    def __init__(
        self,
        folder: Path,
        settings: dict[str, Any],
        data: str,
        every: float,
        *,
        writes: bool = True,
        run: str | None = None,
    ) -> None:
        self.folder, self._settings, self._data, self._run = folder, settings, data, run
        self._every, self._writes = every, writes
        self._start = self._last_save = time.monotonic()
        self._before = 0.0
        self._lock_descriptor: int | None = None  # of the locked folder
        self._reached: Reached | None = None
        self._saved: Reached | None = None
        self.log: list[dict[str, Any]] = []

    def restore(self) -> Checkpoint | None:
        """The checkpoint in the folder, or None if there is none. Raises ValueError if it belongs to another fit."""
        path = self.folder / CHECKPOINT
        if not path.exists():
            return None
        try:
            tensors, about = files.read(path, "checkpoint")
            settings, data, self._before, self.log = (about[name] for name in ("settings", "data", "seconds", "log"))
            settings.setdefault("schedule", settings["rounds"])  # from before rounds could be added
            if "start" in settings:  # its older name
                settings["places"] = settings.pop("start")
            point = Checkpoint(about["stage"], unpacked(about["tree"], tensors), settings)
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f"--out: the checkpoint cannot be used ({error}); --fresh starts over") from None
        self._refuse_other(settings, data)
        self._settings = self._settings | {"schedule": settings["schedule"]}
        return point

    def described(self, point: Checkpoint | None) -> str:
        """A description of the folder that differs between checkpoints, to be used after :meth:`restore`."""
        if point is None:
            return "one without a checkpoint"
        return f"one with a checkpoint after {len(self.log)} entries of the log and {self._before} s"

    def is_of(self, run: str | None) -> bool:
        """Whether the folder's checkpoint was written in this run of `torchrun`."""
        try:
            return run is not None and files.read(self.folder / CHECKPOINT, "checkpoint")[1].get("run") == run
        except ValueError:
            return False

    def _refuse_other(self, settings: dict[str, Any], data: str) -> None:
        differ = []
        for name in sorted((settings.keys() | self._settings.keys()) - FREE):
            saved: Any = settings.get(name, LATER.get(name))
            request: Any = self._settings.get(name, LATER.get(name))
            if not (saved <= request if name in GROWING else saved == request):
                differ.append(f"{name} {saved} there and {request} here")
        if not differ and data != self._data:
            differ = ["DATA, --side, --channels or --hold-out give other examples"]
        if differ:
            raise ValueError(
                f"--out: {self.folder} has a checkpoint of another fit: {', '.join(differ)}; give another folder, or "
                "--fresh to start over"
            )

    def begin(self, *, fresh: bool = False) -> None:
        """Reset the log to that of the checkpoint, and remove unfinished files that a kill has left behind.

        A fresh fit removes the checkpoint as well. The folder must be locked.
        """
        if self._writes:
            if fresh:
                (self.folder / CHECKPOINT).unlink(missing_ok=True)
            for name in (CHECKPOINT, LOG, MODEL, LAST_GOOD, SUMMARY, *PICTURES):
                for unfinished in self.folder.glob(f".{name}.*.tmp"):
                    unfinished.unlink()
            write_whole(self.folder / LOG, "".join(json.dumps(entry) + "\n" for entry in self.log))

    def lock(self) -> None:
        """Make the folder, and keep other fits out of it until this process ends, however it ends.

        Raises ValueError if another fit is writing into it now.
        """
        if not self._writes:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock_descriptor = locked(self.folder, wait=False)
        except BlockingIOError:
            raise ValueError(
                f"--out: another fit writes into {self.folder} now; wait for it, or give another folder"
            ) from None
        except OSError as error:
            raise ValueError(f"--out: cannot write into {self.folder}: {error}; give another folder") from None

    def close(self) -> None:
        """Let others write into the folder."""
        if self._lock_descriptor is not None:
            os.close(self._lock_descriptor)
            self._lock_descriptor = None

    def seconds(self) -> float:
        """How long the fit has taken, including the time before the checkpoint."""
        return round(self._before + time.monotonic() - self._start, 3)

    def note(self, **entry: Any) -> None:
        """Add a line to the log."""
        self.log.append(entry)
        if self._writes:
            with (self.folder / LOG).open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")

    def due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return self._writes and time.monotonic() - self._last_save >= self._every

    @property
    def progress(self) -> str | None:
        """A description of the state that :meth:`save` saves or has saved; None if no state was reached."""
        return None if self._reached is None else self._reached.progress

    def reached(self, stage: str, tree: dict[str, Any], progress: str, *, copied: bool = False) -> None:
        """Hold a state, so that it can be saved at any moment from now on.

        Args:
            stage, tree: see :class:`Checkpoint`.
            progress: the state in words.
            copied: whether to copy tensors to the host, because they will be overwritten.
        """
        if not self._writes:
            return
        tensors: dict[str, Tensor] = {}
        about = {"stage": stage, "tree": packed(tree, tensors), "seconds": self.seconds(), "log": list(self.log)}
        if copied:
            tensors = {name: one.detach().to("cpu", copy=True) for name, one in tensors.items()}
        about |= {"settings": self._settings, "data": self._data, "run": self._run}
        self._reached = Reached(about, tensors, progress)  # in one step: an interruption finds the old or the new

    def save(self) -> None:
        """Replace the checkpoint by the state that was reached last, unless that is already saved."""
        if self._reached is not None and self._reached is not self._saved:
            files.write(self.folder / CHECKPOINT, "checkpoint", self._reached.tensors, self._reached.about)
            self._saved, self._last_save = self._reached, time.monotonic()


def packed(tree: Any, tensors: dict[str, Tensor], name: str = "tree") -> Any:
    """The tree in a form for JSON, with its tensors moved to a dictionary. Keys may be numbers, as Adam's are."""
    if isinstance(tree, Tensor):
        tensors[name] = tree
        return {"tensor": name}
    if isinstance(tree, dict):
        return {"dict": [[key, packed(value, tensors, f"{name}.{key}")] for key, value in tree.items()]}
    if isinstance(tree, list | tuple):
        return {"list": [packed(value, tensors, f"{name}.{index}") for index, value in enumerate(tree)]}
    return tree


def unpacked(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """The tree that :func:`packed` packed, with lists in place of tuples."""
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: unpacked(value, tensors) for key, value in content}
    return [unpacked(value, tensors) for value in content]

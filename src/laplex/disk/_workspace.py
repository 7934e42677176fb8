"""The folder of a product: records what is done so far, so that an interrupted product can be resumed.

    manifest.json    what is computed, from what; the step, how many of its items are complete, and how long files are
    *.bin            numbers of the steps

An item (a block of numbers, or a bucket) reads what earlier steps wrote, and writes at places in files that depend on
nothing else; sums over items have several places (``_running``). So items may be repeated, and the manifest need not
know what an unfinished item has written. It names an item only once everything that the item wrote is on the disk; a
thread waits for that while the next item is computed.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from laplex._progress import Progress
from laplex._writing import locked, write_whole
from laplex.disk._files import WHERE, Scratch, bytes_on_disk, not_written
from laplex.disk._output import unfinished_path

MANIFEST = "manifest.json"
UNFINISHED = f".{MANIFEST}.*.tmp"  # what a kill leaves of a manifest being written
FORMAT = 5  # of the workspace; any other is refused


class Syncable(Protocol):
    """A file that can be flushed to the disk."""

    def sync(self) -> None: ...


class Workspace:
    """A locked folder with its manifest.

    Args:
        folder: must not exist yet, be empty, or be the workspace of this very product.
        identity: what the product is, as a dictionary for JSON.
        steps: the names of the steps, in order.
    """

    def __init__(self, folder: Path, identity: dict[str, Any], steps: tuple[str, ...]) -> None:
        self.folder, self._steps = folder, steps
        _make(folder)
        try:
            self._lock = locked(folder, wait=False)
        except BlockingIOError:
            raise ValueError(
                f"{WHERE}: `workspace` {folder} is in use by another process; wait for it, or give another folder"
            ) from None
        self._writer = ThreadPoolExecutor(1, "laplex.disk")
        self._last: Future[None] | None = None
        self._scratches: dict[str, Scratch] = {}
        try:
            self._state = self._restored(identity)
        except BaseException:
            self.close()
            raise

    def _restored(self, identity: dict[str, Any]) -> dict[str, Any]:
        state = _manifest(self.folder / MANIFEST)
        if state is None:
            if any(not path.match(UNFINISHED) for path in self.folder.iterdir()):
                raise ValueError(
                    f"{WHERE}: `workspace` {self.folder} must be empty or a workspace, got a folder with other "
                    "files; give another folder"
                )
            start: dict[str, Any] = {"layout": None, "result": None, "step": self._steps[0], "done": 0, "files": {}}
            return {"format": FORMAT, "identity": identity} | start
        differ = differences(state["identity"], identity) if state["format"] == FORMAT else ["the version of laplex"]
        if differ:
            unfinished = unfinished_path(state["identity"])  # no other product reads it, so nothing else deletes it
            left = f", and {unfinished}," if unfinished.exists() else ""
            raise ValueError(
                f"{WHERE}: `workspace` {self.folder} is that of another product: {', '.join(differ)} "
                f"{'differs' if len(differ) == 1 else 'differ'}; give another folder, or delete it{left} to start over"
            )
        if state["step"] != self._steps[-1]:
            self._check_files(state["files"])
        return state

    # --- steps --------------------------------------------------------------------------------------------------------

    @property
    def layout(self) -> dict[str, Any] | None:
        """How the work is divided, as given to :meth:`begin`; None before."""
        layout: dict[str, Any] | None = self._state["layout"]
        return layout

    @property
    def result(self) -> dict[str, Any]:
        """What the last step made, as given to :meth:`finish`."""
        result: dict[str, Any] = self._state["result"]
        return result

    def finish(self, result: dict[str, Any]) -> None:
        """Record that all is done, and a mark that tells the result from anything else."""
        self._state["result"] = result
        self.enter(self._steps[-1])

    def begin(self, layout: dict[str, Any] | None) -> None:
        """Forget all that was done, and start from the first step with a layout, a dictionary for JSON.

        None means that the layout is yet to be chosen.
        """
        self._state |= {"layout": layout, "result": None, "files": {}}
        self._commit(self._steps[0], 0, ())
        self._wait()

    @property
    def step(self) -> str:
        """The current step."""
        return str(self._state["step"])

    def done(self, step: str, total: int) -> int:
        """How many of a step's ``total`` items are complete."""
        now, asked = self._steps.index(self._state["step"]), self._steps.index(step)
        return total if now > asked else 0 if now < asked else int(self._state["done"])

    def items(
        self, step: str, totals: dict[str, int], files: tuple[Syncable, ...], progress: Progress
    ) -> Iterator[int]:
        """Yield the items of a step that are left. Asking for the next item marks the previous one as complete.

        Args:
            step: its name.
            totals: how many items every step has, in order.
            files: the files that the items write.
            progress: called after every item.
        """
        before = sum(totals[name] for name in self._steps[: self._steps.index(step)])
        for item in range(self.done(step, totals[step]), totals[step]):
            yield item
            self._commit(step, item + 1, files)
            progress(before + item + 1, sum(totals.values()))
        self._wait()

    def enter(self, step: str, obsolete: tuple[str, ...] = ()) -> None:
        """Record that all steps before this one are complete, then delete files that only those needed."""
        if self._steps.index(self._state["step"]) < self._steps.index(step):
            needed = {name: size for name, size in self._state["files"].items() if name not in obsolete}
            self._state["files"] = needed  # in the manifest before any file is deleted
            self._commit(step, 0, ())
            self._wait()
        for name in obsolete:
            scratch = self._scratches.pop(name, None)
            if scratch is not None:
                scratch.close()
            (self.folder / f"{name}.bin").unlink(missing_ok=True)

    def _commit(self, step: str, done: int, files: tuple[Syncable, ...]) -> None:
        self._wait()
        sizes = {file.path.stem: file.bytes for file in files if isinstance(file, Scratch)}
        self._state["files"] = self._state["files"] | sizes
        self._state |= {"step": step, "done": done}
        text = json.dumps(self._state, indent=1)
        self._last = self._writer.submit(self._save, text, files)

    def _save(self, text: str, files: tuple[Syncable, ...]) -> None:
        try:
            for file in files:
                file.sync()
            write_whole(self.folder / MANIFEST, text)
        except OSError as error:  # small as it is, the manifest may be the first to find the disk full
            raise not_written(self.folder / MANIFEST, error) from error

    def _wait(self) -> None:
        if self._last is not None:
            self._last.result()
            self._last = None

    # --- files --------------------------------------------------------------------------------------------------------

    def scratch(self, name: str, dtype: Any) -> Scratch:
        """The file of this name, which is made if it is missing. Its dtype may change if the work starts over."""
        if name in self._scratches and self._scratches[name].dtype != dtype:
            self._scratches.pop(name).close()
        if name not in self._scratches:
            self._scratches[name] = Scratch(self.folder / f"{name}.bin", dtype)
        return self._scratches[name]

    def _check_files(self, sizes: dict[str, int]) -> None:
        """Raise if a file is shorter than complete items have made it: then someone else has changed it."""
        for name, size in sizes.items():
            path = self.folder / f"{name}.bin"
            length = path.stat().st_size if path.is_file() else None
            if length is None or length < size:
                fault = "is missing" if length is None else f"has {length} bytes and should have at least {size}"
                raise ValueError(
                    f"{WHERE}: `workspace` {self.folder} is damaged: {path.name} {fault}; delete the folder to "
                    "start over"
                )

    @property
    def present(self) -> int:
        """The bytes that the folder takes on the disk now."""
        return sum(bytes_on_disk(path) for path in self.folder.iterdir())

    def close(self) -> None:
        """Stop in a state from which the product can be resumed."""
        self._close_files()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _close_files(self) -> None:
        self._writer.shutdown(wait=True)
        for scratch in self._scratches.values():
            scratch.close()

    def remove(self) -> None:
        """Delete the folder. The manifest goes last, so that a kill leaves no files without an explanation."""
        self._close_files()
        for path in self.folder.glob("*.bin"):
            path.unlink()
        for path in self.folder.glob(UNFINISHED):
            path.unlink()
        (self.folder / MANIFEST).unlink(missing_ok=True)
        with suppress(OSError):  # a link, a mount point, or someone else's files: the result is complete anyway
            self.folder.rmdir()
        self.close()  # release the lock last, so that no other call takes the folder meanwhile


def differences(before: Any, now: Any, name: str = "") -> list[str]:
    """The names of entries that differ between two nested dictionaries."""
    if not (isinstance(before, dict) and isinstance(now, dict)):
        return [] if before == now else [name]
    names = {key: f"{key} of {name}" if name else key for key in before | now}
    return [entry for key in names for entry in differences(before.get(key), now.get(key), names[key])]


def _manifest(path: Path) -> dict[str, Any] | None:
    """The content of a workspace's manifest; None if there is none, or if the file of that name is someone else's."""
    try:
        state = json.loads(path.read_text()) if path.is_file() else None
    except ValueError:
        return None
    if not isinstance(state, dict) or "format" not in state or not isinstance(state.get("identity"), dict):
        return None
    return state if isinstance(state["identity"].get("out"), str) else None


def _make(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{WHERE}: `workspace` must be a folder, got the file {folder}; give another path")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"{WHERE}: `workspace` {folder} cannot be made ({error.strerror or error}); give another path"
        ) from None


def require_space(argument: str, folder: Path, needed: int) -> None:
    """Raise if the disk of a folder has less than ``needed`` bytes of free space."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(
            errno.ENOSPC,
            f"{WHERE}: `{argument}` needs {_readable(needed)} on the disk of {folder}, which has {_readable(free)} "
            "left; make room, or choose a folder on another disk",
        )


def _readable(size: float) -> str:
    """A number of bytes in the unit that people would choose."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.4g} GB"

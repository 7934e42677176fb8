"""Recording of a call: its launches, the torch functions it calls through :func:`call`, and its allocations.

A replay does what was recorded and nothing else. So a dispatch mode watches the recording: any operator of torch that a
replay would leave out, such as a ``zero_`` or a conversion between two launches, makes it fail. Views are free. (In
inference mode operators such as ``contiguous`` are seen whole, and count as views; a copy is then found by ``replay``,
which refuses tensors it does not know.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from laplex._eager import watching
from laplex._triton.launch import Launch, state

Results = tuple[Tensor, ...]
_aten = torch.ops.aten
_ALLOCATIONS = {
    _aten.empty.memory_format,
    _aten.empty_like.default,
    _aten.empty_strided.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
}


class TorchCall(NamedTuple):
    """A call of a function of torch that filled the last ``filled`` tensors."""

    function: Callable[..., Any]
    tensors: tuple[Tensor, ...]
    filled: int
    options: dict[str, Any]


class Recording:
    """What a thread launches, calls and allocates; ``failed`` says why it cannot be replayed."""

    def __init__(self, constants: tuple[Tensor, ...], of_anchors: dict[Any, Results] | None) -> None:
        self.steps: list[Launch | TorchCall] = []
        self.fresh: list[Tensor] = []
        self.constants = [*constants]
        self.of_anchors = of_anchors  # results of from_anchors; None if the replays are for any anchors
        self.failed = ""
        self.paused = False

    def launched(self, launch: Launch) -> None:
        if not self.paused:
            self.steps.append(launch)

    def fail(self, why: str) -> None:
        """Record no more, and free what was recorded: large calls need the memory."""
        if not self.failed:
            self.failed, self.paused = why, True
            self.steps.clear()
            self.fresh.clear()


class _Watch(TorchDispatchMode):
    """Notes allocations, and ends a recording at any operator that a replay would leave out."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would import its compiler, which takes seconds, to hide this mode from it; no graph is recorded."""
        return False

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.recording.paused:
            if func in _ALLOCATIONS:
                self.recording.fresh.append(result)
            elif not _is_free(func):
                self.recording.fail(str(func))
        return result


@functools.cache
def _is_free(operator: Any) -> bool:
    """Whether a replay may leave an operator out: it returns views of its inputs, or has nothing to do with tensors."""
    if "Tensor" not in str(operator._schema):
        return True
    aliases = [result.alias_info for result in operator._schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


@contextmanager
def recorded(constants: tuple[Tensor, ...], of_anchors: dict[Any, Results] | None) -> Iterator[Recording]:
    """Record what this thread does within."""
    recording = Recording(constants, of_anchors)
    state.recorder = recording
    watching.modes += 1
    try:
        with _Watch(recording):
            yield recording
    finally:
        watching.modes -= 1
        state.recorder = None


def give_up(why: str) -> None:
    """Mark the current call as one that cannot be replayed."""
    recording = state.recorder
    if isinstance(recording, Recording):
        recording.fail(why)


@contextmanager
def _paused(recording: Any) -> Iterator[None]:
    before, recording.paused = recording.paused, True
    try:
        yield
    finally:
        recording.paused = before or bool(recording.failed)


def call(function: Callable[..., Any], *tensors: Tensor, out: tuple[Tensor, ...], **options: Any) -> None:
    """Let a function of torch fill ``out``, as a step that can be replayed."""
    recording = state.recorder
    if not isinstance(recording, Recording):
        function(*tensors, out=out if len(out) > 1 else out[0], **options)
        return
    with _paused(recording):
        function(*tensors, out=out if len(out) > 1 else out[0], **options)
    if not recording.paused:
        recording.steps.append(TorchCall(function, (*tensors, *out), len(out), options))


def from_anchors(what: str, entry: Tensor, make: Callable[[], Results]) -> Results:
    """Return what depends on the anchors alone. Replays for the same anchors share it; others compute it anew.

    ``entry`` is that of their order: a part of a batch has another address, or another number of matrices.
    """
    recording = state.recorder
    if not isinstance(recording, Recording) or recording.of_anchors is None or recording.failed:
        return make()
    key = what, entry.data_ptr(), entry.shape
    if key not in recording.of_anchors:
        with _paused(recording):
            recording.of_anchors[key] = make()
    recording.constants += recording.of_anchors[key]
    return recording.of_anchors[key]

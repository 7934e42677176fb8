"""What a replay is: the steps of a recording, done again for other inputs, with memory of its own.

A launch needs addresses alone, so all memory that only launches use is one allocation. Functions of torch take tensors.
``replay`` says what is replayed, and when.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex._triton.launch import Launch, launch_compiled
from laplex._triton.recording import Recording, Results, TorchCall

ALIGNED = 512  # bytes, as torch's allocator does
_Step = Callable[[list[Any], list[int], int], None]


class Place(NamedTuple):
    """Where in one allocation a tensor lies."""

    offset: int  # bytes
    bytes: int  # of the memory that it is in, perhaps with gaps
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def view(self, memory: Tensor) -> Tensor:
        numbers = memory[self.offset : self.offset + self.bytes].view(self.dtype)
        return numbers.as_strided(self.shape, self.strides, numbers.storage_offset())


class Inner(NamedTuple):
    """Results that no user sees: tensors, or one allocation in which they have their places."""

    tensors: Results
    places: tuple[Place, ...] | None = None

    def addresses(self) -> list[int]:
        if self.places is None:
            return [tensor.data_ptr() for tensor in self.tensors]
        start = self.tensors[0].data_ptr()
        return [start + place.offset for place in self.places]

    def views(self) -> Results:
        if self.places is None:
            return self.tensors
        return tuple([place.view(self.tensors[0]) for place in self.places])


class Replay:
    """The steps of a recording, for other inputs of its form on its device.

    The first ``own`` results are allocations of their own; the others share one, and scratch memory another.
    """

    def __init__(self, recording: Recording, inputs: Results, results: Results, own: int | None = None) -> None:
        own = len(results) if own is None else own
        scratch = _scratch(recording, results)
        called = {tensor.data_ptr() for tensor in called_tensors(recording)}
        as_tensors = [tensor for tensor in scratch if tensor.data_ptr() in called]
        others = [tensor for tensor in scratch if tensor.data_ptr() not in called]
        allocated = *results[:own], *as_tensors
        self.memory = [(tuple(tensor.shape), tensor.stride(), tensor.dtype) for tensor in allocated]  # a Size is slower
        self.inputs, self.results = len(inputs), own
        self.places, self.inner_bytes = _one_behind_the_other(results[own:])
        of_scratch, self.bytes = _one_behind_the_other(others)
        self.offsets = [place.offset for place in of_scratch]
        self.constants = [*recording.constants]  # their addresses are valid while they live
        tensors = *inputs, *allocated, *results[own:], *others
        self.roles = {tensor.data_ptr(): role for role, tensor in enumerate(tensors) if tensor.numel() > 0}
        self.known = len(tensors)
        self.fixed: list[int] = []  # addresses of constants, which have roles after all others
        self.steps = [
            self._launch(step) if isinstance(step, Launch) else self._call(step, tensors) for step in recording.steps
        ]

    def _role(self, tensor: Tensor) -> int:
        """The place of a tensor's address among all that a step may need."""
        address = tensor.data_ptr()
        if address not in self.roles:
            self.roles[address] = self.known + len(self.fixed)
            self.fixed.append(address)
        return self.roles[address]

    def _launch(self, step: Launch) -> _Step:
        """A step that launches a program on tensors known by their addresses."""
        roles = [self._role(tensor) for tensor in step.tensors]
        pick: Any = itemgetter(*roles) if len(roles) > 1 else lambda addresses: (addresses[roles[0]],)
        compiled, grid, numbers = step.compiled, step.grid, step.numbers

        def launch(_tensors: list[Any], addresses: list[int], stream: int) -> None:
            launch_compiled(compiled, grid, stream, pick(addresses), numbers)  # type: ignore[arg-type]

        return launch

    def _call(self, step: TorchCall, tensors: tuple[Tensor, ...]) -> _Step:
        """A step that calls a function of torch; a view of an input is made again."""
        function, options, operands = step.function, step.options, len(step.tensors) - step.filled
        roles = [self.roles[tensor.data_ptr()] for tensor in step.tensors]
        views = [
            None if tensor.shape == tensors[role].shape else tensor.shape
            for role, tensor in zip(roles, step.tensors, strict=True)
        ]

        def call(tensors: list[Any], _addresses: list[int], _stream: int) -> None:
            arguments = [
                tensors[role] if view is None else tensors[role].view(view)
                for role, view in zip(roles, views, strict=True)
            ]
            out = arguments[operands:]
            function(*arguments[:operands], out=tuple(out) if len(out) > 1 else out[0], **options)

        return call

    def __call__(self, inputs: Results, addresses: list[int]) -> Results:
        """The results for inputs at these addresses."""
        return self.run(inputs, addresses)[0]

    def run(self, inputs: Results, addresses: list[int]) -> tuple[Results, Inner]:
        """The results that are allocations of their own, and the others.

        ``addresses`` are those of all inputs. The last inputs may be left out, if they are places in one allocation:
        no function of torch takes them.
        """
        device = inputs[0].device
        memory = [  # allocated for every call: another thread may replay the same steps
            torch.empty_strided(shape, strides, dtype=dtype, device=device) for shape, strides, dtype in self.memory
        ]
        addresses += [tensor.data_ptr() for tensor in memory]
        inner = NOTHING
        if self.places:
            inner = Inner((torch.empty((self.inner_bytes,), dtype=torch.uint8, device=device),), self.places)
            addresses += inner.addresses()
        if self.bytes > 0:
            scratch = torch.empty((self.bytes,), dtype=torch.uint8, device=device)
            start = scratch.data_ptr()
            addresses += [start + offset for offset in self.offsets]
        addresses += self.fixed
        tensors = [*inputs, *(None,) * (self.inputs - len(inputs)), *memory]
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        for step in self.steps:
            step(tensors, addresses, stream)
        return tuple(memory[: self.results]), inner


NOTHING = Inner(())


def called_tensors(recording: Recording) -> list[Tensor]:
    """What functions of torch take and fill."""
    return [tensor for step in recording.steps if isinstance(step, TorchCall) for tensor in step.tensors]


def _scratch(recording: Recording, results: Results) -> list[Tensor]:
    """The memory that steps use and that is no result."""
    addresses = {result.data_ptr() for result in results}
    used = {tensor.data_ptr() for step in recording.steps for tensor in step.tensors} - addresses
    scratch = {tensor.data_ptr(): tensor for tensor in recording.fresh if tensor.numel() > 0}
    return [tensor for address, tensor in scratch.items() if address in used]


def _one_behind_the_other(tensors: Sequence[Tensor]) -> tuple[tuple[Place, ...], int]:
    """Places of tensors in one allocation, each aligned as an allocation of its own, and its bytes."""
    places, end = [], 0
    for tensor in tensors:
        size = tensor.untyped_storage().nbytes()
        places.append(Place(end, size, tuple(tensor.shape), tensor.stride(), tensor.dtype))
        end += -(-size // ALIGNED) * ALIGNED
    return tuple(places), end


def replay_of(recording: Recording, inputs: Results, results: Results, own: int | None = None) -> Replay | None:
    """The replay of a recording on the current device, if every tensor of every step is known."""
    if recording.failed or not recording.steps or _elsewhere(inputs[0].device):
        return None
    if any(isinstance(step, Launch) and step.compiled is None for step in recording.steps):
        return None
    tensors = {tensor.data_ptr(): tensor for step in recording.steps for tensor in step.tensors if tensor.numel() > 0}
    known = {tensor.data_ptr() for tensor in inputs}
    fresh = {tensor.data_ptr(): tensor for tensor in recording.fresh if tensor.numel() > 0}
    constants = {tensor.untyped_storage().data_ptr() for tensor in recording.constants}  # views of them, too
    others = [tensor for address, tensor in tensors.items() if address not in known and address not in fresh]
    if any(tensor.untyped_storage().data_ptr() not in constants for tensor in others):
        return None
    filled = {address: tensor for address, tensor in fresh.items() if address in tensors}
    inner = {result.data_ptr() for result in results[own:]} if own is not None else set()
    if any(tensor.data_ptr() in inner for tensor in called_tensors(recording)):
        return None
    return Replay(recording, inputs, results, own) if _are_allocations(results, filled, own) else None


def _are_allocations(results: Results, filled: dict[int, Tensor], own: int | None) -> bool:
    """Whether each result that is not empty is one whole allocation that steps filled, and no two share one.

    Those behind the first ``own`` may have gaps in it.
    """
    held = [result for result in results if result.numel() > 0]
    if len({result.data_ptr() for result in held}) < len(held):
        return False
    for number, result in enumerate(results):
        if result.numel() == 0:
            continue
        memory = filled.get(result.data_ptr())
        if memory is None or result.dtype != memory.dtype:
            return False
        if (own is None or number < own) and not (result.is_contiguous() and result.numel() == memory.numel()):
            return False
    return True


def _elsewhere(device: torch.device) -> bool:
    return device.type == "cuda" and device.index != torch.cuda.current_device()

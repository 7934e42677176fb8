"""Products launched again: the checks and the Python around a few launches take longer than they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from laplex._shapes import plain, plainly_eager
from laplex._triton.launch import Call, Launch, Record, recorded, recording, run

REPEATS_KEPT = 64  # forms
ALIGNED = 512  # bytes, as torch's allocator does
OPERATORS_UP_TO = 1 << 24  # numbers in the inputs; of more the Python takes no time, but all memory at once counts
Results = tuple[Tensor, ...]
_Step = Callable[[list[Tensor], list[int], int], None]


class Repeat:
    """The results for other inputs of one form, on one device, with all else as in a call done before."""

    def __init__(self, record: Record, inputs: tuple[Tensor, ...], results: Results) -> None:
        addresses = {result.data_ptr() for result in results}
        scratch = [tensor for tensor in record.fresh if tensor.numel() > 0 and tensor.data_ptr() not in addresses]
        made = *results, *scratch
        apart = made if self.wants_tensors(record) else results
        self.memory = [(tuple(tensor.shape), tensor.stride(), tensor.dtype) for tensor in apart]  # a Size is slower
        self.offsets, self.bytes = _one_behind_the_other(made[len(apart) :])
        self.results = len(results)
        self.constant = [*record.constant]  # the addresses are good while they live
        known = *inputs, *made
        self.roles = {tensor.data_ptr(): role for role, tensor in enumerate(known) if tensor.numel() > 0}
        self.steps = [
            self._launch(step) if isinstance(step, Launch) else self._call(step, known) for step in record.steps or []
        ]

    @staticmethod
    def wants_tensors(record: Record) -> bool:
        """Whether a step is a function of torch; for launches all scratch memory is one piece, allocated once."""
        return any(isinstance(step, Call) for step in record.steps or [])

    def _launch(self, step: Launch) -> _Step:
        """The launch, of tensors that are known by their addresses."""
        where = [(self.roles.get(tensor.data_ptr(), -1), tensor.data_ptr()) for tensor in step.tensors]
        compiled, grid, numbers = step.compiled, step.grid, step.numbers

        def launch(_tensors: list[Tensor], at: list[int], stream: int) -> None:
            run(compiled, grid, stream, [constant if role < 0 else at[role] for role, constant in where], numbers)

        return launch

    def _call(self, step: Call, known: tuple[Tensor, ...]) -> _Step:
        """The call; a view of an input is made again."""
        function, how, given = step.function, step.how, len(step.tensors) - step.filled
        roles = [self.roles[tensor.data_ptr()] for tensor in step.tensors]
        views = [
            None if tensor.shape == known[role].shape else tensor.shape
            for role, tensor in zip(roles, step.tensors, strict=True)
        ]

        def call(tensors: list[Tensor], _at: list[int], _stream: int) -> None:
            them = [
                tensors[role] if view is None else tensors[role].view(view)
                for role, view in zip(roles, views, strict=True)
            ]
            out = them[given:]
            function(*them[:given], out=tuple(out) if len(out) > 1 else out[0], **how)

        return call

    def __call__(self, *inputs: Tensor) -> Results:
        return self.again(inputs, [tensor.data_ptr() for tensor in inputs])

    def again(self, inputs: tuple[Tensor, ...], at: list[int]) -> Results:
        """The results for inputs that lie at these addresses."""
        device = inputs[0].device
        memory = [  # its own: another thread may be at it, too
            torch.empty_strided(shape, strides, dtype=dtype, device=device) for shape, strides, dtype in self.memory
        ]
        at += [tensor.data_ptr() for tensor in memory]
        if self.bytes > 0:
            scratch = torch.empty((self.bytes,), dtype=torch.uint8, device=device)
            start = scratch.data_ptr()
            at += [start + offset for offset in self.offsets]
        tensors = [*inputs, *memory]
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        for step in self.steps:
            step(tensors, at, stream)
        return tuple(memory[: self.results])


def _one_behind_the_other(tensors: tuple[Tensor, ...]) -> tuple[list[int], int]:
    """Offsets of tensors in one piece of memory, aligned as if each were a piece of its own, and its bytes."""
    offsets, end = [], 0
    for tensor in tensors:
        offsets.append(end)
        end += -(-tensor.numel() * tensor.itemsize // ALIGNED) * ALIGNED
    return offsets, end


class Repeats:
    """Repeats of products by what they are, the form of their inputs, and tau, and of operators by all but tau; None
    where one was more than steps."""

    def __init__(self) -> None:
        self.kept: dict[Any, Repeat | None] = {}
        self.made: dict[Any, dict[str, tuple[Tensor, ...]]] = {}  # of the anchors, by stream

    def find(self, what: str, tau: object, *inputs: Tensor) -> Repeat | None:
        """What does the product again, without the checks that passed."""
        return self.kept.get((what, _form(tau, inputs))) if self.kept and _repeatable(tau, inputs) else None

    def do(
        self, what: str, product: Callable[[], Tensor], tau: object, *inputs: Tensor, constant: tuple[Tensor, ...] = ()
    ) -> Tensor:
        """The product; the first of its form is remembered. ``constant``: anchors and plan, if they stay."""
        if not _repeatable(tau, inputs):
            return product()
        form = what, _form(tau, inputs)
        if form in self.kept or _mistakable(inputs, constant):
            return product()
        made = self.made.setdefault(form[1][1], {}) if constant else None
        with recorded(constant, made) as record:
            y = product()
            self._keep(form, repeat_of(record, inputs, (y,)))
        return y

    def run(self, operator: Callable[..., Results], inputs: tuple[Tensor, ...], how: tuple[Any, ...]) -> Results:
        """``operator(*inputs, *how)``, as it was launched for others of their form: tau, too, is an input.

        Where something is recorded it is a part of that, which would miss what a repeat launches.
        """
        if recording() or not _in_one_piece(inputs):
            return operator(*inputs, *how)
        at = [tensor.data_ptr() for tensor in inputs]
        form = (
            operator, how, inputs[0].device, torch._C._cuda_getDevice(), tuple(map(at.index, at)),
            *[tensor.shape for tensor in inputs], *[tensor.dtype for tensor in inputs],
        )  # fmt: skip
        repeat = self.kept.get(form)
        if repeat is not None:
            return repeat.again(inputs, at)
        if form in self.kept or _mistakable(inputs, ()) or sum(tensor.numel() for tensor in inputs) > OPERATORS_UP_TO:
            return operator(*inputs, *how)
        with recorded((), None) as record:
            results = operator(*inputs, *how)
            self._keep(form, repeat_of(record, inputs, results))
        return results

    def _keep(self, form: Any, repeat: Repeat | None) -> None:
        for oldest in list(self.kept)[: max(len(self.kept) - REPEATS_KEPT + 1, 0)]:
            self.kept.pop(oldest, None)  # perhaps by another thread
        self.kept[form] = repeat


def _mistakable(inputs: tuple[Tensor, ...], constant: tuple[Tensor, ...]) -> bool:
    """Whether an address does not tell which tensor is meant. What is empty has none."""
    seen: dict[int, Any] = {tensor.data_ptr(): None for tensor in constant if tensor.numel() > 0}
    for tensor in inputs:
        form = tensor.shape, tensor.dtype
        if tensor.numel() > 0 and seen.setdefault(tensor.data_ptr(), form) != form:
            return True
    return False


def _repeatable(tau: object, inputs: tuple[Tensor, ...]) -> bool:
    """On the GPU, no derivative asked for, nothing traced, transformed or captured: a graph would keep addresses."""
    x = inputs[0]
    if type(tau) is not float or not isinstance(x, Tensor) or not x.is_cuda or forward_ad._current_level >= 0:
        return False
    if torch.is_grad_enabled():  # asked first: of training nothing is repeated here
        for tensor in inputs:
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                return False
    if not plainly_eager() or not all(plain(tensor) and tensor.is_contiguous() for tensor in inputs):
        return False
    return not torch.cuda.is_current_stream_capturing()


def _in_one_piece(inputs: tuple[Tensor, ...]) -> bool:
    """On the GPU, each without gaps, and not captured."""
    if not inputs[0].is_cuda:
        return False
    for tensor in inputs:  # a generator would take as long again
        if not tensor.is_contiguous():
            return False
    return not torch.cuda.is_current_stream_capturing()


def _form(tau: object, inputs: tuple[Tensor, ...]) -> tuple[Any, ...]:
    """What launches depend on. The stream: tau was written on it; the device at hand: they go there."""
    index = inputs[0].device.index
    where = torch._C._cuda_getCurrentRawStream(index), torch._C._cuda_getDevice()
    addresses = [tensor.data_ptr() for tensor in inputs]
    alike = tuple(map(addresses.index, addresses))  # the same tensor twice is another product
    return tau, where, alike, *[(tensor.shape, tensor.dtype, tensor.device) for tensor in inputs]


def repeat_of(record: Record, inputs: tuple[Tensor, ...], results: Results) -> Repeat | None:
    """If it was nothing but launches of compiled kernels and calls, on the device at hand, of tensors that are known.

    Anything else, such as a conversion between two launches, shows in a tensor that no step made: then there is none.
    """
    if not record.steps or _elsewhere(inputs[0].device):
        return None
    if any(isinstance(step, Launch) and step.compiled is None for step in record.steps):
        return None
    tensors = {tensor.data_ptr(): tensor for step in record.steps for tensor in step.tensors if tensor.numel() > 0}
    given = {tensor.data_ptr() for tensor in inputs}
    fresh = {tensor.data_ptr(): tensor for tensor in record.fresh if tensor.numel() > 0}
    constant = {tensor.untyped_storage().data_ptr() for tensor in record.constant}  # views of it are, too
    others = [tensor for address, tensor in tensors.items() if address not in given and address not in fresh]
    if any(tensor.untyped_storage().data_ptr() not in constant for tensor in others):
        return None
    filled = {address: tensor for address, tensor in fresh.items() if address in tensors}
    return Repeat(record, inputs, results) if _of_memory(results, filled) else None


def _of_memory(results: Results, filled: dict[int, Tensor]) -> bool:
    """Whether each result is the whole of memory that steps filled, and of no other's; or empty."""
    made = [result for result in results if result.numel() > 0]
    if len({result.data_ptr() for result in made}) < len(made):
        return False
    for result in made:
        memory = filled.get(result.data_ptr())
        if memory is None or not result.is_contiguous():
            return False
        if (result.dtype, result.numel()) != (memory.dtype, memory.numel()):
            return False
    return True


def _elsewhere(device: torch.device) -> bool:
    return device.type == "cuda" and device.index != torch.cuda.current_device()

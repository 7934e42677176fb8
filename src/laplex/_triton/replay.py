"""Replay: the launches of a call are recorded once and launched again for other inputs of the same form.

Checks, planning and Python around a few launches take longer than the launches do. Two scopes are replayed:

    operators   :func:`replayed` wraps order, scan and pullback of this backend: training steps are made of them
    calls       :func:`whole_call` replays laplex.linear and laplex.gram without gradients, checks included; that
                halves the time of a small call ("replay" in benchmarks/results/crossover-gpu.json)

**What can be replayed.** A recording that did not fail (``recording``), in which every tensor of every step is an
input, memory allocated in the call, or known to stay as it is: the anchors and the order of a plan that is kept, what
``from_anchors`` made of them, and a number tau.

**When a replay is used.** Its key is the form of the inputs: shapes, dtypes, device, which inputs are the same tensor,
and all other arguments; inputs are contiguous. The key of a whole call has the stream too, on which tau was written,
and whether torch may use TF32.

Nothing is replayed while a graph is captured, which would keep addresses, nor where a call is traced, transformed or
differentiated in forward mode.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from laplex._backends import Call as PublicCall
from laplex._backends import WholeCall
from laplex._eager import plain, plainly_eager
from laplex._triton import tuning
from laplex._triton.launch import Launch, launch_compiled, state
from laplex._triton.precision import allows_tf32
from laplex._triton.recording import Recording, Results, TorchCall, recorded

ALIGNED = 512  # bytes, as torch's allocator does
_Step = Callable[[list[Tensor], list[int], int], None]


class Replay:
    """The steps of a recording, for other inputs of its form on its device."""

    def __init__(self, recording: Recording, inputs: tuple[Tensor, ...], results: Results) -> None:
        addresses = {result.data_ptr() for result in results}
        used = {tensor.data_ptr() for step in recording.steps for tensor in step.tensors} - addresses
        scratch = {
            tensor.data_ptr(): tensor for tensor in recording.fresh if tensor.numel() > 0 and tensor.data_ptr() in used
        }
        made = *results, *scratch.values()
        apart = made if self.wants_tensors(recording) else results
        self.memory = [(tuple(tensor.shape), tensor.stride(), tensor.dtype) for tensor in apart]  # a Size is slower
        self.offsets, self.bytes = _one_behind_the_other(made[len(apart) :])
        self.results = len(results)
        self.constants = [*recording.constants]  # their addresses are valid while they live
        known = *inputs, *made
        self.roles = {tensor.data_ptr(): role for role, tensor in enumerate(known) if tensor.numel() > 0}
        self.steps = [
            self._launch(step) if isinstance(step, Launch) else self._call(step, known) for step in recording.steps
        ]

    @staticmethod
    def wants_tensors(recording: Recording) -> bool:
        """Whether a step is a function of torch. For launches alone all scratch memory is one allocation."""
        return any(isinstance(step, TorchCall) for step in recording.steps)

    def _launch(self, step: Launch) -> _Step:
        """A step that launches a program on tensors known by their addresses."""
        where = [(self.roles.get(tensor.data_ptr(), -1), tensor.data_ptr()) for tensor in step.tensors]
        compiled, grid, numbers = step.compiled, step.grid, step.numbers

        def launch(_tensors: list[Tensor], at: list[int], stream: int) -> None:
            addresses = [constant if role < 0 else at[role] for role, constant in where]
            launch_compiled(compiled, grid, stream, addresses, numbers)

        return launch

    def _call(self, step: TorchCall, known: tuple[Tensor, ...]) -> _Step:
        """A step that calls a function of torch; a view of an input is made again."""
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

    def __call__(self, inputs: tuple[Tensor, ...], at: list[int]) -> Results:
        """The results for inputs at these addresses."""
        device = inputs[0].device
        memory = [  # allocated for every call: another thread may replay the same steps
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
    """Offsets of tensors in one allocation, each aligned as an allocation of its own, and its bytes."""
    offsets, end = [], 0
    for tensor in tensors:
        offsets.append(end)
        end += -(-tensor.numel() * tensor.itemsize // ALIGNED) * ALIGNED
    return offsets, end


class Replays:
    """Replays by the form of their inputs; None for a form that cannot be replayed."""

    def __init__(self) -> None:
        self.kept: dict[Any, Replay | None] = {}
        self.of_anchors: dict[Any, dict[str, Results]] = {}  # results of from_anchors, by stream and device

    def keep(self, form: Any, replay: Replay | None) -> None:
        for oldest in list(self.kept)[: max(len(self.kept) - tuning.REPLAYS_KEPT + 1, 0)]:
            self.kept.pop(oldest, None)  # another thread may have done so
        self.kept[form] = replay


operators = Replays()
_calls = Replays()  # whole calls without a plan


def replayed(flatten: Callable[..., tuple[tuple[Tensor, ...], Any]]) -> Callable[..., Callable[..., Any]]:
    """Replay an operator, whose results are tensors.

    ``flatten`` turns its operands into the input tensors and whatever else its launches depend on. Within a recording
    the operator is a part of that, and runs as it is. ``kept`` is for callers who know the form of the operands: a
    dictionary for this form alone, in which the replay is found sooner.
    """

    def of(operator: Callable[..., Results]) -> Callable[..., Results]:
        @functools.wraps(operator)
        def run(*operands: Any, kept: dict[Any, Any] | None = None, **how: Any) -> Results:
            inputs, others = flatten(*operands)
            if state.recorder is not None or not _in_one_piece(inputs):
                return operator(*operands, **how)
            at = [tensor.data_ptr() for tensor in inputs]
            alike = operator, *how.items(), inputs[0].dtype, torch._C._cuda_getDevice(), *map(at.index, at)
            replay = None if kept is None else kept.get(alike)
            if replay is not None:
                return replay(inputs, at)  # type: ignore[no-any-return]
            form = (
                alike, others, inputs[0].device,
                *[tensor.shape for tensor in inputs], *[tensor.dtype for tensor in inputs],
            )  # fmt: skip
            replay = operators.kept.get(form)
            if replay is not None:
                if kept is not None:
                    kept[alike] = replay
                return replay(inputs, at)
            large = sum(tensor.numel() for tensor in inputs) > tuning.REPLAYED_OPERATORS
            if form in operators.kept or large or _mistakable(inputs, ()):
                return operator(*operands, **how)
            with recorded((), None) as recording:
                results = operator(*operands, **how)
            operators.keep(form, replay_of(recording, inputs, results))
            return results

        return run

    return of


def whole_call(
    what: PublicCall, tau: Any, inputs: tuple[Any, ...], a: Tensor, b: Tensor, plan: Any
) -> WholeCall | None:
    """The call that ``laplex._backends.whole_call`` promises, or None if it is not to be replayed."""
    if not inputs or not (what.summed or a.dim() == b.dim() == 1):
        return None
    if isinstance(tau, Tensor):
        inputs, tau = (*inputs, tau), None
    elif type(tau) not in (float, int):  # True equals 1, and is refused
        return None
    if plan is None:
        inputs = *inputs, a, b
        if not _replayable(inputs):
            return None
        return _WholeCall(what, _calls, tau, inputs)
    if not hasattr(plan, "_kept") or not plan._knows(a, b) or not _replayable(inputs):
        return None
    replays = plan._kept.setdefault("replays", Replays())
    return _WholeCall(what, replays, tau, inputs, (a, b, *plan._order.tensors))


class _WholeCall(WholeCall):
    """``constants``: the anchors and the order, if they belong to a plan."""

    def __init__(
        self,
        what: PublicCall,
        replays: Replays,
        tau: float | None,
        inputs: tuple[Tensor, ...],
        constants: tuple[Tensor, ...] = (),
    ) -> None:
        self.replays, self.inputs, self.constants = replays, inputs, constants
        self.tau_is_a_number = tau is not None
        self.at = [tensor.data_ptr() for tensor in inputs]
        device = inputs[0].device
        self.where = torch._C._cuda_getCurrentRawStream(device.index), torch._C._cuda_getDevice()
        alike = tuple(map(self.at.index, self.at))  # the same tensor given twice is another form
        of_inputs = [(tensor.shape, tensor.dtype, tensor.device) for tensor in inputs]
        self.form = what, tau, allows_tf32(), self.where, alike, *of_inputs
        self.recording: Any = None

    def again(self) -> Tensor | None:
        replay = self.replays.kept.get(self.form)
        return None if replay is None else replay(self.inputs, self.at)[0]

    def __enter__(self) -> None:
        if self.form in self.replays.kept or _mistakable(self.inputs, self.constants):
            return
        of_anchors = self.replays.of_anchors.setdefault(self.where, {}) if self.constants else None
        self.recording = recorded(self.constants, of_anchors)
        self.record = self.recording.__enter__()

    def constant(self, tensor: Tensor) -> None:
        if self.recording is not None and self.tau_is_a_number:
            self.record.constants.append(tensor)

    def keep(self, result: Tensor) -> Tensor:
        if self.recording is not None:
            self.replays.keep(self.form, replay_of(self.record, self.inputs, (result,)))
        return result

    def __exit__(self, *error: object) -> None:
        if self.recording is not None:
            self.recording.__exit__(*error)


def _mistakable(inputs: tuple[Tensor, ...], constants: tuple[Tensor, ...]) -> bool:
    """Whether an address does not tell which tensor is meant. Empty tensors have none."""
    seen: dict[int, Any] = {tensor.data_ptr(): None for tensor in constants if tensor.numel() > 0}
    for tensor in inputs:
        form = tensor.shape, tensor.dtype
        if tensor.numel() > 0 and seen.setdefault(tensor.data_ptr(), form) != form:
            return True
    return False


def _replayable(inputs: tuple[Any, ...]) -> bool:
    """Whether a call with these inputs runs eagerly on a GPU, without derivatives, and is not captured."""
    x = inputs[0]
    if not isinstance(x, Tensor) or not x.is_cuda or forward_ad._current_level >= 0:
        return False
    if torch.is_grad_enabled():  # asked first: training replays operators
        for tensor in inputs:
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                return False
    if not plainly_eager() or not all(plain(tensor) and tensor.is_contiguous() for tensor in inputs):
        return False
    return not torch.cuda.is_current_stream_capturing()


def _in_one_piece(inputs: tuple[Tensor, ...]) -> bool:
    """Whether all inputs are contiguous, on a GPU, and not captured."""
    if not inputs[0].is_cuda:
        return False
    for tensor in inputs:  # a generator would take twice as long
        if not tensor.is_contiguous():
            return False
    return not torch.cuda.is_current_stream_capturing()


def replay_of(recording: Recording, inputs: tuple[Tensor, ...], results: Results) -> Replay | None:
    """The replay of a recording on the current device, if every tensor of every step is known."""
    if recording.failed or not recording.steps or _elsewhere(inputs[0].device):
        return None
    if any(isinstance(step, Launch) and step.compiled is None for step in recording.steps):
        return None
    tensors = {tensor.data_ptr(): tensor for step in recording.steps for tensor in step.tensors if tensor.numel() > 0}
    given = {tensor.data_ptr() for tensor in inputs}
    fresh = {tensor.data_ptr(): tensor for tensor in recording.fresh if tensor.numel() > 0}
    constants = {tensor.untyped_storage().data_ptr() for tensor in recording.constants}  # views of them, too
    others = [tensor for address, tensor in tensors.items() if address not in given and address not in fresh]
    if any(tensor.untyped_storage().data_ptr() not in constants for tensor in others):
        return None
    filled = {address: tensor for address, tensor in fresh.items() if address in tensors}
    return Replay(recording, inputs, results) if _are_whole(results, filled) else None


def _are_whole(results: Results, filled: dict[int, Tensor]) -> bool:
    """Whether each result that is not empty is one whole allocation that steps filled, and no two share one."""
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

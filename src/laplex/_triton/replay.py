"""Replay: the launches of a call are recorded once and launched again for other inputs of the same form.

Checks, planning and Python around a few launches take longer than the launches do. Two scopes are replayed:

    operators   :func:`replayed` wraps order, scan and pullback of this backend: training steps are made of them
    calls       :func:`repeated` runs laplex.linear and laplex.gram, and without gradients replays them, checks
                included; that halves the time of a small call ("replay" in benchmarks/results/crossover-gpu.json)

**What can be replayed.** A recording that did not fail (``recording``), in which every tensor of every step is an
input, memory allocated in the call, or known to stay as it is: the anchors and the order of a plan, what
``from_anchors`` computed from them, and a number tau.

**When a replay is used.** Its key is the form of the inputs: shapes, dtypes, device, which inputs are the same tensor,
and all other arguments; inputs are contiguous. The key of a public call also has the stream, on which tau was written,
and whether torch may use TF32.

Nothing is replayed while a graph is captured, which would keep addresses, nor where a call is traced, transformed or
differentiated in forward mode.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from laplex._eager import plain, plainly_eager
from laplex._precision import allows_tf32
from laplex._shapes import flat_tau
from laplex._triton import tuning
from laplex._triton.launch import state
from laplex._triton.recording import Results, recorded
from laplex._triton.repetition import NOTHING, Inner, Replay, called_tensors, replay_of


class Replays:
    """Replays by the form of their inputs; None for a form that cannot be replayed."""

    def __init__(self) -> None:
        self.by_form: dict[Any, Replay | None] = {}
        self.of_anchors: dict[Any, dict[Any, Results]] = {}  # results of from_anchors, by stream and device

    def add(self, form: Any, replay: Replay | None) -> None:
        for oldest in list(self.by_form)[: max(len(self.by_form) - tuning.REPLAYS_KEPT + 1, 0)]:
            self.by_form.pop(oldest, None)  # another thread may have done so
        self.by_form[form] = replay


operators = Replays()
calls = Replays()  # of public functions, without a plan


def replayed(flatten: Callable[..., tuple[tuple[Tensor, ...], Any]]) -> Callable[..., Callable[..., Any]]:
    """Replay an operator, whose results are tensors.

    ``flatten`` turns its operands into the input tensors and whatever else its launches depend on. Within a recording
    the operator is a part of the recording, and runs as usual.
    """

    def decorate(operator: Callable[..., Results]) -> Callable[..., Results]:
        @functools.wraps(operator)
        def run(*operands: Any, **options: Any) -> Results:
            inputs, others = flatten(*operands)
            if state.recorder is not None or not _in_one_piece(inputs):
                return operator(*operands, **options)
            addresses = [tensor.data_ptr() for tensor in inputs]
            form = (
                operator, others, inputs[0].device, torch._C._cuda_getDevice(), *options.items(),
                *map(addresses.index, addresses),
                *[tensor.shape for tensor in inputs], *[tensor.dtype for tensor in inputs],
            )  # fmt: skip
            replay = operators.by_form.get(form)
            if replay is not None:
                return replay(inputs, addresses)
            large = sum(tensor.numel() for tensor in inputs) > tuning.REPLAYED_OPERATORS
            if form in operators.by_form or large or _mistakable(inputs, ()):
                return operator(*operands, **options)
            with recorded((), None) as recording:
                results = operator(*operands, **options)
            operators.add(form, replay_of(recording, inputs, results))
            return results

        return run

    return decorate


class Repeat:
    """A function whose inputs always have the same form: its launches are recorded once, and launched again.

    Args:
        function: takes tensors and returns results, of which the first ``own`` are allocations of their own.
        own: how many of its results anybody else may hold.
        enabled: False for a form of inputs that cannot be replayed.
    """

    def __init__(self, function: Callable[..., Results], own: int, *, enabled: bool) -> None:
        self.function, self.own = function, own
        self.replay: Replay | None = None
        self.enabled = enabled

    def __call__(self, inputs: Results, inner: Inner = NOTHING) -> tuple[Results, Inner]:
        """The results for ``inputs`` followed by ``inner``, the inner results that another function returned."""
        if not self.enabled or not self._is_usual(inputs[0]):
            return self._run(inputs, inner)
        addresses = [tensor.data_ptr() for tensor in inputs]
        addresses += inner.addresses()
        if len({*addresses}) < len(addresses):  # one tensor was given twice: another form
            return self._run(inputs, inner)
        replay = self.replay
        if replay is not None:
            return replay.run(inputs, addresses)
        if inner.tensors and inner.places is None:  # whoever saved them for us may have changed their strides
            return self._run(inputs, inner)
        every = *inputs, *inner.views()
        with recorded((), None) as recording:
            results = self.function(*every)
        if {*inner.addresses()}.isdisjoint(tensor.data_ptr() for tensor in called_tensors(recording)):
            replay = replay_of(recording, every, results, self.own)
        self.replay, self.enabled = replay, replay is not None  # another thread may do this at the same time
        if replay is None:
            return results[: self.own], Inner(results[self.own :])
        # Every call returns what it saves in the same form, the first one, too: torch.utils.checkpoint compares them.
        return replay.run(inputs, addresses)

    def _run(self, inputs: Results, inner: Inner) -> tuple[Results, Inner]:
        results = self.function(*inputs, *inner.views())
        return results[: self.own], Inner(results[self.own :])

    @staticmethod
    def _is_usual(first: Tensor) -> bool:
        """Whether a call runs on the current GPU, is not captured, and is no part of a recording."""
        if not first.is_cuda or not first.is_contiguous() or state.recorder is not None:
            return False
        return first.device.index == torch._C._cuda_getDevice() and not torch.cuda.is_current_stream_capturing()


class _Call(NamedTuple):
    """A call of a public function that may be replayed."""

    replays: Replays
    form: Any
    inputs: tuple[Tensor, ...]
    addresses: list[int]
    tau: float | None  # if it is a number
    constants: tuple[Tensor, ...]  # the anchors and the order, if they belong to a plan
    where: tuple[int, int]  # stream and device


def repeated(function: Callable[..., Tensor], args: tuple[Any, ...], options: dict[str, Any]) -> Tensor:
    """``function(*args, **options)`` for laplex.linear or laplex.gram: replayed, or recorded for the next time."""
    arguments = _by_name(function, args, options)
    call = None if arguments is None else _replayable_call(function, arguments)
    if call is None:
        return function(*args, **options)
    replay = call.replays.by_form.get(call.form)
    if replay is not None:
        return replay(call.inputs, call.addresses)[0]
    if call.form in call.replays.by_form or _mistakable(call.inputs, call.constants):
        return function(*args, **options)
    tensors = dict(zip(call.form[1], call.inputs)) | dict(zip("ab", call.constants))
    constants = *call.constants, *_number(call.tau, tensors)
    of_anchors = call.replays.of_anchors.setdefault(call.where, {}) if call.constants else None
    with recorded(constants, of_anchors) as recording:
        result = function(*args, **options)
    call.replays.add(call.form, replay_of(recording, call.inputs, (result,)))
    return result


def _by_name(function: Callable[..., Tensor], args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments by name; None if there are too many, or one is unknown or given twice, which the call refuses."""
    positional, names = _names(function)
    arguments = dict(zip(positional, args)) | options
    return arguments if len(arguments) == len(args) + len(options) and names.issuperset(options) else None


@functools.cache
def _names(function: Callable[..., Tensor]) -> tuple[tuple[str, ...], frozenset[str]]:
    """The names of the arguments that may be given by their position, and those of all."""
    code = function.__code__
    count = code.co_argcount
    return code.co_varnames[:count], frozenset(code.co_varnames[: count + code.co_kwonlyargcount])


def _number(tau: float | None, tensors: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """The tensor of tau, if tau is a number. It is cached, and made before a recording starts: a recording that saw it
    made could not be replayed."""
    if tau is None:
        return ()
    try:
        batch = torch.broadcast_shapes(tensors["a"].shape[:-1], tensors["b"].shape[:-1])
        return (flat_tau(tau, tuple(batch), tensors["a"].device),)
    except (RuntimeError, OverflowError):  # the call will say what is wrong
        return ()


def _replayable_call(function: Callable[..., Tensor], arguments: dict[str, Any]) -> _Call | None:
    """Describe the call; None if it is not to be replayed."""
    plan, tau = arguments.pop("plan", None), arguments.get("tau", 1.0)  # the default of both functions
    trains, tensors = torch.is_grad_enabled(), {}
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            if trains and value.requires_grad:  # training replays operators
                return None
            tensors[name] = value
        elif value is not None and name != "tau":  # a backend, or an invalid argument
            return None
    a, b = tensors.get("a"), tensors.get("b")
    if a is None or b is None or not (a.dim() == b.dim() == 1 or ("x" in tensors and "weight" in tensors)):
        return None
    if type(tau) not in (float, int) and "tau" not in tensors:  # True equals 1, and is refused
        return None
    replays, constants = calls, ()
    if plan is not None:
        if not hasattr(plan, "_cache") or not plan._knows(a, b):
            return None
        replays, constants = plan._cache.setdefault("replays", Replays()), (a, b, *plan._order.tensors)
        del tensors["a"], tensors["b"]
    inputs = tuple(tensors.values())
    if not inputs or not _replayable(inputs):
        return None
    addresses = [tensor.data_ptr() for tensor in inputs]
    where = torch._C._cuda_getCurrentRawStream(inputs[0].device.index), torch._C._cuda_getDevice()
    number = None if "tau" in tensors else tau
    forms = [(tensor.shape, tensor.dtype, tensor.device) for tensor in inputs]
    same = tuple(map(addresses.index, addresses))  # the same tensor given twice is another form
    form = function, tuple(tensors), number, allows_tf32(), where, same, *forms
    return _Call(replays, form, inputs, addresses, number, constants, where)


def _mistakable(inputs: tuple[Tensor, ...], constants: tuple[Tensor, ...]) -> bool:
    """Whether an address does not tell which tensor is meant. Empty tensors have none."""
    forms: dict[int, Any] = {tensor.data_ptr(): None for tensor in constants if tensor.numel() > 0}
    for tensor in inputs:
        form = tensor.shape, tensor.dtype
        if tensor.numel() > 0 and forms.setdefault(tensor.data_ptr(), form) != form:
            return True
    return False


def _replayable(inputs: tuple[Tensor, ...]) -> bool:
    """Whether a call with these inputs runs eagerly on a GPU, is not captured, and is no part of a recording."""
    if not inputs[0].is_cuda or forward_ad._current_level >= 0 or state.recorder is not None:
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

"""How a call runs: eagerly on real memory, or under something that traces, transforms or watches it."""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

Function = TypeVar("Function", bound=Callable[..., Any])


class _Watching(threading.local):
    """Dispatch modes of our own that watch this thread's calls without changing what they do."""

    modes = 0


watching = _Watching()


def plainly_eager() -> bool:
    """Whether calls do their work here and now: nothing traces, transforms or intercepts them."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return not (torch._C._is_tracing() or torch._C._len_torch_dispatch_stack() > watching.modes)


def plain(x: Tensor) -> bool:
    """Whether x is an ordinary tensor whose numbers lie at its address.

    False for subclasses, lazily negated views, zero tensors without memory, meta tensors, and wrappers of torch.func
    transforms, even of transforms that have ended: these have no storage.
    """
    if type(x) is not Tensor and type(x) is not Parameter:
        return False
    return torch._C._has_storage(x) and not (x.is_neg() or x.is_meta or x._is_zerotensor())


def readable(x: Tensor) -> bool:
    """Whether the values of a tensor can be read without waiting: not in a graph or under a transform, nor on a GPU."""
    return plainly_eager() and plain(x) and x.device.type == "cpu"


def outside_graphs(function: Function) -> Function:
    """A decorator for what cannot be traced: torch.compile breaks its graph around a call, and runs it eagerly.

    That is ``torch.compiler.disable``, which imports the compiler. Here it waits until somebody else has.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        return torch.compiler.disable(function)(*args, **kwargs)

    return call  # type: ignore[return-value]


def is_trained(x: Tensor) -> bool:
    """Whether x is a leaf that requires gradients, or a view of one: fused optimizers write to such a tensor without
    raising its version counter."""
    if not plainly_eager():
        return False
    base = x if x._base is None else x._base
    return base.requires_grad and base.is_leaf


def is_dtensor(x: object) -> bool:
    """Whether x is a DTensor. What they need is not imported for this: it takes a second."""
    if torch.compiler.is_compiling() or "torch.distributed.tensor" not in sys.modules:
        return False
    return isinstance(x, sys.modules["torch.distributed.tensor"].DTensor)


def dtensor_product(function: Callable[..., Tensor], x: Tensor, arguments: dict[str, Any]) -> Tensor:
    """A product of local tensors (``_dtensors``)."""
    product: Tensor = importlib.import_module("laplex._dtensors").product(function, x, arguments)
    return product


def normal_mode() -> AbstractContextManager[object]:
    """A context in which tensors are made that autograd may save, also where inference mode is on."""
    if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
        return nullcontext()
    return torch.inference_mode(False)


def savable(x: Tensor) -> Tensor:
    """Return x, or a copy if inference mode made it, because autograd does not save such a tensor for a backward."""
    if torch.compiler.is_compiling() or not x.is_inference():
        return x
    with normal_mode():
        return x.clone()


@contextmanager
def forward_mode_again(saved: Sequence[Tensor]) -> Iterator[Sequence[Tensor]]:
    """The saved tensors of a Function, and forward mode on, for a jvp that an outer forward mode can differentiate.

    torch runs a Function's jvp with forward mode off, so that an outer forward mode would take everything for constants
    (pytorch#197867). With it on again, the saved tensors must show their primal at this level.
    """
    if not torch._C._are_functorch_transforms_active():
        yield saved
        return
    with forward_ad._set_fwd_grad_enabled(True):
        yield [forward_ad.unpack_dual(tensor, level=0).primal for tensor in saved]


def exporting() -> bool:
    """Whether torch.export traces. ``torch.compiler.is_exporting`` is true under torch.compile, too, in torch 2.11."""
    return bool(getattr(torch.compiler, "_is_exporting_flag", False))


def always(condition: bool | torch.SymBool) -> bool:
    """Whether a condition on sizes holds. During export: whether it holds for every size that may come, because a graph
    built on one answer refuses the sizes that have the other."""
    if not exporting():
        return bool(condition)
    symbolic_shapes = torch.fx.experimental.symbolic_shapes  # imported by an export, and slow to import without one
    return bool(symbolic_shapes.statically_known_true(condition))


def apart(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Views of the tensors, no two of which are the same object, even if one tensor is given twice."""
    return [tensor.view_as(tensor) for tensor in tensors]

"""Launches of Triton programs with little Python, and a hook for what records them (``replay``)."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from laplex._triton import tuning
from laplex._triton.program import form_of

Grid = tuple[int, int, int]


class Variant(NamedTuple):
    """What Triton compiles: a program, and all that it specialises on."""

    program: Any
    flags: tuple[Any, ...]
    warps: int
    early: bool  # may begin before the last launch ends
    form: tuple[object, ...]  # what ``program`` lets Triton see of the numbers
    device: torch.device
    dtypes: tuple[torch.dtype, ...]


class Compiled(NamedTuple):
    """A compiled program: it is launched by ``call(*grid, stream, *fixed, *addresses, *numbers)``."""

    binary: Any  # Triton's object, which holds the program in the GPU's memory
    call: Any
    fixed: tuple[Any, ...]


compiled: dict[Variant, Compiled] = {}


class Launch(NamedTuple):
    """A launch that was done. ``compiled`` is None if it cannot be done again by :func:`launch_compiled`."""

    compiled: Compiled | None
    grid: Grid
    tensors: tuple[Tensor, ...]
    numbers: tuple[Any, ...]


class Setup(NamedTuple):
    """A launch without its program and its tensors: what follows from sizes and dtypes alone."""

    grid: Grid
    numbers: tuple[int, ...]
    flags: tuple[Any, ...]
    warps: int = 4


class Survey:
    """Notes the programs that calls would need on a device, each with example numbers; nothing is launched."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.programs: dict[Variant, tuple[float, ...]] = {}


class _State(threading.local):
    recorder: Any = None  # a ``recording.Recording``, which notes launches
    survey: Survey | None = None


state = _State()  # of this thread


def power(size: int) -> int:
    """The smallest power of two that is at least ``size``."""
    return 1 << max(size - 1, 0).bit_length()


def step(size: int, most: int, *parts: int) -> int:
    """The least of ``most`` and its ``parts`` (4 is a quarter) that is at least ``size``; ``most`` if none is.

    A program is compiled for each length of its vectors. So a length that depends on a size has few steps.
    """
    return min((most // part for part in parts if most // part >= size), default=most)


@functools.cache
def can_start_early(device: torch.device) -> bool:
    """Whether a launch may begin before the last one ends (programmatic dependent launch): on Hopper and later."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)


def launch(
    program: Any, grid: Grid, tensors: tuple[Tensor, ...], sizes: tuple[float, ...], flags: Any, warps: int
) -> None:
    """Launch a program. From the second time on Triton is not asked which compiled program that is.

    Programs specialise on the alignment of our own tensors only, which are all aligned. Under Triton's interpreter
    nothing is compiled.
    """
    survey = state.survey
    if survey is not None:
        survey.programs.setdefault(_variant(program, grid, tensors, sizes, flags, warps, survey.device), sizes)
        return
    device = tensors[0].device
    if device.type == "cuda" and device.index != torch._C._cuda_getDevice():
        with torch.cuda.device(device):
            launch(program, grid, tensors, sizes, flags, warps)
        return
    variant = _variant(program, grid, tensors, sizes, flags, warps, device)
    flags, binary = variant.flags, compiled.get(variant)
    if binary is not None:
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        launch_compiled(binary, grid, stream, [tensor.data_ptr() for tensor in tensors], (*sizes, *flags))
    else:
        binary = _remember(variant, program[grid](*tensors, *sizes, *flags, **_options(variant)))
    if state.recorder is not None:
        state.recorder.launched(Launch(binary, grid, tensors, (*sizes, *flags)))


def _variant(
    program: Any,
    grid: Grid,
    tensors: tuple[Tensor, ...],
    sizes: tuple[float, ...],
    flags: Any,
    warps: int,
    device: torch.device,
) -> Variant:
    early = False
    if program.arg_names[-1] == "EARLY":
        early = grid[0] * grid[1] * grid[2] <= tuning.EARLY_PROGRAMS and can_start_early(device)
        flags = (*flags, early)
    dtypes = tuple([tensor.dtype for tensor in tensors])
    return Variant(program, flags, warps, early, form_of(program, sizes), device, dtypes)


def _options(variant: Variant) -> dict[str, Any]:
    early = {"launch_pdl": True} if variant.early else {}  # an option that Triton knows on such GPUs only
    return {"num_warps": variant.warps, **early}


def _remember(variant: Variant, binary: Any) -> Compiled | None:
    """Keep what Triton compiled for the next launch, and return it; None if it cannot be launched again."""
    if not can_be_launched(binary):
        return None
    if len(compiled) >= tuning.COMPILED_KEPT:
        compiled.clear()
    compiled[variant] = launchable(binary)
    return compiled[variant]


def compile_ahead(variant: Variant, numbers: tuple[float, ...]) -> None:
    """Compile and load what a survey has found, unless a launch has done so before."""
    if variant not in compiled:
        with torch.cuda.device(variant.device):
            arguments = *variant.dtypes, *numbers, *variant.flags
            _remember(variant, variant.program.warmup(*arguments, grid=(1, 1, 1), **_options(variant)))


def can_be_launched(binary: Any) -> bool:
    """Whether :func:`launchable` knows this object. If not, every launch goes through Triton's public call."""
    return all(hasattr(binary, name) for name in ("run", "function", "packed_metadata"))


# This is the one place that uses private parts of Triton. The public call takes several times as long: it binds and
# specialises the arguments again and asks the driver about every pointer (``public_launch`` in
# benchmarks/results/crossover-gpu.json).
DIRECT = "3.6."  # the version of Triton whose C function is called with the arguments below
LAUNCHER = {  # the attributes of its launcher
    *("num_ctas", "launch", "global_scratch_size", "global_scratch_align"),
    *("profile_scratch_size", "profile_scratch_align", "launch_cooperative_grid", "launch_pdl"),
}


def launchable(binary: Any) -> Compiled:
    """How a compiled program is launched: by the C function in Triton's launcher, if it is the one that is known here,
    or by the launcher, in the form that versions 3.4 to 3.7 have.

    The launcher is Python, and takes as long as the launch. It allocates scratch memory for programs that need any, and
    passes its own flags on; the three None after the metadata are hooks and their arguments.
    """
    launcher = binary.run  # first: to ask for it loads the program, and only then it has a function
    function, metadata = binary.function, binary.packed_metadata
    if _is_known(launcher):
        flags = launcher.launch_cooperative_grid, launcher.launch_pdl
        return Compiled(binary, launcher.launch, (function, *flags, None, None, metadata, None, None, None))
    return Compiled(binary, launcher, (function, metadata, None, None, None))


def _is_known(launcher: Any) -> bool:
    if not triton.__version__.startswith(DIRECT) or getattr(launcher, "__dict__", {}).keys() != LAUNCHER:
        return False
    built_in = isinstance(launcher.launch, types.BuiltinFunctionType)
    return built_in and launcher.global_scratch_size == 0 and launcher.profile_scratch_size == 0


def launch_compiled(
    program: Compiled, grid: Grid, stream: int, addresses: Sequence[int], numbers: tuple[Any, ...]
) -> None:
    """Launch a compiled program on a stream, with addresses in place of tensors."""
    program.call(*grid, stream, *program.fixed, *addresses, *numbers)

"""How a GPU program is declared, so that one compiled program serves all sizes.

Triton compiles a program for each set of flags and dtypes. By default it does so again for each of the numbers that is
1, and for each that 16 divides: a program with ten numbers has thousands of forms, most new sizes of the anchors need a
new one, and compiling one takes up to a second. Here Triton looks only at the numbers that decide how memory is read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import triton

PADDED = "padded"  # a size in memory, always a multiple of 32, which Triton may know: one form
STRIDE = "_col"  # ends the name of a stride between columns: 1 if they are adjacent
INT32 = 2**31


def program(
    *, numbers: str, callers: tuple[str, ...] = (), divisible: tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], Any]:
    """``triton.jit`` for a function whose parameters are tensors, then numbers, then flags, as ``launch`` passes them.

    Args:
        numbers: the first parameter that is a number.
        callers: tensors of the caller, which may begin at any address. All others are our own, and are aligned.
        divisible: numbers for which vector loads, if 16 divides them, are worth a program of their own.
    """

    def declare(function: Callable[..., Any]) -> Any:
        parameters = inspect.signature(function).parameters
        names = [name for name, each in parameters.items() if each.annotation is each.empty]
        flags = [name for name in parameters if name not in names and name != "EARLY"]  # which ``launch`` decides
        names = names[names.index(numbers) :]
        strides = [name for name in names if name.endswith(STRIDE)]
        known = {PADDED, *strides, *divisible}
        declared: Any = triton.jit(
            function,
            do_not_specialize=[name for name in names if name not in known],
            do_not_specialize_on_alignment=[*callers, *strides],
        )
        declared.numbers, declared.flags = names, flags
        declared.strides, declared.divisible = ([names.index(name) for name in those] for those in (strides, divisible))
        return declared

    return declare


def by_name(program: Any, **values: Any) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """Numbers and flags, given by the names of a program's parameters, in the order in which ``launch`` takes them."""
    if unknown := values.keys() - {*program.numbers, *program.flags}:
        raise TypeError(f"{program.__name__} has no {', '.join(sorted(unknown))}")
    return tuple([values[name] for name in program.numbers]), tuple([values[name] for name in program.flags])


def strides_by_name(**strides: tuple[int, ...]) -> dict[str, int]:
    """Strides of tensors (batch, rows, columns) by the names of a program's parameters: x_batch, x_row, x_col."""
    axes = "batch", "row", "col"
    return {f"{name}_{axis}": stride for name, given in strides.items() for axis, stride in zip(axes, given)}


def form_of(program: Any, numbers: tuple[float, ...]) -> tuple[object, ...]:
    """What Triton sees of the numbers: which strides are 1; then what is divisible by 16, and what takes 64 bits."""
    form: list[object] = [numbers[place] == 1 for place in program.strides]
    if program.divisible:
        form += [1 if numbers[place] == 1 else numbers[place] % 16 == 0 and 16 for place in program.divisible]
    if max(numbers) >= INT32:
        form += [("int64", place) for place, number in enumerate(numbers) if number >= INT32]
    return tuple(form)

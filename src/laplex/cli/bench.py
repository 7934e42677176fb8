"""`laplex bench`: laplex.linear against torch.nn.Linear of the same shape, on this machine.

Both layers multiply by the same matrix K, so both have the same right answer. Answers are checked first, against the
definition in float64 on some random rows; a layer that is wrong is not timed.
"""

import argparse
import json
import math
import sys
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import torch

from laplex import testing
from laplex.cli.layers import BACKWARD, FORWARD, PLANNED, check, laplex_calls, linear_calls
from laplex.cli.machine import refuse_device
from laplex.cli.tables import Table, show

# The largest relative error of an answer that is right up to rounding.
BOUNDS = {"float32": 1e-4, "float64": 1e-10, "float16": 1e-2, "bfloat16": 5e-2}
SECONDS = 3.0  # for all calls of a shape together
BATCH = 64
HEADER = ("layer", "", "laplex", "nn.Linear", "laplex is")
NOTES = """
Times are medians; the calls take turns. "forward + backward" is a training step: it has gradients for x and for every
number held, and laplex sorts its anchors again. "plan kept" is inference: the sorted order is kept.
An error is the largest on 16 random rows of y, compared with the definition in float64, divided by the largest |y|.
laplex.linear holds matrices of one form, exp(-|a_i - b_j| / tau); torch.nn.Linear holds any matrix.""".strip()


@dataclass(frozen=True)
class Shape:
    """A layer from `cols` inputs to `rows` outputs, for `batch` inputs at once."""

    cols: int
    rows: int
    batch: int

    def __str__(self) -> str:
        return f"{self.cols} -> {self.rows}, batch {self.batch}"


@dataclass
class ShapeResult:
    """Results for one shape: each layer's parameter count and error, and its seconds for each kind of call."""

    shape: Shape
    numbers: dict[str, int]
    errors: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    note: str = ""  # what is missing, and why
    fault: bool = False  # laplex was wrong, or failed


def run(options: argparse.Namespace) -> int:
    """Measure every shape, print the table and write the file; after Ctrl-C, for the shapes that were finished."""
    try:
        refuse(options)
    except ValueError as error:
        print(f"laplex bench: {error}", file=sys.stderr)
        return 2
    results: list[ShapeResult] = []
    status, shapes, noise = 0, _shapes(options), testing.busy()
    try:
        for count, shape in enumerate(shapes, 1):
            print(f"[{count}/{len(shapes)}] {shape} ... ", end="", file=sys.stderr, flush=True)
            start = time.perf_counter()
            results.append(measure(shape, options))
            print(f"{time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("\nlaplex bench: interrupted; this is what was finished", file=sys.stderr)
        status = 130
    _write(options, results)
    if results:
        _print(options, results, noise)
    return status or int(any(result.fault for result in results))


def refuse(options: argparse.Namespace) -> None:
    """Raise ValueError if the options make no sense, before anything is measured."""
    if (options.rows is None) != (options.cols is None):
        raise ValueError("--rows and --cols go together: a layer has both")
    if options.batch is not None and options.rows is None:
        raise ValueError("--batch goes with --rows and --cols: the usual shapes have their own")
    for name in ("rows", "cols", "batch"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")
    for name in ("tau", "memory"):
        value = getattr(options, name)
        if not 0 < value < math.inf:
            raise ValueError(f"--{name} must be positive and finite, got {value:g}")
    refuse_device(options.device)
    if options.json is not None:
        try:
            Path(options.json).open("a").close()
        except OSError as error:
            raise ValueError(f"--json: cannot write {options.json} ({error.strerror or error})") from None


def _shapes(options: argparse.Namespace) -> tuple[Shape, ...]:
    """The user's own shapes; or two hidden layers, a classifier's head, a 224 x 224 x 3 image, and one too large."""
    if options.rows is not None:
        return (Shape(options.cols, options.rows, options.batch or BATCH),)
    large = 1 << (18 if options.device == "cpu" else 20)
    usual = Shape(64, 64, 128), Shape(768, 1000, 128), Shape(4096, 4096, 64), Shape(150_528, 1000, 64)
    return *usual, Shape(large, large, 8)


def measure(shape: Shape, options: argparse.Namespace) -> ShapeResult:
    """Measure one shape. If it does not fit or fails, that is noted, and the shapes after it are still measured."""
    own, dense = (1 + options.phase) * (shape.rows + shape.cols), shape.rows * shape.cols
    result = ShapeResult(shape, {"laplex": own, "nn.Linear": dense})
    try:
        _fill(result, options)
    except RuntimeError as error:  # usually out of memory
        result.note, result.fault = f"failed: {str(error).splitlines()[0]}", True
    return result


def _fill(result: ShapeResult, options: argparse.Namespace) -> None:
    """Check, then time."""
    shape, dtype = result.shape, getattr(torch, options.dtype)
    kind = {"tau": options.tau, "phases": options.phase, "device": options.device, "dtype": dtype}
    problem = testing.draw(shape.rows, shape.cols, rows=shape.batch, **kind)
    layers = {"laplex": laplex_calls(problem)}
    needs = 2e-9 * result.numbers["nn.Linear"] * dtype.itemsize
    if needs <= options.memory:
        layers["nn.Linear"] = linear_calls(problem)
    else:
        result.note = f"nn.Linear skipped: weight and gradient take {needs:.3g} GB, and --memory is {options.memory:g}"
    for name, calls in layers.items():
        result.errors[name], worst = check(problem, calls)
        if not worst <= BOUNDS[options.dtype]:
            result.note, result.fault = f"{name} is wrong here (error {worst:.1e}): nothing was timed", True
            return
    timed = {(layer, name): call for layer, own in layers.items() for name, call in own.items()}
    times = testing.interleave(timed, options.device, testing.Budget(min_s=SECONDS / len(timed)))
    result.seconds = {layer: {name: times[layer, name].median for name in own} for layer, own in layers.items()}


def _write(options: argparse.Namespace, results: list[ShapeResult]) -> None:
    """Write the figures, with everything they depend on, if --json asks for them."""
    if options.json is None:
        return
    content = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": testing.describe(options.device),
        "dtype": options.dtype,
        "tau": options.tau,
        "phase": options.phase,
        "results": [asdict(result) for result in results],
    }
    Path(options.json).write_text(json.dumps(content, indent=1) + "\n")


def _print(options: argparse.Namespace, results: list[ShapeResult], noise: str) -> None:
    setting = f"{options.dtype}, {options.device}, torch threads: {torch.get_num_threads()}"
    title = f"laplex.linear against torch.nn.Linear: {setting}"
    show(Table(title, HEADER, [line for result in results for line in _lines(result)]))
    notes = [f"{result.shape}: {result.note}" for result in results if result.note]
    print("", *notes, NOTES, *filter(None, [noise]), sep="\n")


def _lines(result: ShapeResult) -> list[tuple[str, ...]]:
    """The lines of the table for one shape."""
    ours, dense = (result.seconds.get(name, {}) for name in ("laplex", "nn.Linear"))
    held, theirs = result.numbers["laplex"], result.numbers["nn.Linear"]
    numbers = f"{held:,}", f"{theirs:,}", compared(held, theirs, "fewer", "more")
    lines: list[tuple[str, ...]] = [(str(result.shape), "numbers held", *numbers)]
    for name in (PLANNED, FORWARD, BACKWARD):
        pair = ours.get(name), dense.get(FORWARD if name == PLANNED else name)
        lines.append(("", name, *map(scaled, pair), compared(*pair, "faster", "slower")))
    errors = [f"{result.errors[name]:.1e}" if name in result.errors else "-" for name in ("laplex", "nn.Linear")]
    return [*lines, ("", "largest error", *errors, "")]


def compared(ours: float | None, theirs: float | None, less: str, more: str) -> str:
    """A ratio in words, such as "12x faster", "3.4x slower" or "the same"."""
    if ours is None or theirs is None:
        return "-"
    ratio, word = (theirs / ours, less) if ours <= theirs else (ours / theirs, more)
    number = f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"
    return "the same" if number == "1" else f"{number}x {word}"


def scaled(seconds: float | None) -> str:
    """Seconds in a suitable unit, such as 1.23 s, 4.56 ms or 7.89 us."""
    if seconds is None:
        return "-"
    scale, unit = next(((s, u) for s, u in ((1.0, "s"), (1e-3, "ms")) if seconds >= s), (1e-6, "us"))
    return f"{seconds / scale:.3g} {unit}"

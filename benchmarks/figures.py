"""The README's short table: five figures, each that looks good next to one of the same kind that does not."""

from dataclasses import dataclass

from benchmarks.committed import content, suite_results
from benchmarks.problems import Size
from benchmarks.result import Result
from benchmarks.tables import scaled, value_of

MODULES = {"GPU": "modules-nvidia-h200.json", "CPU": "modules-amd-epyc-2-threads.json"}  # by device
LARGE = Size(1 << 20, 1 << 20, 1)


@dataclass(frozen=True)
class Highlight:
    """A result of a suite, in words for a first reader."""

    suite: str
    row: str
    size: Size
    words: str


HIGHLIGHTS = (
    Highlight("cpu", "error-float32-cpp-normal", Size(1 << 20, 1 << 20, 8),
           "Relative error of a float32 product, n = k = 2^20 (one float32 rounding is 6e-08)"),
    Highlight("cpu", "time-celerite2", LARGE,
           "Rectangular product, n = k = 2^20, float32, two threads, against celerite2 (float64, one thread)"),
    Highlight("layers", "time-celerite2-symmetric-1-thread", LARGE,
           "Symmetric product, n = 2^20, sorted anchors, both sides in float64 on one thread, against celerite2"),
)  # fmt: skip
LAYERS = (("CPU", 150528), ("GPU", 768))  # the device, and the inputs of the layer


def figures() -> str:
    """The table, and where its figures were measured."""
    lines = ["| measured | on | result |", "| --- | --- | --- |"]
    for highlight in HIGHLIGHTS:
        _, results = suite_results(highlight.suite)
        result = next(one for one in results if (one.row, one.size) == (highlight.row, highlight.size))
        lines.append(f"| {highlight.words} | CPU | {in_short(result)} |")
    lines += [layer_line(device, width) for device, width in LAYERS]
    return "\n".join([*lines, "", origins()])


def in_short(result: Result) -> str:
    """A ratio as both times and how they compare; anything else as its value."""
    times = [side.time.median for side in result.sides.values() if side.time is not None]
    if result.unit != "ratio" or len(times) < 2:
        return value_of(result)
    return against(*times[:2])


def layer_line(device: str, width: int) -> str:
    """A training step of a layer, with Adam, against nn.Linear: the least of several rounds."""
    layer = next(one for one in content(MODULES[device])["layers"] if one["in"] == width)
    ours, dense = (layer["milliseconds"]["with Adam"][name] / 1e3 for name in ("LaplexLinear", "nn.Linear"))
    size = f"{layer['in']} -> {layer['out']}, {layer['rows']} rows, r = {layer['rank']}"
    words = f"Training step with Adam of a layer {size}"
    return f"| {words}, against `torch.nn.Linear` | {device} | {against(ours, dense)} |"


def against(ours: float, theirs: float) -> str:
    """Two times in seconds, and how they compare."""
    verdict = f"{theirs / ours:.2g} times faster" if ours < theirs else f"**{ours / theirs:.2g} times slower**"
    return f"{scaled(ours, 's')} against {scaled(theirs, 's')}: {verdict}"


def origins() -> str:
    """In one line: the machines, and the files."""
    machines = {device: suite_results(device.lower())[0].split(";")[0] for device in MODULES}
    devices = "; ".join(f"{device}: {machine.rpartition(',')[0]}" for device, machine in machines.items())
    suites = (suite_results(suite)[0].rpartition("/")[2].rstrip("`.") for suite in ("cpu", "layers"))
    names = ", ".join(f"`{name}`" for name in (*suites, *MODULES.values()))
    return f"{devices}. From {names} in `benchmarks/results`."

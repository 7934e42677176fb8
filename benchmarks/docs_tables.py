"""The tables of the documentation that the README does not have, from the committed JSON: one function a block.

A page marks a block as the README does; ``benchmarks.markdown`` fills it.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

from benchmarks.problems import power
from benchmarks.report import COMMITTED, load
from benchmarks.result import Measured, Result
from benchmarks.tables import bar_of, scaled, time_of, value_of

ON = {"cpu": "CPU", "layers": "CPU", "gpu": "H200"}  # by suite
MODULES = {"modules-nvidia-h200.json": "H200", "modules-amd-epyc-2-threads.json": "CPU"}
SWEPT = {  # the sides of the sweep over n, and what they are called
    "laplex, plan kept": "plan kept",
    "laplex, whole call": "whole call",
    "laplex, forward and backward with planning": "forward and backward",
    "one torch.fft.fft": "one FFT",
    "Toeplitz-FFT, kernel's FFT kept": "Toeplitz by FFT",
}
LONGEST_FIGURE = 10  # characters
TRAINED = "laplex, forward and backward with planning"
STEPS = {  # what benchmarks.density_steps measures, in words
    "photographs": "3 145 728 numbers, rank 1000",
    "ImageNette": "150 528 numbers, rank 1000",
    "ImageNette, three components": "150 528 numbers, rank 1000, three components",
    "ImageNette, diagonal": "150 528 numbers, rank 10 000, diagonal latent covariance",
    "photographs, diagonal": "3 145 728 numbers, rank 100 000, diagonal latent covariance",
}


def table(header: Iterable[str], rows: Iterable[Iterable[str]], *origins: str) -> str:
    """A Markdown table, and below it where its figures come from."""
    lines = [list(header), *([unbroken(cell) for cell in row] for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", "<br>\n".join(origins)])


def unbroken(cell: str) -> str:
    """A figure and its unit stay on one line of a narrow column: 4.7 ms, <= 2e-07."""
    if len(cell) > LONGEST_FIGURE:
        return cell
    return cell.replace(" ", "\N{NO-BREAK SPACE}").replace("e-", "e\N{NON-BREAKING HYPHEN}")


def errors() -> str:
    """The error bound, measured: every row of both suites that is an error, its sizes and values."""
    found = {suite: _suite(suite) for suite in ("cpu", "gpu")}
    rows = []
    for suite, (_, results) in found.items():
        wrong = [one for one in results if one.unit == "relative error" and one.size is not None]
        for _, group in groupby(wrong, key=lambda one: one.row):
            same = list(group)
            largest = max(same, key=lambda one: one.value or 0.0)
            sizes = f"{same[0].size}" if len(same) == 1 else f"{len(same)} sizes up to {same[-1].size}"
            rows.append((same[0].says, ON[suite], sizes, value_of(largest), bar_of(largest)))
    return table(("what", "on", "sizes", "largest error", "bar"), rows, *(origin for origin, _ in found.values()))


def default_errors() -> str:
    """The largest errors of ``laplex.linear`` as it comes, over random sizes: of its values, and of its gradients."""
    rows, files = [], []
    for name, on in (("errors-cpu.json", "CPU"), ("errors-nvidia-h200.json", "H200")):
        found = json.loads((COMMITTED / name).read_text())["points"]
        points = [row["errors"] for row in found if row["dtype"] == "float32"]
        gradients = [max(error for key, error in row.items() if key != "y") for row in points if len(row) > 1]
        largest = max(row["y"] for row in points), max(gradients)
        rows.append((on, str(len(points)), *(f"{error:.1e}" for error in largest), "<= 5e-07"))
        files.append(f"`benchmarks/results/{name}`")
    head = "on", "products", "largest error of values", "largest error of gradients", "bar"
    return table(head, rows, f"From {', '.join(files)}.")


def celerite2() -> str:
    """Everything that was measured beside celerite2."""
    return _beside(
        "celerite2",
        ("layers", "time-celerite2-symmetric-1-thread", "symmetric product, one thread"),
        ("layers", "time-celerite2-symmetric", "symmetric product, laplex on both threads"),
        ("cpu", "time-celerite2", "rectangular product, laplex in float32 and on both threads"),
        ("cpu", "time-solve", "factor K + 0.1 and solve, laplex on both threads"),
    )


def small() -> str:
    """Layers of a few thousand features, and below, beside torch.nn.Linear: one matrix, without a module around it."""
    training, inference = "training step", "forward alone, plan kept"
    return _beside(
        "nn.Linear",
        ("layers", "layer-training", training),
        ("layers", "layer-inference", inference),
        ("gpu", "layer-training", training),
        ("gpu", "layer-inference", inference),
        most=4096,
    )


def ffts() -> str:
    """Products on the CPU beside FFTs: one, which computes something else, and a Toeplitz product."""
    return _beside(
        "FFT",
        ("cpu", "time-fft", "plan kept, beside one FFT, which is no product"),
        ("cpu", "time-toeplitz", "plan kept, beside a Toeplitz product, the kernel's FFT kept"),
        ("cpu", "time-whole", "whole calls"),
    )


def large_ffts() -> str:
    """Whole calls and products with a plan kept, beside a whole Toeplitz product, at large sizes of a GPU."""
    # Half of the sizes, with 2^20 and 2^21, between which the order changes.
    return _beside_toeplitz("cuda", [1 << e for e in range(16, 30) if e % 4 in (0, 1)], "On the H200.")


def cpu_ffts() -> str:
    """The same on two cores, at every second size."""
    return _beside_toeplitz("cpu", [1 << e for e in range(10, 21, 2)], "On two cores.")


def _beside_toeplitz(device: str, sizes: Sequence[int], where: str) -> str:
    name = f"reproduce/{device}-sizes.json"
    rows = []
    for run in _json(name)["runs"]:
        n, found = run["settings"]["n"], run["result"]["measured"]
        if n in sizes:
            sides = "laplex", "laplex, plan kept", "toeplitz"
            whole, kept, other = (found[side]["forward"]["seconds"] for side in sides)
            cells = (scaled(one, "s") for one in (whole, kept, other))
            rows.append((power(n), *cells, _ratio(whole / other), _ratio(kept / other)))
    header = (
        "n = k",
        "laplex, whole call",
        "laplex, plan kept",
        "Toeplitz product by FFT",
        "whole, ratio",
        "kept, ratio",
    )
    return table(header, rows, f"{where} {_from(name)}")


def compiled() -> str:
    """torch.compile beside eager calls."""
    return _beside("eager", ("gpu", "time-compiled", "training step, compiled"))


def missed() -> str:
    """Every claim that missed its bar, with the sizes at which it did, and every call that failed."""
    found = {suite: _suite(suite) for suite in ("layers", "cpu", "gpu")}
    rows = []
    for suite, (_, results) in found.items():
        bad = (one for one in results if one.status in ("miss", "failed"))
        for _, group in groupby(bad, key=lambda one: one.row):
            same = list(group)
            sizes = "; ".join(str(one.size) for one in same)
            values = " / ".join("failed" if one.status == "failed" else value_of(one) for one in same)
            rows.append((same[0].says, ON[suite], sizes, values, bar_of(same[0])))
    header = "claim", "on", "missed at", "measured", "bar"
    return table(header, rows, *(origin for origin, _ in found.values()))


def modules() -> str:
    """Whole training steps of LaplexLinear, with Adam, beside nn.Linear; and the ratio without Adam."""
    rows = []
    for name, on in MODULES.items():
        for one in _json(name)["layers"]:
            dense, ours = (one["milliseconds"]["with Adam"][key] for key in ("nn.Linear", "LaplexLinear"))
            layer = f"{one['in']} -> {one['out']}", str(one["rank"]), str(one["rows"])
            ratios = (_ratio(one["ratio"][step]) for step in ("with Adam", "forward + backward"))
            rows.append((*layer, on, f"{dense:.3g} ms", f"{ours:.3g} ms", *ratios))
    header = "layer", "r", "rows", "on", "nn.Linear", "LaplexLinear", "ratio", "ratio without Adam"
    return table(header, rows, _from(*MODULES))


def wide_layer() -> tuple[str, str, str]:
    """A training step of the widest module on the CPU, beside nn.Linear: what, how long, and where that is from."""
    name = next(name for name, on in MODULES.items() if on == "CPU")
    one = max(_json(name)["layers"], key=lambda layer: layer["in"])
    dense, ours = (one["milliseconds"]["with Adam"][key] / 1e3 for key in ("nn.Linear", "LaplexLinear"))
    says = f"Training step with Adam of a wide layer, {one['in']} -> {one['out']}, batch {one['rows']}, against "
    return f"{says}`torch.nn.Linear`; the least of several rounds", against(ours, dense), _from(name)


def against(ours: float, theirs: float) -> str:
    """Two times in seconds, and how they compare."""
    verdict = f"{theirs / ours:.2g} times faster" if ours < theirs else f"**{ours / theirs:.2g} times slower**"
    return f"{scaled(ours, 's')} against {scaled(theirs, 's')}: {verdict}"


def sizes() -> str:
    """Time and memory on a GPU over n = k."""
    origin, results = _suite("gpu")
    rows = []
    for one in results:
        if one.row == "sweep-size" and one.size is not None:
            times = [time_of(one.sides[side]) if side in one.sides else "-" for side in SWEPT]
            rows.append((power(one.size.n), str(one.size.batch), *times, _peak(one.sides.get(TRAINED))))
    return table(("n = k", "rows", *SWEPT.values(), "peak memory, forward and backward"), rows, origin)


def peaks() -> str:
    """The most memory that calls of large sizes held beyond their inputs."""
    long = "time-huge-kept", "time-huge-whole", "time-billion"
    short = "time-short-to-long", "time-long-to-short", "time-tau", "gram-phased-time", "gram-phased-training"
    origin, results = _suite("gpu")
    rows = []
    for one in (one for name in (*long, *short) for one in results if one.row == name):
        label, side = next(iter(one.sides.items()))
        rows.append((label, str(one.size), time_of(side), _peak(side)))
    return table(("call", "size", "time", "peak memory"), rows, origin)


def plans() -> str:
    """What a plan costs, and what it saves."""
    busy = _json("busy-cpu.json")
    rows = [(f"build a plan of 10^6 anchors, {how}", "CPU", f"{ms:.3g} ms") for how, ms in
            busy["plans of 10^6 anchors"].items()]  # fmt: skip
    for what in ("product, n = k = 100000", "plan, n = k = 100000"):
        rows.append((f"{what}, {'plan kept' if what.startswith('product') else 'built'}", "CPU",
                     f"{busy['results'][what]['quiet']:.3g} ms"))  # fmt: skip
    origin, results = _suite("gpu")
    for name in ("time-kept", "time-whole"):
        one = next(one for one in results if one.row == name)
        rows.append((f"product, {one.size}, {one.says}", "H200", value_of(one)))
    return table(("what", "on", "time"), rows, _from("busy-cpu.json"), origin)


def first_calls() -> str:
    """Compilation of GPU programs, with an empty cache: as calls need them, and ahead."""
    saved = _json("first-calls.json")
    cold, warm = saved["cold"], saved["warmed up"]
    rows = [
        ("without `warm_up`", "-", str(cold["programs compiled"]), _s(cold["longest s"]), _s(cold["total s"])),
        ("after `warm_up`", _s(warm["warm_up s"]), str(warm["programs compiled"]), _s(warm["longest s"]),
         _s(warm["total s"])),
    ]  # fmt: skip
    calls = f"all {saved['calls']} calls"
    header = "", "`warm_up` itself", "programs compiled by calls", "longest call", calls
    return table(header, rows, f"{saved['machine']['gpu']}, calls of random sizes. " + _from("first-calls.json"))


def density_steps() -> str:
    """A training step of LaplexGaussian on a GPU."""
    names = "density-steps-nvidia-h200.json", "density-steps-diagonal-nvidia-h200.json"
    found = {key: step for name in names for key, step in _json(name)["results"].items()}
    rows = [
        (says, f"{found[key]['step ms']:.3g} ms", scaled(1e9 * found[key]["peak GB"], "bytes"))
        for key, says in STEPS.items()
    ]
    return table(("density", "time of a step", "peak memory"), rows, _from(*names))


def _beside(other: str, *asked: tuple[str, str, str], most: int | None = None) -> str:
    """Rows of two sides: laplex's time, the other's, and the ratio; at sizes with n and k of at most ``most``.

    What is asked for is a suite, a row of it, and what the row is called here.
    """
    rows, origins = [], dict[str, None]()
    for suite, name, words in asked:
        origin, results = _suite(suite)
        origins[f"{ON[suite]}: {origin}"] = None
        for one in results:
            if one.row == name and one.size is not None and (most is None or max(one.size.n, one.size.k) <= most):
                rows.append((words, ON[suite], str(one.size), *_times(one)))
    return table(("what", "on", "size", "laplex", other, "ratio"), rows, *origins)


def _times(one: Result) -> tuple[str, str, str]:
    ours, theirs = (side for side in list(one.sides.values())[:2])
    return time_of(ours), time_of(theirs), _ratio(one.value or 0.0)


def _ratio(value: float) -> str:
    """A ratio above 1 means that laplex took longer: bold."""
    return f"{value:.2g}" if value <= 1 else f"**{value:.3g}**"


def _peak(side: Measured | None) -> str:
    return "-" if side is None or side.peak_bytes is None else scaled(side.peak_bytes, "bytes")


def _s(seconds: float) -> str:
    return scaled(seconds, "s")


def _suite(suite: str) -> tuple[str, list[Result]]:
    return load(sorted(COMMITTED.glob(f"{suite}-*.json"))[-1])


def _json(name: str) -> dict[str, Any]:
    return json.loads((COMMITTED / name).read_text())  # type: ignore[no-any-return]


def _from(*names: str) -> str:
    return "From " + ", ".join(f"`{(COMMITTED / name).as_posix()}`" for name in names) + "."


CONTENT: dict[str, Callable[[], str]] = {
    "errors": errors,
    "default errors": default_errors,
    "celerite2": celerite2,
    "small layers": small,
    "ffts": ffts,
    "large ffts": large_ffts,
    "cpu ffts": cpu_ffts,
    "compiled": compiled,
    "missed": missed,
    "modules": modules,
    "sizes": sizes,
    "peaks": peaks,
    "plans": plans,
    "first calls": first_calls,
    "density steps": density_steps,
}

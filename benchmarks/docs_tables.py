"""Times, errors and memory in the tables of the documentation, from the committed JSON: one function per table."""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby

from benchmarks.committed import content, source, suite_results, table
from benchmarks.figures import MODULES
from benchmarks.problems import Size, power
from benchmarks.result import Measured, Result
from benchmarks.tables import bar_of, scaled, time_of, value_of

DEVICES = {"cpu": "CPU", "layers": "CPU", "gpu": "H200"}  # by suite
SWEPT = {  # the sides of the sweep over n, and what they are called
    "laplex, plan kept": "plan kept",
    "laplex, whole call": "whole call",
    "laplex, forward and backward with planning": "forward and backward",
    "one torch.fft.fft": "one FFT",
    "Toeplitz-FFT, kernel's FFT kept": "Toeplitz by FFT",
}
TRAINED = "laplex, forward and backward with planning"
STEPS = {  # what benchmarks.studies.density_steps measures, in words
    "photographs": "3 145 728 numbers, rank 1000",
    "ImageNette": "150 528 numbers, rank 1000",
    "ImageNette, three components": "150 528 numbers, rank 1000, three components",
    "ImageNette, diagonal": "150 528 numbers, rank 10 000, diagonal latent covariance",
    "photographs, diagonal": "3 145 728 numbers, rank 100 000, diagonal latent covariance",
}


def claims(suite: str) -> str:
    """Every claim of a suite with its figure at every size, and where it was measured."""
    origin, results = suite_results(suite)
    rows = []
    for same in _by_row(one for one in results if one.bar is not None):  # a sweep is for the plots
        missed = sum(result.status == "miss" for result in same)
        unmeasured = sorted({result.status for result in same} - {"pass", "miss"})
        verdict = ", ".join([f"missed at {missed} of {len(same)}" if missed else "met", *unmeasured])
        sizes = in_words([result.size for result in same if result.size is not None])
        rows.append((same[0].says, sizes, " / ".join(map(value_of, same)), bar_of(same[0]), verdict))
    return table(("claim", "sizes", "measured", "bar", "verdict"), rows, origin)


def in_words(sizes: list[Size]) -> str:
    """n = k = 2^14, 2^18; B = 1: what sizes have in common is said once."""
    if not all(size.n == size.k for size in sizes):
        return "; ".join(map(str, sizes))
    batches = groupby(sizes, key=lambda size: size.batch)
    return " and ".join(f"n = k = {', '.join(power(size.n) for size in same)}; B = {b}" for b, same in batches)


def missed() -> str:
    """Every claim that missed its bar, with the sizes at which it did, and every call that failed."""
    rows, origins = [], []
    for suite in ("layers", "cpu", "gpu"):
        origin, results = suite_results(suite)
        origins.append(origin)
        for same in _by_row(one for one in results if one.status in ("miss", "failed")):
            sizes = "; ".join(str(one.size) for one in same)
            values = " / ".join("failed" if one.status == "failed" else value_of(one) for one in same)
            rows.append((same[0].says, DEVICES[suite], sizes, values, bar_of(same[0])))
    return table(("claim", "on", "missed at", "measured", "bar"), rows, *origins)


def errors() -> str:
    """The error bound, measured: every row of both suites that is an error, its sizes and values."""
    rows, origins = [], []
    for suite in ("cpu", "gpu"):
        origin, results = suite_results(suite)
        origins.append(origin)
        for same in _by_row(one for one in results if one.unit == "relative error" and one.size is not None):
            largest = max(same, key=lambda one: one.value or 0.0)
            sizes = f"{same[0].size}" if len(same) == 1 else f"{len(same)} sizes up to {same[-1].size}"
            rows.append((same[0].says, DEVICES[suite], sizes, value_of(largest), bar_of(largest)))
    return table(("what", "on", "sizes", "largest error", "bar"), rows, *origins)


def default_errors() -> str:
    """The largest errors of ``laplex.linear`` with its defaults over random sizes: of values and of gradients."""
    files = {"errors-cpu.json": "CPU", "errors-nvidia-h200.json": "H200"}
    rows = []
    for name, device in files.items():
        points = [row["errors"] for row in content(name)["points"] if row["dtype"] == "float32"]
        gradients = [max(error for key, error in row.items() if key != "y") for row in points if len(row) > 1]
        largest = max(row["y"] for row in points), max(gradients)
        rows.append((device, str(len(points)), *(f"{error:.1e}" for error in largest), "<= 5e-07"))
    header = "on", "products", "largest error of values", "largest error of gradients", "bar"
    return table(header, rows, source(*files))


def comparison(other: str, *lines: tuple[str, str, str], most: int | None = None) -> str:
    """Two sides: laplex's time, the other's, and the ratio; at sizes with n and k of at most ``most``.

    A line is a suite, a row of it, and what the row is called here.
    """
    rows, origins = [], dict[str, None]()
    for suite, name, words in lines:
        origin, results = suite_results(suite)
        origins[f"{DEVICES[suite]}: {origin}"] = None
        for one in results:
            if one.row == name and one.size is not None and (most is None or max(one.size.n, one.size.k) <= most):
                times = [time_of(side) for side in one.sides.values()][:2]
                rows.append((words, DEVICES[suite], str(one.size), *times, _ratio(one.value or 0.0)))
    return table(("what", "on", "size", "laplex", other, "ratio"), rows, *origins)


def toeplitz(device: str, exponents: list[int], where: str) -> str:
    """Whole calls, and products with a plan kept, compared with a whole Toeplitz product."""
    name = f"reproduce/{device}-sizes.json"
    rows = []
    for run in content(name)["runs"]:
        n, sides = run["settings"]["n"], run["result"]["measured"]
        if n in [1 << exponent for exponent in exponents]:
            labels = "laplex", "laplex, plan kept", "toeplitz"
            call, product, other = (sides[label]["forward"]["seconds"] for label in labels)
            times = (scaled(seconds, "s") for seconds in (call, product, other))
            rows.append((power(n), *times, _ratio(call / other), _ratio(product / other)))
    ours = "laplex, whole call", "laplex, plan kept"
    header = "n = k", *ours, "Toeplitz product by FFT", "whole call, ratio", "plan kept, ratio"
    return table(header, rows, f"{where} {source(name)}")


def modules() -> str:
    """Whole training steps of LaplexLinear, with Adam, compared with nn.Linear; and the ratio without Adam."""
    rows = []
    for device, name in MODULES.items():
        for one in content(name)["layers"]:
            dense, ours = (one["milliseconds"]["with Adam"][key] for key in ("nn.Linear", "LaplexLinear"))
            layer = f"{one['in']} -> {one['out']}", str(one["rank"]), str(one["rows"])
            ratios = (_ratio(one["ratio"][step]) for step in ("with Adam", "forward + backward"))
            rows.append((*layer, device.replace("GPU", "H200"), f"{dense:.3g} ms", f"{ours:.3g} ms", *ratios))
    header = "layer", "r", "rows", "on", "nn.Linear", "LaplexLinear", "ratio", "ratio without Adam"
    return table(header, rows, source(*MODULES.values()))


def trained_layers() -> str:
    """Training steps of sums of kernels, without a module, compared with nn.Linear."""
    gpu, cpu = "trained-layers-nvidia-h200.json", "formed-amd-epyc-2-threads.json"
    steps = [
        (one, one["matrices"], "H200", one["milliseconds"]["nn.Linear"], one["milliseconds"]["laplex"])
        for one in content(gpu)["layers"]
    ]
    layers = (one for one in content(cpu)["results"] if one["name"] == "layer")
    steps += [(one, one["kernels"], "CPU", one["ms"]["linear"], one["ms"]["laplex"]) for one in layers]
    rows = [
        (f"{one['in']} -> {one['out']}", str(kernels), str(one["rows"]), device, f"{dense:.3g} ms", f"{ours:.3g} ms",
         _ratio(ours / dense))
        for one, kernels, device, dense, ours in steps
    ]  # fmt: skip
    header = "layer", "r", "rows", "on", "nn.Linear", "laplex", "ratio"
    return table(header, rows, source(gpu, cpu))


def sizes() -> str:
    """Time and memory on a GPU over n = k."""
    origin, results = suite_results("gpu")
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
    origin, results = suite_results("gpu")
    rows = []
    for one in (one for name in (*long, *short) for one in results if one.row == name):
        label, side = next(iter(one.sides.items()))
        rows.append((label, str(one.size), time_of(side), _peak(side)))
    return table(("call", "size", "time", "peak memory"), rows, origin)


def plans() -> str:
    """What a plan costs, and what it saves."""
    busy = content("busy-cpu.json")
    built = busy["plans of 10^6 anchors"].items()
    rows = [(f"build a plan of 10^6 anchors, {anchors}", "CPU", f"{ms:.3g} ms") for anchors, ms in built]
    for key, words in (("product", "plan kept"), ("plan", "built")):
        name = f"{key}, n = k = 100000"
        rows.append((f"{name}, {words}", "CPU", f"{busy['results'][name]['quiet']:.3g} ms"))
    origin, results = suite_results("gpu")
    for name in ("time-kept", "time-whole"):
        one = next(one for one in results if one.row == name)
        rows.append((f"product, {one.size}, {one.says}", "H200", value_of(one)))
    return table(("what", "on", "time"), rows, source("busy-cpu.json"), origin)


def first_calls() -> str:
    """Compilation of GPU programs, with an empty cache: as calls need them, and ahead."""
    saved = content("first-calls.json")
    cold, warm = saved["cold"], saved["warmed up"]
    rows = [
        ("without `warm_up`", "-", str(cold["programs compiled"]), _s(cold["longest s"]), _s(cold["total s"])),
        ("after `warm_up`", _s(warm["warm_up s"]), str(warm["programs compiled"]), _s(warm["longest s"]),
         _s(warm["total s"])),
    ]  # fmt: skip
    calls = f"all {saved['calls']} calls"
    header = "", "`warm_up` itself", "programs compiled by calls", "longest call", calls
    return table(header, rows, f"{saved['machine']['gpu']}, calls of random sizes. " + source("first-calls.json"))


def density_steps() -> str:
    """A training step of LaplexGaussian on a GPU."""
    names = "density-steps-nvidia-h200.json", "density-steps-diagonal-nvidia-h200.json"
    steps = {key: step for name in names for key, step in content(name)["results"].items()}
    rows = [
        (words, f"{steps[key]['step ms']:.3g} ms", scaled(1e9 * steps[key]["peak GB"], "bytes"))
        for key, words in STEPS.items()
    ]
    return table(("density", "time of a step", "peak memory"), rows, source(*names))


def _by_row(results: Iterable[Result]) -> list[list[Result]]:
    return [list(same) for _, same in groupby(results, key=lambda one: one.row)]


def _ratio(value: float) -> str:
    """A ratio above 1 means that laplex took longer: bold."""
    return f"{value:.2g}" if value <= 1 else f"**{value:.3g}**"


def _peak(side: Measured | None) -> str:
    return "-" if side is None or side.peak_bytes is None else scaled(side.peak_bytes, "bytes")


def _s(seconds: float) -> str:
    return scaled(seconds, "s")


def power_of_ten(number: int) -> str:
    return f"10^{len(str(number)) - 1}" if str(number).strip("0") == "1" else str(number)


def from_disk() -> str:
    """One product of points that do not fit into memory, and what its disk alone would take."""
    file = "disk-cpu.json"
    one = content(file)
    error = one["error of the sum of sizes, largest of 8 rows"]
    rows = [
        ("time", f"{one['seconds']:.0f} s"),
        ("largest resident memory, all of the process", f"{one['peak resident GB']:.2f} GB"),
        ("read, and written", f"{one['GB read']:.1f} GB, {one['GB written']:.1f} GB"),
        ("time in which the disk alone moves as much, in sequence", f"{one['seconds of the disk alone']:.0f} s"),
        ("largest error, relative to the sum of the terms' magnitudes", f"{error:.1e}"),
    ]
    others = one["load"][0] - one["machine"]["cores"]
    busy = f"Two cores with a load of {one['load'][0]:.0f} when it ended: other work took most of both."
    notes = ([busy] if others > 1 else []) + [source(file)]
    return table((f"{power_of_ten(one['points'])} points, float32", "measured"), rows, *notes)


TRAINING, INFERENCE = "training step", "forward alone, plan kept"
CONTENT: dict[str, Callable[[], str]] = {
    "cpu results": partial(claims, "cpu"),
    "gpu results": partial(claims, "gpu"),
    "errors": errors,
    "default errors": default_errors,
    "celerite2": partial(
        comparison,
        "celerite2",
        ("layers", "time-celerite2-symmetric-1-thread", "symmetric product, one thread"),
        ("layers", "time-celerite2-symmetric", "symmetric product, laplex on both threads"),
        ("cpu", "time-celerite2", "rectangular product, laplex in float32 and on both threads"),
        ("cpu", "time-solve", "factor K + 0.1 and solve, laplex on both threads"),
    ),
    "small layers": partial(
        comparison,
        "nn.Linear",
        ("layers", "layer-training", TRAINING),
        ("layers", "layer-inference", INFERENCE),
        ("gpu", "layer-training", TRAINING),
        ("gpu", "layer-inference", INFERENCE),
        most=4096,
    ),
    "ffts": partial(
        comparison,
        "FFT",
        ("cpu", "time-fft", "plan kept, against one FFT, which is not a product"),
        ("cpu", "time-toeplitz", "plan kept, against a Toeplitz product, the kernel's FFT kept"),
        ("cpu", "time-whole", "whole calls"),
    ),
    "compiled": partial(comparison, "eager", ("gpu", "time-compiled", "training step, compiled")),
    "cpu ffts": partial(toeplitz, "cpu", [10, 12, 14, 16, 18, 20], "On two cores."),
    "large ffts": partial(toeplitz, "cuda", [16, 17, 20, 21, 24, 25, 28, 29], "On the H200."),
    "missed": missed,
    "modules": modules,
    "trained layers": trained_layers,
    "sizes": sizes,
    "peaks": peaks,
    "plans": plans,
    "first calls": first_calls,
    "density steps": density_steps,
    "disk": from_disk,
}

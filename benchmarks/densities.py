"""The documentation's tables of densities, from the committed runs of the experiment on densities."""

from collections.abc import Callable
from typing import Any

from benchmarks.committed import experiments, source, table
from paper.results import Results, Run

GPU, CPU = "density-imagenette224", "density-imagenette224-cpu"
PHOTOGRAPHS = {  # by the number of images that were fitted
    234: "density-photos1024",
    58: "density-photos1024-58",
    29: "density-photos1024-29",
}
LONGER = "density-imagenette224", "density-imagenette224-100", "density-imagenette224-6000"
STARTS = {
    "tree": "`laplex.seriate`, blind",
    "random": "random",
    "raster": "raster order",
    "curve": "a Hilbert curve over positions",
}
TRAINED = {"adam": "LAPLEX as in the paper", "low-rank": "dense low rank"}


def densities() -> str:
    """Likelihoods of test images: a line per model, the fewest parameters first, and then what it is compared with."""
    gpu, cpu = experiments(GPU), experiments(CPU)
    fits = [(run, "H200") for run in _fitted(gpu, "em")] + [(run, "two cores") for run in _fitted(cpu, "em")]
    fits.sort(key=lambda fit: (fit[0].result["parameters"], fit[1]))
    budgets = sorted(int(run.result["parameters"]) for run in gpu.matching(method="adam"))
    for method in ("adam", "low-rank", "ppca"):
        fits += [(_nearest(gpu.matching(method=method), budget), "H200") for budget in budgets]
    rows = [_line(_title(run.settings), run, where) for run, where in fits]
    (ceiling,) = _fitted(gpu, "empirical")
    rows.append(_line("the empirical Gaussian with a ridge", ceiling, "H200"))
    header = "model", "parameters", "log-likelihood", "of the empirical Gaussian's", "fitted in"
    return table(header, rows, source(gpu.path, cpu.path))


def starts() -> str:
    """Likelihoods of validation images after EM: a line per start; with and without jumps, pixels permuted or not."""
    columns = {
        "pixels": {"jump": True, "permuted": False},
        "pixels, no jumps": {"jump": False, "permuted": False},
        "permuted pixels": {"jump": True, "permuted": True},
        "permuted pixels, no jumps": {"jump": False, "permuted": True},
    }
    results = experiments(GPU)
    rows = []
    for start, title in STARTS.items():
        same = {"method": "em", "functions": 2, "rank": 1000, "start": start}
        runs = [results.matching(**same, **settings)[-1] for settings in columns.values()]
        rows.append([title, *(f"{run.result['val']['log_likelihood']:,.0f}" for run in runs)])
    return table(("start", *columns), rows, source(results.path))


def longer() -> str:
    """Likelihoods with more images, higher ranks and more rounds of EM: a line per fit, the fewest functions first."""
    files = [experiments(name) for name in LONGER]
    rows = []
    for results in files:
        (empirical,) = _fitted(results, "empirical")
        images = empirical.result["rank"] + 1  # they span one dimension less than there are of them
        for run in _fitted(results, "em"):
            counts = run.settings["functions"], run.settings["rank"], images, run.settings["rounds"]
            levels = (f"{one.result['test']['log_likelihood']:,.0f}" for one in (run, empirical))
            share = f"{100 * run.result['test']['closure']:.1f} %"
            if counts[0] > 1:
                where = run.machine.get("gpu", "two cores")
                rows.append((counts, [*(f"{count:,}" for count in counts), *levels, share, where]))
    header = "functions", "rank", "images", "rounds", "LAPLEX", "the empirical Gaussian", "share", "on"
    return table(header, [row for _, row in sorted(rows)], source(*(results.path for results in files)))


def photographs() -> str:
    """Likelihoods of held-out photographs of 3 145 728 numbers: a line per number of images that were fitted."""
    files = {count: experiments(name) for count, name in PHOTOGRAPHS.items()}
    rows = []
    for count, results in files.items():
        (fitted,), (empirical,) = _fitted(results, "em"), _fitted(results, "empirical")
        ours, theirs = (run.result["val"]["log_likelihood"] for run in (fitted, empirical))
        seconds = f"{fitted.result['seconds']:.0f} s, after {fitted.result['read_seconds']:.0f} s of reading"
        peak = f"{fitted.result['peak_bytes'] / 1e9:.1f} GB"
        rows.append([str(count), f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}", seconds, peak])
    header = "photographs fitted", "LAPLEX", "the empirical Gaussian", "ratio", "fitted in", "memory beyond the data"
    return table(header, rows, source(*(results.path for results in files.values())))


def _fitted(results: Results, method: str) -> list[Run]:
    """The runs of a method with the defaults of `laplex.density.fit`, and not those of the study of starts."""
    runs = results.matching(method=method, jump=method == "em", permuted=False)
    return [run for run in runs if run.settings["start"] in ("tree", "")]


def _nearest(runs: list[Run], budget: int) -> Run:
    """The run whose parameters are nearest to a number."""
    return min(runs, key=lambda run: abs(int(run.result["parameters"]) - budget))


def _title(settings: dict[str, Any]) -> str:
    method, rank = settings["method"], f"rank {settings['rank']}"
    if method == "em":
        plural = "s" if settings["functions"] > 1 else ""
        return f"LAPLEX, {rank}, {settings['functions']} function{plural}"
    if method == "ppca":
        return f"PPCA, {rank}"
    components = f", I = {settings['components']}" if settings["components"] else ""
    return f"{TRAINED[method]}, {rank}{components}, {settings['epochs']} epochs of Adam"


def _line(title: str, run: Run, where: str) -> list[str]:
    test, seconds = run.result["test"], run.result["seconds"]
    return [
        title,
        f"{run.result['parameters']:,}",
        f"{test['log_likelihood']:,.0f}",
        f"{100 * test['closure']:.1f} %",
        f"{seconds:.0f} s, {where}" if seconds >= 1 else f"{seconds:.1f} s, {where}",
    ]


CONTENT: dict[str, Callable[[], str]] = {
    "densities": densities,
    "starts": starts,
    "longer fits": longer,
    "photographs": photographs,
}

"""The documentation's tables of densities, from the committed runs of the experiment on densities."""

from collections.abc import Callable
from typing import Any

from benchmarks.committed import EXPERIMENTS, results, source, table
from paper.results import Run

GPU, CPU = "density-imagenette224.json", "density-imagenette224-cpu.json"
PHOTOGRAPHS = {  # by the number of images that were fitted
    234: "density-photos1024.json",
    58: "density-photos1024-58.json",
    29: "density-photos1024-29.json",
}
LONGER = ["density-imagenette224.json", "density-imagenette224-100.json", "density-imagenette224-6000.json"]
STARTS = {
    "tree": "`laplex.seriate`, blind",
    "random": "random",
    "raster": "raster order",
    "curve": "a Hilbert curve over positions",
}
TRAINED = {"adam": "LAPLEX as in the paper", "low-rank": "dense low rank"}


def densities() -> str:
    """Likelihoods of test images: a line per model, the fewest parameters first, and then what it is compared with."""
    runs = [(run, "H200") for run in _runs(GPU)] + [(run, "two cores") for run in _runs(CPU)]
    fits = [(run, where) for run, where in runs if run.settings["method"] == "em" and _as_fitted(run)]
    fits.sort(key=lambda one: (one[0].result["parameters"], one[1]))
    lines = [_line(_title(run.settings), run, where) for run, where in fits]
    papers = [run for run in _runs(GPU) if run.settings["method"] == "adam"]
    budgets = sorted(int(run.result["parameters"]) for run in papers)
    for method in ("adam", "low-rank", "ppca"):
        nearest = [_nearest(_runs(GPU), method, budget) for budget in budgets]
        lines += [_line(_title(run.settings), run, "H200") for run in nearest]
    ceiling = _only(_runs(GPU), "empirical")
    lines.append(_line("the empirical Gaussian with a ridge", ceiling, "H200"))
    header = ("model", "parameters", "log-likelihood", "of the empirical Gaussian's", "fitted in")
    return _table(header, lines, [GPU, CPU])


def starts() -> str:
    """Likelihoods of validation images after EM: a line per start; with and without jumps, pixels permuted or not."""
    columns = [(jump, permuted) for permuted in (False, True) for jump in (True, False)]
    names = [
        f"{'permuted pixels' if permuted else 'pixels'}{'' if jump else ', no jumps'}" for jump, permuted in columns
    ]
    levels = {}
    for run in _runs(GPU):
        settings = run.settings
        if (settings["method"], settings["functions"], settings["rank"]) == ("em", 2, 1000):
            key = settings["start"], settings["jump"], settings["permuted"]
            levels[key] = run.result["val"]["log_likelihood"]
    lines = [[title, *(f"{levels[start, *column]:,.0f}" for column in columns)] for start, title in STARTS.items()]
    return _table(("start", *names), lines, [GPU])


def longer() -> str:
    """Likelihoods with more images, higher ranks and more rounds of EM: a line per fit, the fewest functions first."""
    lines = []
    for name in LONGER:
        runs = _runs(name)
        empirical = _only(runs, "empirical").result
        images = empirical["rank"] + 1  # they span one dimension less than there are of them
        for run in runs:
            settings, result = run.settings, run.result
            if settings["method"] == "em" and settings["functions"] > 1 and _as_fitted(run):
                where = run.machine.get("gpu", "two cores")
                levels = [part["test"]["log_likelihood"] for part in (result, empirical)]
                share = f"{100 * result['test']['closure']:.1f} %"
                counts = settings["functions"], settings["rank"], images, settings["rounds"]
                lines.append(
                    (counts, [*(f"{count:,}" for count in counts), *(f"{one:,.0f}" for one in levels), share, where])
                )
    header = ("functions", "rank", "images", "rounds", "LAPLEX", "the empirical Gaussian", "share", "on")
    return _table(header, [line for _, line in sorted(lines)], LONGER)


def photographs() -> str:
    """Likelihoods of held-out photographs of 3 145 728 numbers: a line per number of images that were fitted."""
    lines = []
    for count, name in PHOTOGRAPHS.items():
        runs = _runs(name)
        fitted, empirical = _only(runs, "em"), _only(runs, "empirical")
        ours, theirs = (run.result["val"]["log_likelihood"] for run in (fitted, empirical))
        seconds = f"{fitted.result['seconds']:.0f} s, after {fitted.result['read_seconds']:.0f} s of reading"
        peak = f"{fitted.result['peak_bytes'] / 1e9:.1f} GB"
        lines.append([str(count), f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}", seconds, peak])
    header = ("photographs fitted", "LAPLEX", "the empirical Gaussian", "ratio", "fitted in", "memory beyond the data")
    return _table(header, lines, list(PHOTOGRAPHS.values()))


def _runs(name: str) -> list[Run]:
    return results(f"{EXPERIMENTS}/{name}").runs


def _as_fitted(run: Run) -> bool:
    """Whether a run is one of `laplex.density.fit` as it is by default, and not of the study of starts."""
    settings = run.settings
    as_usual = settings["start"] in ("tree", "") and settings["jump"] == (settings["method"] == "em")
    return as_usual and not settings["permuted"]


def _nearest(runs: list[Run], method: str, budget: int) -> Run:
    """The run of a method whose parameters are nearest to a number."""
    same = (run for run in runs if run.settings["method"] == method)
    return min(same, key=lambda run: abs(int(run.result["parameters"]) - budget))


def _only(runs: list[Run], method: str) -> Run:
    """The one run of a method, as it is by default."""
    (run,) = (run for run in runs if run.settings["method"] == method and _as_fitted(run))
    return run


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
    result = run.result
    test = result["test"]
    time = f"{result['seconds']:.0f} s, {where}" if result["seconds"] >= 1 else f"{result['seconds']:.1f} s, {where}"
    return [
        title,
        f"{result['parameters']:,}",
        f"{test['log_likelihood']:,.0f}",
        f"{100 * test['closure']:.1f} %",
        time,
    ]


def _table(header: tuple[str, ...], lines: list[list[str]], names: list[str]) -> str:
    return table(header, lines, source(*(f"{EXPERIMENTS}/{name}" for name in names)))


CONTENT: dict[str, Callable[[], str]] = {
    "densities": densities,
    "starts": starts,
    "longer fits": longer,
    "photographs": photographs,
}

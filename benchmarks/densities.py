"""The README's table of densities, from the committed runs of `laplex experiment density`."""

import json
from typing import Any

from benchmarks.report import COMMITTED

FOLDER = COMMITTED / "experiments"
GPU, CPU, SMALL = "density-imagenette224.json", "density-imagenette224-cpu.json", "density-imagenette64.json"
STARTS = {
    "tree": "`laplex.seriate`, blind",
    "random": "random",
    "raster": "raster order",
    "curve": "a Hilbert curve over positions",
}
Run = dict[str, Any]


def densities() -> str:
    """Likelihoods of test images: a line a model, the fewest parameters first."""
    lines = [
        "| model | parameters | log-likelihood | of the empirical Gaussian's | fitted in |",
        "| --- | --- | --- | --- | --- |",
    ]
    runs = [(run, "H200") for run in _runs(GPU)] + [(run, "two cores") for run in _runs(CPU)]
    fits = [(run, where) for run, where in runs if run["settings"]["method"] == "em"]
    fits.sort(key=lambda one: (one[0]["result"]["parameters"], one[1]))
    ceiling = next(run for run, _ in runs if run["settings"]["method"] == "empirical")
    lines += [_line(_title(run["settings"]), run, where) for run, where in fits]
    lines.append(_line("the empirical Gaussian with a ridge", ceiling, "H200"))
    origin = ", ".join(f"`benchmarks/results/experiments/{name}`" for name in (GPU, CPU))
    return "\n".join([*lines, "", f"From {origin}."])


def starts() -> str:
    """Likelihoods of validation images after EM: a line a start; with and without jumps, pixels permuted or not."""
    columns = [(jump, permuted) for permuted in (False, True) for jump in (True, False)]
    names = [
        f"{'permuted pixels' if permuted else 'pixels'}{'' if jump else ', no jumps'}" for jump, permuted in columns
    ]
    lines = [f"| start | {' | '.join(names)} |", "| --- |" + " --- |" * len(names)]
    found = {}
    for run in _runs(SMALL):
        given = run["settings"]
        if (given["method"], given["functions"], given["rank"]) == ("em", 2, 200):
            found[given["start"], given["jump"], given["permuted"]] = run["result"]["val"]["log_likelihood"]
    for start, title in STARTS.items():
        cells = [f"{found[start, *column]:,.0f}" for column in columns]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"From `benchmarks/results/experiments/{SMALL}`."])


def _runs(name: str) -> list[Run]:
    return json.loads((FOLDER / name).read_text())["runs"]  # type: ignore[no-any-return]


def _title(settings: dict[str, Any]) -> str:
    plural = "s" if settings["functions"] > 1 else ""
    return f"LAPLEX, rank {settings['rank']}, {settings['functions']} function{plural}"


def _line(title: str, run: Run, where: str) -> str:
    result = run["result"]
    test = result["test"]
    time = f"{result['seconds']:.0f} s, {where}" if result["seconds"] >= 1 else f"{result['seconds']:.1f} s, {where}"
    cells = f"{result['parameters']:,}", f"{test['log_likelihood']:,.0f}", f"{100 * test['closure']:.1f} %", time
    return f"| {title} | {' | '.join(cells)} |"

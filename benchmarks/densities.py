"""The README's table of densities, from the committed runs of `laplex experiment density`."""

import json
from typing import Any

from benchmarks.report import COMMITTED

FOLDER = COMMITTED / "experiments"
GPU, CPU = "density-imagenette224.json", "density-imagenette224-cpu.json"
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

"""LAPLEX inside networks, by the experiment ``networks``: not in the paper, whose layers are heads and projections."""

from __future__ import annotations

from paper import datasets
from paper.entry import BEYOND, Entry, Figure, Outcome, Plot, Series, TextTable
from paper.experiments.network_tables import NetworkResult, summaries
from paper.experiments.networks import BUDGETS, SEEDS
from paper.judging import claim_verdict, outcome
from paper.results import Archive
from paper.running import Experiments, Options, Request

RIVALS = ("dense-narrow", "low-rank", "monarch", "btt", "kronecker")
TITLES = {"laplex": "LAPLEX", "laplex-phased": "LAPLEX with phases", "dense-narrow": "dense, narrower"}
RATES = 3  # that are tried before one is chosen
UNIT = "bits per byte"

Networks = dict[tuple[str, int | None], NetworkResult]  # by method and budget


def _options(request: Request) -> list[Options]:
    """Text always, because every Python has its standard library; images where they are."""
    folder = datasets.imagenette(request.data)
    tasks: list[Options] = [{"task": "text"}]
    if folder is not None:
        tasks.append({"task": "images", "images": str(folder)})
    return [task | {"quick": request.quick} for task in tasks]


def _judge(entry: Entry, archive: Archive) -> Outcome | None:
    """LAPLEX compared with each rival at each budget, on text; images are shown."""
    text, images = (archive.experiment(f"networks-{task}") for task in ("text", "images"))
    if text is None:
        return None
    networks = summaries(text)
    figures = _leads({(one.method, one.budget): one for one in networks})
    tables, plots = [_table("text", networks)], [_plot("text", networks)]
    if images is not None:
        tables.append(_table("images", summaries(images)))
        plots.append(_plot("images", summaries(images)))
    sources = [source for source in (text, images) if source is not None]
    return outcome(entry, _reason(figures), sources, figures=figures, plots=plots, tables=tables)


def _leads(networks: Networks) -> list[Figure]:
    """By how many bits per byte LAPLEX is below each rival of its budget."""
    return [_lead(networks, rival, budget) for budget in BUDGETS for rival in RIVALS]


def _lead(networks: Networks, rival: str, budget: int) -> Figure:
    label = f"below {TITLES.get(rival, rival)}, budget of {budget} kernels"
    ours, theirs = (networks.get((method, budget)) for method in ("laplex", rival))
    if ours is None or theirs is None or not (_complete(ours) and _complete(theirs)):
        return Figure(label, None, None, UNIT, "higher", "not run")
    if ours.diverged:
        note = f"{ours.diverged} of {ours.seeds} seeds of LAPLEX diverged"
        return Figure(label, None, None, UNIT, "higher", "not reproduced", note)
    if theirs.figure is None or ours.figure is None:
        return Figure(label, None, None, UNIT, "higher", "not run", "every seed of the rival diverged")
    lead = theirs.figure - ours.figure
    spread = max(ours.deviation, theirs.deviation)
    note = f"standard deviation over seeds: at most {spread:.4f}"
    return Figure(label, None, lead, UNIT, "higher", claim_verdict(lead > 0, True), note)


def _complete(network: NetworkResult) -> bool:
    """Whether all rates were tried, and all seeds run at the best one."""
    return network.rates >= RATES and network.seeds >= SEEDS


def _reason(figures: list[Figure]) -> str:
    leads = [row.ours for row in figures if row.ours is not None]
    missing = sum(row.verdict == "not run" for row in figures)
    words = "The paper has no such result."
    if leads:
        ahead = sum(lead > 0 for lead in leads)
        words += (
            f" Against {len(leads)} rivals of equal parameters LAPLEX needs fewer bits per byte {ahead} times: its "
            f"lead is {min(leads):.3f} to {max(leads):.3f}."
        )
    return words + (f" {missing} of {len(figures)} comparisons are not complete." if missing else "")


# --- Plots and tables ------------------------------------------------------------------------------------------------


def _plot(task: str, networks: list[NetworkResult]) -> Plot:
    """The figure over the parameters in the blocks; dense is one line of all widths."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for one in sorted(networks, key=lambda one: one.block_parameters):
        name = TITLES.get(one.method, one.method).removesuffix(", narrower")
        if one.figure is not None:
            lines.setdefault(name, []).append((float(one.block_parameters), _scaled(task, one.figure)))
    series = [Series(name, [x for x, _ in points], [y for _, y in points]) for name, points in lines.items()]
    return Plot(f"Networks, {task}", "parameters in blocks", _quantity(task), series, "log10")


def _table(task: str, networks: list[NetworkResult]) -> TextTable:
    rows = []
    for one in networks:
        budget = "full width" if one.budget is None else str(one.budget)
        shown = "diverged" if one.figure is None else f"{_scaled(task, one.figure):.{1 if task == 'images' else 4}f}"
        time = "" if one.seconds_per_step is None else f"{1e3 * one.seconds_per_step:.2f}"
        counts = [f"{one.block_parameters:,}", f"{one.multiply_adds:,.0f}", time]
        rows.append([TITLES.get(one.method, one.method), budget, *counts, f"{one.seeds}", shown])
    columns = ["linear maps", "budget, kernels", "parameters in blocks", "multiply-adds per token", "ms per step"]
    return TextTable(f"Networks, {task}", [*columns, "seeds", _quantity(task)], rows)


def _quantity(task: str) -> str:
    return "validation accuracy, %" if task == "images" else UNIT


def _scaled(task: str, figure: float) -> float:
    return 100 * figure if task == "images" else figure


ENTRIES = (
    Entry(
        name="networks",
        title="Linear maps inside networks",
        section="Networks",
        source=BEYOND,
        claim="With LAPLEX as all linear maps in the blocks of a byte-level transformer, validation takes fewer bits "
        "per byte than with any rival of equal parameters: low rank, Monarch, block tensor train, Kronecker sums, and "
        "dense maps in a narrower network. It saves parameters, not time: its matrices are as large as dense ones.",
        criterion="Not in the paper, so there is nothing to reproduce. It counts as exceeded if at every budget, the "
        "parameters of 8, 16 and 32 kernels, LAPLEX with all its defaults has fewer bits per byte than every rival "
        "with at most 3 % more parameters in the blocks, in the mean over three seeds, each with the best of three "
        "learning rates; as not reproduced otherwise. Images are shown, and not judged.",
        minutes={"cuda": 90.0},
        measure=(Experiments("networks", "networks", _options),),
        judge=_judge,
    ),
)

"""Outcomes of classification heads, from the results of `laplex experiment heads` and `compress`, and of curves."""

from __future__ import annotations

import statistics
from collections import defaultdict

from laplex.experiments import published
from laplex.reproduce._judging import held, judged, not_run
from laplex.reproduce._outcome import Entry, Figure, Outcome, Plot, Series, Table
from laplex.reproduce._stored import Results, Run, Shelf

RANKS = (4, 8, 16)
METHODS = {"laplex": "LAPLEX", "low-rank": "low rank", "full": "torch.nn.Linear"}
TABLED = ("laplex", "laplex-phased", "low-rank", "kronecker", "seeded", "laplex-projection", "pca", "pca-stored")
STARTS = {"laplex": "reseated", "low-rank": "svd"}  # from data
COMPRESSED = ["file", "way", "rank", "residual", "test accuracy, %"]

Accuracies = dict[tuple[str, int], float]  # by method and by the rank that sets the budget


def heads(entry: Entry, shelf: Shelf) -> Outcome:
    """LAPLEX beside low rank at equal parameters, on all data sets."""
    sources = [one for recipe in ("tuned", "paper") for one in shelf.experiments(f"heads-*-{recipe}")]
    reached = {source.path.stem: accuracies(source) for source in sources}
    judged_by = {name: found for name, found in reached.items() if _complete(found)}
    if not judged_by:
        return not_run(entry, "No results of `laplex experiment heads`; give the features with --data.")
    leads = {name: {r: found["laplex", r] - found["low-rank", r] for r in RANKS} for name, found in judged_by.items()}
    paper = _paper_leads()
    above = all(lead > 0 for one in leads.values() for lead in one.values())
    more = all(lead > paper[r] for one in leads.values() for r, lead in one.items())
    figures = [
        Figure(
            f"lead over low rank, r = {r}, {_title(name)}",
            paper[r],
            lead,
            "points",
            "higher",
            held(lead > 0, lead > paper[r]),
        )
        for name, one in leads.items()
        for r, lead in one.items()
    ]
    figures += _gaps(judged_by)
    compressed = shelf.experiments("compress-*")
    reason = f"Other networks and data than the paper's {published.HEADS_DATA}. LAPLEX is above low rank "
    reason += (
        f"{'everywhere' if above else 'not everywhere'}: by {_span(leads)} points over all ranks, sets and recipes"
    )
    reason += _random_starts(sources)
    plots = [_plot(name, found) for name, found in judged_by.items()]
    tables = [_table(judged_by), *_compressed(compressed)]
    return judged(
        entry, held(above, more), reason, [*sources, *compressed], figures=figures, plots=plots, tables=tables
    )


def curves(entry: Entry, shelf: Shelf) -> Outcome:
    """Losses of heads after every epoch."""
    found = shelf.measured("heads-curves", every_seed=True)
    sources = list(found.values())
    runs = sources[0].of_last("data", "epochs").runs if sources else []  # of one device, the GPU if it has any
    from_data = {rank: _below(runs, rank, STARTS) for rank in RANKS}
    from_random = {rank: _below(runs, rank, dict.fromkeys(STARTS, "random")) for rank in RANKS}
    if None in from_data.values():
        missing = (
            "No losses of every epoch; give a file of features with --data, and run `laplex reproduce heads-curves`."
        )
        return not_run(entry, missing)
    holds = all(one == 1.0 for one in from_data.values())
    more = all(one == 1.0 for one in from_random.values())
    figures = [
        Figure(
            f"epochs with the lower validation loss, r = {rank}, {word}",
            1.0,
            share,
            "share",
            "higher",
            verdict,
        )
        for word, shares in (("starts from data", from_data), ("random starts", from_random))
        for rank, share in shares.items()
        for verdict in [held(share == 1.0, False) if share is not None else "not run"]
    ]
    reason = "Other data than the paper's, under its schedule. The validation loss of LAPLEX is below that of low rank "
    reason += (
        f"after {_shares(from_data)} of the epochs at ranks 4, 8 and 16 from starts that know the data, and after "
    )
    reason += f"{_shares(from_random)} from random ones."
    plots = [_losses(runs, rank) for rank in RANKS]
    return judged(entry, held(holds, more), reason, sources, figures=figures, plots=plots)


# --- Accuracies ------------------------------------------------------------------------------------------------------


def accuracies(source: Results) -> Accuracies:
    """Test accuracy in percent of each method and budget; start and learning rate are best on validation rows.

    Runs on other data than those of the last run are left out.
    """
    groups: dict[tuple[str, int], dict[tuple[str, float], list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in source.of_last("data").runs:
        one = run.settings
        groups[one["method"], one["size"]][one["start"], one["lr"]].append(run)
    sizes = _ranks_of_sizes(groups)
    found = {}
    for (method, size), tried in groups.items():
        best = max(tried.values(), key=_validation)
        if (method, size) in sizes:
            found[method, sizes[method, size]] = 100 * statistics.fmean(run.result["test"] for run in best)
    return found


def _validation(runs: list[Run]) -> tuple[bool, float]:
    """Learning rates that lost at the first seed have no other seeds, and are not chosen."""
    return len(runs) > 1, statistics.fmean(run.result["val"] for run in runs)


def _ranks_of_sizes(groups: dict[tuple[str, int], dict[tuple[str, float], list[Run]]]) -> dict[tuple[str, int], int]:
    """The LAPLEX rank whose budget a size of a method has: the sizes of all methods ascend with the budget."""
    ranks = sorted(size for method, size in groups if method == "laplex")
    pairs = {("full", 0): 0}
    for method in {method for method, _ in groups} - {"full"}:
        sizes = sorted(size for other, size in groups if other == method)
        if len(sizes) == len(ranks):
            pairs |= {(method, size): rank for size, rank in zip(sizes, ranks, strict=True)}
    return pairs


def _complete(found: Accuracies) -> bool:
    return all((method, rank) in found for method in ("laplex", "low-rank") for rank in RANKS)


def _paper_leads() -> dict[int, float]:
    """The smaller lead of the paper's two networks, by rank."""
    leads = {}
    for rank in RANKS:
        pairs = [[published.head(network, method, rank) for method in STARTS] for network in published.NETWORKS]
        leads[rank] = min(ours.accuracy - low.accuracy for ours, low in pairs if ours and low)
    return leads


def _gaps(reached: dict[str, Accuracies]) -> list[Figure]:
    """How far LAPLEX of rank 16 is from a dense head; the paper's larger gap is that of its Swin-T."""
    full, ours = published.head("Swin-T", "full", None), published.head("Swin-T", "laplex", 16)
    paper = full.accuracy - ours.accuracy if full and ours else None
    figures = []
    for name, found in reached.items():
        if ("full", 0) in found and name.endswith("tuned"):
            gap = found["full", 0] - found["laplex", 16]
            verdict = held(paper is not None and gap <= paper, False)
            note = "not part of the verdict"
            figures.append(
                Figure(f"gap to dense, r = 16, {_title(name)}", paper, gap, "points", "lower", verdict, note)
            )
    return figures


def _span(leads: dict[str, dict[int, float]]) -> str:
    found = [lead for one in leads.values() for lead in one.values()]
    return f"{min(found):.1f} to {max(found):.1f}"


def _random_starts(sources: list[Results]) -> str:
    """What the paper's learning rate makes of random anchors."""
    tests = [
        100 * run.result["test"]
        for source in sources
        if source.path.stem.endswith("-paper")
        for run in source.of_last("data").where(method="laplex", start="random")
        if run.settings["size"] in RANKS
    ]
    if not tests:
        return "."
    return (
        f", from starts that know the data; random anchors under the paper's recipe reach {max(tests):.1f} % at most."
    )


def _title(name: str) -> str:
    """heads-clinc150-tuned in words."""
    _, *data, recipe = name.split("-")
    return f"{'-'.join(data)}, {'tuned' if recipe == 'tuned' else 'the recipe of the paper'}"


# --- Plots and tables ------------------------------------------------------------------------------------------------


def _plot(name: str, found: Accuracies) -> Plot:
    series = []
    for method in ("laplex", "low-rank"):
        ranks = sorted(rank for other, rank in found if other == method)
        series.append(Series(METHODS[method], [float(r) for r in ranks], [found[method, r] for r in ranks]))
    if ("full", 0) in found:
        series.append(Series(METHODS["full"], [float(r) for r in RANKS], [found["full", 0]] * len(RANKS)))
    for network in published.NETWORKS:
        for method in ("laplex", "low-rank"):
            values = [one.accuracy for rank in RANKS if (one := published.head(network, method, rank)) is not None]
            label = f"{METHODS[method]}, {network}, paper"
            series.append(Series(label, [float(r) for r in RANKS], list(values), of_paper=True))
    return Plot(f"Heads on {_title(name)}", "rank r that sets the parameters", "test accuracy, %", series, "log2")


def _table(reached: dict[str, Accuracies]) -> Table:
    rows = []
    for name, found in reached.items():
        for method in TABLED:
            cells = [f"{found[method, r]:.1f}" if (method, r) in found else "" for r in RANKS]
            rows.append([_title(name), method, *cells])
        if ("full", 0) in found:
            rows.append([_title(name), "full, any r", f"{found['full', 0]:.1f}", "", ""])
    columns = ["data and recipe", "head", *(f"r = {rank}" for rank in RANKS)]
    return Table("Test accuracy in percent at the parameters of LAPLEX with r kernels", columns, rows)


def _compressed(sources: list[Results]) -> list[Table]:
    """Trained weights that are replaced, without training."""
    rows = []
    for source in sources:
        for run in source.runs:
            if "way" in run.settings:
                test = run.result["test"]
                cells = [run.settings["way"], str(run.settings["rank"]), f"{run.result['residual']:.3f}"]
                rows.append([source.path.stem, *cells, "" if test is None else f"{100 * test:.1f}"])
    title = "A trained weight replaced by LAPLEX, and by its truncated SVD: share of its energy that is missed"
    return [Table(title, COMPRESSED, rows)] if rows else []


def _below(runs: list[Run], rank: int, starts: dict[str, str]) -> float | None:
    """The share of epochs after which LAPLEX has the lower validation loss; None where there are no such runs."""
    losses = {method: _mean_losses(runs, method, start, rank) for method, start in starts.items()}
    if not all(losses.values()):
        return None
    pairs = list(zip(losses["laplex"], losses["low-rank"], strict=True))
    return sum(ours < theirs for ours, theirs in pairs) / len(pairs)


def _mean_losses(runs: list[Run], method: str, start: str, rank: int, part: str = "val") -> list[float]:
    """The mean over seeds after each epoch; the loss before the first is left out."""
    wanted = {"method": method, "start": start, "rank": rank}
    found = [run.result[part][1:] for run in runs if wanted.items() <= run.settings.items()]
    return [statistics.fmean(one) for one in zip(*found, strict=True)]


def _shares(shares: dict[int, float | None]) -> str:
    return ", ".join("-" if share is None else f"{share:.0%}" for share in shares.values())


def _losses(runs: list[Run], rank: int) -> Plot:
    series = []
    for method, data in STARTS.items():
        for start in (data, "random"):
            word = "random start" if start == "random" else "start from data"
            for part, name in (("val", "validation"), ("train", "train")):
                values: list[float | None] = list(_mean_losses(runs, method, start, rank, part))
                epochs = [float(epoch) for epoch in range(1, len(values) + 1)]
                series.append(Series(f"{METHODS[method]}, {word}, {name}", epochs, values))
    shown = [one for one in series if one.x]
    return Plot(f"Losses of heads, r = {rank}", "epoch", "cross entropy", shown, "linear", "log10")

"""Outcomes of classification heads, from the results of `python -m paper experiment heads` and `compress`, and of curves."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import replace

from paper.entry import Entry, Figure, Outcome, Plot, Series, Table
from paper.experiments import published
from paper.judging import held, judged, not_run, unjudged
from paper.results import Results, Run, Shelf

RANKS = (4, 8, 16)
METHODS = {"laplex": "LAPLEX", "low-rank": "low rank", "full": "torch.nn.Linear"}
TABLED = ("laplex", "laplex-phased", "low-rank", "kronecker", "seeded", "laplex-projection", "pca", "pca-stored")
STARTS = {"laplex": "reseated", "low-rank": "svd"}  # from data
KNOWN = "for comparison: each with the start that is best on validation rows"
MISSING = "No results of `python -m paper experiment heads`; give the features with --data."
COMPRESSED = ["file", "way", "rank", "residual", "test accuracy, %"]

Accuracies = dict[tuple[str, int], float]  # by method and by the rank that sets the budget


def heads(entry: Entry, shelf: Shelf) -> Outcome:
    """LAPLEX beside low rank at equal parameters, each with its best start and learning rate."""
    sources = shelf.experiments("heads-*-tuned")
    reached = _reached(sources)
    if not reached:
        return not_run(entry, MISSING)
    compressed = shelf.experiments("compress-*")
    reason = f"{_above(reached)}, each with its best start, for LAPLEX one that knows the data. The entry heads-recipe "
    reason += "has the paper's own recipe, from random starts."
    plots = [_plot(name, found) for name, found in reached.items()]
    tables = [_table(reached), *_compressed(compressed)]
    figures = [*_leads(reached), *_gaps(reached)]
    return judged(entry, reason, [*sources, *compressed], figures=figures, plots=plots, tables=tables)


def recipe(entry: Entry, shelf: Shelf) -> Outcome:
    """The same under the paper's recipe, from random starts; those that know the data are shown beside."""
    sources = [one.of_last("data", "floor") for one in shelf.experiments("heads-*-paper")]
    random, best = _reached(sources, "random"), _reached(sources)
    if not random:
        return not_run(entry, MISSING)
    rates = {f"{run.settings['lr']:.2g}" for one in sources for run in one.where(method="laplex")}
    reason = (
        f"{_above(random)}, from random starts: {_span(random, 'laplex')} % against {_span(random, 'low-rank')} %. "
    )
    reason += f"Steps times rate is the paper's: anchors have a rate of {' and '.join(sorted(rates))}, where the paper "
    reason += "has 1e-4 and 300 300 steps. It does not say how its anchors start."
    known = [replace(one, label=f"{one.label}, best starts", verdict=None, note=KNOWN) for one in _leads(best)]
    plots = [_plot(name, found) for name, found in random.items()]
    shown = {f"{name}, {word}": one[name] for name in random for word, one in (("random", random), ("best", best))}
    return judged(entry, reason, sources, figures=[*_leads(random), *known], plots=plots, tables=[_table(shown)])


def curves(entry: Entry, shelf: Shelf) -> Outcome:
    """Losses of heads after every epoch."""
    found = shelf.measured("heads-curves", every_seed=True)
    sources = list(found.values())
    runs = sources[0].of_last("data", "epochs", "floor").runs if sources else []  # of one device, the GPU if it has any
    from_data = {rank: _below(runs, rank, STARTS) for rank in RANKS}
    from_random = {rank: _below(runs, rank, dict.fromkeys(STARTS, "random")) for rank in RANKS}
    if None in from_data.values():
        missing = (
            "No losses of every epoch; give a file of features with --data, and run `python -m paper run heads-curves`."
        )
        return not_run(entry, missing)
    more = all(one == 1.0 for one in from_random.values())
    figures = [
        Figure(_epochs(rank, "starts from data"), 1.0, share, "share", "higher", held(share == 1.0, more))
        for rank, share in from_data.items()
    ]
    figures += [
        unjudged(
            _epochs(rank, "random starts"), 1.0, share, "share", "higher", "decides between reproduced and exceeded"
        )
        for rank, share in from_random.items()
    ]
    reason = (
        "Other data than the paper's, under its schedule, with rates scaled so that steps times rate is the paper's. "
    )
    reason += (
        f"The validation loss of LAPLEX is below that of low rank after {_shares(from_data)} of the epochs at ranks "
    )
    reason += f"4, 8 and 16 from starts that know the data, and after {_shares(from_random)} from random ones."
    plots = [_losses(runs, rank) for rank in RANKS]
    return judged(entry, reason, sources, figures=figures, plots=plots)


def _epochs(rank: int, starts: str) -> str:
    return f"epochs with the lower validation loss, r = {rank}, {starts}"


# --- Accuracies ------------------------------------------------------------------------------------------------------


def _reached(sources: list[Results], start: str | None = None) -> dict[str, Accuracies]:
    """Accuracies on the data sets on which LAPLEX and low rank were run at all ranks, by the name of the set."""
    found = {_data(source): accuracies(source, start) for source in sources}
    return {name: one for name, one in found.items() if _complete(one)}


def _leads(reached: dict[str, Accuracies]) -> list[Figure]:
    """How far LAPLEX is above low rank, beside the smaller lead of the paper's two networks."""
    paper, figures = _paper_leads(), []
    for name, found in reached.items():
        for r in RANKS:
            lead = found["laplex", r] - found["low-rank", r]
            label = f"lead over low rank, r = {r}, {name}"
            verdict = held(lead > 0, lead > paper[r])
            figures.append(Figure(label, paper[r], lead, "points", "higher", verdict))
    return figures


def _above(reached: dict[str, Accuracies]) -> str:
    """Whether LAPLEX is above low rank, and by how much, in words."""
    leads = [one.ours or 0.0 for one in _leads(reached)]
    least, most = min(leads), max(leads)
    where = "everywhere above" if least > 0 else "nowhere above" if most <= 0 else "not everywhere above"
    return (
        f"Other networks and data than the paper's {published.HEADS_DATA}. LAPLEX is {where} low rank: its lead is "
        f"{least:.1f} to {most:.1f} points over all ranks and sets"
    )


def accuracies(source: Results, start: str | None = None) -> Accuracies:
    """Test accuracy in percent of each method and budget; start and learning rate are best on validation rows.

    Runs on other data than those of the last run are left out, and with ``start`` those from other starts.
    """
    groups: dict[tuple[str, int], dict[tuple[str, float], list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in source.of_last("data").runs:
        one = run.settings
        if start in (None, one["start"]):
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
        if ("full", 0) in found:
            gap = found["full", 0] - found["laplex", 16]
            figures.append(
                unjudged(f"gap to dense, r = 16, {name}", paper, gap, "points", "lower", "no part of the criterion")
            )
    return figures


def _span(reached: dict[str, Accuracies], method: str) -> str:
    found = [one[method, r] for one in reached.values() for r in RANKS]
    return f"{min(found):.1f} to {max(found):.1f}"


def _data(source: Results) -> str:
    """The data, from the name of the file: heads-clinc150-tuned."""
    return source.path.stem.removeprefix("heads-").rpartition("-")[0]


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
    return Plot(f"Heads on {name}", "rank r that sets the parameters", "test accuracy, %", series, "log2")


def _table(reached: dict[str, Accuracies]) -> Table:
    rows = []
    for name, found in reached.items():
        for method in TABLED:
            cells = [f"{found[method, r]:.1f}" if (method, r) in found else "" for r in RANKS]
            if any(cells):
                rows.append([name, method, *cells])
        if ("full", 0) in found:
            rows.append([name, "full, any r", f"{found['full', 0]:.1f}", "", ""])
    columns = ["data", "head", *(f"r = {rank}" for rank in RANKS)]
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

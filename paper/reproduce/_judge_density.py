"""Outcomes of densities, from the results of `python -m paper experiment density`.

The paper's model with I components has as many values a pixel as ours with q = I + 1 functions; they are compared at
rank 1000, or at the largest multiple of q below it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from paper.entry import Entry, Figure, Outcome, Picture, Plot, Series, Table
from paper.experiments import published
from paper.judging import condition, figure, judged, not_run
from paper.reproduce import _published as paper
from paper.results import Results, Run, Shelf

IMAGENETTE, PHOTOGRAPHS = published.DENSITIES
DENSE = ("low-rank", "ppca")
ADAM = {"epochs": 25, "lr": 2e-3, "batch": 64}  # the paper's training
TITLES = {
    "em": "LAPLEX by EM",
    "em-adam": "LAPLEX by EM, then Adam",
    "adam": "LAPLEX, the paper's model by Adam",
    "diagonal": "the same with a diagonal latent covariance",
    "low-rank": "dense low rank",
    "ppca": "PPCA",
    "empirical": "empirical Gaussian",
}
COLUMNS = ["file", "model", "rank", "parameters", "log-likelihood", "of the empirical Gaussian's, %", "RMSE"]
MISSING = "No results of `python -m paper experiment density`; give the images with --data."
SPREADS = {"variance": (0.9, 1.1), "colour": (0.7, 1.3)}  # of samples over that of the images, where it counts
OF_SAMPLES = " of samples over that of the images"
DIFFER = "Other images than the paper's, and fewer of them, which makes the empirical Gaussian a weaker ceiling"


def density(entry: Entry, shelf: Shelf) -> Outcome:
    """Shares of the ceiling's likelihood, and dense models of equal parameters."""
    sources = _imagenette(shelf)
    shares = [one for source in sources for one in _shares(source)]
    leads = [one for source in sources for one in _over_dense(source)]
    if not shares:
        return not_run(entry, MISSING)
    figures = [*shares, *leads]
    best, theirs = max(one.ours or 0.0 for one in shares), max(one.paper or 0.0 for one in shares)
    reason = f"{DIFFER}; at rank 1000 LAPLEX has up to {best:.0f} % of its likelihood, the paper's up to {theirs:.0f} %"
    reason += f", and it leads dense models of no fewer parameters by {_span(leads)} nats a number." if leads else "."
    reason += f"{_by_images(sources)} That is by EM; the entry density-adam has the paper's own model by Adam."
    plots = [_plot(source) for source in sources]
    return judged(entry, reason, sources, figures=figures, plots=plots, tables=[_table(sources)])


def by_adam(entry: Entry, shelf: Shelf) -> Outcome:
    """Shares of the ceiling's likelihood, of the paper's model trained by Adam as it says."""
    found = [one.of_last("data") for one in shelf.experiments("density-imagenette*")]
    sources = [one for one in found if _ceiling(one) is not None and _trained(one)]
    figures = [one for source in sources for one in _adam_shares(source)]
    if not figures:
        return not_run(entry, MISSING)
    theirs = [one.paper for one in figures if one.paper is not None]
    reason = f"The paper's model by Adam, in raster order, has {_span(figures)} % of the empirical Gaussian's "
    reason += f"likelihood, the paper's {min(theirs):.3g} to {max(theirs):.3g} %. The images, their number and size "
    reason += f"differ: {'; '.join(map(_steps, sources))}."
    lacking = [one.label for one in figures if one.ours is None]
    reason += f" Not measured: {'; '.join(lacking)}." if lacking else ""
    plots = [_plot(source) for source in sources]
    return judged(entry, reason, sources, figures=figures, plots=plots)


def samples(entry: Entry, shelf: Shelf) -> Outcome:
    """How much samples vary, and in colour, over how much the images do; likelihoods over functions; a picture."""
    sources = _imagenette(shelf)
    steps = [one for source in sources for one in _rising(source, "log_likelihood")]
    spreads = [one for source in sources for one in _spreads(source)]
    if not sources:
        return not_run(entry, MISSING)
    spreads = spreads or [condition(f"{what}{OF_SAMPLES}", None, None, "x", "lower", False) for what in SPREADS]
    grows = _all_steps("the likelihood grows", steps, sum(later > earlier for _, earlier, later in steps))
    word = "grows" if grows.verdict == "reproduced" else "does not grow"
    reason = f"{_spread_in_words(spreads)} The likelihood {word} with every function that is added. The samples shown "
    reason += "are of photographs that may be shown, fitted by `make demo`."
    made = judged(entry, reason, sources, figures=[*spreads, grows])
    return _with_picture(made, shelf, "samples.png", "Samples of a Gaussian fitted to 414 photographs, 64 x 64 pixels")


def _spread_in_words(spreads: list[Figure]) -> str:
    if any(one.ours is None for one in spreads):
        return "Not measured: how much samples vary. `python -m paper run density-samples --fresh` measures it."
    words = [f"{_span([one for one in spreads if one.label.startswith(what)])} times the {what}" for what in SPREADS]
    return f"Samples have {' and '.join(words)} of the images that were fitted."


def _spreads(source: Results) -> list[Figure]:
    """The variance and the colour of samples over the images', of fits with the values a pixel of the paper's models.

    Results from before these were measured lack them: such fits are left out.
    """
    runs = [run for number in paper.RECONSTRUCTION_RMSE if (run := _matched(source, number)) is not None]
    figures = []
    for run in (run for run in runs if "samples" in run.result):
        for what, (least, most) in SPREADS.items():
            ours = run.result["samples"][what]
            label = f"{what}{OF_SAMPLES}, {_words(run)}, {_name(source)}"
            figures.append(condition(label, None, ours, "x", "lower", ours is not None and least <= ours <= most))
    return figures


def _all_steps(what: str, steps: list[tuple[str, float, float]], count: int) -> Figure:
    """A row for steps to more functions, in all of which something has to hold."""
    ours = float(count) if steps else None
    label = f"steps to more functions at which {what}"
    return condition(label, float(len(steps)), ours, "steps", "higher", count == len(steps))


def reconstructions(entry: Entry, shelf: Shelf) -> Outcome:
    """Errors of the most likely images."""
    sources = _imagenette(shelf)
    figures = []
    for source in sources:
        for number, theirs in paper.RECONSTRUCTION_RMSE.items():
            run = _matched(source, number)
            if run is not None:
                label = f"{_name(source)}, as many values a pixel as I = {number}"
                figures.append(figure(label, theirs, _unseen(run)["rmse"], "RMSE", "lower"))
    if not figures:
        return not_run(entry, MISSING)
    steps = [one for source in sources for one in _rising(source, "rmse")]
    fewer = sum(later < earlier for _, earlier, later in steps)
    found = [one.ours for one in figures if one.ours is not None]
    word = "falls" if fewer == len(steps) else "does not fall"
    reason = f"Other images than the paper's. The error {word} with every function "
    published_range = min(paper.RECONSTRUCTION_RMSE.values()), max(paper.RECONSTRUCTION_RMSE.values())
    reason += "that is added; it is {:.3f} to {:.3f}, the paper's {} to {}.".format(
        min(found), max(found), *published_range
    )
    figures.append(_all_steps("the error falls", steps, fewer))
    made = judged(entry, reason, sources, figures=figures)
    words = "Photographs that were not fitted, above, and their most likely images, below"
    return _with_picture(made, shelf, "reconstructions.png", words)


def photographs(entry: Entry, shelf: Shelf) -> Outcome:
    """The lead over a dense model of no fewer parameters, at three million numbers."""
    found = [one.of_last("data") for one in shelf.experiments("density-photos*")]
    sources = [one for one in found if _ceiling(one) is not None]
    dim, models = PHOTOGRAPHS.dim, {one.method: one for one in PHOTOGRAPHS.models}
    theirs = (models["laplex"].log_likelihood - models["low-rank"].log_likelihood) / dim
    most = max(map(_images, sources), default=0)  # fits to fewer images are shown, and not judged
    figures, words = [], []
    for source in (one for one in sources if _images(one) == most):
        for run in source.where(method="em", start="tree", jump=True, permuted=False):
            rival = _dense_rival(source, run)
            if rival is not None:
                label = f"{_words(run)} over {_words(rival)}, {_name(source)}"
                figures.append(figure(label, theirs, (_level(run) - _level(rival)) / dim, "nats a number", "higher"))
                words.append(f"{_level(run):,.0f} against {_level(rival):,.0f} nats ({_name(source)})")
    if not figures:
        return not_run(
            entry, "No results of `python -m paper experiment density` on photographs; give them with --data."
        )
    reason = f"Other photographs than DIV2K's, {most} fitted in place of 800: {'; '.join(words)}; the paper has "
    reason += f"{models['laplex'].log_likelihood:,} against {models['low-rank'].log_likelihood:,}."
    made = judged(entry, reason, sources, figures=figures, tables=[_table(sources)])
    shown = "Photographs of 64 x 64 pixels, their upper halves, and the lower halves at their mean given those"
    return _with_picture(made, shelf, "inpainted.png", shown)


# --- Reading ---------------------------------------------------------------------------------------------------------


def _imagenette(shelf: Shelf) -> list[Results]:
    """Results that have a ceiling, at the paper's rank: small images have smaller ranks."""
    found = [one.of_last("data") for one in shelf.experiments("density-imagenette*")]
    return [one for one in found if _ceiling(one) is not None and _at_the_rank_of_the_paper(one)]


def _at_the_rank_of_the_paper(source: Results) -> bool:
    least = published.DENSITY_RANK - 10  # a rank is a multiple of the number of functions
    return any(run.settings["rank"] >= least for run in source.runs if run.settings["method"] == "em")


def _ceiling(source: Results) -> Run | None:
    return source.at(method="empirical", permuted=False)


def _unseen(run: Run) -> dict[str, float]:
    """Figures of images that were not fitted: those of test images, if there are any."""
    found: dict[str, float] = run.result.get("test") or run.result["val"]
    return found


def _level(run: Run) -> float:
    return float(_unseen(run)["log_likelihood"])


def _share(source: Results, run: Run) -> float:
    """In percent of the ceiling's likelihood."""
    ceiling = _ceiling(source)
    return 100 * _level(run) / _level(ceiling) if ceiling is not None else float("nan")


def _plain(source: Results, rank: int, functions: int) -> dict[int, Run]:
    """Fits by EM from the tree, of pixels as they are, by their rounds; the newest of each."""
    wanted = {"method": "em", "functions": functions, "start": "tree", "jump": True, "permuted": False}
    found = [run for run in source.where(**wanted) if run.settings["rank"] in (rank, rank - rank % functions)]
    return {_rounds(run): run for run in sorted(found, key=lambda run: run.date)}


def _rounds(run: Run) -> int:
    return int(run.settings.get("rounds", 0))


def _matched(source: Results, components: int) -> Run | None:
    """Our fit by EM with the rank and the values a pixel of the paper's model; the longest one."""
    found = _plain(source, published.DENSITY_RANK, components + 1)
    return found[max(found)] if found else None


def _dense_rival(source: Results, run: Run) -> Run | None:
    """The dense model with the fewest parameters that are no fewer than those of ``run``; the better of equals."""
    dense = [one for one in source.runs if one.settings["method"] in DENSE]
    enough = [one for one in dense if one.result["parameters"] >= run.result["parameters"]]
    if not enough:
        return None
    least = min(one.settings["rank"] for one in enough)
    return max((one for one in enough if one.settings["rank"] == least), key=_level)


def _rising(source: Results, what: str) -> list[tuple[str, float, float]]:
    """Figures before and after functions are added at the same rank, fits from the tree with as many rounds."""
    steps = []
    ranks = {run.settings["rank"] for run in source.runs if run.settings["method"] == "em"}
    for rank in sorted(ranks):
        fits = [(q, found) for q in range(1, 9) if (found := _at_rank(source, rank, q))]
        for (q, found), (more, others) in pairwise(fits):
            for rounds in sorted(found.keys() & others.keys()):
                label = f"rank {rank}, {rounds} rounds, from {q} to {more} functions, {_name(source)}"
                steps.append((label, _unseen(found[rounds])[what], _unseen(others[rounds])[what]))
    return steps


def _at_rank(source: Results, rank: int, functions: int) -> dict[int, Run]:
    """Fits of exactly this rank; at the paper's rank also those of the largest multiple of the functions below it."""
    found = _plain(source, rank, functions)
    return {
        rounds: run for rounds, run in found.items() if run.settings["rank"] == rank or rank == published.DENSITY_RANK
    }


def _name(source: Results) -> str:
    return source.path.stem.removeprefix("density-")


# --- Figures, tables, pictures ---------------------------------------------------------------------------------------


def _shares(source: Results) -> list[Figure]:
    """Our shares of the ceiling's likelihood beside the paper's, and further ones that it has nothing beside."""
    figures = []
    for one in IMAGENETTE.models:
        run = _matched(source, one.components) if one.method == "laplex" else None
        if run is not None and one.closure is not None:
            label = f"{_words(run)}, {_name(source)}; paper: I = {one.components}"
            figures.append(figure(label, 100 * one.closure, _share(source, run), "%", "higher"))
    return figures


def _trained(source: Results) -> dict[int, Run]:
    """The paper's own model trained by Adam, by components, in raster order: it does not say where its pixels start."""
    wanted = {"method": "adam", "rank": published.DENSITY_RANK, "start": "raster", "permuted": False} | ADAM
    return {run.settings["components"]: run for run in source.where(**wanted)}


def _adam_shares(source: Results) -> list[Figure]:
    """One for each of the paper's models; without a number of ours where it was not trained."""
    trained, figures = _trained(source), []
    for one in IMAGENETTE.models:
        if one.method == "laplex" and one.closure is not None:
            run = trained.get(one.components)
            ours = None if run is None else _share(source, run)
            label = f"{TITLES['adam']}, I = {one.components}, rank {published.DENSITY_RANK}, {_name(source)}"
            figures.append(figure(label, 100 * one.closure, ours, "%", "higher"))
    return figures


def _steps(source: Results) -> str:
    """How many images of which size were fitted, and the steps of Adam, beside the paper's."""
    theirs = next(one.rank for one in IMAGENETTE.models if one.method == "empirical") + 1
    here, there = (ADAM["epochs"] * (count // ADAM["batch"]) for count in (_images(source), theirs))
    return (
        f"{_images(source):,} of {_dim(source):,} numbers here ({_name(source)}) and {theirs:,} of "
        f"{IMAGENETTE.dim:,} in the paper, so that {ADAM['epochs']} epochs are about {here:,} steps here and {there:,} "
        "there"
    )


def _over_dense(source: Results) -> list[Figure]:
    """The lead over dense models of no fewer parameters; it must be positive, and has no figure of the paper beside."""
    figures = []
    for run in source.where(method="em", start="tree", jump=True, permuted=False):
        rival = _dense_rival(source, run)
        if rival is not None:
            lead = (_level(run) - _level(rival)) / _dim(source)
            label = f"lead of {_words(run)} over {_words(rival)}, {_name(source)}"
            figures.append(condition(label, None, lead, "nats a number", "higher", lead > 0))
    return figures


def _span(figures: list[Figure]) -> str:
    found = [one.ours for one in figures if one.ours is not None]
    return f"{min(found):.3g} to {max(found):.3g}"


def _by_images(sources: list[Results]) -> str:
    """How the share of the ceiling depends on the number of images, where several were fitted."""
    found: dict[int, float] = {}
    for source in sources:
        run = _matched(source, 1)
        if run is not None:
            found[_images(source)] = max(_share(source, run), found.get(_images(source), 0.0))
    if len(found) < 2:
        return ""
    told = " and ".join(f"{share:.1f} % with {images:,} images" for images, share in sorted(found.items()))
    return f" It depends on how many images are fitted: 2 functions have {told}."


def _dim(source: Results) -> int:
    """The numbers of an image, from the empirical Gaussian: it holds N images and their mean, (N + 1) n numbers."""
    ceiling = _ceiling(source)
    return 1 if ceiling is None else int(ceiling.result["parameters"]) // (_images(source) + 1)


def _images(source: Results) -> int:
    """The images that were fitted: one more than the rank of their covariance."""
    ceiling = _ceiling(source)
    return 0 if ceiling is None else int(ceiling.result["rank"]) + 1


def _words(run: Run) -> str:
    one = run.settings
    size = (
        f", q = {one['functions']}" if one["functions"] else f", I = {one['components']}" if one["components"] else ""
    )
    rounds = f", {one['rounds']} rounds" if "rounds" in one else ""
    return f"{TITLES.get(one['method'], one['method'])}{size}, rank {one['rank'] or run.result['rank']}{rounds}"


def _table(sources: list[Results]) -> Table:
    rows = []
    for source in sources:
        plain = [run for run in source.runs if not run.settings["permuted"]]
        for run in plain:
            start = run.settings["start"]
            words = _words(run) + (f", from {start}" if start else "")
            words += ", no jumps" if run.settings["functions"] and not run.settings["jump"] else ""
            cells = [f"{run.result['parameters']:,}", f"{_level(run):,.0f}", f"{_share(source, run):.1f}"]
            rank = str(run.settings["rank"] or run.result["rank"])
            rows.append([_name(source), words, rank, *cells, f"{_unseen(run)['rmse']:.4f}"])
    return Table("Images that were not fitted", COLUMNS, rows)


def _plot(source: Results) -> Plot:
    """Shares of the ceiling's likelihood over parameters; of fits with more and fewer rounds those with the most."""
    series = []
    for method in ("em", "adam", *DENSE):
        runs = [run for run in source.runs if run.settings["method"] == method and not run.settings["permuted"]]
        kept = [
            run for run in runs if method != "em" or (run.settings["start"], run.settings["jump"]) == ("tree", True)
        ]
        longest = {run.result["parameters"]: run for run in sorted(kept, key=_rounds)}
        ordered = sorted(longest.values(), key=lambda run: run.result["parameters"])
        if ordered:
            x = [float(run.result["parameters"]) for run in ordered]
            series.append(Series(TITLES[method], x, [_share(source, run) for run in ordered]))
    for method, label in (("laplex", "LAPLEX"), ("low-rank", "dense low rank"), ("ppca", "PPCA")):
        models = [one for one in IMAGENETTE.models if one.method == method and one.closure is not None]
        x = [float(one.parameters.replace(" ", "")) for one in models]
        y: list[float | None] = [100 * one.closure for one in models if one.closure is not None]
        series.append(Series(f"{label}, paper", x, y, of_paper=True))
    title = f"Share of the empirical Gaussian's likelihood, {_name(source)}"
    return Plot(title, "parameters", "share, %", series, "log10")


def _with_picture(outcome: Outcome, shelf: Shelf, name: str, caption: str) -> Outcome:
    path = shelf.picture(name)
    return outcome if path is None else replace(outcome, pictures=[Picture(path, caption)])

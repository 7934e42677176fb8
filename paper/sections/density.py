"""Gaussians over images, by the experiment ``density``; ``published`` has the paper's figures."""

from __future__ import annotations

from paper import datasets
from paper.entry import TENTH, Entry, Figure, Outcome, Picture, Plot, Series, TextTable
from paper.experiments import published
from paper.judging import condition, figure, outcome
from paper.results import Archive
from paper.running import FULL, Experiments, Options, Request
from paper.sections import density_reading as reading
from paper.sections.density_reading import RANK, TITLES, Fits, level, unseen, words

HELD_OUT = 46  # photographs that are not fitted, where a packed file has one part
VALIDATION = 500  # images that choose the ridge of the empirical Gaussian; the others choose nothing
IMAGENETTE, PHOTOGRAPHS = published.DENSITIES
RMSE = {1: 0.119, 2: 0.105, 3: 0.102}  # Figure 21: the mean of ten held-out images, by the number of components
COLUMNS = ["file", "model", "rank", "parameters", "log-likelihood", "of the empirical Gaussian's, %", "RMSE"]
SPREADS = {"variance": (0.9, 1.1), "colour": (0.7, 1.3)}  # of samples over that of the images, where it counts
SAMPLES = "of samples over that of the images"
DIFFER = "Other images than the paper's, and fewer of them, which makes the empirical Gaussian a weaker ceiling"


# --- Experiments -----------------------------------------------------------------------------------------------------


def _options(request: Request) -> list[Options]:
    methods = ("em", "em-adam", "diagonal", "low-rank", "ppca") if request.level == FULL else ("em", "ppca")
    fits = {} if request.level == FULL else {"fits": ("q1", "q2", "q3", "q4")}
    return [options | {"methods": methods} | fits for options in _on_imagenette(request, "imagenette224")]


def _adam_options(request: Request) -> list[Options]:
    """The paper's model by Adam, which takes far longer than EM: a file of its own."""
    return [options | {"methods": ("adam",)} for options in _on_imagenette(request, "imagenette224-adam")]


def _on_imagenette(request: Request, title: str) -> list[Options]:
    folder = datasets.imagenette(request.data)
    if folder is None:
        return []
    sources = {"data": datasets.images(folder, "train"), "val": datasets.images(folder, "val")}
    options = {"val_count": VALIDATION, "side": 224, "channels": 3, "studied": "none"}
    return [sources | options | {"name": title, "quick": request.quick}]


def _photograph_options(request: Request) -> list[Options]:
    if request.data is None:
        return []
    packed = sorted(request.data.glob("photos*.npz"))
    train, val = request.data / "DIV2K_train_HR", request.data / "DIV2K_valid_HR"
    sources: Options
    if train.is_dir() and val.is_dir():
        sources = {"data": (str(train),), "val": (str(val),), "side": 1024, "channels": 3}
    elif packed:
        sources = {"data": (f"{packed[0]}:train",), "hold_out": HELD_OUT}
    else:
        return []
    on_gpu = request.kind == "cuda"
    effort = {"rounds": 20 if on_gpu else 6, "methods": ("em", "ppca", "low-rank") if on_gpu else ("em", "ppca")}
    options = {"name": "photos1024", "studied": "none", "fits": ("q2",), "dense_ranks": (4,), "quick": request.quick}
    return [sources | options | effort]


# --- Shares of the ceiling -------------------------------------------------------------------------------------------


def _by_em(entry: Entry, archive: Archive) -> Outcome | None:
    """Shares of the ceiling's likelihood, and dense models of equal parameters."""
    files = reading.imagenette(archive)
    shares = [row for fits in files for row in _shares(fits)]
    leads = [row for fits in files for row in _dense_leads(fits)]
    if not shares:
        return None
    best, theirs = max(row.ours or 0.0 for row in shares), max(row.paper or 0.0 for row in shares)
    reason = f"{DIFFER}; at rank 1000 LAPLEX has up to {best:.0f} % of its likelihood, the paper's up to {theirs:.0f} %"
    reason += f", and it leads dense models of no fewer parameters by {_span(leads)} nats per number." if leads else "."
    reason += f"{_by_images(files)} That is by EM; the entry density-adam has the paper's own model by Adam."
    plots = [_plot(fits) for fits in files]
    return outcome(
        entry, reason, [fits.results for fits in files], figures=[*shares, *leads], plots=plots, tables=[_table(files)]
    )


def _shares(fits: Fits) -> list[Figure]:
    """Our shares of the ceiling's likelihood and the paper's."""
    figures = []
    for components, theirs in _paper_shares().items():
        run = fits.matched(components)
        if run is not None:
            label = f"{words(run)}, {fits.name}; paper: I = {components}"
            figures.append(figure(label, theirs, fits.share(run), "%", "higher"))
    return figures


def _paper_shares() -> dict[int, float]:
    """In percent, by the number of components."""
    models = [model for model in IMAGENETTE.models if model.method == "laplex"]
    return {model.components: 100 * model.closure for model in models if model.closure is not None}


def _dense_leads(fits: Fits) -> list[Figure]:
    """The lead over dense models of no fewer parameters; it must be positive, and the paper has no figure for it."""
    figures = []
    for run, rival in fits.dense_pairs():
        lead = (level(run) - level(rival)) / fits.dim
        label = f"lead of {words(run)} over {words(rival)}, {fits.name}"
        figures.append(condition(label, None, lead, "nats per number", "higher", lead > 0))
    return figures


def _by_images(files: list[Fits]) -> str:
    """How the share of the ceiling depends on the number of images, where several were fitted."""
    shares: dict[int, float] = {}
    for fits in files:
        run, images = fits.matched(1), fits.images
        if run is not None:
            shares[images] = max(fits.share(run), shares.get(images, 0.0))
    if len(shares) < 2:
        return ""
    each = " and ".join(f"{best:.1f} % with {images:,} images" for images, best in sorted(shares.items()))
    return f" It depends on how many images are fitted: 2 functions have {each}."


def _span(figures: list[Figure]) -> str:
    numbers = [row.ours for row in figures if row.ours is not None]
    return f"{min(numbers):.3g} to {max(numbers):.3g}"


def _by_adam(entry: Entry, archive: Archive) -> Outcome | None:
    """Shares of the ceiling's likelihood, of the paper's model trained by Adam as it says."""
    files = [fits for fits in reading.read_fits(archive, "density-imagenette*") if fits.by_adam()]
    figures = [row for fits in files for row in _adam_shares(fits)]
    if not figures:
        return None
    theirs = [row.paper for row in figures if row.paper is not None]
    reason = (
        f"The paper's model by Adam, in raster order, has {_span(figures)} % of the empirical Gaussian's likelihood, "
        f"the paper's {min(theirs):.3g} to {max(theirs):.3g} %. The images, their number and size differ: "
        f"{'; '.join(map(_adam_steps, files))}."
    )
    missing = [row.label for row in figures if row.ours is None]
    reason += f" Not measured: {'; '.join(missing)}." if missing else ""
    return outcome(
        entry, reason, [fits.results for fits in files], figures=figures, plots=[_plot(fits) for fits in files]
    )


def _adam_shares(fits: Fits) -> list[Figure]:
    """One for each of the paper's models; without a number of ours where it was not trained."""
    figures, trained = [], fits.by_adam()
    for components, theirs in _paper_shares().items():
        ours = fits.share(trained[components]) if components in trained else None
        label = f"{TITLES['adam']}, I = {components}, rank {RANK}, {fits.name}"
        figures.append(figure(label, theirs, ours, "%", "higher"))
    return figures


def _adam_steps(fits: Fits) -> str:
    """How many images of which size were fitted, and the steps of Adam, here and in the paper."""
    ours = fits.images
    theirs = next(model.rank for model in IMAGENETTE.models if model.method == "empirical") + 1
    here, there = (reading.ADAM["epochs"] * (count // reading.ADAM["batch"]) for count in (ours, theirs))
    return (
        f"{ours:,} of {fits.dim:,} numbers here ({fits.name}) and {theirs:,} of {IMAGENETTE.dim:,} in "
        f"the paper, so that {reading.ADAM['epochs']} epochs are about {here:,} steps here and {there:,} there"
    )


# --- Samples and reconstructions -------------------------------------------------------------------------------------


def _samples(entry: Entry, archive: Archive) -> Outcome | None:
    """How much samples vary, and in colour, over how much the images do; likelihoods over functions; a picture."""
    files = reading.imagenette(archive)
    if not files:
        return None
    spreads = [row for fits in files for row in _spreads(fits)]
    spreads = spreads or [condition(f"{key} {SAMPLES}", None, None, "x", "lower", False) for key in SPREADS]
    steps = [pair for fits in files for pair in fits.steps("log_likelihood")]
    grows = _all_steps("the likelihood grows", [later > earlier for earlier, later in steps])
    word = "grows" if grows.verdict == "reproduced" else "does not grow"
    reason = f"{_spread_in_words(spreads)} The likelihood {word} with every function that is added. The samples shown "
    reason += "are of photographs that may be shown, fitted by `make demo`."
    pictures = _picture(archive, "samples.png", "Samples of a Gaussian fitted to 414 photographs, 64 x 64 pixels")
    return outcome(entry, reason, [fits.results for fits in files], figures=[*spreads, grows], pictures=pictures)


def _spreads(fits: Fits) -> list[Figure]:
    """The variance and the colour of samples over the images', of fits with as many values per pixel as the paper's.

    Results from before these were measured lack them: such fits are left out.
    """
    runs = [run for components in RMSE if (run := fits.matched(components)) is not None]
    figures = []
    for run in (run for run in runs if "samples" in run.result):
        for key, (least, most) in SPREADS.items():
            ours = run.result["samples"][key]
            label = f"{key} {SAMPLES}, {words(run)}, {fits.name}"
            figures.append(condition(label, None, ours, "x", "lower", ours is not None and least <= ours <= most))
    return figures


def _spread_in_words(spreads: list[Figure]) -> str:
    if any(row.ours is None for row in spreads):
        return "Not measured: how much samples vary. `python -m paper run density-samples --fresh` measures it."
    each = [f"{_span([row for row in spreads if row.label.startswith(key)])} times the {key}" for key in SPREADS]
    return f"Samples have {' and '.join(each)} of the images that were fitted."


def _all_steps(claim: str, holds: list[bool]) -> Figure:
    """A row for steps to more functions, at all of which something has to hold."""
    ours = float(sum(holds)) if holds else None
    return condition(
        f"steps to more functions at which {claim}", float(len(holds)), ours, "steps", "higher", all(holds)
    )


def _reconstructions(entry: Entry, archive: Archive) -> Outcome | None:
    """Errors of the most likely images."""
    files = reading.imagenette(archive)
    figures = []
    for fits in files:
        for components, theirs in RMSE.items():
            run = fits.matched(components)
            if run is not None:
                label = f"{fits.name}, as many values per pixel as I = {components}"
                figures.append(figure(label, theirs, unseen(run)["rmse"], "RMSE", "lower"))
    if not figures:
        return None
    errors = [row.ours for row in figures if row.ours is not None]
    falls = [later < earlier for fits in files for earlier, later in fits.steps("rmse")]
    reason = (
        f"Other images than the paper's. The error {'falls' if all(falls) else 'does not fall'} with every function "
        f"that is added; it is {min(errors):.3f} to {max(errors):.3f}, the paper's {min(RMSE.values())} to "
        f"{max(RMSE.values())}."
    )
    figures.append(_all_steps("the error falls", falls))
    caption = "Photographs that were not fitted, above, and their most likely images, below"
    return outcome(
        entry,
        reason,
        [fits.results for fits in files],
        figures=figures,
        pictures=_picture(archive, "reconstructions.png", caption),
    )


# --- Photographs -----------------------------------------------------------------------------------------------------


def _photographs(entry: Entry, archive: Archive) -> Outcome | None:
    """The lead over a dense model of no fewer parameters, at three million numbers."""
    files = reading.read_fits(archive, "density-photos*")
    levels = {model.method: model.log_likelihood for model in PHOTOGRAPHS.models}
    theirs = (levels["laplex"] - levels["low-rank"]) / PHOTOGRAPHS.dim
    most = max((fits.images for fits in files), default=0)  # fits to fewer images are shown, and not judged
    figures, pairs = [], []
    for fits in (fits for fits in files if fits.images == most):
        for run, rival in fits.dense_pairs():
            ours, dense = level(run), level(rival)
            label = f"{words(run)} over {words(rival)}, {fits.name}"
            figures.append(figure(label, theirs, (ours - dense) / PHOTOGRAPHS.dim, "nats per number", "higher"))
            pairs.append(f"{ours:,.0f} against {dense:,.0f} nats ({fits.name})")
    if not figures:
        return None
    reason = f"Other photographs than DIV2K's, {most} fitted in place of 800: {'; '.join(pairs)}; the paper has "
    reason += f"{levels['laplex']:,} against {levels['low-rank']:,}."
    caption = "Photographs of 64 x 64 pixels, their upper halves, and the lower halves at their mean given those"
    pictures = _picture(archive, "inpainted.png", caption)
    return outcome(
        entry, reason, [fits.results for fits in files], figures=figures, tables=[_table(files)], pictures=pictures
    )


# --- Tables, plots, pictures -----------------------------------------------------------------------------------------


def _table(files: list[Fits]) -> TextTable:
    rows = []
    for fits in files:
        for run in fits.results.matching(permuted=False):
            settings, result = run.settings, run.result
            model = words(run) + (f", from {settings['start']}" if settings["start"] else "")
            model += ", no jumps" if settings["functions"] and not settings["jump"] else ""
            cells = [f"{result['parameters']:,}", f"{level(run):,.0f}", f"{fits.share(run):.1f}"]
            rank = str(settings["rank"] or result["rank"])
            rows.append([fits.name, model, rank, *cells, f"{unseen(run)['rmse']:.4f}"])
    return TextTable("Images that were not fitted", COLUMNS, rows)


def _plot(fits: Fits) -> Plot:
    """Shares of the ceiling's likelihood over parameters; of fits with more and fewer rounds those with the most."""
    lines = []
    for method in ("em", "adam", *reading.DENSE):
        settings = reading.PLAIN if method == "em" else {"method": method, "permuted": False}
        runs = sorted(fits.results.matching(**settings), key=reading.rounds)
        longest = {float(run.result["parameters"]): run for run in runs}
        if longest:
            x = sorted(longest)
            lines.append(Series(TITLES[method], x, [fits.share(longest[parameters]) for parameters in x]))
    for method, label in (("laplex", "LAPLEX"), ("low-rank", "dense low rank"), ("ppca", "PPCA")):
        models = [model for model in IMAGENETTE.models if model.method == method and model.closure is not None]
        x = [float(model.parameters.replace(" ", "")) for model in models]
        y: list[float | None] = [100 * model.closure for model in models if model.closure is not None]
        lines.append(Series(f"{label}, paper", x, y, from_paper=True))
    title = f"Share of the empirical Gaussian's likelihood, {fits.name}"
    return Plot(title, "parameters", "share, %", lines, "log10")


def _picture(archive: Archive, file: str, caption: str) -> list[Picture]:
    path = archive.picture(file)
    return [] if path is None else [Picture(path, caption)]


EM = Experiments("density", "density", _options)
ADAM_FITS = Experiments("density-adam", "density", _adam_options)
PHOTOGRAPH_FITS = Experiments("photographs", "density", _photograph_options)
ENTRIES = (
    Entry(
        name="density",
        title="Gaussians over images, compared with the empirical ceiling",
        section="Densities",
        source="Table 7",
        claim="With rank 1000 and 1, 2 or 3 components LAPLEX has 63, 73 and 76 % of the log-likelihood of the full "
        "empirical Gaussian; dense models of equal parameters have 12 to 21 %.",
        criterion="Reproduced if our share at rank 1000 with as many values per pixel is at most a tenth below the "
        "paper's, and above dense models of equal parameters where those were run; exceeded if it is a tenth above.",
        minutes={"cuda": 5.0, "cpu": 60.0},
        measure=(EM,),
        judge=_by_em,
        data=datasets.IMAGES,
    ),
    Entry(
        name="density-adam",
        title="The paper's own model, trained as the paper says",
        section="Densities",
        source="Table 7",
        claim="Trained by Adam for 25 epochs (learning rate 0.002, batches of 64), the model of rank 1000 with 1, 2 or "
        "3 components has 63, 73 and 76 % of the log-likelihood of the full empirical Gaussian.",
        criterion="Our shares at I = 1, 2 and 3, of the same model trained in the same way. " + TENTH,
        minutes={"cuda": 3.0, "cpu": 300.0},
        measure=(ADAM_FITS,),
        judge=_by_adam,
        data=datasets.IMAGES,
    ),
    Entry(
        name="density-samples",
        title="Samples of the fitted Gaussians",
        section="Densities",
        source="Figure 20",
        claim="Samples have smooth patches of colour like those of the empirical Gaussian, found from flat vectors; "
        "the likelihood grows with the number of components at the same rank.",
        criterion="The paper shows samples and gives no numbers for them. Reproduced if samples at rank 1000 have 0.9 "
        "to 1.1 times the variance of the images and, without their noise, 0.7 to 1.3 times their colour (how far the "
        "channels of a pixel are apart), and the likelihood of images that were not fitted grows with the number of "
        "functions at the same rank; whether samples have patches is for the reader to see.",
        minutes={"cuda": 5.0, "cpu": 60.0},
        measure=(EM,),
        judge=_samples,
        data=datasets.IMAGES,
    ),
    Entry(
        name="density-reconstructions",
        title="Reconstructions of images that were not fitted",
        section="Densities",
        source="Figure 21",
        claim="The root mean square error of the most likely image falls with the number of components: 0.119, 0.105 "
        "and 0.102 for 1, 2 and 3.",
        criterion="Reproduced if it falls with the number of functions at the same rank and is at most a tenth above "
        "the paper's; exceeded if it is more than a tenth below.",
        minutes={"cuda": 5.0, "cpu": 60.0},
        measure=(EM,),
        judge=_reconstructions,
        data=datasets.IMAGES,
    ),
    Entry(
        name="density-photographs",
        title="Gaussians over photographs of 3 145 728 numbers",
        section="Densities",
        source="Figure 4",
        claim="With 14 million parameters LAPLEX of rank 1000 reaches a log-likelihood of 1 266 679, a dense model of "
        "rank 4 only 282 392.",
        criterion="The lead over a dense model of no fewer parameters, in nats per number, because a ratio of "
        "log-likelihoods depends on the unit of a pixel. " + TENTH,
        minutes={"cuda": 5.0, "cpu": 15.0},
        measure=(PHOTOGRAPH_FITS,),
        judge=_photographs,
        data=datasets.PHOTOGRAPHS,
    ),
)

"""Fits in the results of the experiment ``density``: which there are, and which are compared.

The paper's model with I components has as many values per pixel as ours with q = I + 1 functions; they are compared at
rank 1000, or at the largest multiple of q below it.
"""

from __future__ import annotations

from itertools import pairwise

from paper.experiments import published
from paper.results import Archive, Results, Run

RANK = published.DENSITY_RANK
DENSE = ("low-rank", "ppca")
ADAM = {"epochs": 25, "lr": 2e-3, "batch": 64}  # the paper's training
PLAIN = {"method": "em", "start": "tree", "jump": True, "permuted": False}  # EM as it is by default
TITLES = {
    "em": "LAPLEX by EM",
    "em-adam": "LAPLEX by EM, then Adam",
    "adam": "LAPLEX, the paper's model by Adam",
    "diagonal": "the same with a diagonal latent covariance",
    "low-rank": "dense low rank",
    "ppca": "PPCA",
    "empirical": "empirical Gaussian",
}


# --- Files -----------------------------------------------------------------------------------------------------------


def with_ceiling(archive: Archive, pattern: str) -> list[Results]:
    """Results that have the empirical Gaussian, each of the data of its last run."""
    sources = [source.like_last("data") for source in archive.experiments(pattern)]
    return [source for source in sources if _ceiling(source) is not None]


def imagenette(archive: Archive) -> list[Results]:
    """Results at the paper's rank: small images have smaller ranks. A rank is a multiple of the number of functions."""
    sources = with_ceiling(archive, "density-imagenette*")
    return [
        source for source in sources if any(run.settings["rank"] >= RANK - 10 for run in source.matching(method="em"))
    ]


def name(source: Results) -> str:
    """The data, from the name of the file."""
    return source.path.stem.removeprefix("density-")


def _ceiling(source: Results) -> Run | None:
    return source.first(method="empirical", permuted=False)


def image_count(source: Results) -> int:
    """The images that were fitted: one more than the rank of their covariance."""
    ceiling = _ceiling(source)
    return 0 if ceiling is None else int(ceiling.result["rank"]) + 1


def dim(source: Results) -> int:
    """The numbers of an image, from the empirical Gaussian: it holds N images and their mean, (N + 1) n numbers."""
    ceiling = _ceiling(source)
    return 1 if ceiling is None else int(ceiling.result["parameters"]) // (image_count(source) + 1)


# --- Numbers of a fit ------------------------------------------------------------------------------------------------


def unseen(run: Run) -> dict[str, float]:
    """Figures of images that were not fitted: those of test images, if there are any."""
    figures: dict[str, float] = run.result.get("test") or run.result["val"]
    return figures


def level(run: Run) -> float:
    """The log-likelihood of images that were not fitted."""
    return float(unseen(run)["log_likelihood"])


def share(source: Results, run: Run) -> float:
    """In percent of the ceiling's likelihood."""
    ceiling = _ceiling(source)
    return 100 * level(run) / level(ceiling) if ceiling is not None else float("nan")


def rounds(run: Run) -> int:
    """Of EM."""
    return int(run.settings.get("rounds", 0))


def words(run: Run) -> str:
    """A fit in words."""
    settings = run.settings
    size = f", I = {settings['components']}" if settings["components"] else ""
    size = f", q = {settings['functions']}" if settings["functions"] else size
    length = f", {settings['rounds']} rounds" if "rounds" in settings else ""
    method, rank = settings["method"], settings["rank"] or run.result["rank"]
    return f"{TITLES.get(method, method)}{size}, rank {rank}{length}"


# --- Which fits are compared -----------------------------------------------------------------------------------------


def _plain(source: Results, rank: int, functions: int) -> dict[int, Run]:
    """Fits by EM of this rank, or the largest multiple of the functions below it, by rounds; the newest of each."""
    runs = source.matching(**PLAIN, functions=functions)
    fits = [run for run in runs if run.settings["rank"] in (rank, rank - rank % functions)]
    return {rounds(run): run for run in sorted(fits, key=lambda run: run.date)}


def matched(source: Results, components: int) -> Run | None:
    """Our fit by EM with the rank and the values per pixel of the paper's model; the longest one."""
    fits = _plain(source, RANK, components + 1)
    return fits[max(fits)] if fits else None


def trained(source: Results) -> dict[int, Run]:
    """The paper's own model trained by Adam, by components, in raster order: it does not say where its pixels start."""
    runs = source.matching(method="adam", rank=RANK, start="raster", permuted=False, **ADAM)
    return {run.settings["components"]: run for run in runs}


def dense_rival(source: Results, run: Run) -> Run | None:
    """The dense model with the fewest parameters that are no fewer than those of ``run``; the better of equals."""
    dense = [rival for rival in source.runs if rival.settings["method"] in DENSE]
    enough = [rival for rival in dense if rival.result["parameters"] >= run.result["parameters"]]
    if not enough:
        return None
    least = min(rival.settings["rank"] for rival in enough)
    return max((rival for rival in enough if rival.settings["rank"] == least), key=level)


def dense_pairs(source: Results) -> list[tuple[Run, Run]]:
    """Fits by EM, each with its dense rival."""
    pairs = [(run, dense_rival(source, run)) for run in source.matching(**PLAIN)]
    return [(run, rival) for run, rival in pairs if rival is not None]


def steps(source: Results, quantity: str) -> list[tuple[float, float]]:
    """Figures before and after functions are added at the same rank, of fits with as many rounds.

    At the paper's rank fits of the largest multiple of the functions below it count, too.
    """
    pairs = []
    for rank in sorted({run.settings["rank"] for run in source.matching(method="em")}):
        by_functions = [
            {length: run for length, run in _plain(source, rank, q).items() if rank in (RANK, run.settings["rank"])}
            for q in range(1, 9)
        ]
        for fewer, more in pairwise(filter(None, by_functions)):
            for length in sorted(fewer.keys() & more.keys()):
                pairs.append((unseen(fewer[length])[quantity], unseen(more[length])[quantity]))
    return pairs

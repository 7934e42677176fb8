"""Fits in the results of the experiment ``density``: which there are, and which are compared.

The paper's model with I components has as many values per pixel as ours with q = I + 1 functions; they are compared at
rank 1000, or at the largest multiple of q below it.
"""

from __future__ import annotations

from dataclasses import dataclass
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


# --- One fit ---------------------------------------------------------------------------------------------------------


def unseen(run: Run) -> dict[str, float]:
    """Figures of images that were not fitted: those of test images, if there are any."""
    figures: dict[str, float] = run.result.get("test") or run.result["val"]
    return figures


def level(run: Run) -> float:
    """The log-likelihood of images that were not fitted."""
    return float(unseen(run)["log_likelihood"])


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


# --- The fits of a file ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fits:
    """The fits of one file to the same images, and the ceiling: the empirical Gaussian of these images."""

    results: Results
    ceiling: Run

    @property
    def name(self) -> str:
        """The data, from the name of the file."""
        return self.results.path.stem.removeprefix("density-")

    @property
    def images(self) -> int:
        """How many were fitted: one more than the rank of their covariance."""
        return int(self.ceiling.result["rank"]) + 1

    @property
    def dim(self) -> int:
        """The numbers of an image: the empirical Gaussian holds N images and their mean, (N + 1) n numbers."""
        return int(self.ceiling.result["parameters"]) // (self.images + 1)

    def share(self, run: Run) -> float:
        """In percent of the ceiling's likelihood."""
        return 100 * level(run) / level(self.ceiling)

    def matched(self, components: int) -> Run | None:
        """Our fit by EM with the rank and the values per pixel of the paper's model; the longest one."""
        fits = self._plain(RANK, components + 1)
        return fits[max(fits)] if fits else None

    def by_adam(self) -> dict[int, Run]:
        """The paper's own model by Adam, by components, in raster order: it does not say where its pixels start."""
        runs = self.results.matching(method="adam", rank=RANK, start="raster", permuted=False, **ADAM)
        return {run.settings["components"]: run for run in runs}

    def dense_pairs(self) -> list[tuple[Run, Run]]:
        """Fits by EM, each with its dense rival, where there is one."""
        pairs = [(run, self._dense_rival(run)) for run in self.results.matching(**PLAIN)]
        return [(run, rival) for run, rival in pairs if rival is not None]

    def steps(self, quantity: str) -> list[tuple[float, float]]:
        """Figures before and after functions are added at the same rank, of fits with as many rounds.

        At the paper's rank fits of the largest multiple of the functions below it count, too.
        """
        pairs = []
        for rank in sorted({run.settings["rank"] for run in self.results.matching(method="em")}):
            by_functions = [
                {length: run for length, run in self._plain(rank, q).items() if rank in (RANK, run.settings["rank"])}
                for q in range(1, 9)
            ]
            for fewer, more in pairwise(filter(None, by_functions)):
                for length in sorted(fewer.keys() & more.keys()):
                    pairs.append((unseen(fewer[length])[quantity], unseen(more[length])[quantity]))
        return pairs

    def _plain(self, rank: int, functions: int) -> dict[int, Run]:
        """Fits by EM of this rank, or the largest multiple of the functions below it, by rounds; the newest of each."""
        runs = self.results.matching(**PLAIN, functions=functions)
        fits = [run for run in runs if run.settings["rank"] in (rank, rank - rank % functions)]
        return {rounds(run): run for run in sorted(fits, key=lambda run: run.date)}

    def _dense_rival(self, run: Run) -> Run | None:
        """The dense model with the fewest parameters that are no fewer than those of ``run``; the better of equals."""
        dense = [rival for rival in self.results.runs if rival.settings["method"] in DENSE]
        enough = [rival for rival in dense if rival.result["parameters"] >= run.result["parameters"]]
        least = min((rival.settings["rank"] for rival in enough), default=0)
        return max((rival for rival in enough if rival.settings["rank"] == least), key=level, default=None)


def read_fits(archive: Archive, pattern: str) -> list[Fits]:
    """The files that have a ceiling, each with the runs on the data of its last run."""
    sources = [source.like_last("data") for source in archive.experiments(pattern)]
    pairs = [(source, source.first(method="empirical", permuted=False)) for source in sources]
    return [Fits(source, ceiling) for source, ceiling in pairs if ceiling is not None]


def imagenette(archive: Archive) -> list[Fits]:
    """Fits at the paper's rank: small images have smaller ranks. A rank is a multiple of the number of functions."""
    files = read_fits(archive, "density-imagenette*")
    return [
        fits for fits in files if any(run.settings["rank"] >= RANK - 10 for run in fits.results.matching(method="em"))
    ]

"""Figures that the paper reports, with the number of the table that has them."""

from __future__ import annotations

from typing import NamedTuple


class Head(NamedTuple):
    """A classification head on a frozen network: top-1 accuracy in percent on ImageNet-1k, over five seeds."""

    network: str
    method: str  # one of paper.methods.heads.METHODS
    rank: int | None
    parameters: str  # as printed
    accuracy: float
    deviation: float


HEADS_SOURCE = "Table 6"
HEADS_DATA = "ImageNet-1k"
HEADS = (
    Head("Swin-T", "full", None, "768 K", 81.37, 0.03),
    Head("Swin-T", "laplex", 4, "8.1 K", 54.04, 0.29),
    Head("Swin-T", "low-rank", 4, "8.1 K", 10.67, 0.26),
    Head("Swin-T", "laplex", 8, "15.2 K", 71.72, 0.17),
    Head("Swin-T", "low-rank", 8, "15.1 K", 46.80, 0.15),
    Head("Swin-T", "laplex", 16, "29.3 K", 77.68, 0.09),
    Head("Swin-T", "low-rank", 16, "29.3 K", 67.87, 0.14),
    Head("MaxViT-T", "full", None, "774 K", 83.37, 0.04),
    Head("MaxViT-T", "laplex", 4, "11.7 K", 78.61, 0.16),
    Head("MaxViT-T", "low-rank", 4, "11.7 K", 17.29, 2.31),
    Head("MaxViT-T", "laplex", 8, "21.8 K", 82.07, 0.06),
    Head("MaxViT-T", "low-rank", 8, "21.8 K", 63.80, 1.31),
    Head("MaxViT-T", "laplex", 16, "42.1 K", 82.65, 0.03),
    Head("MaxViT-T", "low-rank", 16, "42.1 K", 78.19, 0.24),
)
NETWORKS = ("Swin-T", "MaxViT-T")


def head(network: str, method: str, rank: int | None) -> Head | None:
    """The paper's figure for a method at a rank, if it has one."""
    return next((one for one in HEADS if one[:3] == (network, method, rank)), None)


# --- Projections -----------------------------------------------------------------------------------------------------


class Accuracy(NamedTuple):
    """Validation accuracy in percent over five seeds; the table of trained projections has no deviations."""

    mean: float
    deviation: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.deviation is None else f"{self.mean:.2f} ± {self.deviation:.2f}"


def _over(widths: tuple[int, ...], *figures: tuple[float, ...]) -> dict[int, Accuracy]:
    """Figures of one row of a table, by width m."""
    return {width: Accuracy(*figure) for width, figure in zip(widths, figures, strict=True)}


PROJECTIONS_DATA = "ImageNet10 at 224 x 224"
FROZEN_SOURCE, TRAINED_SOURCE = "Table 4", "Table 1"
_FROZEN, _TRAINED = (25, 50, 100, 250, 500, 750, 1000), (25, 100, 500, 1000)
# By method, one of paper.experiments.projection_maps.METHODS, and tau. Whether LAPLEX has phases is not said.
_PROJECTIONS: dict[tuple[str, float | None], dict[int, Accuracy]] = {
    ("countsketch", None): _over(
        _FROZEN,
        (26.88, 2.17), (30.92, 1.97), (31.00, 1.65), (32.04, 1.40), (31.12, 1.95), (27.76, 1.79), (25.96, 1.09),
    ),
    ("laplex", 0.01): _over(
        _FROZEN,
        (29.08, 0.54), (30.44, 1.89), (32.20, 1.74), (30.92, 0.58), (30.24, 2.09), (28.56, 1.52), (27.64, 1.88),
    ),
    ("laplex", 0.05): _over(
        _FROZEN,
        (26.28, 1.51), (30.08, 2.51), (30.24, 1.81), (32.68, 1.32), (31.48, 2.32), (30.08, 1.22), (30.08, 0.91),
    ),
    ("laplex", 0.1): _over(
        _FROZEN,
        (27.96, 1.17), (29.88, 1.04), (31.84, 2.05), (32.20, 1.29), (30.92, 1.82), (31.28, 1.57), (31.28, 1.48),
    ),
    ("laplex", 0.5): _over(
        _FROZEN,
        (27.76, 1.77), (29.44, 0.62), (29.12, 1.22), (31.60, 1.22), (31.24, 0.80), (30.60, 1.14), (31.64, 0.71),
    ),
    ("laplex", 1.0): _over(
        _FROZEN,
        (27.28, 1.94), (27.76, 0.85), (29.72, 1.91), (29.56, 1.19), (29.56, 2.46), (30.12, 1.06), (29.64, 1.44),
    ),
    ("pca", None): _over(
        _FROZEN,
        (34.80, 0.51), (35.92, 1.68), (36.48, 2.09), (35.84, 2.19), (32.40, 1.00), (29.32, 1.83), (27.16, 1.95),
    ),
    ("gaussian", None): _over(
        _FROZEN,
        (27.96, 0.52), (30.28, 1.43), (31.68, 1.52), (32.36, 1.92), (30.16, 0.86), (28.04, 1.37), (25.16, 0.86),
    ),
    ("trained-laplex", None): _over(_TRAINED, (43.5,), (43.6,), (43.8,), (44.2,)),
    ("trained-dense", None): _over(_TRAINED, (43.5,), (43.0,), (43.0,), (43.8,)),
}  # fmt: skip


def projection(method: str, tau: float | None) -> dict[int, Accuracy]:
    """The paper's accuracies of a projection by width m; empty if it has none."""
    return _PROJECTIONS.get((method, tau), {})


# --- Random Fourier features -----------------------------------------------------------------------------------------

RFF_SOURCE = "Figure 6"
RFF_VALUES = {1: 4.5, 16: 0.72, 2048: 0.076}  # the median relative error of K x by the number of features D
RFF_GRADIENTS = (
    "Of its gradients (Figure 18) the paper says in words that the error on the side of x falls 26 times from "
    "D = 1 to 2048, and that on the other side it stays between 200 and 460 %. Its a is on the side of x, our b."
)


# --- Densities -------------------------------------------------------------------------------------------------------


class Likelihood(NamedTuple):
    """A Gaussian over flattened images: the mean log-likelihood of held-out ones, in units where pixels are 0 to 1."""

    method: str  # "laplex", or a method of paper.experiments.density_runs
    components: int  # I; of a dense model that of the LAPLEX model whose parameters it has, 0 for the ceiling
    rank: int
    parameters: str  # as printed
    log_likelihood: int
    closure: float | None  # over that of the empirical Gaussian, which the paper has for one of its two sets
    rmse: float | None  # of the reconstruction of one held-out image


class Densities(NamedTuple):
    """The figures of one set of images."""

    name: str
    source: str
    dim: int
    models: tuple[Likelihood, ...]


DENSITY_RANK = 1000  # of all its LAPLEX models
_CEILING = 315_549
DENSITIES = (
    Densities(
        "ImageNette at 320 x 320",
        "Table 7 and its text",
        307_200,
        (
            Likelihood("laplex", 1, 1000, "2 231 801", 198_549, 198_549 / _CEILING, 0.129),
            Likelihood("laplex", 2, 1000, "3 538 001", 229_607, 229_607 / _CEILING, 0.115),
            Likelihood("laplex", 3, 1000, "4 845 201", 238_578, 238_578 / _CEILING, 0.114),
            Likelihood("low-rank", 1, 6, "2 150 442", 38_395, 38_395 / _CEILING, 0.230),
            Likelihood("low-rank", 2, 11, "3 686 466", 66_107, 66_107 / _CEILING, None),
            Likelihood("ppca", 1, 6, "2 150 406", 44_811, 44_811 / _CEILING, 0.227),
            Likelihood("ppca", 2, 11, "3 686 401", 67_834, 67_834 / _CEILING, None),
            Likelihood("empirical", 0, 9468, "2.9 B", _CEILING, 1.0, 0.075),
        ),
    ),
    Densities(
        "DIV2K at 1024 x 1024",
        "Figure 4",
        3_145_728,
        (
            Likelihood("laplex", 1, 1000, "13.6 M", 1_266_679, None, None),
            Likelihood("low-rank", 1, 4, "15.7 M", 282_392, None, None),
        ),
    ),
)


def densities(dim: int) -> Densities:
    """The paper's figures for the images that come nearest in size to some of ``dim`` values."""
    return min(DENSITIES, key=lambda one: max(one.dim / dim, dim / one.dim))

"""Figures that the paper reports, with the label of the table that has them."""

from __future__ import annotations

from typing import NamedTuple


class Head(NamedTuple):
    """A classification head on a frozen network: top-1 accuracy in percent on ImageNet-1k, over five seeds."""

    network: str
    method: str  # one of laplex.baselines.heads.METHODS
    rank: int | None
    parameters: str  # as printed
    accuracy: float
    deviation: float


HEADS_SOURCE = "tab:head_comparison"
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
    found = (one for one in HEADS if (one.network, one.method, one.rank) == (network, method, rank))
    return next(found, None)

"""Products K x that laplex is compared with, all with one signature.

Every baseline is a function ``prepare(a, b, tau) -> apply``: ``prepare`` does what may be kept between calls (a
matrix, the kernel's FFT, an order), and ``apply(x)`` maps x (batch, k) to y (batch, n). Timing ``apply`` alone gives
the cost with the set-up kept, timing ``prepare(a, b, tau)(x)`` the cost of a whole call.

`celerite2-symmetric` is right for b = a alone. `dense-gram` maps x to the Gram matrices K diag(x) K^T, (batch, n, n),
instead. `fft` and `copy` are yardsticks: they compute something else, and only say how fast the machine is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from paper.methods.products import celerite, dense, keops, logcumsumexp, toeplitz, yardsticks

Apply = Callable[[Tensor], Tensor]
Prepare = Callable[[Tensor, Tensor, float], Apply]


@dataclass(frozen=True)
class Baseline:
    """One thing to compare with, and what it can be asked."""

    prepare: Prepare
    what: str  # in words, for tables
    keeps: str = ""  # what `prepare` leaves for later calls, in words
    anchors: Literal["any", "sorted", "grid"] = "any"  # the anchors it is right on
    symmetric: bool = False  # right for b = a alone
    dtype: torch.dtype | None = None  # the one dtype it takes; None: float32 and float64
    computes: Literal["product", "gram"] = "product"
    yardstick: bool = False  # computes something else: a measure of the machine
    solves: bool = False  # (K + a diagonal)^-1 x in place of K x
    needs: str | None = None  # the package it is made of, where that is not torch


BASELINES: dict[str, Baseline] = {
    "dense": Baseline(dense.prepare, "dense", keeps="K formed before"),
    "dense-autograd": Baseline(dense.prepare_differentiable, "dense"),
    "dense-gram": Baseline(dense.prepare_gram, "dense", keeps="K formed before", computes="gram"),
    "nn.Linear": Baseline(dense.prepare_layer, "torch.nn.Linear", keeps="weight formed before"),
    "toeplitz": Baseline(toeplitz.prepare, "Toeplitz-FFT", keeps="kernel's FFT kept", anchors="grid"),
    "logcumsumexp": Baseline(logcumsumexp.prepare, "logcumsumexp", keeps="order kept"),
    "celerite2": Baseline(
        celerite.prepare, "celerite2", keeps="sorted input", anchors="sorted", dtype=torch.float64, needs="celerite2"
    ),
    "celerite2-symmetric": Baseline(
        celerite.prepare_symmetric,
        "celerite2's symmetric product",
        keeps="sorted input",
        anchors="sorted",
        symmetric=True,
        dtype=torch.float64,
        needs="celerite2",
    ),
    "celerite2-solve": Baseline(
        celerite.prepare_solve,
        "celerite2's factor and solve",
        keeps="sorted input",
        anchors="sorted",
        dtype=torch.float64,
        solves=True,
        needs="celerite2",
    ),
    "keops": Baseline(keops.prepare, "KeOps", keeps="formula compiled", needs="pykeops"),
    "fft": Baseline(yardsticks.prepare_fft, "one torch.fft.fft", yardstick=True),
    "fft-complex": Baseline(
        yardsticks.prepare_fft, "one torch.fft.fft of complex64", yardstick=True, dtype=torch.complex64
    ),
    "copy": Baseline(yardsticks.prepare_copy, "x.clone()", yardstick=True),
    "copy-into": Baseline(yardsticks.prepare_copy_into, "x copied into memory at hand", yardstick=True),
}

__all__ = ["BASELINES", "Apply", "Baseline", "Prepare"]

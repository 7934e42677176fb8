"""What is timed side by side: laplex and its rivals, as functions of one problem."""

from __future__ import annotations

LAPLEX, KEPT, DENSE = "laplex", "laplex, plan kept", "dense"
FFT, TOEPLITZ, LOGS = "fft", "toeplitz", "logcumsumexp"
FORWARD, BOTH = "forward", "forward and backward"
TITLES = {
    LAPLEX: "laplex, whole call",
    KEPT: "laplex, plan kept",
    DENSE: "dense matrix, formed and multiplied",
    LOGS: "the paper's portable path, by logcumsumexp",
    TOEPLITZ: "Toeplitz product by FFT, uniform grid",
    FFT: "one FFT, no product",
}

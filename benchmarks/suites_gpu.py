"""The GPU suite: the rows that are held against a bar on one H200, and the paper's sweeps, which are not."""

from benchmarks.problems import Anchors, Measure, Row, Side, Size, Suite
from benchmarks.suites import (
    FULL_CALL,
    LAYER_ROWS,
    PLANNED,
    TRAINING,
    gram_row,
    gram_sizes,
    large_error,
    small_error,
    square,
)
from laplex.testing import Budget

GPU_BUDGET = Budget(min_s=0.05, min_samples=10, max_s=0.5, turn_s=0.02)
ALL, GRAPH = TRAINING, Side(mode="graph")
LARGEST = 2**31 - 1  # anchors a side; both together pass 32 bits
PIXELS, RANK, IMAGES = 3_145_728, 1000, 64


def cost(
    name: str, says: str, sizes: tuple[Size, ...], bar: float | None, ours: Side, measure: Measure = "time",
    against: Side | None = None, also: tuple[Side, ...] = (), anchors: Anchors = "normal",
) -> Row:  # fmt: skip
    """A time, a peak of memory, or a ratio."""
    return Row(name, says, sizes, measure, bar, ours, against, also, anchors=anchors)


ERRORS = (
    small_error("triton", 1.5e-7, None),
    large_error("triton", "normal", 1.0, 2.5e-7),
)

MEDIUM = (
    cost("time-kept", "plan kept", square(20, batch=1), 40e-6, PLANNED),
    cost("time-toeplitz", "plan kept, against Toeplitz-FFT on a uniform grid, its kernel's FFT kept",
         square(20, batch=1), 0.6, PLANNED, "ratio", Side("toeplitz")),
    cost("time-whole", "whole call with planning", square(20, batch=1), 220e-6, FULL_CALL),
    cost("time-training", "forward and backward with planning", square(20, batch=8), 1.2e-3, ALL),
    cost("memory-training", "forward and backward with planning, peak memory", square(20, batch=8), 250e6, ALL,
         "memory"),
    cost("time-short-to-long", "one short axis, plan kept, short to long", (Size(PIXELS, RANK, IMAGES),), 0.6e-3,
         PLANNED, also=(Side("copy"),)),
    cost("time-long-to-short", "one short axis, plan kept, long to short", (Size(RANK, PIXELS, IMAGES),), 1.2e-3,
         PLANNED, also=(Side("copy"),)),
)  # fmt: skip

FIXED, TRAINED = Side(mode="phased forward+backward"), Side(mode="phased forward+backward, tau too")
TRAINED_TAU = (
    cost("time-tau", "a density's product with phases, forward and backward, tau trained against tau fixed",
         (Size(RANK, PIXELS, IMAGES),), 1.15, TRAINED, "ratio", FIXED),
    cost("memory-tau", "the same, peak memory", (Size(RANK, PIXELS, IMAGES),), 1.1, TRAINED, "memory ratio", FIXED),
    cost("time-tau-other-way", "the same of its transpose", (Size(PIXELS, RANK, IMAGES),), None, TRAINED, "ratio",
         FIXED),
    cost("time-tau-square", "the same of equal sides", square(14, 20, batch=8), None, TRAINED, "ratio", FIXED),
)  # fmt: skip

SMALL_SIZES = (
    cost("time-eager", "plan kept", square(14, batch=8), 30e-6, PLANNED),
    cost("time-graph", "plan kept, replayed as a CUDA graph, which checks the plan", square(14, batch=8), 12e-6, GRAPH),
    cost("time-dispatch", "whole call of a small problem, against dense", square(9, batch=8), 1.2, FULL_CALL, "ratio",
         Side("dense", "whole")),
    cost("time-dense", "whole call, against dense", square(14, batch=8), 1 / 65, FULL_CALL, "ratio",
         Side("dense", "whole")),
    cost("time-dense-training", "forward and backward with planning, against dense", square(14, batch=8), 1 / 430, ALL,
         "ratio", Side("dense-autograd", "forward+backward whole")),
    cost("time-compiled", "forward and backward with planning, compiled, against eager", square(9, 14, 20, batch=8),
         1.05, Side(mode="forward+backward compiled"), "ratio", ALL),
    cost("memory-dense-training", "forward and backward, peak memory, against dense", square(14, batch=8), 1 / 100, ALL,
         "memory ratio", Side("dense-autograd", "forward+backward whole")),
)  # fmt: skip

LARGE_SIZES = (
    cost("time-huge-kept", "plan kept", square(29, batch=1), 40e-3, PLANNED),
    cost("time-huge-whole", "whole call with planning", square(29, batch=1), 100e-3, FULL_CALL),
    cost("memory-huge-whole", "whole call with planning, peak memory beyond a, b, x", square(29, batch=1), 22e9,
         FULL_CALL, "memory"),
    cost("time-in-order", "plan kept, anchors in order", square(29, batch=1), 4.4e-3, PLANNED, anchors="in order"),
    cost("time-in-order-fft", "plan kept, anchors in order, against one cuFFT", square(29, batch=1), 0.5, PLANNED,
         "ratio", Side("fft"), anchors="in order"),
    cost("time-billion", "forward and backward with planning, beyond 10^9 dimensions", square(30, batch=1), None, ALL),
    cost("time-two-billion", "whole call", (Size(LARGEST, LARGEST, 1),), None, FULL_CALL),
)  # fmt: skip

RIVALS = Side("fft"), Side("toeplitz")
SWEEPS = (
    cost("sweep-size", "over n", square(*range(10, 21), batch=8), None, PLANNED, also=(FULL_CALL, ALL, *RIVALS)),
    cost("sweep-batch", "over the batch", tuple(Size(1 << 14, 1 << 14, 1 << e) for e in range(9)), None, PLANNED,
         also=(ALL,)),
    cost("sweep-short", "short axis 1024", tuple(Size(1 << e, 1024, 8) for e in range(10, 21, 2)), None, PLANNED),
    cost("sweep-huge", "over n", square(*range(21, 29), batch=1), None, PLANNED, also=(FULL_CALL, *RIVALS)),
)  # fmt: skip

GRAM, GRAM_WHOLE = Side("laplex-gram"), Side("laplex-gram", "whole")
DENSITY = (Size(RANK, PIXELS, 1),)
GRAMS = (
    gram_row("gram-error-float32", "float32 error of a Gram against dense float64", gram_sizes(17), "error", 3e-7),
    cost("gram-time-kept", "a Gram, plan kept", gram_sizes(17), 0.10e-3, GRAM),
    cost("gram-time-whole", "a Gram, whole call", gram_sizes(17), 0.25e-3, GRAM_WHOLE,
         also=(Side("dense-gram", "whole"),)),
    cost("gram-phased-time", "a Gram of a density's size, with phases", DENSITY, 1.5e-3, Side("laplex-gram", "phased")),
    cost("gram-phased-training", "the same, forward and backward", DENSITY, 5e-3,
         Side("laplex-gram", "phased forward+backward")),
    cost("gram-phased-memory", "the same, forward, peak memory with the matrix", DENSITY, 204e6,
         Side("laplex-gram", "phased"), "memory"),
    cost("gram-sweep-time", "a Gram over k", gram_sizes(*range(10, 21)), None, GRAM_WHOLE, also=(GRAM,)),
    cost("gram-sweep-memory", "a Gram over k, peak memory", gram_sizes(10, 14, 17, 20), None, GRAM_WHOLE, "memory"),
)  # fmt: skip

GPU = Suite(
    "gpu",
    "cuda",
    (*ERRORS, *MEDIUM, *TRAINED_TAU, *SMALL_SIZES, *LAYER_ROWS, *GRAMS, *LARGE_SIZES, *SWEEPS),
    GPU_BUDGET,
    committed=True,
)

"""The suites: what is claimed, row by row. README and docs quote figures from these and nothing else."""

import torch

from benchmarks.problems import ANCHORS, Anchors, Measure, Row, Side, Size, Suite
from laplex.testing import Budget

FULL = Budget(min_s=2.0, min_samples=20, max_s=20.0, turn_s=0.05)
BRIEF = Budget(min_s=0.15, min_samples=5, max_s=1.0, turn_s=0.02)

SMALL = (10, 11, 12, 13, 14)  # exponents of n = k at which every row can be checked against the dense matrix
LARGE = (14, 18, 20)
BACKENDS = ("cpp", "torch")


def square(*exponents: int, batch: int) -> tuple[Size, ...]:
    """n = k = 2^e for every exponent."""
    return tuple(Size(1 << e, 1 << e, batch) for e in exponents)


def small_error(backend: str, bar: float, against: Side | None) -> Row:
    """float32 against the dense matrix in float64."""
    below = "" if against is None else ", and below dense float32"
    return Row(
        f"error-float32-{backend}",
        f"float32 error of `{backend}` against dense float64{below}",
        square(*SMALL, batch=8),
        "error",
        bar,
        ours=Side(backend=backend),
        against=against,
    )


def large_error(backend: str, anchors: Anchors, tau: float, bar: float = 2e-7) -> Row:
    """float32 at 2^20, where conditioning and rounding of the anchors would show."""
    return Row(
        f"error-float32-{backend}-{anchors}",
        f"float32 error of `{backend}`, 512 random rows, {ANCHORS[anchors]}, tau = {tau:g}",
        square(20, batch=8),
        "error",
        bar,
        ours=Side(backend=backend),
        anchors=anchors,
        tau=tau,
    )


def float64_error(backend: str) -> Row:
    """float64, every row at the small sizes and 512 random rows at 2^20."""
    return Row(
        f"error-float64-{backend}",
        f"float64 error of `{backend}` against direct sums",
        square(*SMALL, 20, batch=8),
        "error",
        1e-14,
        ours=Side(backend=backend),
        dtype=torch.float64,
    )


CPU_ERRORS = (
    small_error("cpp", 1e-7, Side("dense", "whole")),
    small_error("torch", 2e-7, None),
    *(large_error(backend, "normal", 1.0) for backend in BACKENDS),
    *(large_error(backend, "narrow", 1.0) for backend in BACKENDS),
    *(large_error(backend, "offset", 0.01) for backend in BACKENDS),
    *(float64_error(backend) for backend in BACKENDS),
)

PLANNED, FULL_CALL, BOTH_WAYS = Side(mode="kept"), Side(mode="whole"), Side(mode="forward+backward")
TRAINING = Side(mode="forward+backward whole")

GRAM, DENSE_GRAM = Side("laplex-gram", "whole"), Side("dense-gram", "whole")


def gram_sizes(*exponents: int) -> tuple[Size, ...]:
    """n = 1024 rows and k = 2^e columns for every exponent: the paper's sweep."""
    return tuple(Size(1 << 10, 1 << e, 1) for e in exponents)


def gram_row(name: str, says: str, sizes: tuple[Size, ...], measure: Measure, bar: float | None = None) -> Row:
    """laplex.gram in one call; ratios are to dense."""
    return Row(name, says, sizes, measure, bar, GRAM, DENSE_GRAM if measure.endswith("ratio") else None)


# Two hidden layers, a classifier's head, and a layer that reads an image of 224 x 224 x 3.
LAYERS = (Size(64, 64, 128), Size(4096, 4096, 64), Size(1000, 768, 128), Size(1000, 150_528, 64))
LAYER_ROWS = (
    Row(
        "layer-inference",
        "a layer's forward, plan kept, against torch.nn.Linear of the same shape",
        LAYERS,
        "ratio",
        1.0,
        PLANNED,
        Side("nn.Linear"),
    ),
    Row(
        "layer-training",
        "a layer's forward and backward with planning, against torch.nn.Linear of the same shape",
        LAYERS,
        "ratio",
        1.0,
        TRAINING,
        Side("nn.Linear", "forward+backward whole"),
    ),
)


def celerite_symmetric(name: str, on: str, threads: int | None) -> Row:
    """Both sides in float64 on sorted anchors, b = a: celerite2 at its best. It uses one thread, whatever `threads`."""
    return Row(
        name,
        f"symmetric product, plan kept, on {on}, against celerite2's matmul_lower and matmul_upper; "
        "sorted anchors and float64 on both sides",
        square(*LARGE, batch=1),
        "ratio",
        1.0,
        Side(mode="symmetric"),
        Side("celerite2-symmetric"),
        dtype=torch.float64,
        anchors="in order",
        threads=threads,
    )


CPU_GRAMS = (
    gram_row(
        "gram-error-float32", "float32 error of a Gram against dense float64", gram_sizes(10, 14, 17), "error", 3e-7
    ),
    gram_row("gram-time", "a Gram, whole call, against dense", gram_sizes(17), "ratio", 0.02),
    gram_row("gram-memory", "a Gram, whole call, peak memory against dense", gram_sizes(17), "memory ratio", 0.05),
    gram_row("gram-sweep", "a Gram, whole call, against dense", gram_sizes(10, 12, 14, 16), "ratio"),
    gram_row("gram-sweep-time", "a Gram, whole call", gram_sizes(18, 19, 20), "time"),  # where dense needs gigabytes
    gram_row("gram-sweep-memory", "a Gram, whole call, peak memory", gram_sizes(10, 14, 17, 20), "memory"),
)

CPU_TIMES = (
    Row(
        "time-fft",
        "plan kept, against one torch.fft.fft of n real numbers",
        square(*LARGE, batch=1),
        "ratio",
        1.0,
        PLANNED,
        Side("fft"),
        also=(Side("fft-complex"),),
    ),
    Row(
        "time-toeplitz",
        "plan kept, against Toeplitz-FFT on a uniform grid, its kernel's FFT kept",
        square(*LARGE, batch=1),
        "ratio",
        0.4,
        PLANNED,
        Side("toeplitz"),
    ),
    Row(
        "time-celerite2",
        "plan kept, against celerite2's general_matmul on sorted anchors (float64, all it has)",
        square(*LARGE, batch=1),
        "ratio",
        0.25,
        PLANNED,
        Side("celerite2"),
    ),
    celerite_symmetric("time-celerite2-symmetric", "all threads", None),
    celerite_symmetric("time-celerite2-symmetric-1-thread", "one thread", 1),
    *LAYER_ROWS,
    Row(
        "time-whole",
        "whole call with planning, against Toeplitz-FFT whole",
        square(20, batch=1),
        "ratio",
        1.2,
        FULL_CALL,
        Side("toeplitz", "whole"),
    ),
    Row(
        "time-backward",
        "forward and backward (x, a, b) over forward, plan kept",
        (*square(*LARGE, batch=1), *square(*LARGE, batch=8)),
        "ratio",
        3.0,
        BOTH_WAYS,
        PLANNED,
    ),
    Row(
        "time-dense",
        "plan kept, against dense, which forms K in every call",
        square(14, batch=64),
        "ratio",
        0.01,
        PLANNED,
        Side("dense", "whole"),
        also=(Side("dense", "kept"),),
    ),
    Row(
        "time-short-axis",
        "one short axis, plan kept, against x.clone() of the long side",
        (Size(1 << 20, 1024, 8), Size(1024, 1 << 20, 8)),
        "ratio",
        4.0,
        PLANNED,
        Side("copy"),
        also=(Side("copy-into"),),
    ),
    Row(
        "time-dispatch",
        "whole call of a small problem, against dense",
        (*square(8, batch=1), *square(8, batch=64)),
        "ratio",
        1.3,
        FULL_CALL,
        Side("dense", "whole"),
    ),
    Row(
        "time-solve",
        "solve of the symmetric K + 0.1, plan kept, against celerite2's factor and solve on sorted anchors (float64)",
        (Size(10**5, 10**5, 1), Size(10**6, 10**6, 1)),
        "ratio",
        1.0,
        Side(mode="solve"),
        Side("celerite2-solve"),
        dtype=torch.float64,
    ),
    Row(
        "time-solve-gram",
        "solve and log det of K diag(w) K^T + 0.1, plan kept, against the same of a tenth of n and k: linear is 10",
        (Size(10**6, 10**6, 1),),
        "ratio",
        12.0,
        Side(mode="gram"),
        Side(mode="gram, a tenth"),
        dtype=torch.float64,
    ),
    *CPU_GRAMS,
    Row("time-import", "`import laplex` beyond `import torch`; compiles nothing, writes nothing", (), "import", 0.15),
)

LOOK = (PLANNED, FULL_CALL, Side("toeplitz"), Side("logcumsumexp"), Side("fft"))

QUICK_ROWS = (
    Row(
        "small", "one product", square(10, 12, batch=1), "ratio", ours=PLANNED, also=(*LOOK[1:], Side("dense", "whole"))
    ),
    Row("large", "one product", square(14, 16, 18, batch=1), "ratio", ours=PLANNED, also=LOOK[1:]),
)

QUICK = Suite("quick", "cpu", QUICK_ROWS, BRIEF, committed=False)
CPU = Suite("cpu", "cpu", (*CPU_ERRORS, *CPU_TIMES), FULL, committed=True)

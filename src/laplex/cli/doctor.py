"""`laplex doctor`: what is installed, what can run, and whether it is right."""

from dataclasses import dataclass
from itertools import product

import torch

import laplex
from laplex.bench.inputs import make
from laplex.bench.measures import GATE
from laplex.bench.problems import Mode, Row, Side, Size
from laplex.bench.report import machine, versions
from laplex.bench.sides import build
from laplex.bench.tables import Table

SIZES = (Size(300, 200, 3), Size(2000, 50, 2), Size(1500, 1500, 1))  # both ways to scan, and no power of two
MODES: tuple[Mode, ...] = ("kept", "forward+backward")
DTYPES = (torch.float32, torch.float64)
HEADER = ("backend", "device", "dtype", "worst relative error", "verdict")


@dataclass(frozen=True)
class Findings:
    """What to show, and whether every check passed."""

    tables: list[Table]
    healthy: bool


def examine() -> Findings:
    """Look at everything; a few seconds."""
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    about = versions() | machine(devices[-1])
    answers = laplex.backends.available()
    able = [(name, device) for name, device in product(answers, devices) if _runs(name, device)]
    checks = [_check(name, device, dtype) for (name, device), dtype in product(able, DTYPES)]
    tables = [
        Table("This machine", ("what", "is"), [(name, str(value)) for name, value in about.items()]),
        Table("Backends", ("backend", "available"), list(answers.items())),
        Table("Products and gradients, against the definition in float64", HEADER, checks),
    ]
    return Findings(tables, all(verdict == "pass" for *_, verdict in checks))


def _runs(backend: str, device: str) -> bool:
    """Whether laplex would run it there: a backend that cannot raises RuntimeError."""
    if backend == "triton" and device != "cuda":
        return False  # under Triton's interpreter it would, for tests
    probe = torch.zeros(1, device=device)
    try:
        return laplex.backends.which(probe, probe, probe, backend=backend) == backend
    except RuntimeError:
        return False


def _check(backend: str, device: str, dtype: torch.dtype) -> tuple[str, ...]:
    """One line of the table: the worst error over sizes, of the product and of its gradients."""
    row = Row("doctor", "", SIZES, "error", dtype=dtype)
    errors = [
        build(Side(mode=mode, backend=backend), make(row, size, device)).error(size.n)
        for size, mode in product(SIZES, MODES)
    ]
    worst = max(error for error in errors if error is not None)
    verdict = "pass" if worst <= GATE[dtype] else "wrong"
    return backend, device, str(dtype).removeprefix("torch."), f"{worst:.1e}", verdict

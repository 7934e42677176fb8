"""How the factor of a Gram matrix in plain torch converges, and how large the rounding errors of its pivots are.

    python -m benchmarks.studies.refinement        writes benchmarks/results/refinement-cpu.json

The figures behind ENOUGH and ROUNDS of laplex/_quasisep/torch.py and SINGULAR of laplex/_quasisep/systems.py. The error
of the pivots is the largest |d - exact| / exact over all points. diag is a multiple of M's diagonal, point by point.

guess       after no round, with diag ENOUGH of M's diagonal: what the composition of maps loses
rounds      after 0, 1, 2, ... rounds of Newton's method, for smaller and smaller diag; null where it diverged
            (with n = 1000 against 40 digits, with n = 30000 against the walk in C++, whose error then reads 0)
singular    |d| / A_ii of a pivot whose exact value is 0: its quantiles over many matrices
"""

import json
import math
from decimal import Decimal, getcontext
from pathlib import Path

import numpy
import torch
from torch import Tensor

from benchmarks.report import conditions
from laplex import LaplaceOperator
from laplex._quasisep import ops
from laplex._quasisep import torch as quasi
from laplex._quasisep.arrays import BLOCK, Quasiseparable

OUT = Path(__file__).parents[1] / "results" / "refinement-cpu.json"
SIZE, LARGE = (1_000, 800), (30_000, 20_000)  # n and k: against 40 digits, and against the walk in C++
ENOUGH = (1e-4, 1e-5, 1e-6, 1e-7, 3e-8, 1e-8)
DIAG = (1e-6, 1e-7, 1e-8, 1e-9, 1e-11)
ROUNDS = 10
getcontext().prec = 40


def anchors(kind: str, n: int, k: int) -> tuple[Tensor, Tensor]:
    """a (n,) and b (k,) over a few tau: spread out, in five clusters 1e-6 wide, or with a at only five positions."""
    if kind == "spread":
        return normal(n), normal(k)
    centres = 3 * normal(5)
    if kind == "tied":
        return centres[torch.randint(0, 5, (n,))], 3 * normal(k)
    a, b = (centres[torch.randint(0, 5, (size,))] + 1e-6 * normal(size) for size in (n, k))
    return a, b


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def gram(kind: str, phased: bool, n: int, k: int) -> Quasiseparable:
    """A Gram matrix as the operators see it, with batch 1 and diag = 0."""
    a, b = anchors(kind, n, k)
    phases = {"phi": normal(n), "psi": normal(k)} if phased else {}
    return of_operator(LaplaceOperator(a, b, 1.0, **phases))


def of_operator(kernel: LaplaceOperator) -> Quasiseparable:
    system = kernel.gram()._system("benchmark", 1.0)
    matrix = system.generators.matrix(system.factored.chain.decay)
    return matrix._replace(diag=torch.zeros_like(matrix.diag))


def plus(matrix: Quasiseparable, diag: float) -> Quasiseparable:
    return matrix._replace(diag=diag * entries(matrix))


def entries(matrix: Quasiseparable) -> Tensor:
    """The diagonal (h, n), without diag."""
    return (matrix.p * matrix.q).sum(-1)


def exact(matrix: Quasiseparable) -> Tensor:
    """d (n,) of the first matrix, by the recursion in 40 digits, rounded."""
    decimals = numpy.vectorize(Decimal, otypes=[object])
    decay, p, q, mass, diag = (decimals(part[0].numpy()) for part in matrix)
    block, pivots = BLOCK[mass.shape[-1]], []
    after = decimals(numpy.zeros((p.shape[-1], p.shape[-1])))
    for i in range(len(p)):
        step = decimals(numpy.eye(p.shape[-1]))
        for u in range(block):
            for v in range(block):
                step[u, block + v] = mass[i, u + v]
        state = decay[i] ** 2 * (step @ after @ step.T)
        c = q[i] - state @ p[i]
        pivots.append(diag[i] + p[i] @ c)
        after = state + numpy.outer(c, c) / pivots[-1]
    return torch.tensor([float(pivot) for pivot in pivots], dtype=torch.float64)


def walked(matrix: Quasiseparable) -> Tensor:
    """d (n,) by the walk in C++."""
    return ops.factor(*matrix, False, "cpp")[0][0]


def errors(matrix: Quasiseparable, want: Tensor, rounds: int) -> list[float | None]:
    """The largest relative error of d after 0, 1, ... rounds."""
    steps, worst = quasi._steps(matrix), []
    after = quasi._guess(matrix, steps)
    for _ in range(rounds + 1):
        state = steps @ quasi.previous(after) @ steps.mT
        c = matrix.q - (state @ matrix.p[..., None])[..., 0]
        d = (matrix.diag + (matrix.p * c).sum(-1))[0]
        worst.append(largest(d, want))
        after = quasi.symmetric(after + quasi._correction(matrix, steps, after))
    return worst


def largest(d: Tensor, want: Tensor) -> float | None:
    """The largest relative error; None, for JSON, if d is NaN."""
    worst = float(((d - want).abs() / want).nan_to_num(torch.inf, torch.inf, torch.inf).max())
    return None if math.isinf(worst) else float(f"{worst:.1e}")


def guesses() -> list[dict[str, object]]:
    rows, committed = [], quasi.ENOUGH
    for kind in ("spread", "clusters", "tied"):
        for phased in (False, True):
            matrix, by_constant = gram(kind, phased, *SIZE), {}
            for enough in ENOUGH:
                quasi.ENOUGH = enough
                given = plus(matrix, enough)
                by_constant[f"{enough:g}"] = errors(given, exact(given), 0)[0]
            rows.append({"anchors": kind, "phased": phased, "n": SIZE[0], "error by ENOUGH": by_constant})
            print("guess", *rows[-1].values(), flush=True)
    quasi.ENOUGH = committed
    return rows


def rounds() -> list[dict[str, object]]:
    rows = []
    for size, reference in ((SIZE, exact), (LARGE, walked)):
        for kind in ("spread", "clusters", "tied"):
            for phased in (False, True):
                matrix = gram(kind, phased, *size)
                for diag in DIAG:
                    given = plus(matrix, diag)
                    want = reference(given)
                    row = {"anchors": kind, "phased": phased, "n": size[0], "diag": diag}
                    row |= {"C++": largest(walked(given), want), "by round": errors(given, want, ROUNDS)}
                    rows.append(row)
                    print("rounds", *row.values(), flush=True)
    return rows


def singular(matrices: int = 20_000) -> list[dict[str, object]]:
    """With the last two points equal and their diag = 0, others 1e-3 of M's diagonal: the exact last pivot is 0."""
    rows = []
    for n, k in ((3, 1), (20, 30), (200, 300)):
        for phased in (False, True):
            h = matrices // n
            a, b, phi, psi = 3 * normal(h, n).sort().values, 3 * normal(h, k), normal(h, n), normal(h, k)
            a[:, -1], phi[:, -1] = a[:, -2], phi[:, -2]
            matrix = of_operator(LaplaceOperator(a, b, 1.0, **({"phi": phi, "psi": psi} if phased else {})))
            given = plus(matrix, 1e-3)
            given.diag[:, -2:] = 0
            for backend in ("cpp", "torch"):
                d = ops.factor(*given, False, backend)[0]
                left = (d / entries(given))[:, -1].abs()
                quantiles = {f"{q:g}": float(f"{float(left.quantile(q)):.1e}") for q in (0.5, 0.99, 1.0)}
                rows.append({"backend": backend, "phased": phased, "n": n, "matrices": h, "quantiles": quantiles})
                print("singular", *rows[-1].values(), flush=True)
    return rows


def main() -> None:
    torch.manual_seed(0)
    head = conditions("cpu")
    results = {"guess": guesses(), "rounds": rounds(), "singular": singular()}
    OUT.write_text(json.dumps(head | results, indent=1) + "\n")


if __name__ == "__main__":
    main()

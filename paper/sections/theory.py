"""The printed theorem, and ranks of random matrices."""

from __future__ import annotations

import torch
from torch import Tensor

import laplex
from laplex import reference, testing
from paper.entry import Entry, Figure, Outcome
from paper.judging import claim_verdict, outcome, unjudged
from paper.results import Archive
from paper.running import Measurement, Request, Result, Settings

EXACT = 1e-12  # the relative error, in float64, below which a formula is right
NUMERICAL_SIZE = 64  # up to which the rank is also found from singular values
COMPARISON = "for comparison; not the paper's claim"


# --- Theorem 1 -------------------------------------------------------------------------------------------------------


def _theorem_errors(settings: Settings, request: Request) -> Result:
    """Relative errors, one per draw: of the theorem as it is printed, with a strict upper triangle, and mended."""
    errors: dict[str, list[float]] = {"printed": [], "strict": [], "mended": [], "laplex": []}
    generator = torch.Generator().manual_seed(settings["seed"])
    for _ in range(settings["draws"]):
        x, a, b = torch.randn(3, settings["n"], generator=generator, dtype=torch.float64)
        a = a.sort().values
        truth = reference.linear(x, a, b)
        for name, got in (*_by_theorem(x, a, b).items(), ("laplex", laplex.linear(x, a, b))):
            errors[name].append(testing.relative_error(got, truth))
    return errors


def _by_theorem(x: Tensor, a: Tensor, b: Tensor) -> dict[str, Tensor]:
    """K x by sums over intervals; a (n,) ascends.

    Interval i has the b_j from a_{i-1} up to a_i. The printed sums u, v (n,) have no place for b_j >= a_n, and its
    upper triangle has a diagonal, which counts the b_j just below a_i twice.
    """
    n = len(a)
    interval = torch.searchsorted(a, b, right=True)  # n: beyond the last row anchor
    inside = interval < n
    u, v, beyond = (torch.zeros(n, dtype=a.dtype) for _ in range(3))
    index = interval[inside]
    u.index_add_(0, index, x[inside] * torch.exp(a[index] - b[inside]))
    v.index_add_(0, index, x[inside] * torch.exp(b[inside] - a[index]))
    kernel = reference.kernel(a, a)
    strict = kernel.triu(1) @ u + kernel.tril() @ v
    beyond[-1] = (x[~inside] * torch.exp(a[-1] - b[~inside])).sum()
    return {"printed": kernel.triu() @ u + kernel.tril() @ v, "strict": strict, "mended": strict + kernel @ beyond}


def _theorem(entry: Entry, archive: Archive) -> Outcome | None:
    results = archive.measurement(THEOREM.name).get("cpu")
    if results is None:
        return None
    errors, size = results.runs[-1].result, results.runs[-1].settings["n"]
    draws = len(errors["strict"])
    right = {name: sum(error < EXACT for error in each) for name, each in errors.items()}
    counts = {name: (float(draws), float(count), "draws") for name, count in right.items()}
    verdict = claim_verdict(right["strict"] == draws, False)
    figures = [
        Figure("right with the strict upper triangle of the appendix", *counts["strict"], "higher", verdict),
        unjudged("right as the text prints it", *counts["printed"], "higher", "its triangle has a diagonal"),
        unjudged("right with a last interval, too", *counts["mended"], "higher", COMPARISON),
        unjudged("laplex right", *counts["laplex"], "higher", COMPARISON),
    ]
    reason = (
        f"As the text prints them the formulas are right in {right['printed']} of {draws} draws of {size} anchors, "
        f"and with the strict upper triangle of the appendix in {right['strict']}: they lose every column beyond the "
        f"last row anchor (errors to {max(errors['strict']):.0%}). With an interval for those they are right in "
        f"{right['mended']}."
    )
    return outcome(entry, reason, [results], figures=figures)


# --- Ranks -----------------------------------------------------------------------------------------------------------


def _rank_points(request: Request) -> list[Settings]:
    return [{"n": n, "draws": 5 if request.quick else 50, "seed": request.seed} for n in (64, 4096)]


def _ranks(settings: Settings, request: Request) -> Result:
    """Ranks of K with n random anchors on each side, one per draw; numerical ones where n is small."""
    generator = torch.Generator().manual_seed(settings["seed"])
    exact, numerical = [], []
    for _ in range(settings["draws"]):
        a, b = torch.randn(2, settings["n"], generator=generator, dtype=torch.float64)
        exact.append(int(laplex.rank(a, b)))
        if settings["n"] <= NUMERICAL_SIZE:
            numerical.append(int(torch.linalg.matrix_rank(reference.kernel(a, b))))
    return {"rank": exact, "numerical": numerical}


def _full_rank(entry: Entry, archive: Archive) -> Outcome | None:
    results = archive.measurement(RANKS.name).get("cpu")
    if results is None:
        return None
    figures, words = [], []
    for run in results.runs:
        n, ranks, numerical = run.settings["n"], run.result["rank"], run.result["numerical"]
        full = sum(rank == n for rank in ranks)
        verdict = claim_verdict(2 * full > len(ranks), False)
        label = f"draws of full rank, n = {n}"
        figures.append(Figure(label, float(len(ranks)), float(full), "draws", "higher", verdict))
        words.append(f"n = {n}: {full} of {len(ranks)} draws, ranks {min(ranks) / n:.2f} n to {max(ranks) / n:.2f} n")
        if numerical:
            same = sum(rank == other for rank, other in zip(ranks, numerical, strict=True))
            words[-1] += f" (the same numerically in {same})"
    reason = f"Full rank at {'; '.join(words)}. Anchors that alternate have full rank, and laplex.nn starts with these."
    return outcome(entry, reason, [results], figures=figures)


THEOREM = Measurement(
    "theorem",
    lambda request: [{"n": 8, "draws": 5 if request.quick else 100, "seed": request.seed}],
    _theorem_errors,
)
RANKS = Measurement("rank", _rank_points, _ranks)
ENTRIES = (
    Entry(
        name="theorem-1",
        title="Theorem 1 as it is printed",
        section="Theory",
        source="Theorem 1",
        claim="K x is the sum of an upper and a lower triangular product, of sums over the intervals between "
        "neighbouring row anchors.",
        criterion="Reproduced if the printed formulas, in float64, with the strict upper triangle that the appendix "
        "names, give K x for random anchors; laplex is measured, too.",
        minutes={"cpu": 0.1},
        measure=(THEOREM,),
        judge=_theorem,
    ),
    Entry(
        name="full-rank",
        title="Is a random K of full rank?",
        section="Theory",
        source="Abstract",
        claim="A LAPLEX layer is typically a matrix of full rank.",
        criterion="Reproduced if K with n = k random anchors has full rank in most draws at each size; the rank is "
        "laplex.rank, and for the smallest size also the numerical one.",
        minutes={"cpu": 0.2},
        measure=(RANKS,),
        judge=_full_rank,
    ),
)

"""Calls to be timed, by name, for `compare` and `studies.crossover_gpu`.

Of laplex they use only public names that older versions have, too.
"""

from collections.abc import Callable
from typing import Any

import torch

import laplex

Call = Callable[[], object]
WORK = {  # kind, and sizes: see ``workload``
    "cpu": [
        "kept 14 1", "kept 18 1", "kept 20 1", "kept 14 8", "whole 20 1", "whole 8 1", "whole 8 64", "train 14 1",
        "train 14 8", "train 18 1", "train 18 8", "train 12 64", "long 20 1024 8", "short 20 1024 8", "plan 20",
        "gram 1024 17", "gram_train 512 17", "solve 100000", "solve_train 100000", "gram_solve 100000",
    ],
    "cuda": [
        "kept 14 8", "kept 17 8", "kept 20 1", "kept 20 8", "kept 24 1", "kept 26 1", "whole 9 8", "whole 12 8",
        "whole 14 8", "whole 20 1", "train 12 8", "train 14 8", "train 20 8", "tau 20 8", "long 21 1000 64",
        "short 21 1000 64", "plan 20", "gram 1024 17", "gram_whole 1024 17", "gram_train 1000 20", "solve 100000",
    ],
}  # fmt: skip


def workload(name: str, device: str) -> Call:
    """A call to be timed; E stands for sizes 2^E.

    kept E B, in_order E B            a product of n = k = 2^E with B rows, plan kept; anchors sorted
    whole E B, train E B              the same with planning, and trained
    tau E B                           trained with tau
    long E K B, short E K B           2^E rows and K columns, or the reverse, plan kept
    gram N E, gram_whole, gram_train  a Gram matrix of N rows and 2^E columns
    plan E                            a plan
    solve N, solve_train, gram_solve  (K + 0.1)^-1 y and its log determinant, of K or of a Gram matrix
    """
    kind, *numbers = name.split()
    sizes = [int(number) for number in numbers]

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device)

    if kind.startswith("gram") and kind != "gram_solve":
        return _gram(kind, normal(sizes[0]), normal(1 << sizes[1]), torch.rand(1 << sizes[1], device=device))
    if "solve" in kind:
        return _solve(kind, normal(sizes[0]), normal(sizes[0]))
    n, k = 1 << sizes[0], sizes[1] if kind in ("long", "short") else 1 << sizes[0]
    n, k = (k, n) if kind == "short" else (n, k)
    a, b = normal(n), normal(k)
    if kind == "plan":
        return lambda: laplex.Plan(a, b)
    if kind == "in_order":
        a, b = a.sort().values, b.sort().values
    x = normal(sizes[-1], k)
    if kind in ("train", "tau"):
        tau: Any = torch.ones((), device=device) if kind == "tau" else 1.0
        leaves = [value.requires_grad_() for value in (x, a, b, *([tau] if kind == "tau" else []))]
        g = normal(sizes[-1], n)
        return lambda: torch.autograd.grad(laplex.linear(x, a, b, tau), leaves, g)
    plan = None if kind == "whole" else laplex.Plan(a, b)
    return lambda: laplex.linear(x, a, b, 1.0, plan=plan)


def _gram(kind: str, a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor) -> Call:
    plan = laplex.Plan(a, b) if kind == "gram" else None
    if kind != "gram_train":
        return lambda: laplex.gram(a, b, weight, 1.0, plan=plan)
    leaves, g = [value.requires_grad_() for value in (a, b, weight)], torch.randn_like(laplex.gram(a, b).detach())
    return lambda: torch.autograd.grad(laplex.gram(a, b, weight, 1.0), leaves, g)


def _solve(kind: str, a: torch.Tensor, y: torch.Tensor) -> Call:
    a.requires_grad_(kind == "solve_train")
    K = laplex.LaplaceOperator(a, tau=0.1) if kind != "gram_solve" else laplex.LaplaceOperator(a, a.flip(0), 0.1).gram()

    def call() -> object:
        value = (y @ K.solve(y, 0.1)) + K.logdet(0.1)
        return torch.autograd.grad(value, a) if kind == "solve_train" else value

    return call


def measure(device: str, names: list[str], timing: Any) -> dict[str, float]:
    """Seconds of every workload, with the laplex that is on the path.

    Args:
        timing: the module ``laplex.testing._timing`` of this checkout, because older versions of laplex have none.
    """
    budget = timing.Budget(min_s=0.2, min_samples=20, max_s=1.0, turn_s=0.1)
    seconds = {}
    for name in names:
        torch.manual_seed(0)
        call = workload(name, device)
        call()
        seconds[name] = timing.interleave({name: call}, device, budget, cold=True)[name].median
    return seconds

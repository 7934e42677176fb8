"""Learning to sort images of numbers, with laplex.soft and SoftSort's dense form: same accuracy from the same loss.

    python -m benchmarks.studies.digits_sorted                     writes benchmarks/results/digits-sorted.json
    python -m benchmarks.studies.digits_sorted --quick --out FILE  a few steps, to see that it runs

The task of Grover, Wang, Zweig and Ermon, "Stochastic optimization of sorting networks via continuous relaxations"
(2019), with scikit-learn's digits: four of them to a number, n numbers to a list. A network gives every image a
score, and is told the order of the list, never a number. The loss is the cross entropy of the soft permutation's rows
with that order: from n entries by ``laplex.soft.cross_entropy``, or from the n x n matrix. What is measured, on lists
of digits that were not trained on, is the share of lists completely in order, and of numbers in their right place.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import laplex
from benchmarks.report import COMMITTED, conditions
from benchmarks.studies.learning_rates import digits

SIZES, SEEDS, STEPS, LISTS, RATE, TAU = (3, 5, 9, 15), 5, 3000, 20, 3e-3, 1.0
TESTED = 500  # lists


def network() -> nn.Module:
    """Images (rows, 1, 8, 32) of four digits -> scores (rows, 1); all digits are read in the same way."""
    digit = nn.Conv2d(1, 64, 8, stride=8), nn.ReLU(), nn.Conv2d(64, 32, 1), nn.ReLU()
    return nn.Sequential(*digit, nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))


def draw(data: tuple[Tensor, ...], lists: int, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images (lists * n, 1, 8, 32) and numbers (lists, n)."""
    x, y = data
    chosen = torch.randint(len(x), (lists, n, 4), generator=generator)
    images = x[chosen].unflatten(-1, (8, 8)).movedim(-2, -3).reshape(lists * n, 1, 8, 32)
    return images, (y[chosen] * torch.tensor([1000, 100, 10, 1])).sum(-1)


def dense_loss(scores: Tensor, order: Tensor) -> Tensor:
    """SoftSort as published, with its whole matrix."""
    distance = (scores.sort(-1).values[..., :, None] - scores[..., None, :]).abs()
    return -torch.log_softmax(-distance / TAU, -1).gather(-1, order[..., None]).mean()


def lazy_loss(scores: Tensor, order: Tensor) -> Tensor:
    return laplex.soft.cross_entropy(scores, order, tau=TAU).mean()


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"laplex.soft": lazy_loss, "SoftSort, dense": dense_loss}


def train(name: str, n: int, seed: int, steps: int, data: tuple[Tensor, ...]) -> dict[str, Any]:
    """The accuracies after the last step."""
    torch.manual_seed(seed)
    model, generator = network(), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    begin = time.perf_counter()
    for _ in range(steps):
        images, numbers = draw(data[:2], LISTS, n, generator)
        optimizer.zero_grad()
        LOSSES[name](model(images).reshape(LISTS, n), numbers.argsort(-1)).backward()
        optimizer.step()
        schedule.step()
    elapsed = 1e3 * (time.perf_counter() - begin) / steps
    images, numbers = draw(data[2:], TESTED, n, torch.Generator().manual_seed(10**6))
    with torch.no_grad():
        placed = numbers.gather(-1, model(images).reshape(TESTED, n).argsort(-1))
    right = placed == numbers.sort(-1).values
    accuracies = {"all_right": float(right.all(-1).float().mean()), "each_right": float(right.float().mean())}
    return {"form": name, "n": n, "seed": seed, **accuracies, "ms_per_step": elapsed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--quick", action="store_true", help="two steps from two seeds")
    parser.add_argument("--out", type=Path, default=COMMITTED / "digits-sorted.json")
    options = parser.parse_args()
    seeds, steps = (2, 2) if options.quick else (options.seeds, STEPS)
    report: dict[str, Any] = {"conditions": conditions("cpu"), "steps": steps, "lists": LISTS, "runs": []}
    data = digits(None, "cpu")
    for n in options.sizes:
        for seed in range(seeds):
            for name in LOSSES:
                report["runs"].append(train(name, n, seed, steps, data))
                print(report["runs"][-1], flush=True)
        options.out.write_text(json.dumps(report, indent=1) + "\n")  # after every size, so that no measurement is lost


if __name__ == "__main__":
    main()

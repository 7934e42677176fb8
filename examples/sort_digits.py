"""Learning to sort images: a network is told the order of lists of numbers, never a digit, and learns to score them.

This is the task of NeuralSort and SoftSort, with scikit-learn's digits. The loss needs only n entries of a soft
permutation, so a list may be long. Run it: python examples/sort_digits.py [--n 3, 5, 9 or 15] [--steps 600]
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import laplex

TRAIN, LISTS = 1300, 20


def draw(x: Tensor, y: Tensor, lists: int, n: int) -> tuple[Tensor, Tensor]:
    """Draw lists of n four-digit numbers: images (lists * n, 1, 8, 32), and the numbers (lists, n)."""
    chosen = torch.randint(len(x), (lists, n, 4))
    images = x[chosen].movedim(-2, -3).reshape(lists * n, 1, 8, 32)
    return images, (y[chosen] * torch.tensor([1000, 100, 10, 1])).sum(-1)


def network() -> nn.Module:
    """A network that reads all four digits in the same way, and gives the number a score."""
    digit = nn.Conv2d(1, 64, 8, stride=8), nn.ReLU(), nn.Conv2d(64, 32, 1), nn.ReLU()
    return nn.Sequential(*digit, nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))


def dense_loss(scores: Tensor, order: Tensor) -> Tensor:
    """The same loss, computed from SoftSort's dense matrix."""
    distance = (scores.sort(-1).values[..., :, None] - scores[..., None, :]).abs()
    return -torch.log_softmax(-distance, -1).gather(-1, order[..., None]).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=5)
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()
    torch.manual_seed(0)
    data = load_digits()
    order = torch.randperm(len(data.target))
    x, y = torch.tensor(data.images / 16, dtype=torch.float32)[order], torch.tensor(data.target)[order]

    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    for step in range(options.steps):
        images, numbers = draw(x[:TRAIN], y[:TRAIN], LISTS, options.n)
        scores, wanted = model(images).reshape(LISTS, options.n), numbers.argsort(-1)
        loss = laplex.soft.cross_entropy(scores, wanted, tau=1.0).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"step {step + 1}: loss {float(loss.detach()):.3f}")

    images, numbers = draw(x[TRAIN:], y[TRAIN:], 500, options.n)
    with torch.no_grad():
        placed = numbers.gather(-1, model(images).reshape(500, options.n).argsort(-1))
    right = placed == numbers.sort(-1).values
    each, every = float(right.float().mean()), float(right.all(-1).float().mean())
    print(f"new digits, n = {options.n}: {each:.3f} of the numbers in their place, {every:.3f} of the lists in order")

    # The self-check: the loss equals that of the dense matrix, and the network sorts far better than chance.
    differs = float((loss - dense_loss(scores, wanted)).abs().detach())
    assert differs < 1e-5, f"the loss differs from the dense one by {differs:.1e}"
    assert each > 2 / options.n, f"only {each:.3f} of the numbers are in their place"
    print("OK")


if __name__ == "__main__":
    main()

"""Whether new layers live and learn: units alive in front of a ReLU, and scikit-learn's digits by a small network.

    python -m benchmarks.studies.layer_starts            writes benchmarks/results/layer-starts.json

Live units: in a layer 64 -> 256 in front of a ReLU, for 256 positive inputs; a unit lives if any of them makes it
positive. Digits: a network 64-256-128-10, all of whose layers are replaced, trained by Adam with a learning rate of
3e-3; and the same with the hidden layers started from the weights of a trained network by `init_from`.
"""

import json
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.report import conditions
from laplex.nn import LaplexLinear, replace_linear

OUT = Path(__file__).parents[1] / "results" / "layer-starts.json"
SEEDS, RUNS, EPOCHS, BATCH, RATE = 200, 8, 30, 64, 3e-3


def live_units(kernels: int, seed: int) -> float:
    """The share of a new layer's units that live; of nn.Linear's with 0 kernels."""
    torch.manual_seed(seed)
    layer = LaplexLinear(64, 256, kernels=kernels) if kernels else nn.Linear(64, 256)
    with torch.no_grad():
        return float((layer(torch.rand(256, 64)) > 0).any(0).float().mean())


def digits() -> tuple[torch.Tensor, ...]:
    """Images to fit and others, from 0 to 1, with their classes."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    parts = train_test_split(x / 16, y, test_size=360, random_state=0, stratify=y)
    return tuple(torch.as_tensor(part, dtype=torch.float32 if part.ndim > 1 else torch.int64) for part in parts)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))


def accuracy(model: nn.Module, data: tuple[torch.Tensor, ...], epochs: int = EPOCHS) -> float:
    """The accuracy on held-out images after training."""
    x, others, y, classes = data
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        return float((model(others).argmax(-1) == classes).float().mean())


def from_scratch(kernels: int, seed: int, data: tuple[torch.Tensor, ...]) -> float:
    torch.manual_seed(seed)
    model = network()
    replace_linear(model, kernels=kernels)
    return accuracy(model, data)


def from_weights(kernels: int, seed: int, data: tuple[torch.Tensor, ...]) -> float:
    torch.manual_seed(seed)
    trained = network()
    accuracy(trained, data)
    weights = [part.weight.detach() for part in trained if isinstance(part, nn.Linear)]
    model = network()
    replace_linear(model, kernels=kernels)
    for layer, weight in zip([part for part in model if isinstance(part, LaplexLinear)], weights, strict=True):
        layer.init_from(weight)
    return accuracy(model, data)


def main() -> None:
    torch.set_num_threads(1)
    data = digits()
    results: dict[str, Any] = {"live units": {}, "digits": {}, "init_from": {}}
    for kernels in (0, 1, 2, 4, 8):
        shares = [live_units(kernels, seed) for seed in range(SEEDS)]
        named = f"{kernels} kernels" if kernels else "nn.Linear"
        results["live units"][named] = {"median": statistics.median(shares), "dead layers": shares.count(0.0)}
        print(named, results["live units"][named], flush=True)
    for name, run, sizes in (("digits", from_scratch, (1, 4, 8)), ("init_from", from_weights, (4, 8))):
        for kernels in sizes:
            results[name][f"{kernels} kernels"] = [round(run(kernels, seed, data), 4) for seed in range(RUNS)]
            print(name, kernels, results[name][f"{kernels} kernels"], flush=True)
    head = {**conditions("cpu"), "epochs": EPOCHS, "rate": RATE}
    OUT.write_text(json.dumps(head | {"results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()

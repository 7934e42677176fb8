"""Which learning rates suit LaplexLinear, and which nn.Linear: scikit-learn's digits by networks of many sizes.

    python -m benchmarks.studies.learning_rates                    writes benchmarks/results/learning-rates-DEVICE.json
    python -m benchmarks.studies.learning_rates --pack FILE.npz    writes the data, for a machine without scikit-learn
    python -m benchmarks.studies.learning_rates --data FILE.npz --widths 64 256 1024 4096

A network 64-width-width-10, with GELU between its layers, is trained for 600 steps with AdamW or with gradient descent
with momentum 0.9; both hidden layers are dense, or of kernels, with all defaults. Every step has 64 fresh images:
digits shifted by up to one pixel, with noise, so that a network cannot memorize them. The measure is the mean loss of
the last 60 steps. The rates are powers of two times the lowest. The best rate has the lowest loss, as the geometric
mean over seeds and smoothed over neighbouring rates with weights 1, 2, 1. "regret" is the kernels' loss at the rate
that is best for nn.Linear, relative to their own lowest. Kernels that would need as many parameters as a dense layer
are left out.

"defaults" are accuracies on digits that were not trained on, after 20 epochs without shifts, for rates in common use:
the mean of three seeds, two hidden layers of 256, four kernels.

The constants of ``laplex.nn._scales`` were chosen by trials on the same digits. An earlier version of this study used
the validation loss after 20 epochs, with two seeds: its minima are so flat that the best rate is mostly chance.

All rates and seeds of a size are trained at once, as a batch of matrices; for that this study looks inside laplex.
"""

import argparse
import functools
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.report import COMMITTED, conditions
from laplex import _backends
from laplex._formed.autograd import trained_product
from laplex._formed.kernels import Kernels
from laplex.nn import LaplexLinear

TRAIN, BATCH, STEPS, TAIL, CLASSES = 1300, 64, 600, 60, 10
EPOCHS, SEEDS = 20, 3  # for the defaults
RATES = {"AdamW": [2.5e-4 * 2**i for i in range(8)], "SGD": [0.01 * 2**i for i in range(7)]}
DIVERGED = 10.0  # stands for the loss of a network that diverged


class Network:
    """Networks of one size, one for each run: each seed's initialisation, repeated for each rate."""

    def __init__(self, width: int, kernels: int, seeds: int, rates: int, device: str) -> None:
        self.runs, self.kernels = seeds * rates, kernels
        self.parameters: list[Tensor] = []
        self.taus: list[Tensor] = []
        self.factors: list[float] = []
        self.backend = _backends.load("formed", device)
        for sizes in ((64, width), (width, width), (width, CLASSES)):
            layers = []
            for seed in range(seeds):
                torch.manual_seed(seed)
                dense = kernels == 0 or sizes[1] == CLASSES
                layers.append(nn.Linear(*sizes) if dense else LaplexLinear(*sizes, kernels=kernels))
            self._add(layers, rates, device)

    def _add(self, layers: list[Any], rates: int, device: str) -> None:
        names = ["a", "b", "mix", "bias"] if isinstance(layers[0], LaplexLinear) else ["weight", "bias"]
        for name in names:
            each = torch.stack([getattr(layer, name).detach() for layer in layers]).to(device)
            self.parameters.append(each.repeat(rates, *[1] * (each.dim() - 1)).requires_grad_())
            factors = layers[0]._factors._asdict() if len(names) == 4 else {}
            self.factors.append(factors.get(name, 1.0))
        if len(names) == 4:
            self.taus.append(layers[0].tau.to(device).repeat(self.runs))

    def __call__(self, x: Tensor) -> Tensor:
        """x (rows, 64) -> scores (runs, rows, classes)."""
        parameters, taus = iter(self.parameters), iter(self.taus)
        x = x.expand(self.runs, *x.shape)
        for hidden in (True, True, False):
            if hidden and self.kernels:
                a, b, mix, bias = (next(parameters) for _ in range(4))
                stack = Kernels(a.flatten(0, 1), b.flatten(0, 1), next(taus), mix.flatten(), None, None, self.kernels)
                x = trained_product(x.contiguous(), stack, self.backend) + bias[:, None]
            else:
                weight, bias = next(parameters), next(parameters)
                x = torch.baddbmm(bias[:, None], x, weight.mT)
            x = functional.gelu(x) if hidden else x
        return x

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean loss of each run."""
        scores = self(x)
        each = functional.cross_entropy(scores.flatten(0, 1), y.repeat(self.runs), reduction="none")
        return each.view(self.runs, -1).mean(1)


def adamw(step: int, rate: Tensor, value: Tensor, g: Tensor, state: list[Tensor]) -> None:
    """One step of torch.optim.AdamW with its defaults, and a rate for each run."""
    first, second = state
    value.mul_(1 - 0.01 * rate)
    first.lerp_(g, 0.1)
    second.lerp_(g * g, 0.001)
    value.sub_(rate * (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)).sqrt() + 1e-8))


def sgd(_step: int, rate: Tensor, value: Tensor, g: Tensor, state: list[Tensor]) -> None:
    """One step of torch.optim.SGD with momentum 0.9."""
    velocity = state[0].mul_(0.9).add_(g)
    value.sub_(rate * velocity)


OPTIMIZERS: dict[str, Callable[..., None]] = {"AdamW": adamw, "SGD": sgd}


def shifted(x: Tensor, draws: torch.Generator) -> Tensor:
    """Images (rows, 64) of 8 x 8 pixels, shifted by up to one pixel, with noise."""
    rows, side = len(x), 8
    padded, place = functional.pad(x.view(rows, side, side), (1, 1, 1, 1)), torch.arange(side, device=x.device)
    down, right = (
        torch.randint(0, 3, (rows, 1), generator=draws, device=x.device) + place for _ in range(2)
    )  # (rows, 8) each
    which = torch.arange(rows, device=x.device)[:, None, None]
    moved = padded[which, down[:, :, None], right[:, None, :]].reshape(rows, side * side)
    return moved + 0.1 * torch.randn(moved.shape, generator=draws, device=x.device)


def trained(network: Network, optimizer: str, rates: Tensor, data: tuple[Tensor, ...]) -> Tensor:
    """The mean losses (runs,) of the last steps."""
    x, y = data[:2]
    state = [[torch.zeros_like(value) for _ in range(2)] for value in network.parameters]
    draws, tail = torch.Generator(x.device).manual_seed(7), torch.zeros_like(rates)
    for step in range(1, STEPS + 1):
        rows = torch.randint(len(x), (BATCH,), generator=draws, device=x.device)
        losses = network.losses(shifted(x[rows], draws), y[rows])
        gradients = torch.autograd.grad(losses.sum(), network.parameters)
        tail += losses.detach() / TAIL if step > STEPS - TAIL else 0.0
        with torch.no_grad():
            for value, g, factor, moments in zip(network.parameters, gradients, network.factors, state, strict=True):
                rate = rates.view(-1, *[1] * (value.dim() - 1))
                OPTIMIZERS[optimizer](step, rate, value, g * factor, moments)
    return tail


def curve(width: int, kernels: int, optimizer: str, data: tuple[Tensor, ...], seeds: int) -> dict[str, Any]:
    """The mean loss at each rate, and the best rate."""
    device, grid = str(data[0].device), RATES[optimizer]
    rates = torch.tensor(grid, device=device).repeat_interleave(seeds)
    ended = trained(Network(width, kernels, seeds, len(grid), device), optimizer, rates, data)
    losses = ended.nan_to_num(DIVERGED).clamp(max=DIVERGED).log().view(len(grid), seeds).mean(1).exp().tolist()
    return {"losses": losses, "best": grid[lowest(losses)]}


def lowest(losses: list[float]) -> int:
    """The index of the lowest loss, smoothed over neighbours as logarithms."""
    logs = [math.log(loss) for loss in losses]
    padded = [logs[0], *logs, logs[-1]]
    smooth = [(a + 2 * b + c) / 4 for a, b, c in zip(padded, padded[1:], padded[2:])]
    return smooth.index(min(smooth))


def compared(entry: dict[str, Any], dense: dict[str, Any], optimizer: str) -> dict[str, Any]:
    """A curve for kernels, compared with that of nn.Linear."""
    there = RATES[optimizer].index(dense["best"])
    return entry | {"ratio": entry["best"] / dense["best"], "regret": entry["losses"][there] / min(entry["losses"])}


DEFAULTS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW, 0.001": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    "SGD, 0.03": lambda parameters: torch.optim.SGD(parameters, lr=0.03, momentum=0.9),
    "SGD, 0.1": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}


def accuracy(kind: Callable[..., nn.Module], rule: str, seed: int, data: tuple[Tensor, ...]) -> float:
    """The accuracy on digits that were not trained on, with torch's ordinary modules and optimizers."""
    x, y, others, classes = data
    torch.manual_seed(seed)
    hidden = kind(64, 256), nn.GELU(), kind(256, 256), nn.GELU()
    model = nn.Sequential(*hidden, nn.Linear(256, CLASSES)).to(x.device)
    optimizer = DEFAULTS[rule](model.parameters())
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).to(x.device).split(BATCH):
            optimizer.zero_grad()
            functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        return float((model(others).argmax(-1) == classes).float().mean())


def defaults(data: tuple[Tensor, ...]) -> dict[str, dict[str, list[float]]]:
    """The accuracies of all seeds, by module and rate."""
    kinds: dict[str, Callable[..., nn.Module]] = {
        "nn.Linear": nn.Linear,
        "4 kernels": functools.partial(LaplexLinear, kernels=4),
    }
    return {
        name: {rule: [accuracy(kind, rule, seed, data) for seed in range(SEEDS)] for rule in DEFAULTS}
        for name, kind in kinds.items()
    }


def digits(path: str | None, device: str) -> tuple[Tensor, ...]:
    """Images and classes to train on, and others."""
    packed = np.load(path) if path else pack()
    x, y = (torch.as_tensor(packed[name]).to(device) for name in ("x", "y"))
    return x[:TRAIN].contiguous(), y[:TRAIN], x[TRAIN:].contiguous(), y[TRAIN:]


def pack() -> dict[str, Any]:
    """Scikit-learn's digits in a fixed random order, scaled to [0, 1]."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    return {"x": (x[order] / 16).astype(np.float32), "y": y[order].astype(np.int64)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--kernels", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", help="a file that --pack wrote")
    parser.add_argument("--pack", help="write the data, and nothing else")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.pack:
        np.savez(options.pack, **pack())
        return
    torch.set_float32_matmul_precision("high")
    data, begin = digits(options.data, options.device), time.perf_counter()
    out = options.out or COMMITTED / f"learning-rates-{options.device}.json"
    report: dict[str, Any] = {"conditions": conditions(options.device), "rates": RATES, "defaults": defaults(data)}
    print(report["defaults"], flush=True)
    report["points"] = []
    for point in all_points(options, data):
        report["points"].append(point)
        out.write_text(json.dumps(report, indent=1) + "\n")  # after every point, so that no measurement is lost
        text = " ".join(f"{name} {value}" for name, value in point.items() if name != "losses")
        print(f"{time.perf_counter() - begin:4.0f} s {text}", flush=True)


def all_points(options: argparse.Namespace, data: tuple[Tensor, ...]) -> Iterator[dict[str, Any]]:
    """The curves for all widths, optimizers and kernels; 0 kernels means nn.Linear."""
    for width in options.widths:
        for optimizer in RATES:
            label = {"width": width, "optimizer": optimizer}
            dense = curve(width, 0, optimizer, data, options.seeds)
            yield label | {"kernels": 0} | dense
            for kernels in (r for r in options.kernels if r * 2 * width < width * width):
                entry = curve(width, kernels, optimizer, data, options.seeds)
                yield label | {"kernels": kernels} | compared(entry, dense, optimizer)


if __name__ == "__main__":
    main()

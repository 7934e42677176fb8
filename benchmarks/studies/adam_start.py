"""Where Adam should start on the paper's density: named starts, with 1 to 3 components, by default on ImageNette.

    PYTHONPATH=src python3 -m benchmarks.studies.adam_start --data DIR --out DIR --seconds 400 writes adam-start.json

Every start is trained briefly, then the best ones for each number of components as long as in the paper. Likelihoods
are of validation images; the share is relative to the empirical Gaussian's. `laplex.density._gaussian` has the
constants that were chosen this way.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.report import conditions
from laplex.density import Examples, LaplexGaussian, Trainer, _gaussian, evaluate, images
from paper.methods.empirical import empirical

Start = Callable[[LaplexGaussian, Examples], None]


def chosen(**constants: float) -> Start:
    """The library's start, with other constants."""

    def start(model: LaplexGaussian, examples: Examples) -> None:
        with mock.patch.dict(vars(_gaussian), constants):
            model.start_from(examples)

    return start


def blind(model: LaplexGaussian, examples: Examples) -> None:
    """The start that the class's constructor makes."""
    model.mean.copy_(examples.mean)


def slow_phases(turns: float) -> Start:
    """Let the phases of the knots turn along the line, and match the weights again."""

    def start(model: LaplexGaussian, examples: Examples) -> None:
        model.start_from(examples)
        assert model.psi is not None
        model.psi.copy_(2 * math.pi * turns * torch.linspace(0, 1, model.rank))
        model._match((1 - _gaussian.NOISE**2) * examples.variance)

    return start


def quarter_turns(model: LaplexGaussian, examples: Examples) -> None:
    """Put neighbouring knots a quarter turn apart, so that phases choose between two functions."""
    model.start_from(examples)
    assert model.psi is not None
    model.psi.copy_(torch.arange(model.rank) % 2 * (math.pi / 2))
    model._match((1 - _gaussian.NOISE**2) * examples.variance)


def shared_knots(model: LaplexGaussian, examples: Examples) -> None:
    """Put all components at all knots, with equal functions."""
    model.start_from(examples)
    model._reset_factor(torch.tensor([1.0, 0.3, 0.3])[: model.components, None].expand(-1, model.rank).to(model.b))
    model._match((1 - _gaussian.NOISE**2) * examples.variance)


def large_factor(model: LaplexGaussian, examples: Examples) -> None:
    """Make weights a third as large, and factors three times as large: Adam then moves the weights further."""
    model.start_from(examples)
    model.weight.div_(3)
    if model.triangle is not None:
        model.triangle.log_diagonal.fill_(math.log(3))
    if model.factor is not None:
        model.factor.mul_(3)


def with_latent_covariance(model: LaplexGaussian, examples: Examples) -> None:
    """Take one step of EM for the latent covariance: if z has the second moment T = R R^T, L becomes R^T L."""
    model.start_from(examples)
    posteriors = [model.posterior(examples.some(part)) for part in examples.row_parts()]
    means, capacitance = torch.cat([one for one, _ in posteriors]), posteriors[0][1]
    unit = torch.eye(model.rank, dtype=means.dtype, device=means.device)
    moments = means.mT @ means / len(examples) + capacitance.solve(unit)
    factor = model._latent_factor().to(means)
    if model.triangle is not None:  # the lower triangle with the same L^T L
        inner = factor[0].mT @ moments @ factor[0]
        model.triangle.set(torch.linalg.cholesky((inner + inner.mT).flip(0, 1) / 2).flip(0, 1).mT.to(model.b))
    elif model.factor is not None:
        model.factor.copy_((torch.linalg.cholesky((moments + moments.mT) / 2).mT @ factor).to(model.b))


STARTS: dict[str, Start] = {
    "as chosen": chosen(),
    "as the class makes it": blind,
    "knots 0.001 apart": chosen(SPACING=1e-3),
    "knots 0.002 apart": chosen(SPACING=2e-3),
    "knots 0.02 apart": chosen(SPACING=2e-2),
    "tau of 10 knots": chosen(KNOTS_IN_TAU=10.0),
    "tau of 30 knots": chosen(KNOTS_IN_TAU=30.0),
    "tau of 300 knots": chosen(KNOTS_IN_TAU=300.0),
    "noise 0.5": chosen(NOISE=0.5),
    "noise 0.95": chosen(NOISE=0.95),
    "latent covariance of the data": with_latent_covariance,
    "four turns": slow_phases(4),
    "quarter turns": quarter_turns,
    "large factor": large_factor,
    "components share knots": shared_knots,
    "others 0.1": chosen(OTHERS=0.1),
    "others 1": chosen(OTHERS=1.0),
}
OF_SEVERAL = ("components share knots", "others 0.1", "others 1")  # the same as "as chosen" with one component
Run = dict[str, Any]


def read(given: argparse.Namespace) -> tuple[Examples, Examples]:
    """Images to fit, and 500 others, both minus the mean of the former."""
    options = {"side": given.side, "channels": 3, "progress": lambda done, total: None}
    train, val = (images.load(given.data / f"imagenette224_{part}.npz", **options) for part in ("train0", "val"))
    examples = Examples(train.values[: given.images].to(given.device))
    return examples, Examples(val.values[:500].to(given.device), mean=examples.mean)


def trained(name: str, components: int, epochs: int, given: argparse.Namespace, data: tuple[Examples, Examples]) -> Run:
    """The likelihood of the validation images before and after training."""
    examples, others = data
    torch.manual_seed(0)
    model = LaplexGaussian(examples.dim, given.rank, components, device=given.device)
    with torch.no_grad():
        STARTS[name](model, examples)
    begun, first = time.perf_counter(), evaluate(model, others).log_likelihood
    trainer = Trainer(model, examples, lr=2e-3, batch=64, seed=0, start=False)
    run: Run = {"start": name, "components": components, "epochs": epochs, "before": first}
    try:
        for _ in range(epochs):
            trainer.epoch()
    except FloatingPointError:
        return run | {"diverged in epoch": trainer.epochs, "after": -math.inf}
    knots = (model.b.max() - model.b.min()) / (given.rank - 1)
    run |= {
        "after": evaluate(model, others).log_likelihood,
        "tau in knots": float(model.log_tau.exp().detach() / knots),
    }
    return run | {"seconds": round(time.perf_counter() - begun, 1)}


def finalists(runs: list[Run], components: int, count: int) -> list[str]:
    """The best starts so far for a number of components."""
    candidates = [run for run in runs if run["components"] == components]
    return [run["start"] for run in sorted(candidates, key=lambda run: -float(run["after"]))[:count]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="the folder of imagenette224_train0.npz and imagenette224_val.npz")
    add("--out", type=Path, required=True, help="the folder of adam-start.json")
    add("--seconds", type=float, default=math.inf, help="no run begins later than this")
    add("--device", default="cuda", help="cuda or cpu")
    add("--side", type=int, default=224, help="of the images")
    add("--images", type=int, default=3000, help="how many are fitted")
    add("--rank", type=int, default=1000, help="of the model")
    add("--components", type=int, nargs="+", default=[1, 2, 3], help="how many the model has")
    add("--starts", nargs="+", default=list(STARTS), choices=list(STARTS), metavar="NAME", help=", ".join(STARTS))
    add("--look", type=int, default=8, help="epochs of every start; 0 for none, and all starts are trained in full")
    add("--epochs", type=int, default=25, help="of the best starts")
    add("--best", type=int, default=2, help="how many starts of each number of components are trained in full")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    begun, data = time.perf_counter(), read(given)
    ceiling = evaluate(empirical(*data)[0], data[1]).log_likelihood
    print(f"the empirical Gaussian: {ceiling:.0f}, after {time.perf_counter() - begun:.0f} s", flush=True)
    head = {**conditions(given.device), "empirical": ceiling}
    head |= {name: getattr(given, name) for name in ("side", "images", "rank")}
    runs: list[Run] = []

    def train(name: str, components: int, epochs: int) -> None:
        if time.perf_counter() - begun > given.seconds or (components == 1 and name in OF_SEVERAL):
            return
        run = trained(name, components, epochs, given, data)
        runs.append(run | {"share": run["after"] / ceiling})
        reached = f"{100 * run['after'] / ceiling:5.1f} % {run['after']:7.0f} {time.perf_counter() - begun:4.0f} s"
        print(f"I = {components}, {epochs:2d} epochs, {reached}  {name}", flush=True)
        (given.out / "adam-start.json").write_text(json.dumps(head | {"results": runs}, indent=1) + "\n")

    for name in given.starts if given.look else ():
        for components in given.components:
            train(name, components, given.look)
    looks = list(runs)
    for components in given.components:
        for name in finalists(looks, components, given.best) if given.look else given.starts:
            train(name, components, given.epochs)


if __name__ == "__main__":
    main()

"""How much to shrink the latent covariance: likelihoods of held-out images, and how wild samples are, by the part.

    python -m benchmarks.studies.shrinkage --out DIR                                 the images that come with laplex
    python -m benchmarks.studies.shrinkage --out DIR --name NAME --data SOURCE --val SOURCE --fits q2@1000 --device cuda

It writes DIR/shrinkage-NAME.json. The part that `laplex.density.fit` uses has odds of rank / examples; here several
multiples of these odds are used. Variance and colour are those of samples relative to those of the fitted images, as
in `python -m paper experiment density`.
"""

import argparse
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.report import conditions
from laplex import density
from laplex.density import Examples, State
from laplex.density._em import em_round
from laplex.density._places import Line
from laplex.density._shrinkage import shrunk
from paper.experiments.density_data import read
from paper.experiments.density_runs import spread

FITS, SHARES, ROUNDS = ("q4@600",), (0.0, 0.25, 0.5, 1.0, 2.0, 4.0), 40
CHANNELS = 3


class Images(NamedTuple):
    """Images to fit, and held-out ones."""

    train: Examples
    val: Examples


def images(given: argparse.Namespace) -> Images:
    """The images that the options name; without any, those that come with laplex."""
    if given.data is None:
        fitted, others = (one.values for one in density.images.bundled())
    else:
        fitted, others = (read("data", one, given.side, CHANNELS).values for one in (given.data, given.val))
    train = Examples(fitted[: given.train_count].to(given.device))
    return Images(train, Examples(others[: given.val_count].to(given.device), mean=train.mean))


def part(shrinkage: float, share: float) -> float:
    """The part of the target, for a multiple of the odds of the shrinkage that a fit uses."""
    odds = share * shrinkage / (1 - shrinkage)
    return odds / (1 + odds)


def seconds(call: Callable[[], Any], device: torch.device) -> float:
    """The seconds of the second of two calls."""
    for _ in range(2):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begun = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return time.perf_counter() - begun


def cost(train: Examples, state: State) -> dict[str, float]:
    """Seconds for a round without shrinking, and for shrinking alone."""
    moments = state.root @ state.root.mT
    line = Line(state.knots, state.tau, moments, len(state.weight))
    given = moments, line.spread, state.knots, state.tau
    return {
        "round_seconds": seconds(lambda: em_round(train, state), train.device),
        "shrinking_seconds": seconds(lambda: shrunk(*given, part=0.1, count=len(train)), train.device),
    }


def fitted(data: Images, functions: int, rank: int, share: float, rounds: int, begin: State) -> dict[str, Any]:
    """A fit, as `laplex.density.fit` makes it, with a multiple of its shrinkage."""
    em = density.EM(data.train, begin, rounds)
    em.shrinkage = part(em.shrinkage, share)
    for _ in em:
        pass
    model = em.model()
    return {
        "images": len(data.train),
        "functions": functions,
        "rank": rank,
        "share": share,
        "part": em.shrinkage,
        "held_out": density.evaluate(model, data.val).log_likelihood,
        **spread(model, data.train, CHANNELS),
        **cost(data.train, em.state),
    }


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="the folder of the results")
    add("--name", default="bundled", help="of the images, for the name of the file")
    add("--data", nargs="+", metavar="SOURCE", help="images to fit, as `python -m paper experiment density` takes them")
    add("--val", nargs="+", metavar="SOURCE", help="other images")
    add("--side", type=int, help="images become squares of this side")
    add("--train-count", type=int, help="only the first of --data")
    add("--val-count", type=int, help="only the first of --val")
    add("--fits", nargs="+", default=FITS, metavar="qN@RANK", help="functions and rank")
    add("--shares", nargs="+", type=float, default=SHARES, help="multiples of the odds that a fit takes")
    add("--rounds", type=int, default=ROUNDS)
    add("--device", default="cpu")
    given = parser.parse_args()
    if (given.data is None) != (given.val is None):
        parser.error("--data and --val go together, got one of them")
    return given


def main() -> None:
    """Run every fit at every share, and write each as soon as it is done."""
    given = options()
    data = images(given)
    given.out.mkdir(parents=True, exist_ok=True)
    head = {**conditions(given.device), "rounds": given.rounds}
    results = []
    for word in given.fits:
        functions, rank = map(int, re.findall(r"\d+", word))
        begin = density.start(data.train, rank, functions=functions)
        for share in given.shares:
            begun = time.perf_counter()
            results.append(fitted(data, functions, rank, share, given.rounds, begin))
            took = time.perf_counter() - begun
            shown = {name: round(value, 4) for name, value in results[-1].items()}
            print(given.name, shown, f"{took:.1f} s", flush=True)
            text = json.dumps(head | {"name": given.name, "results": results}, indent=1) + "\n"
            (given.out / f"shrinkage-{given.name}.json").write_text(text)


if __name__ == "__main__":
    main()

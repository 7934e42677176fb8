"""The runs of `python -m paper experiment density`: one variant is fitted, timed and evaluated."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from laplex import density
from laplex.density import Examples, FactorGaussian, LaplexGaussian, PlacedGaussian
from laplex.density._module import Density
from paper.experiments.density_data import Data
from paper.methods.empirical import empirical
from paper.methods.gaussian import LowRankGaussian, ppca, ppca_parameters

METHODS = ("em", "em-adam", "adam", "diagonal", "low-rank", "ppca")  # beside "empirical", which is the ceiling of all
FIGURES = ("log_likelihood", "standard_error", "bits_per_dim", "rmse")  # of an evaluation


@dataclass(frozen=True)
class Variant:
    """What is fitted, and how; 0 or nothing where a method has no such thing."""

    method: str  # one of METHODS, or "empirical"
    rank: int = 0
    functions: int = 0  # q
    components: int = 0  # I
    start: str = ""
    jump: bool = False
    permuted: bool = False  # the pixels


CEILING = Variant("empirical")


@dataclass(frozen=True)
class Recipe:
    """How long EM and Adam go on, and how far a step of Adam goes."""

    rounds: int = 40
    epochs: int = 25
    lr: float = 2e-3
    batch: int = 64
    after_epochs: int = 6  # of Adam after EM
    after_lr: float = 2e-3
    seed: int = 0


SHORT = Recipe(rounds=1, epochs=1, after_epochs=1)
OF_METHOD = {  # what of a recipe a method depends on
    "em": ("rounds", "seed"),
    "em-adam": ("rounds", "seed", "after_epochs", "after_lr", "batch"),
    "adam": ("epochs", "lr", "batch", "seed"),
    "diagonal": ("epochs", "lr", "batch", "seed"),
    "low-rank": ("epochs", "lr", "batch", "seed"),
    "ppca": (),
    "empirical": (),
}


class Fit(NamedTuple):
    """A fitted Gaussian, and the way there."""

    model: Any  # a module or a distribution of laplex.density
    parameters: int
    history: list[list[float]]  # seconds, and the mean log-likelihood of the train examples then
    notes: dict[str, Any]


def settings(data: Data, variant: Variant, recipe: Recipe) -> dict[str, Any]:
    """The key of a run: everything that its result depends on."""
    of_recipe = {name: getattr(recipe, name) for name in OF_METHOD[variant.method]}
    return {"data": data.name, **asdict(variant), **of_recipe}


def measured(data: Data, variant: Variant, recipe: Recipe, ceiling: dict[str, Any] | None) -> dict[str, Any]:
    """Fit and evaluate: the result of a run. ``ceiling`` is that of the empirical Gaussian."""
    if data.device.type == "cuda":
        _warm_up(data, replace(variant, permuted=False), SHORT)
    data = data.permuted if variant.permuted else data
    before = _memory_before(data.device)
    begun = time.perf_counter()
    fit = FITS[variant.method](data, variant, recipe)
    if data.device.type == "cuda":
        torch.cuda.synchronize(data.device)
    result: dict[str, Any] = {
        "parameters": fit.parameters,
        "read_seconds": data.read_seconds,
        "seconds": round(time.perf_counter() - begun, 3),
        "peak_bytes": _memory_peak(data.device, before),
        **fit.notes,
    }
    for part, examples in (("train", data.seen), ("val", data.val), ("test", data.test)):
        if examples is not None:
            result[part] = evaluated(fit.model, examples)
            result[part]["closure"] = _closure(result[part], (ceiling or result)[part])
    result["samples"] = spread(fit.model, data.train, 1 if variant.permuted or data.shape is None else data.shape[2])
    return result | {"history": fit.history}


@cache
def _warm_up(data: Data, variant: Variant, recipe: Recipe) -> None:
    """Fit shortly: the first fit of a kind on a GPU compiles programs, which is not its time."""
    FITS[variant.method](data, variant, recipe)


def _closure(found: dict[str, float], ceiling: dict[str, float]) -> float | None:
    """The likelihood over that of the ceiling; None where that is negative, and the ratio would rise as a fit falls."""
    most = ceiling["log_likelihood"]
    return found["log_likelihood"] / most if most > 0 else None


def evaluated(model: Density | FactorGaussian, examples: Examples) -> dict[str, float]:
    """Likelihood, bits and the error of reconstructions: means over examples."""
    found = density.evaluate(model, examples)
    return {name: float(getattr(found, name)) for name in FIGURES}


@torch.no_grad()
def spread(model: Density | FactorGaussian, examples: Examples, channels: int) -> dict[str, float | None]:
    """How much samples of a model vary, over how much the examples do: in all values, and in colour.

    Colour is a pixel's channels less their mean, and without the noise: that is alone in each number, and colours no
    patch. It is None with one channel. Both are exact: nothing is drawn.
    """
    gaussian = model if isinstance(model, FactorGaussian) else model.distribution()
    ours = gaussian.variance.sum() / examples.variance.sum()
    if channels == 1:
        return {"variance": float(ours), "colour": None}
    drawn = sum(_colour(block, channels) for block in gaussian.columns())
    seen = sum(_colour(examples.rows(part), channels) for part in examples.row_parts())
    return {"variance": float(ours), "colour": float(drawn / (seen / len(examples)))}


def _colour(rows: Tensor, channels: int) -> Tensor:
    """The sum of squares of channels (few, n) less the mean of their pixel."""
    pixels = rows.unflatten(1, (-1, channels))
    total: Tensor = (pixels - pixels.mean(2, keepdim=True)).square().sum()
    return total


def _memory_before(device: torch.device) -> int:
    """Bytes that are taken on a GPU before a fit; from here on its peak is counted."""
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _memory_peak(device: torch.device, before: int) -> int | None:
    """On a GPU the most bytes that a fit took; else the most that the process ever had, where the system counts it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) - before
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


# --- Fits ------------------------------------------------------------------------------------------------------------


def _em(data: Data, variant: Variant, recipe: Recipe) -> Fit:
    fitted = density.fit(
        data.train,
        variant.rank,
        functions=variant.functions,
        places=variant.start,
        shape=data.shape,
        rounds=recipe.rounds,
        jump=variant.jump,
        seed=recipe.seed,
    )
    history = [[round(one.seconds, 3), one.log_likelihood] for one in fitted.history]
    return Fit(fitted.model, _count(fitted.model), history, {})


def _em_then_adam(data: Data, variant: Variant, recipe: Recipe) -> Fit:
    fitted = _em(data, variant, recipe)
    after = _trained(fitted.model, data, recipe.after_epochs, recipe.after_lr, recipe)
    before = fitted.history[-1][0]
    later = [[round(before + seconds, 3), found] for seconds, found in after.history]
    return after._replace(history=fitted.history + later)


def _adam(data: Data, variant: Variant, recipe: Recipe) -> Fit:
    torch.manual_seed(recipe.seed)
    model = LaplexGaussian(data.dim, variant.rank, variant.components, latent=latent_of(variant), device=data.device)
    if variant.start != "raster":  # where the model itself starts
        state = density.start(
            data.train, variant.rank, functions=1, places=variant.start, shape=data.shape, seed=recipe.seed
        )
        with torch.no_grad():
            model.a.copy_(state.a)
    return _from_scratch(model, data, recipe)


def latent_of(variant: Variant) -> str:
    """The kind of the latent covariance of the paper's model."""
    return "diagonal" if variant.method == "diagonal" else "dense"


def _low_rank(data: Data, variant: Variant, recipe: Recipe) -> Fit:
    torch.manual_seed(recipe.seed)
    return _from_scratch(LowRankGaussian(data.dim, variant.rank, device=data.device), data, recipe)


def _ppca(data: Data, variant: Variant, recipe: Recipe) -> Fit:
    return Fit(ppca(data.train, variant.rank), ppca_parameters(data.dim, variant.rank), [], {})


def _empirical(data: Data, variant: Variant, recipe: Recipe) -> Fit:
    gaussian, ridge, _ = empirical(data.train, data.val)
    stored = (len(data.train) + 1) * data.dim  # the examples and their mean, as the paper counts
    return Fit(gaussian, stored, [], {"ridge": ridge, "rank": gaussian.latents})


FITS: dict[str, Callable[[Data, Variant, Recipe], Fit]] = {
    "em": _em,
    "em-adam": _em_then_adam,
    "adam": _adam,
    "diagonal": _adam,
    "low-rank": _low_rank,
    "ppca": _ppca,
    "empirical": _empirical,
}


def _from_scratch(model: Density, data: Data, recipe: Recipe) -> Fit:
    model.mean.copy_(data.train.mean)
    return _trained(model, data, recipe.epochs, recipe.lr, recipe)


def _trained(model: Density, data: Data, epochs: int, lr: float, recipe: Recipe) -> Fit:
    """Train with Adam. Its history has the likelihood of the examples as each epoch saw them; NaN ends it."""
    begun, history = time.perf_counter(), []
    notes = {}
    trainer = density.Trainer(model, data.train, lr=lr, batch=recipe.batch, seed=recipe.seed)
    for epoch in range(epochs):
        try:
            found = trainer.epoch()
        except FloatingPointError:  # the parameters are those before the step that was not finite
            notes = {"diverged_in_epoch": epoch}
            break
        history.append([round(time.perf_counter() - begun, 3), found])
    return Fit(model, _count(model), history, notes)


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def budget(dim: int, variant: Variant) -> int:
    """The parameters of a structured variant, without making it."""
    if variant.functions:
        return _count(PlacedGaussian(dim, variant.rank, variant.functions, device="meta"))
    return _count(LaplexGaussian(dim, variant.rank, variant.components, latent=latent_of(variant), device="meta"))

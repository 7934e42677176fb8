"""The runs of `python -m paper experiment density`: a model is fitted, timed and evaluated."""

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
from paper.experiments.options import option
from paper.methods.empirical import empirical
from paper.methods.gaussian import LowRankGaussian, ppca, ppca_parameters

METHODS = ("em", "em-adam", "adam", "diagonal", "low-rank", "ppca")  # and "empirical", the ceiling of all
FIGURES = ("log_likelihood", "standard_error", "bits_per_dim", "rmse")  # of an evaluation


@dataclass(frozen=True)
class DensitySpec:
    """What is fitted, and from where; 0 or empty where that means nothing to a method."""

    method: str  # one of METHODS, or "empirical"
    rank: int = 0
    functions: int = 0  # q
    components: int = 0  # I
    start: str = ""
    jump: bool = False
    permuted: bool = False  # the pixels


CEILING = DensitySpec("empirical")


@dataclass(frozen=True, kw_only=True)
class FitRecipe:
    """How long EM and Adam run, and how far a step of Adam goes."""

    rounds: int = option("of EM", 40, metavar="N")
    epochs: int = option("of Adam", 25, metavar="N")
    lr: float = option("of Adam", 2e-3, metavar="RATE")
    batch: int = option("images per step", 64, metavar="N")
    after_epochs: int = option("of Adam after EM", 6, metavar="N")
    after_lr: float = option("of Adam after EM", 2e-3, metavar="RATE")
    seed: int = option("of starts and of batches", 0, metavar="N")


SHORT = FitRecipe(rounds=1, epochs=1, after_epochs=1)
RECIPE_FIELDS = {  # what of a recipe a method depends on
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


def settings(data: Data, spec: DensitySpec, recipe: FitRecipe) -> dict[str, Any]:
    """The key of a run: everything that its result depends on."""
    from_recipe = {name: getattr(recipe, name) for name in RECIPE_FIELDS[spec.method]}
    return {"data": data.name, **asdict(spec), **from_recipe}


def measure(data: Data, spec: DensitySpec, recipe: FitRecipe, ceiling: dict[str, Any] | None) -> dict[str, Any]:
    """Fit and evaluate: the result of a run. ``ceiling`` is that of the empirical Gaussian."""
    if data.device.type == "cuda":
        _warm_up(data, replace(spec, permuted=False), SHORT)
    data = data.permuted if spec.permuted else data
    before = _memory_before(data.device)
    start_time = time.perf_counter()
    fit = FITS[spec.method](data, spec, recipe)
    if data.device.type == "cuda":
        torch.cuda.synchronize(data.device)
    result: dict[str, Any] = {
        "parameters": fit.parameters,
        "read_seconds": data.read_seconds,
        "seconds": round(time.perf_counter() - start_time, 3),
        "peak_bytes": _memory_peak(data.device, before),
        **fit.notes,
    }
    for part, examples in (("train", data.train_sample), ("val", data.val), ("test", data.test)):
        if examples is not None:
            result[part] = evaluate(fit.model, examples)
            result[part]["closure"] = _closure(result[part], (ceiling or result)[part])
    result["samples"] = spread(fit.model, data.train, 1 if spec.permuted or data.shape is None else data.shape[2])
    return result | {"history": fit.history}


@cache
def _warm_up(data: Data, spec: DensitySpec, recipe: FitRecipe) -> None:
    """Fit shortly: the first fit of a kind on a GPU compiles programs, which is not its time."""
    FITS[spec.method](data, spec, recipe)


def _closure(part: dict[str, float], ceiling: dict[str, float]) -> float | None:
    """The likelihood over that of the ceiling; None where that is negative, and the ratio would rise as a fit falls."""
    most = ceiling["log_likelihood"]
    return part["log_likelihood"] / most if most > 0 else None


def evaluate(model: Density | FactorGaussian, examples: Examples) -> dict[str, float]:
    """Likelihood, bits and the error of reconstructions: means over examples."""
    evaluation = density.evaluate(model, examples)
    return {name: float(getattr(evaluation, name)) for name in FIGURES}


@torch.no_grad()
def spread(model: Density | FactorGaussian, examples: Examples, channels: int) -> dict[str, float | None]:
    """How much samples of a model vary, over how much the examples do: in all values, and in colour.

    Colour is a pixel's channels less their mean, and without the noise: each number has its own, so it colours no
    patch. It is None with one channel. Both are exact: nothing is drawn.
    """
    gaussian = model if isinstance(model, FactorGaussian) else model.distribution()
    ours = gaussian.variance.sum() / examples.variance.sum()
    if channels == 1:
        return {"variance": float(ours), "colour": None}
    sampled = sum(_colour(block, channels) for block in gaussian.columns())
    observed = sum(_colour(examples.rows(part), channels) for part in examples.row_parts())
    return {"variance": float(ours), "colour": float(sampled / (observed / len(examples)))}


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


def _em(data: Data, spec: DensitySpec, recipe: FitRecipe) -> Fit:
    fit = density.fit(
        data.train,
        spec.rank,
        functions=spec.functions,
        places=spec.start,
        shape=data.shape,
        rounds=recipe.rounds,
        jump=spec.jump,
        seed=recipe.seed,
    )
    history = [[round(one.seconds, 3), one.log_likelihood] for one in fit.history]
    return Fit(fit.model, _count(fit.model), history, {})


def _em_then_adam(data: Data, spec: DensitySpec, recipe: FitRecipe) -> Fit:
    fit = _em(data, spec, recipe)
    after = _train(fit.model, data, recipe.after_epochs, recipe.after_lr, recipe)
    before = fit.history[-1][0]
    later = [[round(before + seconds, 3), likelihood] for seconds, likelihood in after.history]
    return after._replace(history=fit.history + later)


def _adam(data: Data, spec: DensitySpec, recipe: FitRecipe) -> Fit:
    torch.manual_seed(recipe.seed)
    model = LaplexGaussian(data.dim, spec.rank, spec.components, latent=_latent(spec), device=data.device)
    if spec.start != "raster":  # where the model itself starts
        state = density.start(data.train, spec.rank, functions=1, places=spec.start, shape=data.shape, seed=recipe.seed)
        with torch.no_grad():
            model.a.copy_(state.a)
    return _from_scratch(model, data, recipe)


def _latent(spec: DensitySpec) -> str:
    """The kind of the latent covariance of the paper's model."""
    return "diagonal" if spec.method == "diagonal" else "dense"


def _low_rank(data: Data, spec: DensitySpec, recipe: FitRecipe) -> Fit:
    torch.manual_seed(recipe.seed)
    return _from_scratch(LowRankGaussian(data.dim, spec.rank, device=data.device), data, recipe)


def _ppca(data: Data, spec: DensitySpec, recipe: FitRecipe) -> Fit:
    return Fit(ppca(data.train, spec.rank), ppca_parameters(data.dim, spec.rank), [], {})


def _empirical(data: Data, spec: DensitySpec, recipe: FitRecipe) -> Fit:
    gaussian, ridge = empirical(data.train, data.val)
    stored = (len(data.train) + 1) * data.dim  # the examples and their mean, as the paper counts
    return Fit(gaussian, stored, [], {"ridge": ridge, "rank": gaussian.latents})


FITS: dict[str, Callable[[Data, DensitySpec, FitRecipe], Fit]] = {
    "em": _em,
    "em-adam": _em_then_adam,
    "adam": _adam,
    "diagonal": _adam,
    "low-rank": _low_rank,
    "ppca": _ppca,
    "empirical": _empirical,
}


def _from_scratch(model: Density, data: Data, recipe: FitRecipe) -> Fit:
    model.mean.copy_(data.train.mean)
    return _train(model, data, recipe.epochs, recipe.lr, recipe)


def _train(model: Density, data: Data, epochs: int, lr: float, recipe: FitRecipe) -> Fit:
    """Train with Adam. Its history has the likelihood of the examples as each epoch saw them; NaN ends it."""
    start_time, history = time.perf_counter(), []
    notes = {}
    trainer = density.Trainer(model, data.train, lr=lr, batch=recipe.batch, seed=recipe.seed)
    for epoch in range(epochs):
        try:
            likelihood = trainer.epoch()
        except FloatingPointError:  # the parameters are those before the step that was not finite
            notes = {"diverged_in_epoch": epoch}
            break
        history.append([round(time.perf_counter() - start_time, 3), likelihood])
    return Fit(model, _count(model), history, notes)


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def budget(dim: int, spec: DensitySpec) -> int:
    """The parameters of a structured model, without making it."""
    if spec.functions:
        return _count(PlacedGaussian(dim, spec.rank, spec.functions, device="meta"))
    return _count(LaplexGaussian(dim, spec.rank, spec.components, latent=_latent(spec), device="meta"))

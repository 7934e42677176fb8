"""One run of a network: the same training step for every method, captured in a CUDA graph where there is a GPU.

A step gathers its batch, computes loss and gradients, clips them, sets the learning rate and moves the parameters. All
that changes from step to step is read on the device at the place of a counter: the numbers that name the batch, and the
learning rate. So a graph of one step is a graph of every step, and the host only launches it.
"""

from __future__ import annotations

import contextlib
import gc
import io
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from paper.experiments.jobs import JobError
from paper.experiments.network_tasks import Task

EAGER_STEPS = 3  # before a capture: what is set up at the first call is set up
LOOKS = 250  # steps between two looks at the loss, which make the host wait
CURVE = 50  # points of the loss curve
TIMED_STEPS, UNTIMED_STEPS = 100, 20
PRECISIONS = ("high", "highest", "bf16")  # TF32 products, float32 products, or bfloat16 by autocast


@dataclass(frozen=True)
class Recipe:
    """AdamW without weight decay: the rate rises over ``warm_up`` steps, and falls to 0 as a cosine does."""

    lr: float
    steps: int
    precision: str = "high"
    warm_up: int = 100
    clip: float = 1.0

    def factors(self) -> Tensor:
        """The learning rate of each step (steps,), relative to ``lr``."""
        step = torch.arange(self.steps, dtype=torch.float64)
        rise = ((step + 1) / self.warm_up).clamp_max(1)
        return (rise * 0.5 * (1 + torch.cos(math.pi * step / self.steps))).float()


class Training:
    """A network and all that its training steps need, on the device of the task.

    Args:
        net: the network, which is moved to the device.
        task: what it learns.
        recipe: rate, steps and precision.
        seed: of the batches.
    """

    def __init__(self, net: nn.Module, task: Task, recipe: Recipe, seed: int) -> None:
        self.draws = task.draws(recipe.steps, seed)
        device = self.draws.device
        self.net, self.task, self.recipe = net.to(device), task, recipe
        self.on_gpu = device.type == "cuda"
        self.factors = recipe.factors().to(device)
        self.losses = torch.zeros(recipe.steps, device=device)
        self.counter = torch.zeros(1, dtype=torch.long, device=device)
        self.optimizer = torch.optim.AdamW(
            _groups(net, recipe.lr, device), weight_decay=0.0, fused=True, capturable=self.on_gpu
        )

    def step(self) -> None:
        """One step, without a look at any value."""
        self.optimizer.zero_grad(set_to_none=True)
        with autocast(self.recipe.precision, self.draws.device):
            loss = self.task.loss(self.net, self.draws.index_select(0, self.counter)[0])
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), self.recipe.clip)
        factor = self.factors.index_select(0, self.counter)[0]
        for group in self.optimizer.param_groups:
            group["lr"].copy_(factor * group["peak"])
        self.optimizer.step()
        with torch.no_grad():
            self.losses.index_copy_(0, self.counter, loss.detach().float()[None])
            self.counter += 1

    def captured(self, name: str) -> Callable[[], None]:
        """A function that makes a step: on a GPU it launches a graph, after a few steps that are made one by one.

        JobError, which has the name, where the step cannot be captured.
        """
        if not self.on_gpu:
            return self.step
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(min(EAGER_STEPS, self.recipe.steps)):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self.step()
        except RuntimeError as error:
            cause = error.__context__ or error  # the end of a broken capture raises again, and says less
            raise JobError(f"a training step of {name} cannot be captured in a CUDA graph: {cause}") from error
        return graph.replay

    @property
    def done(self) -> int:
        """Steps that were made."""
        return int(self.counter)

    @property
    def diverged(self) -> bool:
        """Whether a loss or a parameter is no longer finite."""
        return not all(bool(one.isfinite().all()) for one in (self.losses, *self.net.parameters()))

    def run(self, name: str) -> bool:
        """Make all steps; False as soon as the run is seen to have diverged."""
        make_step = self.captured(name)
        for step in range(self.done, self.recipe.steps):
            make_step()
            # On the CPU laplex raises for anchors that are not finite, so there a look follows every step.
            if (not self.on_gpu or step % LOOKS == 0) and self.diverged:
                return False
        return not self.diverged


def _groups(net: nn.Module, lr: float, device: torch.device) -> list[dict[str, Any]]:
    """Parameters by their learning rates; a layer may ask for a multiple of ``lr`` (``rate_scales``)."""
    scales = {
        id(module.get_parameter(name)): scale
        for module in net.modules()
        for name, scale in getattr(module, "rate_scales", {}).items()
    }
    by_scale: dict[float, list[nn.Parameter]] = {}
    for parameter in net.parameters():
        by_scale.setdefault(scales.get(id(parameter), 1.0), []).append(parameter)
    return [
        {"params": members, "lr": torch.zeros((), device=device), "peak": scale * lr}
        for scale, members in by_scale.items()
    ]


# --- Runs ------------------------------------------------------------------------------------------------------------


def train(net: nn.Module, task: Task, recipe: Recipe, seed: int, name: str) -> dict[str, Any]:
    """Train, and validate: losses, the task's figure, the loss curve, and what the training holds in memory.

    A run whose loss or parameters are no longer finite has diverged, and has no figures.
    """
    with product_precision(recipe.precision):
        training = Training(net, task, recipe, seed)
        good = training.run(name)
        figures: dict[str, Any] = dict(_validate(net, task, recipe)) if good else {"loss": None}
    return figures | {"diverged": not good, "curve": _curve(training), "bytes": _bytes(training)}


def time_steps(net: nn.Module, task: Task, recipe: Recipe, name: str) -> dict[str, Any]:
    """Seconds of a training step and, on a GPU, the peak of the memory that network and training take there."""
    timed, untimed = (min(count, recipe.steps) for count in (TIMED_STEPS, UNTIMED_STEPS))
    with product_precision(recipe.precision), _peak_memory(task) as peak:
        training = Training(net, task, replace(recipe, steps=EAGER_STEPS + untimed + timed), 0)
        make_step = training.captured(name)
        for _ in range(untimed):
            make_step()
        before = _now(training)
        for _ in range(timed):
            make_step()
        seconds = (_now(training) - before) / timed
    return {"seconds_per_step": seconds, "peak_bytes": peak.get("bytes"), "steps": timed}


@contextlib.contextmanager
def _peak_memory(task: Task) -> Iterator[dict[str, int]]:
    """The most bytes of a GPU that are in use inside, besides those in use before: "bytes", when it ends."""
    peak: dict[str, int] = {}
    device = task.draws(1, 0).device
    if device.type != "cuda":
        yield peak
        return
    gc.collect()  # the graph of an earlier run holds its memory
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    yield peak
    peak["bytes"] = torch.cuda.max_memory_allocated(device) - before


def _now(training: Training) -> float:
    """The time, when the device has done all that it was asked."""
    if training.on_gpu:
        torch.cuda.synchronize(training.draws.device)
    return time.perf_counter()


@torch.no_grad()
def _validate(net: nn.Module, task: Task, recipe: Recipe) -> dict[str, float]:
    net.eval()
    with autocast(recipe.precision, next(net.parameters()).device):
        return task.validate(net)


def _curve(training: Training) -> list[float | None]:
    """Losses, averaged over as many steps as make about 50 points; None where they are not finite, or not reached."""
    losses = training.losses[: training.done].double().cpu()
    parts = losses.split(max(1, -(-training.recipe.steps // CURVE)))
    means = [float(part.mean()) for part in parts if len(part)]
    return [round(mean, 4) if math.isfinite(mean) else None for mean in means]


def _bytes(training: Training) -> dict[str, int]:
    """What training holds besides activations, and what is stored in the end."""
    states = [one for state in training.optimizer.state.values() for one in state.values() if isinstance(one, Tensor)]
    gradients = [one.grad for one in training.net.parameters() if one.grad is not None]
    buffer = io.BytesIO()
    torch.save(training.net.state_dict(), buffer)
    return {
        "gradients": sum(one.nbytes for one in gradients),
        "optimizer": sum(one.nbytes for one in states),
        "checkpoint": buffer.tell(),
    }


# --- Precision -------------------------------------------------------------------------------------------------------


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Bfloat16 where it was asked for; its cache of cast weights would outlive a captured step."""
    if precision != "bf16":
        return contextlib.nullcontext()
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


@contextlib.contextmanager
def product_precision(precision: str) -> Iterator[None]:
    """Float32 products of this precision inside, and the caller's own after it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "highest" else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)

"""Training on the exact likelihood by Adam, in minibatches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from laplex import _autocast
from laplex._checks import counts
from laplex._eager import is_dtensor
from laplex.density._examples import Examples, check_examples
from laplex.density._gaussian import LaplexGaussian
from laplex.distributed._agreement import agree_if_spread
from laplex.distributed._ranks import Ranks

WHERE = "laplex.density.Trainer"
LOOK = 16  # steps between two checks that all was finite: a check waits for the device


class Trainer:
    """Adam on the mean log-likelihood of minibatches.

    Batches of epoch e are drawn with a seed made of ``seed`` and e, so that a fit that is resumed after an epoch
    continues as if it had not been interrupted.

    Args:
        model: a density: a module whose forward gives log-likelihoods (B,) of x (B, n), such as
            :class:`laplex.density.LaplexGaussian`, or a DistributedDataParallel of one. If ``examples`` are spread over
            processes, these must train it together: a DistributedDataParallel, or a module of DTensor parameters.
        examples: the examples to fit. Their mean must be the model's, which ``start`` ensures, or
            ``model.mean.copy_(examples.mean)``.
        lr: the learning rate.
        batch: the number of examples in a step, over all processes.
        seed: determines the order of examples.
        share: (index, count) of this process among those that train together; each takes its part of every batch.
            Not given if ``examples`` are spread over processes: then each takes equally many of its own, and leaves
            out any that it has in excess.
        start: whether a new model starts from the examples, if it can
            (:meth:`laplex.density.LaplexGaussian.start_from`). A model that was trained, loaded or started before
            continues from where it is.
    """

    def __init__(
        self,
        model: nn.Module,
        examples: Examples,
        *,
        lr: float | Tensor = 2e-3,
        batch: int = 64,
        seed: int = 0,
        share: tuple[int, int] = (0, 1),
        start: bool = True,
    ) -> None:
        spread = examples.ranks if isinstance(examples, Examples) else None
        agree_if_spread(WHERE, spread, lambda: _terms(model, examples, lr, batch, seed, share, start))
        self.model, self.examples, self.batch, self.seed, self.epochs = model, examples, int(batch), int(seed), 0
        self._share = _share(share, examples)
        # All processes must take equally many steps, so each uses as many of its own examples as every process has.
        self._fewest = None if examples.ranks is None else _fewest(examples.ranks, len(examples))
        if start:
            _start(model, examples, self.seed)
        self._accepted = False  # whether the model has accepted examples of this kind
        self._optimizer = torch.optim.Adam(model.parameters(), lr=float(_rate(lr)), fused=True)
        # A gradient scaler that never scales: a fused optimizer then skips, on the device and without involving the
        # host, every step whose gradients are not finite, and the scale falls below 1.
        self._watch = torch.amp.GradScaler(examples.device.type, init_scale=1.0, growth_interval=2**31 - 1)
        self._one = torch.ones((), dtype=torch.float64, device=examples.device)

    def epoch(self) -> float:
        """Take one step per full batch; returns the mean log-likelihood, of each batch before its step.

        If several processes train together, it is that of this process's part of every batch.

        Raises:
            FloatingPointError: the gradients of a batch are not finite; the parameters are those before its step. Or an
                earlier step led to parameters that have no likelihood; these are kept.
        """
        total = torch.zeros((), dtype=torch.float64, device=self.examples.device)
        batches = self._batches()
        for number, rows in enumerate(batches):
            total += self._checked_step(self.examples.some(rows))
            if number % LOOK == LOOK - 1:
                self._require_finite()
        self._require_finite()
        self.epochs += 1
        return float(total) / len(batches)

    def _checked_step(self, x: Tensor) -> Tensor:
        """Take a step. If the model refuses examples but accepted earlier ones, steps have spoiled its parameters."""
        try:
            likelihood = self.step(x)
        except ValueError as error:
            if not self._accepted:
                raise
            raise FloatingPointError(
                f"laplex.density.Trainer: in epoch {self.epochs} a step led to parameters that the model refuses "
                f"({error}); go back to an earlier state, and use a smaller `lr`"
            ) from None
        self._accepted = True
        return likelihood

    @_autocast.unaffected
    def step(self, x: Tensor) -> Tensor:
        """Take a step on examples (B, n). Returns their mean log-likelihood before it, and waits for no device."""
        self._optimizer.zero_grad(set_to_none=True)
        likelihood: Tensor = self.model(x).mean()
        # Once a step was skipped, all are, until the host checks: the parameters stay as they were before it.
        alive = torch.where(self._watch.scale(self._one) < 1.0, torch.nan, self._one)
        self._watch.scale(-likelihood / x.shape[-1] * alive).backward()
        self._watch.step(self._optimizer)
        self._watch.update()
        return likelihood.detach()

    def _require_finite(self) -> None:
        if self._watch.get_scale() < 1.0:
            self._watch.update(1.0)
            raise FloatingPointError(
                f"laplex.density.Trainer: the likelihood or its gradient was not finite in epoch {self.epochs}; the "
                "parameters are those before that step; use a smaller `lr`, or check the examples"
            )

    def state_dict(self) -> dict[str, Any]:
        """What a fit needs to resume, besides the model: the optimizer's averages and the number of epochs."""
        return {"optimizer": self._optimizer.state_dict(), "epochs": self.epochs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state_dict``."""
        self._optimizer.load_state_dict(state["optimizer"])
        self.epochs = state["epochs"]

    def _batches(self) -> list[Tensor]:
        """This process's row numbers in each batch of this epoch."""
        generator = torch.Generator().manual_seed(((self.seed << 20) + self.epochs) % 2**63)
        order = torch.randperm(len(self.examples), generator=generator, device="cpu")
        index, count = self._share
        if self._fewest is not None:  # all of its own
            order, index, count = order[: self._fewest], 0, 1
        batch = self.batch if self._fewest is None else self.batch // self._share[1]
        size = min(batch, len(order) // count * count)  # so that all processes have equally many
        # On the device of the values: an index on the host would make every step wait for the device.
        batches = order[: len(order) // size * size].to(self.examples.values.device).split(size)
        return [rows[index::count] for rows in batches]


def _terms(
    model: nn.Module, examples: Examples, lr: float | Tensor, batch: int, seed: int, share: tuple[int, int], start: bool
) -> dict[str, Any]:
    """Check the arguments, and return what must be the same on all processes that have a part of the examples each."""
    if not isinstance(model, nn.Module) or not any(one.requires_grad for one in model.parameters()):
        raise TypeError(
            f"{WHERE}: `model` must be a module with parameters that require gradients, got {type(model).__name__}; "
            "give a laplex.density.LaplexGaussian that is not frozen"
        )
    check_examples(WHERE, examples)
    rate = counts.positive(WHERE, "lr", _rate(lr))
    counts.integer(WHERE, "batch", batch)
    if examples.ranks is not None and share != (0, 1):
        raise ValueError(f"{WHERE}: `share` must be left out where `examples` have a group of their own, got {share}")
    _require_shared(WHERE, model, examples)
    index, count = _share(share, examples)
    if not 0 <= index < count:
        raise ValueError(f"{WHERE}: `share` must be (index, count) with index from 0 to count - 1, got {share}")
    if batch % count:
        raise ValueError(f"{WHERE}: `batch` must be a multiple of the {count} processes, got {batch}")
    if examples.count < count:
        raise ValueError(f"{WHERE}: `examples` must be at least one per process, got {examples.count} for {count}")
    counts.seed(WHERE, seed)
    shapes = {name: tuple(one.shape) for name, one in model.named_parameters() if one.requires_grad}
    return {"`lr`, `batch` and `start`": (rate, int(batch), bool(start)), "the parameters of `model`": shapes}


def _rate(lr: float | Tensor) -> float:
    return lr.item() if isinstance(lr, Tensor) else lr


def _share(share: tuple[int, int], examples: Examples) -> tuple[int, int]:
    """(index, count) of this process; examples that are spread over processes provide it."""
    return share if examples.ranks is None else (examples.ranks.rank, examples.ranks.size)


def _require_shared(where: str, model: nn.Module, examples: Examples) -> None:
    """Raise if every process would train a model of its own, on its own examples."""
    if examples.ranks is None or examples.ranks.size == 1 or isinstance(model, DistributedDataParallel):
        return
    if not any(is_dtensor(one) for one in model.parameters()):
        raise TypeError(
            f"{where}: `model` must be trained by all processes together where `examples` have a group, got "
            f"{type(model).__name__}; wrap it in torch.nn.parallel.DistributedDataParallel"
        )


def _fewest(ranks: Ranks, own: int) -> int:
    """How many examples the process with the fewest has."""
    return int(ranks.gathered(torch.tensor(own, device=ranks.device)).min())


def _start(model: nn.Module, examples: Examples, seed: int) -> None:
    """Start a model that is still untrained; with DistributedDataParallel, on all processes as on the first one."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    if not (isinstance(inner, LaplexGaussian) and inner._knows_nothing()):
        return
    inner.start_from(examples, seed=seed)
    if isinstance(model, DistributedDataParallel):  # which had given all processes the same parameters
        first = torch.distributed.get_global_rank(model.process_group, 0)
        for one in (*inner.parameters(), *inner.buffers()):
            torch.distributed.broadcast(one.detach(), first, group=model.process_group)

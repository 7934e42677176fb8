"""Fits of a density by processes that have a part of the examples each: they reach what one reaches that has all."""

import functools
import re

import gloo_processes
import pytest
import torch
import torch.distributed as dist
from test_shared_fits import caught, smooth

from helpers import error
from laplex import density
from laplex.density import _examples
from laplex.density._examples import Examples

RANKS = 4
PARTS = {1: (61,), 2: (40, 61), 4: (5, 30, 31, 61)}  # where the part of each process ends
FIGURES = {"rank": 12, "rounds": 10}  # annealed
groups = {}


def group_of(size):
    if size == RANKS:
        return dist.group.WORLD
    if size not in groups:
        groups[size] = dist.new_group(list(range(size)))
    return groups[size]


def own(values, size):
    """The part of this process, of a few sizes."""
    ends, rank = (0, *PARTS[size]), dist.get_rank()
    return values[ends[rank] : ends[rank + 1]]


def evaluated(model, examples):
    return list(density.evaluate(model, examples))


def quiet(done, total):
    pass


def apart(size, dtype, places):
    """The history, parameters and evaluation of a fit by the first `size` processes."""
    group = group_of(size)
    if dist.get_rank() >= size:
        return []
    examples = Examples(own(smooth(dtype=dtype), size), group=group)
    model, history = density.fit(examples, **FIGURES, places=places, progress=quiet)
    likelihoods = [done.log_likelihood for done in history]
    return likelihoods, dict(model.state_dict()), evaluated(model, examples), (examples.mean, examples.variance)


def far_from_zero():
    """Mean and variance keep their digits."""
    examples = Examples(own(smooth(dtype=torch.float64) + 1e8, 4), group=group_of(4))
    return examples.mean - 1e8, examples.variance


def adam():
    """Parameters after some epochs of Adam, the same on all processes."""
    group = group_of(2)
    if dist.get_rank() >= 2:
        return {}
    examples = Examples(own(smooth(dtype=torch.float64), 2), group=group)
    torch.manual_seed(dist.get_rank())  # the first process's start is that of all
    model = density.LaplexGaussian(90, 6, dtype=torch.float64)
    parallel = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    trainer = density.Trainer(parallel, examples, batch=10, lr=1e-2)
    likelihoods = [trainer.epoch() for _ in range(4)]
    assert len(trainer._batches()) == 21 // 5  # of the process with fewer
    return {"likelihoods": likelihoods, "evaluation": evaluated(model, examples), "model": dict(model.state_dict())}


def numbers_at_a_time():
    """The most that is read at once in a round, where parts differ in size, and the bound."""
    read, features, bound = [], Examples.features, 1 << 8
    examples = Examples(own(smooth(), 2 if dist.get_rank() < 2 else 4)[:40], group=dist.group.WORLD)
    em = density.EM(examples, density.start(examples, 12), 1)

    def noted(self, part):
        values = features(self, part)
        read.append(values.numel())
        return values

    Examples.features, before, _examples.BLOCK = noted, _examples.BLOCK, bound
    try:
        for _ in em:
            pass
    finally:
        Examples.features, _examples.BLOCK = features, before
    return max(read), len(read), bound


def unreadable_on_one():
    """An error while the values are read, as of a disk that is gone."""
    values = own(smooth(), 4)
    some = Examples.some

    def failing(self, rows):
        raise ValueError("the disk is gone")

    Examples.some = failing if dist.get_rank() == 2 else some
    try:
        return caught(lambda: Examples(values, group=dist.group.WORLD))
    finally:
        Examples.some = some


def other_features():
    values = smooth(dim=90 - dist.get_rank())
    return caught(lambda: Examples(own(values, 4), group=dist.group.WORLD))


def not_finite_on_one():
    values = own(smooth(), 4).clone()
    if dist.get_rank() == 2:
        values[0, 3] = torch.nan
    return caught(lambda: Examples(values, group=dist.group.WORLD))


def two_groups():
    examples = Examples(own(smooth(), 4), group=dist.group.WORLD)
    state = density.start(examples, 12)
    return caught(lambda: density.EM(examples, state, group=dist.group.WORLD))


def share_of_a_part():
    examples = Examples(own(smooth(), 4), group=dist.group.WORLD)
    return caught(lambda: density.Trainer(density.LaplexGaussian(90, 6), examples, share=(0, 2)))


def a_model_of_its_own():
    examples = Examples(own(smooth(), 4), group=dist.group.WORLD)
    return caught(lambda: density.Trainer(density.LaplexGaussian(90, 6), examples, batch=8))


def on_one(wrong, right):
    return wrong if dist.get_rank() == 2 else right


def device_without_numbers_on_one():
    return caught(lambda: Examples(own(smooth(), 4), on_one("meta", None), group=dist.group.WORLD))


def mean_of_another_order_on_one():
    mean = torch.arange(90.0)
    return caught(lambda: Examples(own(smooth(), 4), mean=on_one(mean.flip(0), mean), group=dist.group.WORLD))


def wrong_rank_on_one():
    examples = Examples(own(smooth(), 4), group=dist.group.WORLD)
    return caught(lambda: density.start(examples, on_one(5, 4)))


def other_places_on_one():
    examples = Examples(own(smooth(), 4), group=dist.group.WORLD)
    return caught(lambda: density.start(examples, 4, places=on_one("raster", "tree")))


def wrong_rounds_on_one():
    examples = Examples(own(smooth(), 4), group=dist.group.WORLD)
    return caught(lambda: density.fit(examples, 4, rounds=on_one(0, 2), progress=quiet))


def wrong_progress_on_one():
    examples = Examples(own(smooth(), 4), group=dist.group.WORLD)
    return caught(lambda: density.fit(examples, 4, rounds=2, progress=on_one(3, quiet)))


def trainer_with(**options):
    examples = Examples(own(smooth(), 4), group=dist.group.WORLD)
    parallel = torch.nn.parallel.DistributedDataParallel(density.LaplexGaussian(90, 6))
    return caught(lambda: density.Trainer(parallel, examples, **{"batch": 8} | options))


def wrong_lr_on_one():
    return trainer_with(lr=on_one(-1.0, 1e-3))


def other_batch_on_one():
    return trainer_with(batch=on_one(4, 8))


def density_of_other_features_on_one():
    examples = Examples(own(smooth(), 4), group=dist.group.WORLD)
    model = density.LaplexGaussian(on_one(89, 90), 6)
    return caught(lambda: density.evaluate(model, examples))


def equal_examples():
    examples = Examples(torch.ones(5, 8), group=dist.group.WORLD)
    return caught(lambda: density.start(examples, 4))


APART = {
    f"{size} processes, {dtype}, {places}": (size, dtype, places)
    for size, dtype, places in (
        (1, torch.float32, "raster"), (2, torch.float32, "raster"), (4, torch.float32, "raster"),
        (2, torch.float64, "tree"), (4, torch.float64, "raster"),
    )
}  # fmt: skip
FAULTS = {
    other_features: r"the number of features and the dtype of `values` must be the same on all ranks, got \(90",
    equal_examples: "`examples` must differ from one another, got 20 that are equal",
    unreadable_on_one: "rank 2: the disk is gone",
    not_finite_on_one: "`values` must be finite; 1 of 90 features have NaN or infinity in some example",
    two_groups: "`group` must be None where `examples` have a group of their own",
    a_model_of_its_own: "`model` must be trained by all processes .* got LaplexGaussian; wrap it in .*DataParallel",
    device_without_numbers_on_one: "rank 2: laplex.density.Examples: `values` and `device` must not be on the meta",
    mean_of_another_order_on_one: r"`mean` \(a digest of its values\) must be the same on all ranks",
    wrong_rank_on_one: "rank 2: laplex.density.start: `rank` must be a multiple of `functions`",
    other_places_on_one: "`places` must be the same on all ranks, got tree on rank 0 and raster on rank 2",
    wrong_rounds_on_one: "rank 2: laplex.density.fit: `rounds` must be at least 1, got 0",
    wrong_progress_on_one: r"rank 2: laplex.density.fit: `progress` must be a function of \(done, total\) or None",
    wrong_lr_on_one: "rank 2: laplex.density.Trainer: `lr` must be positive and finite, got -1.0",
    other_batch_on_one: r"`lr`, `batch` and `start` must be the same on all ranks, got \(0.002, 8, True\) on rank 0",
    density_of_other_features_on_one: "rank 2: laplex.density.evaluate: `examples` must have the 89 features",
    share_of_a_part: "`share` must be left out where `examples` have a group of their own",
}


def checks():
    table = {name: functools.partial(apart, *row) for name, row in APART.items()}
    return table | {check.__name__: check for check in (far_from_zero, adam, numbers_at_a_time, *FAULTS)}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return gloo_processes.start(checks, RANKS, tmp_path_factory.mktemp("apart"))


@pytest.mark.parametrize("name", APART)
def test_parts_are_fitted_as_the_whole(name, results):
    size, dtype, places = APART[name]
    assert gloo_processes.failures(results, name) == {}
    examples = Examples(smooth(dtype=dtype))
    likelihoods, parameters, evaluation, (mean, variance) = results[0][name]
    if dtype == torch.float32:  # a process without a group rounds otherwise, and a jump may depend on the last bit
        wanted, state, figures, _ = results[0]["1 processes, torch.float32, raster"]
    else:
        model, history = density.fit(examples, **FIGURES, places=places, progress=quiet)
        wanted, state = [done.log_likelihood for done in history], model.state_dict()
        figures = evaluated(model, examples)
    assert likelihoods == pytest.approx(wanted, rel=1e-6)
    assert evaluation == pytest.approx(figures, rel=1e-5)
    assert error(mean, examples.mean) <= 1e-6
    assert error(variance, examples.variance) <= 1e-6
    for one, value in state.items():
        assert error(parameters[one], value) <= (1e-3 if dtype == torch.float32 else 1e-9), one
    for rank in range(1, size):  # to the bit
        assert results[rank][name][0] == likelihoods
        assert all(torch.equal(value, parameters[one]) for one, value in results[rank][name][1].items())


def test_mean_and_variance_of_parts_far_from_zero(results):
    assert gloo_processes.failures(results, "far_from_zero") == {}
    near = smooth(dtype=torch.float64)
    for mean, variance in (mine["far_from_zero"] for mine in results):
        assert error(mean, near.mean(0)) <= 1e-6
        assert error(variance, near.var(0, correction=0)) <= 1e-6


def test_adam_over_parts(results):
    assert gloo_processes.failures(results, "adam") == {}
    first, second = (mine["adam"] for mine in results[:2])
    assert first["likelihoods"] != second["likelihoods"]  # of their own batches
    assert first["evaluation"] == second["evaluation"]
    assert all(torch.equal(value, second["model"][name]) for name, value in first["model"].items())
    assert sum(first["likelihoods"][-1:]) > first["likelihoods"][0]


def test_what_is_read_at_a_time_is_bounded(results):
    assert gloo_processes.failures(results, "numbers_at_a_time") == {}
    figures = [mine["numbers_at_a_time"] for mine in results]
    assert all(most <= bound for most, _, bound in figures)
    assert len({number for _, number, _ in figures}) == 1, "all take the same steps"


@pytest.mark.parametrize("check", FAULTS)
def test_parts_that_do_not_fit_together(check, results):
    assert gloo_processes.failures(results, check.__name__) == {}
    texts = {mine[check.__name__][0] for mine in results}
    assert len(texts) == 1
    assert re.search(FAULTS[check], texts.pop())

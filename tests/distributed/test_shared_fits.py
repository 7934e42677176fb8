"""Fits of a density whose rounds are shared by processes: all reach the state that one process reaches."""

import functools
import re

import gloo_processes
import pytest
import torch
import torch.distributed as dist

from helpers import error
from laplex import density

RANKS = 4
FIGURES = {"rank": 12, "rounds": 10}  # annealed
groups = {}


def smooth(count=61, dim=90, dtype=torch.float32):
    """Examples of a smooth process over places that are shuffled."""
    generator = torch.Generator().manual_seed(0)
    places = torch.rand(dim, generator=generator, dtype=torch.float64)
    covariance = torch.exp(-((places[:, None] - places) ** 2) / 0.02) + 0.02 * torch.eye(dim, dtype=torch.float64)
    drawn = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    return (drawn @ torch.linalg.cholesky(covariance).mT + 3.0).to(dtype)


def fit(values, group=None):
    return density.fit(density.Examples(values), **FIGURES, progress=lambda done, total: None, group=group)


def shared(size, count, dtype):
    """The history, and the parameters, of a fit that the first `size` processes share."""
    if size not in groups:
        groups[size] = dist.new_group(list(range(size)))
    if dist.get_rank() >= size:
        return None
    model, history = fit(smooth(count, dtype=dtype), groups[size])
    return [done.log_likelihood for done in history], {name: one.detach() for name, one in model.state_dict().items()}


def other_examples():
    values = smooth(61 if dist.get_rank() != 2 else 60)
    return caught(lambda: fit(values, dist.group.WORLD))


def other_values():
    values = smooth()
    values[0, 0] += dist.get_rank()
    return caught(lambda: fit(values, dist.group.WORLD))


def wrong_rank_on_one():
    options = FIGURES | {"rank": 13 if dist.get_rank() == 2 else 12, "progress": lambda done, total: None}
    return caught(lambda: density.fit(density.Examples(smooth()), **options, group=dist.group.WORLD))


def state_of_another_size():
    examples = density.Examples(smooth())
    state = density.start(examples, 12)
    wrong = density.start(density.Examples(smooth(dim=80)), 12)
    return caught(lambda: density.EM(examples, wrong if dist.get_rank() == 1 else state, group=dist.group.WORLD))


def caught(call):
    try:
        call()
    except (TypeError, ValueError) as error:
        return [str(error)]
    return ["nothing was raised"]


SHARED = {
    f"{size} processes, {count} examples, {dtype}": (size, count, dtype)
    for size, count, dtype in (
        (1, 61, torch.float32), (2, 61, torch.float32), (3, 61, torch.float64), (4, 61, torch.float32),
        (4, 3, torch.float64),
    )
}  # fmt: skip
FAULTS = {
    wrong_rank_on_one: "rank 2: laplex.density.start: `rank` must be a multiple of `functions`, .* got 13 and 2",
    other_examples: r"the shape of the examples must be the same .*, got \(61, 90\) on rank 0 and \(60, 90\) on rank 2",
    other_values: "the mean and variance of the examples, summed, must be the same on all ranks",
    state_of_another_size: "rank 1: laplex.density.EM: `state` must have the 90 features of the examples, got 80",
}


def checks():
    table = {name: functools.partial(shared, *row) for name, row in SHARED.items()}
    return table | {check.__name__: check for check in FAULTS}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return gloo_processes.start(checks, RANKS, tmp_path_factory.mktemp("fits"))


@pytest.mark.parametrize("name", SHARED)
def test_shared_rounds_are_those_of_one_process(name, results):
    size, count, dtype = SHARED[name]
    assert gloo_processes.failures(results, name) == {}
    model, history = fit(smooth(count, dtype=dtype))
    wanted = [done.log_likelihood for done in history]
    likelihoods, parameters = results[0][name]
    assert likelihoods == pytest.approx(wanted, rel=1e-6)
    for one, value in model.state_dict().items():
        assert error(parameters[one], value) <= (1e-3 if dtype == torch.float32 else 1e-9), one
    for rank in range(1, size):  # to the bit
        assert results[rank][name][0] == likelihoods
        assert all(torch.equal(value, parameters[one]) for one, value in results[rank][name][1].items())


@pytest.mark.parametrize("check", FAULTS)
def test_processes_agree_on_what_they_fit(check, results):
    assert gloo_processes.failures(results, check.__name__) == {}
    texts = {mine[check.__name__][0] for mine in results}
    assert len(texts) == 1
    assert re.search(FAULTS[check], texts.pop())

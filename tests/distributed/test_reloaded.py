"""Checkpoints by torch.distributed.checkpoint: saved by two processes, loaded by four, saved again, loaded by one."""

import tempfile
from pathlib import Path

import gloo_processes
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoints
from test_shared_fits import smooth
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from helpers import error
from laplex import density, distributed, linear
from laplex.nn import LaplexLinear

RANKS = 4
SIZES = (2, 4, 1)


def carried(begin, go_on):
    """What the first process has after `begin(mesh)` by two, and `go_on(mesh, folder)` by four and then by one."""
    folders, result = [tempfile.mkdtemp()], None
    dist.broadcast_object_list(folders)
    for number, size in enumerate(SIZES):
        mesh = DeviceMesh("cpu", list(range(size)))  # made by all
        if dist.get_rank() < size:
            before = Path(folders[0], str(number - 1))
            result, state = begin(mesh) if number == 0 else go_on(mesh, before)
            checkpoints.save(state, checkpoint_id=before.with_name(str(number)), process_group=mesh.get_group())
        dist.barrier()
    return result


def loaded(state, mesh, folder):
    checkpoints.load(state, checkpoint_id=folder, process_group=mesh.get_group())
    return state


def anchors():
    """Places and values, of sizes that no number of processes divides; every time the same product."""
    torch.manual_seed(0)
    values = {"x": torch.randn(3, 11).double(), "a": torch.randn(9), "b": torch.randn(11)}
    wanted = linear(**values, tau=0.6)

    def sharded(mesh, scale):
        return {name: distribute_tensor(scale * value, mesh, [Shard(-1)]) for name, value in values.items()}

    def go_on(mesh, folder):
        state = loaded(sharded(mesh, 0.0), mesh, folder)
        y = distributed.linear(**state, tau=0.6, plan=distributed.Plan(state["a"], state["b"]))
        assert error(y.full_tensor(), wanted) <= 1e-14
        return True, state

    return carried(lambda mesh: (True, sharded(mesh, 1.0)), go_on)


def layer():
    """A LaplexLinear whose parameters FSDP shards; every step is that of one process."""
    x = torch.randn(8, 13, generator=torch.Generator().manual_seed(1)).double()

    def model(seed):
        torch.manual_seed(seed)
        return LaplexLinear(13, 10, kernels=3, phase=True, train_tau=True).double()

    def step(one):
        one.zero_grad()
        one(x).square().sum().backward()
        torch.optim.SGD(one.parameters(), lr=1e-3).step()
        return dict(one.state_dict())

    def begin(mesh):
        return None, step(fully_shard(model(0), mesh=mesh))

    def go_on(mesh, folder):
        one = model(2)
        if mesh.size() > 1:
            fully_shard(one, mesh=mesh)
        one.load_state_dict(loaded(dict(one.state_dict()), mesh, folder))
        state = step(one)
        return state, state

    wanted = model(0)
    for _ in SIZES:
        step(wanted)
    result = carried(begin, go_on)
    return dist.get_rank() > 0 or {name: error(result[name], value) for name, value in wanted.state_dict().items()}


def fit():
    """The state of EM: nine rounds in three parts, of two, four and one processes, and in one."""
    examples = density.Examples(smooth())

    def rounds(state, last, mesh):
        em = density.EM(examples, state, last, schedule=9, group=mesh.get_group())
        return [done.log_likelihood for done in em], dict(vars(em.state))

    def begin(mesh):
        return rounds(density.start(examples, 12), 3, mesh)

    def go_on(mesh, folder):
        blank = dict(vars(density.start(examples, 12, seed=1)))
        state = density.State(**loaded(blank, mesh, folder))
        return rounds(state, state.round + 3, mesh)

    result = carried(begin, go_on)
    if dist.get_rank() > 0:
        return True
    history = list(density.EM(examples, density.start(examples, 12), 9))
    return result, [done.log_likelihood for done in history[6:]]


def checks():
    return {check.__name__: check for check in (anchors, layer, fit)}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return gloo_processes.start(checks, RANKS, tmp_path_factory.mktemp("reloaded"))


def test_anchors(results):
    assert gloo_processes.failures(results, "anchors") == {}


def test_a_layer(results):
    assert gloo_processes.failures(results, "layer") == {}
    assert max(results[0]["layer"].values()) <= 1e-13


def test_the_state_of_em(results):
    assert gloo_processes.failures(results, "fit") == {}
    reached, wanted = results[0]["fit"]
    assert reached == pytest.approx(wanted, rel=1e-6)

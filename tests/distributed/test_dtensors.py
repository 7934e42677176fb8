"""DTensors in and out, and checkpoints of them that are loaded by another number of processes."""

import re
import tempfile

import gloo_processes
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoints
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import laplex
from helpers import error
from laplex import distributed

RANKS = 3
LAST, COPIED = Shard(-1), Replicate()


def sample():
    """Sizes that 3 does not divide, the same on every rank."""
    torch.manual_seed(0)
    a, b, x = torch.randn(10), torch.randn(8), torch.randn(4, 8)
    return {"x": x.double(), "a": a.double(), "b": b.double(), "tau": torch.tensor(0.6).double()}


def mesh(size=RANKS):
    return DeviceMesh("cpu", list(range(size)))


def placed(values, placements, where=None):
    where = where or mesh()
    return {
        name: distribute_tensor(
            value, where, [placements.get(name, COPIED if name == "tau" else LAST)]
        ).requires_grad_()
        for name, value in values.items()
    }


def sharded(placements):
    """The product and all gradients of DTensors, against those of one process."""
    values = sample()
    leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
    want = laplex.linear(**leaves)
    want.square().sum().backward()
    tensors = placed(values, placements)
    y = distributed.linear(**tensors)
    assert y.placements == (placements.get("a", LAST) if placements.get("a") == COPIED else Shard(1),)
    assert error(y.full_tensor(), want) <= 1e-14
    y.to_local().square().sum().backward()  # what is replicated has one gradient, as DTensors have it
    for name, value in tensors.items():
        assert value.grad.placements == value.placements, name
        assert error(value.grad.full_tensor(), leaves[name].grad) <= 1e-13, name


def all_sharded():
    sharded({})


def operand_replicated():
    sharded({"x": COPIED})


def rows_replicated():
    sharded({"a": COPIED})


def tau_of_a_number():
    values = sample()
    tensors = placed({name: values[name] for name in "xab"}, {})
    y = distributed.linear(**tensors, tau=0.6, plan=distributed.Plan(tensors["a"].detach(), tensors["b"].detach()))
    assert error(y.full_tensor(), laplex.linear(values["x"], values["a"], values["b"], 0.6)) <= 1e-14


def plan_of_local_parts():
    """It was made without a group; the mesh has the group of all processes."""
    values = sample()
    tensors = placed({name: values[name] for name in "xab"}, {})
    plan = distributed.Plan(tensors["a"].to_local().detach(), tensors["b"].to_local().detach())
    y = distributed.linear(**tensors, tau=0.6, plan=plan)
    assert error(y.full_tensor(), laplex.linear(values["x"], values["a"], values["b"], 0.6)) <= 1e-14


def reloaded():
    """Anchors that three ranks saved, loaded by two and by one; plans are made again."""
    values = sample()
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    checkpoints.save(placed(values, {}), checkpoint_id=folder[0])
    for size in (2, 1):
        part = mesh(size)  # made by all
        if dist.get_rank() < size:
            blank = placed({name: torch.zeros_like(value) for name, value in values.items()}, {}, part)
            state = {name: value.detach() for name, value in blank.items()}
            checkpoints.load(state, checkpoint_id=folder[0], process_group=part.get_group())
            y = distributed.linear(**state, plan=distributed.Plan(state["a"], state["b"]))
            assert error(y.full_tensor(), laplex.linear(**values)) <= 1e-14
        dist.barrier()


def plain_among_dtensors():
    values = placed(sample(), {})
    return caught(lambda: distributed.linear(**values | {"b": values["b"].to_local()}))


def sharded_rows_of_operand():
    return caught(lambda: distributed.linear(**placed(sample(), {"x": Shard(0)})))


def sharded_tau():
    values = sample() | {"tau": torch.ones(3).double()}
    return caught(lambda: distributed.linear(**placed(values, {"tau": Shard(0)})))


def rows_replicated_on_one():
    values = placed(sample(), {})
    if dist.get_rank() == 1:
        values["a"] = DTensor.from_local(values["a"].to_local(), mesh(), [COPIED], run_check=False).requires_grad_()
    return caught(lambda: distributed.linear(**values))


def scalar_rows_on_one():
    values = placed(sample(), {})
    if dist.get_rank() == 1:
        values["a"] = DTensor.from_local(torch.tensor(1.0), mesh(), [COPIED], run_check=False)
    return caught(lambda: distributed.linear(**values))


def two_dimensions():
    flat = DeviceMesh("cpu", [[0, 1, 2]])
    values = {name: distribute_tensor(value, flat, [COPIED, COPIED]) for name, value in sample().items()}
    return caught(lambda: distributed.linear(**values))


def two_meshes():
    values, other = placed(sample(), {}), DeviceMesh("cpu", [0, 1, 2], mesh_dim_names=("other",))
    values["b"] = distribute_tensor(sample()["b"], other, [LAST])
    return caught(lambda: distributed.linear(**values))


def group_that_is_not_the_meshs():
    values, pair = placed(sample(), {}), dist.new_group([0, 1])  # made by all
    return caught(lambda: distributed.linear(**values, group=pair if dist.get_rank() < 2 else None))


def caught(call):
    try:
        call()
    except (TypeError, ValueError) as error:
        return [str(error)]
    return ["nothing was raised"]


GOOD = (all_sharded, operand_replicated, rows_replicated, tau_of_a_number, plan_of_local_parts, reloaded)
FAULTS = {
    plain_among_dtensors: "`b` must be a DTensor where others are, got a plain tensor",
    sharded_rows_of_operand: r"`x` must be placed as Shard\(-1\) or Replicate\(\), got S",
    sharded_tau: r"`tau` must be placed as Replicate\(\), got S",
    rows_replicated_on_one: "the placements must be the same on all ranks, got .* on rank 0 and .* on rank 1",
    scalar_rows_on_one: "rank 1: laplex.distributed.linear: `a` must have at least one dimension, got a scalar",
    two_dimensions: "the mesh must have one dimension, got 2; use one of its submeshes",
    group_that_is_not_the_meshs: "rank 0: laplex.distributed.linear: `group` must be left out where there are DTensors",
    two_meshes: "`b` must be on the mesh of the other DTensors",
}


def checks():
    return {check.__name__: check for check in (*GOOD, *FAULTS)}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return gloo_processes.start(checks, RANKS, tmp_path_factory.mktemp("tensors"))


@pytest.mark.parametrize("check", GOOD)
def test_dtensors(check, results):
    assert gloo_processes.failures(results, check.__name__) == {}


@pytest.mark.parametrize("check", FAULTS)
def test_dtensors_that_are_refused(check, results):
    assert gloo_processes.failures(results, check.__name__) == {}
    texts = {mine[check.__name__][0] for mine in results}
    assert len(texts) == 1
    assert re.search(FAULTS[check], texts.pop())

"""laplex.linear of DTensors that are sharded over leading dimensions, and layers whose long side is spread."""

import re

import gloo_processes
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import laplex
from helpers import error
from laplex import distributed

RANKS = 2
COPIED, FIRST, SECOND = Replicate(), Shard(0), Shard(1)


def mesh():
    return DeviceMesh("cpu", list(range(RANKS)))


def random(*shape):
    return torch.randn(shape).double()


def compare(values, placements, **options):
    """The product of DTensors and all its gradients, against those of one process."""
    leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
    want = laplex.linear(**leaves, **options)
    want.square().sum().backward()
    where = mesh()
    tensors = {
        name: distribute_tensor(value, where, [placements.get(name, COPIED)]).requires_grad_()
        for name, value in values.items()
    }
    y = laplex.linear(**tensors, **options)
    assert y.placements == (placements["x"],)
    assert error(y.full_tensor(), want) <= 1e-14
    y.square().sum().backward()
    for name, value in tensors.items():
        assert error(value.grad.full_tensor(), leaves[name].grad) <= 1e-12, name


def single(x_shape=(5, 8), **more):
    return {"x": random(*x_shape), "a": random(10), "b": random(8), "tau": torch.tensor(0.6).double()} | more


def batched():
    sides = {"a": random(3, 10), "b": random(3, 8), "tau": torch.rand(3).double() + 0.3}
    return {"x": random(3, 4, 8), **sides, "phi": random(3, 10), "psi": random(3, 8)}


PRODUCTS = {
    "rows": lambda: compare(single(), {"x": FIRST}),
    "rows, scanned": lambda: compare(single(), {"x": FIRST}, backend="cpp"),
    "rows, in torch": lambda: compare(single(), {"x": FIRST}, backend="torch"),
    "one row for two ranks": lambda: compare(single((1, 8)), {"x": FIRST}),
    "second dimension": lambda: compare(single((2, 5, 8)), {"x": SECOND}),
    "phases": lambda: compare(single(phi=random(10), psi=random(8)), {"x": FIRST}),
    "replicated": lambda: compare(single(), {"x": COPIED}),
    "rows of a batch": lambda: compare(batched(), {"x": SECOND}),
    "matrices of a batch": lambda: compare(batched(), dict.fromkeys(("x", "a", "b", "tau", "phi", "psi"), FIRST)),
    "weighted": lambda: compare(
        {"x": random(5, 8), "a": random(3, 10), "b": random(3, 8), "weight": random(3)}, {"x": FIRST}
    ),
}


def plain_anchors():
    """Anchors that are ordinary tensors: each rank has the gradient of its own rows, as DistributedDataParallel wants."""
    values = single()
    b = values["b"].clone().requires_grad_()
    x = distribute_tensor(values["x"], mesh(), [FIRST])
    laplex.linear(x, values["a"], b, 0.6).to_local().sum().backward()
    dist.all_reduce(b.grad)
    whole = values["b"].clone().requires_grad_()
    laplex.linear(values["x"], values["a"], whole, 0.6).sum().backward()
    assert error(b.grad, whole.grad) <= 1e-13


def placed(values, placements):
    return {name: distribute_tensor(v, mesh(), [placements.get(name, COPIED)]) for name, v in values.items()}


REFUSED = {
    "columns sharded": (lambda: placed(single(), {"x": SECOND}), ValueError, "use laplex.distributed.linear"),
    "anchors sharded": (lambda: placed(single(), {"x": FIRST, "a": FIRST}), ValueError, "`a` must be placed as"),
    "matrices of x alone": (lambda: placed(batched(), {"x": FIRST}), ValueError, "`a` must be placed as"),
    "plain matrices": (
        lambda: batched() | {"x": distribute_tensor(batched()["x"], mesh(), [FIRST])}, TypeError,
        "`a` must be a DTensor where `x` is sharded over matrices",
    ),
    "fewer dimensions": (
        lambda: placed(batched() | {"x": random(4, 8)}, {"x": FIRST}), ValueError, "must have all dimensions",
    ),
}  # fmt: skip


def refused(name):
    make, kind, text = REFUSED[name]
    with pytest.raises(kind, match=re.escape(text)):
        laplex.linear(**make())


# --- layers -----------------------------------------------------------------------------------------------------------


class SpreadLinear(torch.nn.Module):
    """A layer to few outputs from many features, of which every rank has its own: b is spread, a is on all ranks."""

    def __init__(self, outputs, features, tau):
        super().__init__()
        self.a = torch.nn.Parameter(outputs)
        self.b = torch.nn.Parameter(features)
        self.log_tau = torch.nn.Parameter(torch.tensor(tau).double().log())
        self.bias = torch.nn.Parameter(torch.zeros_like(outputs))

    def forward(self, x):
        """x (rows, features of this rank) to (rows, outputs), the same on all ranks."""
        own = self.a if dist.get_rank() == 0 else self.a[:0]
        y = distributed.linear(x, own, self.b, self.log_tau.exp())
        return distributed.everywhere(y) + self.bias


def checks():
    table = PRODUCTS | {name: lambda name=name: refused(name) for name in REFUSED}
    return table | {"plain_anchors": plain_anchors}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return gloo_processes.start(checks, RANKS, tmp_path_factory.mktemp("rows"))


@pytest.mark.parametrize("name", checks())
def test_rows_over_ranks(name, results):
    assert gloo_processes.failures(results, name) == {}

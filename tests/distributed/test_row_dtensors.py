"""laplex.linear of DTensors that are sharded over leading dimensions, and layers whose long side is spread."""

import copy
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
from laplex.nn import LaplexLinear, SpreadLinear

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


def shared(name, **value):
    """Matrices of a batch are spread, and all share one argument, which every rank has."""
    values = {"x": random(3, 4, 8), "a": random(3, 10), "b": random(3, 8), "tau": torch.rand(3).double() + 0.3} | value
    compare(values, {one: COPIED if one == name else FIRST for one in values})


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
    "a shared by all matrices": lambda: shared("a", a=random(10)),
    "b of one matrix for all": lambda: shared("b", b=random(1, 8)),
    "tau of one element for all": lambda: shared("tau", tau=torch.tensor([0.6]).double()),
    "second matrices of a batch": lambda: compare(
        {"x": random(3, 4, 2, 8), "a": random(4, 10), "b": random(3, 1, 8), "tau": torch.rand(4).double() + 0.3},
        {"x": SECOND, "a": FIRST, "tau": FIRST},
    ),
    "fewer dimensions, replicated": lambda: compare(batched() | {"x": random(4, 8)}, {"x": COPIED}),
    "one for all matrices, replicated": lambda: compare(batched() | {"x": random(1, 4, 8)}, {"x": COPIED}),
    "rows before a batch, replicated": lambda: compare(batched() | {"x": random(2, 1, 4, 8)}, {"x": COPIED}),
}


def plain_anchors():
    """Anchors that are ordinary tensors, where nothing or every row of x is on all ranks, and without gradients."""
    values = single()
    want = laplex.linear(**values)
    for placement in (FIRST, COPIED):
        x = distribute_tensor(values["x"], mesh(), [placement])
        assert error(laplex.linear(**values | {"x": x}).full_tensor(), want) <= 1e-14
        b = values["b"].clone().requires_grad_(placement == COPIED)
        y = laplex.linear(**values | {"x": x, "b": b})
    y.to_local().sum().backward()
    alone = values["b"].clone().requires_grad_()
    laplex.linear(**values | {"b": alone}).sum().backward()
    assert error(b.grad, alone.grad) <= 1e-13


def plain_trained(name):
    values = single()
    return values | {
        "x": distribute_tensor(values["x"], mesh(), [FIRST]), name: values[name].clone().requires_grad_(),
    }  # fmt: skip


def plain_but(name):
    """Phases and a weight, too; all plain but one."""
    values = single() | {"a": random(1, 10), "b": random(1, 8), "phi": random(1, 10), "psi": random(1, 8)}
    values["weight"] = random(1)
    return values | {name: placed(values, {})[name]}


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
    "plain anchors with gradients": (
        lambda: plain_trained("a"), TypeError, "`a` must be a DTensor where `x` is sharded and `a` requires gradients",
    ),
    "a plain tau with gradients": (lambda: plain_trained("tau"), TypeError, "`tau` must be a DTensor where `x` is"),
    **{
        f"a plain x, and {name}": (lambda name=name: plain_but(name), TypeError, f"be a DTensor where `{name}` is one")
        for name in ("a", "b", "tau", "weight", "phi", "psi")
    },
    "a shared by all matrices, sharded": (
        lambda: placed(batched() | {"a": random(10), "phi": random(10)}, {"x": FIRST, "a": FIRST}), ValueError,
        "`a` must be placed as [Replicate()]",
    ),
    "one for all matrices": (
        lambda: placed(batched() | {"x": random(1, 4, 8)}, {"x": FIRST}), ValueError, "matrices H = (3,), got shape (1",
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


class Head(torch.nn.Module):
    """A spread layer from many features, and an ordinary one behind it."""

    def __init__(self, spread, last):
        super().__init__()
        self.spread, self.last = spread, last

    def forward(self, x):
        return self.last(self.spread(x).relu())


def made_layers(**options):
    torch.manual_seed(0)
    return LaplexLinear(31, 6, kernels=3, **options).double(), torch.nn.Linear(6, 4).double()


def trained_with(way, **options):
    """Two steps on rows of which each rank counts half in its loss: parameters are those of one process."""
    layer, last = made_layers(**options)
    alone = Head(*copy.deepcopy((layer, last)))
    spread = SpreadLinear(layer)
    if way == "ddp":
        ours = Head(spread, DistributedDataParallel(last))
    else:
        fully_shard(last, mesh=mesh())
        ours = Head(spread, last)
    x = torch.randn(8, 31).double()
    for model, rows, mine in ((alone, slice(None), x), (ours, slice(dist.get_rank(), None, 2), x[:, spread.features])):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(2):
            optimizer.zero_grad()
            model(mine)[rows].square().mean().backward()
            optimizer.step()
    want = dict(alone.spread.named_parameters())
    for name, value in spread.part.named_parameters():
        truth = want[name][:, spread.features] if name in ("b", "psi") else want[name]
        assert error(value, truth) <= 1e-12, name
    values = [getattr(v, "full_tensor", lambda v=v: v)() for v in ours.last.parameters()]
    assert all(error(v, w) <= 1e-12 for v, w in zip(values, alone.last.parameters(), strict=True))
    assert error(ours(x[:, spread.features]), alone(x)) <= 1e-12
    assert "rank" in repr(spread)


def gradients_of_gradients():
    """Of a loss such as a penalty on the gradients of x: each rank has that of its own features."""
    layer, _ = made_layers(phase=True, train_tau=True)
    spread = SpreadLinear(layer)
    x = torch.randn(5, 31).double()
    bars = []
    for model, rows in ((layer, x), (spread, x[:, spread.features])):
        leaf = rows.clone().requires_grad_()
        (bar,) = torch.autograd.grad(model(leaf).pow(3).sum(), leaf, create_graph=True)
        bars.append(bar)
    every, own = bars
    assert error(own, every[:, spread.features]) <= 1e-12
    (every.square().sum() / RANKS).backward()  # the mean of the losses of all ranks
    own.square().sum().backward()
    want = {name: value.grad for name, value in layer.named_parameters()}
    for name, value in spread.part.named_parameters():
        truth = want[name][:, spread.features] if name in ("b", "psi") else want[name]
        if truth is not None:  # the bias adds nothing to these
            assert error(value.grad, truth) <= 1e-11, name


def without_gradients():
    layer, _ = made_layers()
    spread = SpreadLinear(layer)
    x = torch.randn(5, 31).double()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            y = spread(x[:, spread.features].clone().requires_grad_())
            assert not y.requires_grad
            assert error(y, layer(x)) <= 1e-12


def copied():
    """A layer with a group is copied with it: for averages of weights, for example."""
    spread = SpreadLinear(made_layers()[0], group=dist.group.WORLD)
    other = copy.deepcopy(Head(spread, torch.nn.Linear(6, 4).double())).spread
    x = torch.randn(5, 31).double()[:, spread.features]
    assert torch.equal(other(x), spread(x))
    with torch.no_grad():
        other.part.a += 1
    assert not torch.equal(other(x), spread(x))
    assert other._ranks == spread._ranks


def half_precision():
    """Results and gradients are added in float32, on however many ranks, and rounded once."""
    spread, added, right = SpreadLinear(made_layers()[0].float()), [], dist.all_reduce
    x = torch.randn(5, 31).bfloat16()[:, spread.features].requires_grad_()

    def noted(tensor, **options):
        added.append(tensor.dtype)
        return right(tensor, **options)

    dist.all_reduce = noted
    try:
        y = spread(x)
        y.sum().backward()
    finally:
        dist.all_reduce = right
    assert y.dtype == x.grad.dtype == torch.bfloat16
    assert set(added) == {torch.float32}


LAYERS = {
    "ddp": lambda: trained_with("ddp"),
    "fsdp": lambda: trained_with("fsdp"),
    "ddp, phases and tau": lambda: trained_with("ddp", phase=True, train_tau=True),
    "fsdp, no bias": lambda: trained_with("fsdp", bias=False),
    "gradients of gradients": gradients_of_gradients,
    "without gradients": without_gradients,
    "copied": copied,
    "half precision": half_precision,
}


def wrong_layer(change):
    layer, _ = made_layers()
    return lambda: SpreadLinear(change(layer) if dist.get_rank() == 1 else layer)


def wrong_input(change):
    spread = SpreadLinear(made_layers()[0])
    x = torch.randn(5, 31).double()[:, spread.features]
    return lambda: spread(change(x) if dist.get_rank() == 1 else x)


def wrong_features():
    """Not finite on one rank: after training that went wrong, for example."""
    spread = SpreadLinear(made_layers()[0])
    if dist.get_rank() == 1:
        with torch.no_grad():
            spread.part.b[0, 0] = torch.nan
    return lambda: spread(torch.randn(5, 31).double()[:, spread.features])


def shifted(layer):
    with torch.no_grad():
        layer.a += 1
    return layer


FAULTS = {
    "no layer": (lambda: wrong_layer(lambda layer: layer.a), TypeError, "rank 1: .* `layer` must be a laplex.nn.Lap"),
    "another layer": (lambda: wrong_layer(shifted), ValueError, r"the values of `layer` \(a digest\) must be the same"),
    "a smaller layer": (lambda: wrong_layer(lambda layer: LaplexLinear(30, 6)), ValueError, "the shapes of `layer`"),
    "a layer without values": (
        lambda: wrong_layer(lambda layer: layer.to("meta")), ValueError, "got a layer on the meta device",
    ),
    "fewer rows": (lambda: wrong_input(lambda x: x[:4]), ValueError, "the shape of `x` but for its last dimension"),
    "fewer features": (lambda: wrong_input(lambda x: x[:, 1:]), ValueError, "rank 1: .* features 16 to 31 of the"),
    "features not finite": (wrong_features, ValueError, "rank 1: .*must be finite"),
    "no tensor": (lambda: wrong_input(lambda x: [1.0]), ValueError, "`x` must be a tensor of size 15 .* got list"),
    "float32": (lambda: wrong_input(lambda x: x.float()), ValueError, "the dtype of `x` must be the same"),
    "gradients": (
        lambda: wrong_input(lambda x: x.requires_grad_()), ValueError, "the set of arguments that require gradients",
    ),
}  # fmt: skip


def fault(name):
    return gloo_processes.caught(FAULTS[name][0]())


def checks():
    table = PRODUCTS | {name: lambda name=name: refused(name) for name in REFUSED}
    return table | LAYERS | {"plain_anchors": plain_anchors}


def all_checks():
    return checks() | {name: lambda name=name: fault(name) for name in FAULTS}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return gloo_processes.start(all_checks, RANKS, tmp_path_factory.mktemp("rows"))


@pytest.mark.parametrize("name", checks())
def test_rows_over_ranks(name, results):
    assert gloo_processes.failures(results, name) == {}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_on_one_rank_raises_on_both(name, results):
    assert gloo_processes.failures(results, name) == {}
    _, kind, text = FAULTS[name]
    assert {mine[name][:2] for mine in results} == {(kind, results[0][name][1])}
    assert re.search(text, results[0][name][1])
    assert max(mine[name][2] for mine in results) <= 2.0

"""Layers of kernels, and parametrized ones, trained by two processes: every step is that of one process.

FSDP can also give them parameters in half precision: then only the outputs are compared.
"""

import os

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from helpers import error
from laplex.nn import LaplaceAttention, LaplexLinear, LaplexProjection, parametrize

CASES = [(model, way) for model in ("layers", "parametrized") for way in ("ddp", "fsdp")]


MIXED = {
    "layer": lambda: LaplexLinear(16, 8, kernels=2, train_tau=True),
    "projection": lambda: LaplexProjection(16, 8, trainable=True),
    "attention": lambda: LaplaceAttention(16, 4),
    "parametrized": lambda: parametrize(nn.Conv1d(16, 8, 1), "weight", 2),
}


class Checkpointed(nn.Sequential):
    """The second half is computed again in backward."""

    def forward(self, x):
        return checkpoint(self[2], self[1](self[0](x)), use_reentrant=False)


def model_of(kind):
    torch.manual_seed(0)
    if kind == "layers":
        first, last = LaplexLinear(12, 10, kernels=3, train_tau=True), LaplexLinear(10, 9, phase=True)
    else:
        first, last = (parametrize(nn.Linear(*sizes), "weight", 2) for sizes in ((12, 10), (10, 9)))
    return Checkpointed(first, nn.ReLU(), last).double()


def examples():
    return torch.randn(8, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def train(model, x, share):
    """Two steps; the gradients of processes are averaged, so one alone takes a share of the loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (share * model(x).square().sum()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def distributed(kind, way):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = model_of(kind)
    if way == "ddp":
        return model, nn.parallel.DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (2,))
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
    return model, model


def mixed(kind):
    torch.manual_seed(0)
    return MIXED[kind](), torch.randn(16, 16)


def output_in_half_precision(kind):
    """The output under FSDP with parameters in bfloat16, and whether every parameter gets a gradient in float32."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    module, x = mixed(kind)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    y = fully_shard(module, mesh=init_device_mesh("cpu", (2,)), mp_policy=policy)(x)
    y.float().square().sum().backward()
    gradients = [parameter.grad.to_local() for parameter in module.parameters()]
    return y.detach(), all(bool(g.isfinite().all()) and g.dtype == torch.float32 for g in gradients)


def one_of_two(rank, folder):
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(f"{folder}/store", 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    for kind, way in CASES:
        model, trained = distributed(kind, way)
        train(trained, examples()[4 * rank :][:4], 1.0)
        state = {name: getattr(p, "full_tensor", p.detach)().detach() for name, p in model.named_parameters()}
        torch.save(state, f"{folder}/{kind}-{way}-{rank}")
    torch.save({kind: output_in_half_precision(kind) for kind in MIXED}, f"{folder}/mixed-{rank}")
    torch.distributed.barrier()  # a process that leaves early closes connections that the other still reads
    torch.distributed.destroy_process_group()
    os._exit(0)  # the group's threads outlive it under DistributedDataParallel, and may abort Python as it ends


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What all cases have trained, by two processes that are started once."""
    path = tmp_path_factory.mktemp("processes")
    torch.multiprocessing.spawn(one_of_two, (str(path),), nprocs=2)
    return path


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without torch.distributed")
@pytest.mark.parametrize(("kind", "way"), CASES, ids=map("-".join, CASES))
def test_two_processes_train_as_one(kind, way, folder):
    model = model_of(kind)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    train(model, examples(), 0.5)
    for rank in range(2):
        state = torch.load(folder / f"{kind}-{way}-{rank}")
        for name, parameter in model.named_parameters():
            assert error(state[name], parameter) <= 1e-11, name
            assert error(state[name], before[name]) > 1e-3, name


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without torch.distributed")
@pytest.mark.parametrize("kind", MIXED)
def test_parameters_in_half_precision(kind, folder):
    module, x = mixed(kind)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(parameter.bfloat16())
    for rank in range(2):
        y, has_gradients = torch.load(folder / f"mixed-{rank}")[kind]
        assert y.dtype == torch.bfloat16
        assert has_gradients
        assert error(y, module(x.bfloat16().float())) <= 0.02

"""``laplex.distributed`` on a GPU: one rank by NCCL, and two ranks by gloo that share the GPU."""

import os

import pytest
import torch
import torch.distributed as dist

import laplex
from helpers import error

pytestmark = pytest.mark.gpu
N = 20_000


def sample(dtype):
    torch.manual_seed(0)
    return {"x": torch.randn(3, N, dtype=dtype), "a": torch.randn(N, dtype=dtype), "b": torch.randn(N, dtype=dtype)}


def difference(dtype):
    """The largest error of the result and of all gradients, against float64 on the CPU."""
    leaves = {name: value.double().requires_grad_() for name, value in sample(dtype).items()}
    tau = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    y = laplex.linear(**leaves, tau=tau)
    want = torch.autograd.grad(y.square().sum(), [*leaves.values(), tau])
    mine = {name: value.cuda().requires_grad_() for name, value in sample(dtype).items()}
    scale = torch.tensor(0.3, dtype=torch.float64, device="cuda", requires_grad=True)
    got = laplex.distributed.linear(**mine, tau=scale)
    bars = torch.autograd.grad(got.square().sum(), [*mine.values(), scale])
    errors = [error(got.cpu(), y)]
    errors += [error(bar.cpu(), value) for bar, value in zip(bars[:3], want[:3], strict=True)]
    return max(*errors, error(bars[3].cpu(), want[3]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_one_rank_by_nccl(dtype):
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        error = difference(dtype)
    finally:
        dist.destroy_process_group()
    assert error <= (2e-6 if dtype == torch.float32 else 1e-12)


def one_of_two(rank, folder):
    """Every second point, arranged by a plan on the CPU: gloo moves no shards of a GPU."""
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
    for dtype in (torch.float32, torch.float64):
        anchors = [sample(dtype)[name][rank::2].contiguous() for name in "ab"]
        plan = laplex.distributed.Plan(*anchors)

        rows = plan.arrange_rows(anchors[0]).cuda()
        cols = plan.arrange_columns(anchors[1]).cuda()
        x = plan.arrange_columns(sample(dtype)["x"][:, rank::2].contiguous()).cuda().requires_grad_()
        y = laplex.distributed.linear(x, rows, cols, 0.3)
        (bar,) = torch.autograd.grad(y.square().sum(), x)
        complete = {name: value.double() for name, value in sample(dtype).items()}
        complete["x"].requires_grad_()
        want = laplex.linear(**complete, tau=0.3)
        (want_bar,) = torch.autograd.grad(want.square().sum(), complete["x"])
        errors = (
            error(plan.restore_rows(y.detach().cpu()), want[:, rank::2]),
            error(plan.restore_columns(bar.cpu()), want_bar[:, rank::2]),
        )
        torch.save(errors, f"{folder}/{str(dtype)[6:]}-{rank}")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads outlive the group, and may abort Python as it ends


def test_two_ranks_by_gloo(tmp_path):
    torch.multiprocessing.spawn(one_of_two, (str(tmp_path),), nprocs=2)
    for rank in range(2):
        assert max(torch.load(tmp_path / f"float32-{rank}")) <= 5e-7
        assert max(torch.load(tmp_path / f"float64-{rank}")) <= 1e-13

"""One product over several processes: each has a part of the points, and none has all of them.

Run it: torchrun --standalone --nproc-per-node 2 examples/over_processes.py
(python examples/over_processes.py starts the two processes itself.)
"""

import os
import subprocess
import sys

import torch
import torch.distributed as dist

import laplex

POINTS, TAU = 1 << 17, 0.01  # points over all processes


def mine(values: torch.Tensor) -> torch.Tensor:
    """This process's part; a real program would read only that."""
    return values[..., dist.get_rank() :: dist.get_world_size()].contiguous()


def main() -> None:
    dist.init_process_group("gloo")  # "nccl" with a GPU for each process
    torch.manual_seed(0)
    a, b, x = torch.randn(POINTS), torch.randn(POINTS), torch.randn(POINTS)
    rows, cols, operand = mine(a), mine(b).requires_grad_(), mine(x)

    plan = laplex.distributed.Plan(rows, cols)
    y = laplex.distributed.linear(operand, rows, cols, TAU, plan=plan)
    y.square().sum().backward()  # over all processes: gradients are those of the sum of their losses

    # The self-check: compare with direct sums for a few rows, and with the gradient of one process.
    for i in range(0, len(rows), len(rows) // 5):
        direct = (torch.exp(-(rows[i] - b).abs().double() / TAU) * x).sum()
        scale = (torch.exp(-(rows[i] - b).abs().double() / TAU) * x.abs()).sum()
        assert (y[i] - direct).abs() <= 5e-7 * scale, "a row differs from its direct sum"
    alone = b.clone().requires_grad_()
    laplex.linear(x, a, alone, TAU).square().sum().backward()
    difference = (cols.grad - mine(alone.grad)).norm() / alone.grad.norm()
    assert difference <= 1e-6, f"the gradient differs by {difference:.1e}"
    print(f"rank {dist.get_rank()}: {plan}", flush=True)
    dist.barrier()
    if dist.get_rank() == 0:
        print("OK", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:  # torchrun has started this process
        main()
    else:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
        sys.exit(subprocess.run(command, check=False).returncode)

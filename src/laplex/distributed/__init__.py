r"""Products with matrices whose anchors are spread over processes, on ``torch.distributed``.

    torch.distributed.init_process_group("gloo")                      # or "nccl", in a script started by torchrun
    plan = laplex.distributed.Plan(a, b)                              # a, b, x: the shards of this process
    y = laplex.distributed.linear(x, a, b, tau, plan=plan)            # the results of this process's rows

The algorithm
    1. A sample sort of the anchors of both sides gives every rank an interval of the line (``_sorting``). A plan keeps
       who sends what to whom.
    2. x goes to the owners of its columns (``_moves``): one all-to-all, or nothing where it is there already.
    3. Each rank reduces its sources to four numbers per row, and all ranks exchange them (``_ends``). So each rank
       knows the sums of all sources to its left, and of all to its right.
    4. Each rank multiplies by the part of the matrix that it owns, as on one device, with those sums as four more
       sources (``_local``, ``_scan``).
    5. The results go back to the ranks that asked for them.

    Steps 3 and 4 are the scan of ``laplex._scan`` cut into chunks, one for each rank. Gradients are products of the
    same kind, so they exchange as much again.

    Per rank and product, for m rows, w ranks and N anchors in all: about N m / w numbers are sent in steps 2 and 5, and
    4 m (w - 1) in step 3. The work is O(N m / w + m w), and a plan costs O(N / w log N + w^2).

Other sums
    ``gram``: the Gram matrix of few rows and many columns is the sum of those of the ranks' columns. ``KernelSystem``:
    K(a, a) + diag is a matrix of the ranks' own blocks plus one of low rank, by the borders between them (``_system``).

Faults
    Before anything is sent, the ranks agree that all arguments are right (``_agreement``): an error on one is raised on
    all. A rank that dies ends the others by the error of their next exchange.
"""

from laplex.distributed._functional import linear
from laplex.distributed._gram import gram
from laplex.distributed._plan import Plan
from laplex.distributed._system import KernelSystem

__all__ = ["KernelSystem", "Plan", "gram", "linear"]

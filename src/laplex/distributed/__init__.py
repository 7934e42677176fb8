r"""Products with matrices whose anchors are spread over processes, on ``torch.distributed``.

    torch.distributed.init_process_group("gloo")                      # or "nccl", in a script started by torchrun
    plan = laplex.distributed.Plan(a, b)                              # a, b, x: the shards of this process
    y = laplex.distributed.linear(x, a, b, tau, plan=plan)            # the results of this process's rows

The algorithm
    1. A sample sort of the anchors of both sides gives every rank an interval of the line (``_sorting``). A plan
       records who sends what to whom.
    2. x goes to the owners of its columns (``_moves``): one all-to-all, or nothing if it is already there.
    3. Each rank reduces its sources to four numbers per row, and all ranks exchange them (``_ends``). Each rank then
       knows the sums over all sources to its left and over all sources to its right.
    4. Each rank multiplies by the part of the matrix that it owns, as on one device, with those sums as four extra
       sources (``_local``, ``_scan``).
    5. The results go back to the ranks that asked for them.

    Steps 3 and 4 are the scan of ``laplex._scan`` with one chunk per rank. Gradients are products of the same kind,
    so they exchange as much again.

    Per rank and product, for m rows, w ranks and N anchors in all: about N m / w numbers are sent in steps 2 and 5, and
    4 m (w - 1) in step 3. The work is O(N m / w + m w), and a plan costs O(N / w log N + w^2).

Other sums
    ``gram``: the Gram matrix of few rows and many columns is the sum of the Gram matrices of each rank's columns.
    ``KernelSystem``: K(a, a) + diag is block diagonal, with one block per rank, plus a low-rank matrix that comes from
    the borders between ranks (``_system``).

Faults
    Before anything is sent, the ranks agree that all arguments are valid (``_agreement``): an error on one rank is
    raised on all. If a rank dies, the next exchange fails on the others, which ends them.
"""

from laplex.distributed._functional import linear
from laplex.distributed._gram import gram
from laplex.distributed._plan import Plan
from laplex.distributed._system import KernelSystem

__all__ = ["KernelSystem", "Plan", "gram", "linear"]

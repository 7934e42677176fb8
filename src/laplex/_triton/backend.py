"""What the GPU backend can do: ``triton`` in tiles of the sorted order, ``dense`` pair by pair without
one, and ``formed`` with the matrix written once and multiplied by torch.
"""

from __future__ import annotations

from laplex._backends import Backend
from laplex._quasisep import torch as solver
from laplex._triton import tuning, warm_up
from laplex._triton.formed import launch as form
from laplex._triton.gram import launch as gram
from laplex._triton.layer import launch as layer
from laplex._triton.order import launch as order
from laplex._triton.phase import launch as phase
from laplex._triton.scan import dense
from laplex._triton.scan import launch as scan
from laplex._triton.soft import launch as soft
from laplex._triton.states import launch as states


def _joined(n: int, k: int) -> str:
    return "joined"


TRITON = Backend(
    name="triton",
    scan=scan.scan,
    pullback=scan.pullback,
    layout=_joined,
    gram=gram,
    order=order.order,
    look=order.look,
    complete=order.complete,
    solver=solver,
    phased=phase,
    fused_gram=gram,
    step=layer.step,
    states=states,
    sorted=soft,
    ahead=warm_up,
    dense_below=tuning.DENSE_BELOW,
    reads_half=True,
    writes_columns=True,
    raises=False,
    joins=True,
)
DIRECT = Backend(name="dense", scan=dense.scan, pullback=dense.pullback, gram=gram, writes_columns=True, raises=False)
FORMED = DIRECT._replace(name="formed", form=form, step=layer.step, reads_half=True)
TABLES = {table.name: table for table in (TRITON, DIRECT, FORMED)}

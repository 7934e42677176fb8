"""What the ``torch`` backend can do: everything, on any device, in plain torch."""

from laplex._backends import Backend
from laplex._gram import torch as gram
from laplex._quasisep import torch as solver
from laplex._scan import torch as scan

BACKEND = Backend(
    scan=scan.scan,
    pullback=scan.pullback,
    gram=gram,
    order=scan.order,
    solver=solver,
    dense_below=512 * 512,  # the scan is many small calls
)

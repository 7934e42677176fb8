"""What the ``dense`` backend can do: products with the matrix formed, on any device. It needs no order."""

from laplex._backends import Backend
from laplex._gram import torch as gram
from laplex._scan import dense

BACKEND = Backend(scan=dense.scan, pullback=dense.pullback, gram=gram)

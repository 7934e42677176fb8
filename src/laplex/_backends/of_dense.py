"""What ``dense`` and ``formed`` can do: products with every entry of the matrix, on any device. They need no order."""

from laplex._backends import Backend
from laplex._formed import torch as form
from laplex._gram import torch as gram
from laplex._scan import dense

BACKEND = Backend(scan=dense.scan, pullback=dense.pullback, gram=gram)
FORMED = BACKEND._replace(form=form)

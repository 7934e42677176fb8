"""What the ``cpp`` backend can do: everything, on the CPU, in the compiled core; and ``formed`` there."""

from laplex._backends import Backend
from laplex._backends.of_dense import BACKEND as DENSE
from laplex._formed import cpp as form
from laplex._gram import cpp as gram
from laplex._quasisep import cpp as solver
from laplex._scan import cpp as scan

BACKEND = Backend(
    scan=scan.scan,
    pullback=scan.pullback,
    gram=gram,
    order=scan.order,
    update=scan.update,
    solver=solver,
    dense_below=0,  # the compiled scan is never slower
)
FORMED = DENSE._replace(form=form)

"""The tables of the backends outside ``laplex._triton``."""

from laplex._backends import Backend
from laplex._formed import cpp as form_cpp
from laplex._formed import torch as form_torch
from laplex._gram import cpp as gram_cpp
from laplex._gram import torch as gram_torch
from laplex._quasisep import cpp as solver_cpp
from laplex._quasisep import torch as solver_torch
from laplex._scan import cpp, dense, torch
from laplex._sorted import cpp as sorted_cpp

TORCH = Backend(  # everything, on any device, in plain torch
    name="torch",
    scan=torch.scan,
    pullback=torch.pullback,
    gram=gram_torch,
    order=torch.order,
    solver=solver_torch,
    dense_below=512 * 512,  # the scan makes many small calls
)
CPP = Backend(  # everything, on the CPU, in the compiled core
    name="cpp",
    scan=cpp.scan,
    pullback=cpp.pullback,
    gram=gram_cpp,
    order=cpp.order,
    update=cpp.update,
    solver=solver_cpp,
    sorted=sorted_cpp,
    dense_below=0,  # the compiled scan is never slower
    takes_tail=True,
)
DENSE = Backend(  # products with every entry of the matrix, on any device; needs no order
    name="dense", scan=dense.scan, pullback=dense.pullback, gram=gram_torch
)
FORMED = DENSE._replace(name="formed", form=form_torch)
TABLES = {table.name: table for table in (TORCH, CPP, DENSE, FORMED)}
TABLES["formed by cpp"] = FORMED._replace(form=form_cpp)

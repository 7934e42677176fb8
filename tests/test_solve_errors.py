"""What solves, determinants and factors say of arguments that are not right."""

import math

import pytest
import torch

import laplex
from laplex import LaplaceOperator
from systems import KINDS, normal

KIND = pytest.mark.parametrize("kind", KINDS)
METHODS = {
    "solve": lambda A, diag: A.solve(torch.ones(A.shape[-1]).double(), diag),
    "logdet": lambda A, diag: A.logdet(diag),
    "cholesky": lambda A, diag: A.cholesky(diag),
}
METHOD = pytest.mark.parametrize("method", METHODS)


@pytest.fixture(autouse=True)
def on(scan_backend, monkeypatch):
    """All that runs, runs on this backend."""
    monkeypatch.setattr(laplex.backends, "planner_of_sides", lambda device: scan_backend)


# --- phases ----------------------------------------------------------------------------------------------------------


@METHOD
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("kind", "name"), [("kernel", "phi"), ("gram", "phi"), ("gram", "psi")])
def test_phases_that_are_not_finite(kind, name, value, method):
    phases = {"phi": normal(2, 5), "psi": normal(2, 4)}
    phases[name][1, 2] = value
    if kind == "kernel":
        A = LaplaceOperator(normal(2, 5), phi=phases["phi"])
    else:
        A = LaplaceOperator(normal(2, 5), normal(2, 4), **phases).gram()
    with pytest.raises(ValueError, match=rf"Operator\.{method}: `{name}` must be finite, got NaN or infinity; find it"):
        METHODS[method](A, 0.1)

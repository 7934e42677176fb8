"""Tools to check and measure a product: problems with known answers, errors, times and memory.

    >>> from laplex import linear, testing
    >>> problem = testing.draw(1000, 800, rows=4, seed=0)
    >>> y = linear(**problem.arguments)
    >>> rows = testing.sample(1000, 16)                       # 16 of the 1000 rows of the matrix
    >>> testing.relative_error(y[:, rows], testing.product(problem, rows)) < 1e-6
    True
    >>> calls = {"laplex": lambda: linear(**problem.arguments)}
    >>> times = testing.interleave(calls, budget=testing.Budget(min_s=0.01))
    >>> times["laplex"].p20 <= times["laplex"].median <= times["laplex"].p80
    True

The truth is :mod:`laplex.reference` in float64, summed in slices, so that a few rows can be checked even of a matrix
that would never fit into memory. ``laplex bench``, ``laplex doctor``, the benchmarks and the tests use this module;
``import laplex`` does not import it.
"""

from laplex.testing._machine import OtherProcesses, busy, commit, describe, load, machine, versions
from laplex.testing._oracle import gradients, gram, largest_error, product, relative_error, sizes, term_error
from laplex.testing._problem import Problem, draw, sample
from laplex.testing._timing import Budget, Times, interleave, peak_bytes

__all__ = [
    "Budget", "OtherProcesses", "Problem", "Times", "busy", "commit", "describe", "draw", "gradients", "gram",
    "interleave", "largest_error", "load", "machine", "peak_bytes", "product", "relative_error", "sample",
    "sizes", "term_error", "versions",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__

"""Products of shards on one to four ranks: values and gradients are those of the dense definition."""

import functools
import itertools

import gloo_processes
import pytest
import rank_shards
import torch
import torch.distributed as dist

import cases
from helpers import TOLERANCE, error, inputs_for, oracle
from laplex import distributed

RANKS = 4
KINDS = ("even", "uneven", "one", "intervals")
# Second derivatives in tau cancel (laplex.linear), and dense ones of tiny tau are 0 / 0.
NO_SECOND = (
    "huge_tau", "tiny_tau", "tiny_tau_ties", "denormal_gaps", "neighbouring_floats", "largest_floats", "offset",
)  # fmt: skip
LONG = ("short_cols_two_chunks", "short_rows_two_chunks")
groups = {}


def group_of(size):
    """A group of the first `size` ranks, made by all; None on a rank that is not in it."""
    if size not in groups:
        groups[size] = dist.new_group(list(range(size)))
    return groups[size] if dist.get_rank() < size else None


def product(case, kind, dtype, size, planned):
    group = group_of(size)
    if group is None:
        return {}
    a, b, tau = case(dtype)
    if kind == "intervals" and a.dim() > 1:
        kind = "uneven"  # the line of every matrix is another one
    inputs = inputs_for(a, b, tau, phased=False) | {"tau": torch.as_tensor(tau, dtype=torch.float64)}
    second = case.name not in NO_SECOND + LONG and dtype is torch.float64
    return rank_shards.compare(inputs, kind, group=group, second=second, planned=planned)


def table():
    """Every case in two layouts, with the numbers of ranks, dtypes and plans in turn."""
    rows = {}
    turns = list(itertools.product((4, 3, 2), (torch.float64, torch.float32), (False, True)))
    for (i, case), j in itertools.product(enumerate(cases.CASES), (0, 1)):
        kind = KINDS[(i + 2 * j) % len(KINDS)]
        size, dtype, planned = turns[(5 * i + 7 * j) % len(turns)]
        name = f"{case.name}-{kind}-{size} ranks-{str(dtype)[6:]}-{'plan' if planned else 'no plan'}"
        rows[name] = functools.partial(product, case, kind, dtype, size, planned)
    return rows


def sample(**changes):
    torch.manual_seed(3)
    a, b, x = torch.randn(30).double(), torch.randn(26).double(), torch.randn(2, 26).double()
    return {"x": x, "a": a, "b": b, "tau": torch.tensor(0.6).double()} | changes


def phased():
    return rank_shards.compare(sample(phi=torch.randn(30).double(), psi=torch.randn(26).double()), "uneven")


def weighted():
    inputs = sample(a=torch.randn(3, 30).double(), b=torch.randn(3, 26).double(), tau=torch.rand(3).double() + 0.2)
    return rank_shards.compare(inputs | {"weight": torch.randn(3).double()}, "even")


def weighted_and_phased():
    inputs = sample(a=torch.randn(2, 3, 30).double(), b=torch.randn(2, 3, 26).double())
    phases = {"phi": torch.randn(2, 3, 30).double(), "psi": torch.randn(2, 3, 26).double()}
    return rank_shards.compare(inputs | phases | {"weight": torch.randn(2, 3).double()}, "uneven")


def complex_rows():
    inputs = sample(x=torch.randn(2, 26, dtype=torch.complex128))
    return {"y": _only_value(inputs, torch.complex128)}


def half_rows():
    return {"y of float16": _only_value(sample(x=torch.randn(2, 26).half()), torch.float16)}


def no_leading_dimension():
    return {"y": _only_value(sample(x=torch.randn(26).double()), torch.float64)}


def no_rows():
    return {"y": _only_value(sample(x=torch.randn(0, 26).double()), torch.float64)}


def _only_value(inputs, dtype):
    mine, rows_of, _ = rank_shards.cut(inputs, "even", RANKS, dist.get_rank())
    y = distributed.linear(**mine)
    assert y.dtype == dtype
    return error(y, rows_of(oracle(**inputs)))


OTHERS = {
    check.__name__: check
    for check in (phased, weighted, weighted_and_phased, complex_rows, half_rows, no_leading_dimension, no_rows)
}


def checks():
    return table() | OTHERS


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return gloo_processes.start(checks, RANKS, tmp_path_factory.mktemp("spread"))


@pytest.mark.parametrize("name", checks())
def test_products_of_shards_are_those_of_one_device(name, results):
    assert gloo_processes.failures(results, name) == {}
    bound = TOLERANCE[torch.float32 if "float32" in name else torch.float64]
    for rank, mine in enumerate(results):
        for quantity, size in mine[name].items():
            if quantity == "y of float16":
                assert size <= 5e-4, rank
                continue
            allowed = bound * (10 if quantity.startswith("second") else 1)  # sums of several products
            assert size <= allowed, (rank, quantity)

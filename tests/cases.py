"""The catalogue of anchor sets: each a name and a function of the dtype that makes (a, b, tau)."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable  # dtype -> (a, b, tau)

    def __call__(self, dtype=torch.float64):
        """The anchors, the same at every call."""
        with torch.random.fork_rng():
            torch.manual_seed(1)
            a, b, tau = self.make(dtype)
        return a.to(dtype), b.to(dtype), tau


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def integers(low, high, *shape):
    return torch.randint(low, high, shape).double()


def randomly(n, k, tau=0.7):
    return lambda dtype: (normal(n), normal(k), tau)


def ties_across(dtype):
    a, b = normal(23), normal(19)
    a[[3, 8, 20]] = b[[0, 5, 18]]
    return a, b, 0.5


def long_tie_runs(dtype):
    """Runs of equal b longer than a chunk of the compiled core, beside and between others, tied with several a."""
    a = torch.cat([torch.tensor([1.0, 2.0, 2.0, 2.0, 5.0]).double(), integers(0, 7, 300)])
    b = torch.cat([torch.full((1500,), 2.0).double(), torch.full((600,), 3.0).double(), integers(0, 7, 70)])
    return a[torch.randperm(a.numel())], b[torch.randperm(b.numel())], 1.3


def signed_zeros(dtype):
    return torch.tensor([-0.0, 0.0, 1.0, -0.0, -1.0]), torch.tensor([0.0, -0.0, -1.0, 0.0]), 1.0


def denormal_gaps(dtype):
    tiny = torch.finfo(dtype).smallest_normal / 8
    return integers(0, 9, 13) * tiny, integers(0, 9, 11) * tiny, 1.0


def neighbouring_floats(dtype):
    a = torch.ones(9, dtype=dtype)
    for i in range(1, 9):
        a[i] = torch.nextafter(a[i - 1], a.new_tensor(2.0))
    return a[torch.randperm(9)], a[torch.randperm(9)[:7]], 1e-7


def largest(dtype):
    top = torch.finfo(dtype).max
    a, b = [-top, -1.0, 0.5, top], [top, 0.0, -top]
    return torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64), 1.0


def batched(dtype):
    return normal(3, 13), normal(3, 17), torch.tensor([0.2, 1.0, 5.0]).double()


def batched_ties(dtype):
    return integers(0, 6, 2, 2, 11), integers(0, 6, 2, 2, 9), 1.0


def batched_short(dtype):
    return integers(0, 6, 3, 4), integers(0, 6, 3, 61), 2.0


CASES = [
    Case("generic", randomly(37, 41)),
    Case("ties_across_sides", ties_across),
    Case("all_tied", lambda dtype: (torch.full((9,), 1.5), torch.full((7,), 1.5), 0.3)),
    Case("duplicates_within_a_side", lambda dtype: (normal(5).repeat(4), normal(7).repeat_interleave(3), 1.0)),
    Case("ties_everywhere", lambda dtype: (integers(0, 6, 40), integers(0, 6, 35), 2.0)),
    Case("one_point", randomly(1, 1)),
    Case("one_row", randomly(1, 6)),
    Case("one_column", randomly(6, 1)),
    Case("one_row_many_columns", randomly(1, 40)),
    Case("many_rows_one_column", randomly(40, 1)),
    Case("rows_left_of_columns", lambda dtype: (normal(12).abs() * -1 - 0.1, normal(15).abs() + 0.1, 1.0)),
    Case("rows_right_of_columns", lambda dtype: (normal(12).abs() + 0.1, normal(15).abs() * -1 - 0.1, 1.0)),
    Case("huge_tau", randomly(21, 26, 1e30)),
    Case("tiny_tau", lambda dtype: (normal(21), torch.cat([normal(5), torch.zeros(3).double()]), 1e-5)),
    Case("tiny_tau_ties", lambda dtype: (integers(0, 9, 21), integers(0, 9, 17), 1e-300)),
    Case("clustered", lambda dtype: (torch.rand(211).double() * 0.01, torch.rand(190).double() * 0.01, 1.0)),
    Case("offset", lambda dtype: (normal(31) * 0.1 + 1e4, normal(29) * 0.1 + 1e4, 0.01)),
    Case("batched", batched),
    Case("batched_ties", batched_ties),
    Case("batched_short_rows", batched_short),
    Case("short_rows", randomly(11, 301)),
    Case("short_cols", randomly(301, 11)),
    Case("short_rows_ties", lambda dtype: (integers(0, 8, 13), integers(-1, 9, 400), 1.0)),
    Case("short_cols_ties", lambda dtype: (integers(-1, 9, 400), integers(0, 8, 13), 1.0)),
    *(Case(f"chunk_{k}", randomly(201, k)) for k in (31, 32, 33, 511, 512, 513, 1023, 1024, 1025)),
    *(Case(f"block_{n}", randomly(n, 67)) for n in (255, 256, 257)),
    Case("short_cols_two_chunks", randomly(8221, 513)),
    Case("short_rows_two_chunks", randomly(513, 8221)),
    Case("long_tie_runs", long_tie_runs),
    Case("signed_zeros", signed_zeros),
    Case("sorted", lambda dtype: (normal(33).sort().values, normal(29).sort().values, 1.0)),
    Case("reversed", lambda dtype: (normal(33).sort().values.flip(0), normal(29).sort().values.flip(0), 1.0)),
    Case("denormal_gaps", denormal_gaps),
    Case("neighbouring_floats", neighbouring_floats),
    Case("largest_floats", largest),
]
BY_NAME = {case.name: case for case in CASES}
SMALL = [case for case in CASES if case()[0].shape[-1] * case()[1].shape[-1] <= 50 * 50]


def every(cases=CASES):
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])


def named(*names):
    return every([BY_NAME[name] for name in names])


def in_turn(ones, twos, threes):
    """Every one with every two, and the threes in turn: each of either with all of them."""
    rows = [(one, two, threes[(i + j) % len(threes)]) for i, one in enumerate(ones) for j, two in enumerate(twos)]
    return [pytest.param(*row, id="-".join(map(str, row))) for row in rows]

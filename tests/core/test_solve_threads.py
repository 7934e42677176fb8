"""The bits of solves, determinants and factors, whatever the number of threads."""

import pytest
import torch

from helpers import error
from systems import normal, operator


def with_threads(count, A, y):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        return A.solve(y, 0.1), A.logdet(0.1), A.cholesky(0.1) @ y
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("k", [None, 2000, 100])
def test_the_same_bits_for_any_number_of_threads(k):
    """K, and Gram matrices but for those of few rows and many columns."""
    b = {} if k is None else {"b": normal(3, k), "weight": torch.rand(3, k).double()}
    A, y = operator(normal(3, 3000), 0.5, **b), normal(3, 3000, 11)
    for one, other in zip(with_threads(1, A, y), with_threads(2, A, y)):
        assert torch.equal(one, other)


def test_the_same_bits_for_the_same_number_of_threads():
    """Of few rows and many columns every thread sums its own: another number of them is another order of the sums."""
    A = operator(normal(100), 0.5, b=normal(20000), weight=torch.rand(20000).double())
    y = normal(100, 11)
    one, two, again = with_threads(1, A, y), with_threads(2, A, y), with_threads(2, A, y)
    for value, other, same, tolerance in zip(one, two, again, (1e-13, 1e-11, 1e-11)):
        assert torch.equal(other, same)
        assert error(value, other) <= tolerance  # a solve is refined; the others' is eps times the condition number

"""The exact rank against the numeric rank of the dense matrix."""

import pytest
import torch

import laplex
from cases import every
from laplex import reference


def ranks_of(a, b):
    return torch.linalg.matrix_rank(reference.kernel(a, b, 1.0), rtol=1e-11)


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


KNOWN = [
    ((0, 1, 2), (0.5, 1.5, 2.5), 3),  # interlaced
    ((0, 1, 2), (3, 4, 5), 1),  # apart
    ((0, 1, 2), (0, 1, 2), 3),  # symmetric
    ((0, 0, 0), (1, 2), 1),
    ((1,), (1,), 1),
    ((0, 3), (1, 2), 2),
    ((0, 0), (0, 0), 1),
    ((0, 1), (0.5, 0.5), 1),
    ((0, 2, 2), (1, 1, 2), 2),
    ((-0.0, 1), (0.0, 2), 2),
]


@pytest.mark.parametrize(("a", "b", "want"), KNOWN, ids=str)
def test_known_ranks(a, b, want):
    assert laplex.rank(vector(*a), vector(*b)) == want
    assert laplex.rank(vector(*b), vector(*a)) == want
    assert int(ranks_of(vector(*a), vector(*b))) == want


@pytest.mark.parametrize("seed", range(40))
def test_integer_anchors(seed):
    torch.manual_seed(seed)
    n, k = (int(size) for size in torch.randint(1, 14, (2,)))
    a, b = torch.randint(0, 20, (n,)).double(), torch.randint(0, 20, (k,)).double()
    assert laplex.rank(a, b) == int(ranks_of(a, b))


def greedy(a, b):
    """The largest number of disjoint neighbouring pairs, one by one."""
    marks = [(value, 0) for value in set(a.tolist())] + [(value, 1) for value in set(b.tolist())]
    kinds = {}
    for value, kind in marks:
        kinds.setdefault(value, set()).add(kind)
    pairs, waiting = 0, None
    for value in sorted(kinds):
        here = kinds[value]
        if len(here) == 2 or (waiting is not None and waiting not in here):
            pairs, waiting = pairs + 1, None
        else:
            waiting = next(iter(here))
    return pairs


@every()
def test_the_catalogue(case, dtype):
    a, b, _ = case(dtype)
    want = [greedy(*pair) for pair in zip(a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1]))]
    got = laplex.rank(a, b)
    if a.dim() == 1:
        assert type(got) is int
        assert got == want[0]
    else:
        assert got.dtype == torch.int64
        assert got.tolist() == torch.tensor(want).reshape(a.shape[:-1]).tolist()


def test_independent_anchors_have_about_two_thirds():
    rank = laplex.rank(torch.rand(3000).double(), torch.rand(3000).double())
    assert 0.63 < rank / 3000 < 0.70


def test_batches_broadcast():
    a, b = torch.randn(3, 1, 5).double(), torch.randn(2, 4).double()
    got = laplex.rank(a, b)
    assert got.shape == (3, 2)
    assert got.tolist() == [[laplex.rank(a[i, 0], b[j]) for j in range(2)] for i in range(3)]


def test_empty():
    assert laplex.rank(torch.randn(0), torch.randn(3)) == 0
    assert laplex.rank(torch.randn(3), torch.randn(0)) == 0
    assert laplex.rank(torch.randn(0), torch.randn(0)) == 0
    none = laplex.rank(torch.randn(0, 3), torch.randn(0, 2))
    assert none.shape == (0,)
    assert none.dtype == torch.int64


def test_anchors_that_require_gradients():
    assert laplex.rank(torch.randn(5, requires_grad=True), torch.randn(4)) > 0

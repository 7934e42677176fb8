"""Every mistake has a message that names the argument, what is required, and what was passed."""

import math
import re

import numpy
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers import shape_warnings
from laplex import soft
from laplex.soft._rows import softness

X = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]])
CALLS = {
    "sort": lambda x, dim=-1, tau=1.0: soft.sort(x, dim, tau=tau),
    "topk": lambda x, dim=-1, tau=1.0: soft.topk(x, 2, dim, tau=tau),
    "rank": lambda x, dim=-1, tau=1.0: soft.rank(x, dim, tau=tau),
    "argsort": lambda x, dim=-1, tau=1.0: soft.argsort(x, dim, tau=tau),
    "topk_mask": lambda x, dim=-1, tau=1.0: soft.topk_mask(x, 1, dim, tau=tau),
    "quantile": lambda x, dim=-1, tau=1.0: soft.quantile(x, 0.5, dim, tau=tau),
}


def numbers(result):
    if isinstance(result, torch.Tensor):
        return result
    return result.to_dense() if isinstance(result, soft.SoftPermutation) else result.values


@pytest.fixture(params=CALLS)
def name(request):
    return request.param


@pytest.mark.parametrize(
    ("x", "dim", "error", "message"),
    [
        (X.long(), -1, TypeError, "`x` must be a floating-point tensor, got a tensor of torch.int64; use x.float()"),
        (X * 1j, -1, TypeError, "`x` must be a floating-point tensor, got a tensor of torch.complex64; use x.real"),
        (
            [1.0, 2.0],
            -1,
            TypeError,
            "`x` must be a floating-point tensor, got list; use torch.as_tensor(x, dtype=torch.float32)",
        ),
        (torch.tensor(1.0), -1, ValueError, "`x` must have at least one dimension, got a single number"),
        (X, 2, ValueError, "`dim` must be between -2 and 1, got 2"),
        (X[:, :0], -1, ValueError, "`x` must have at least one number along `dim`, got shape (2, 0)"),
        (X / 0, -1, ValueError, "`x` must be finite, got NaN or infinity"),
        (
            X.to_sparse(),
            -1,
            TypeError,
            "`x` must be a dense tensor, got layout torch.sparse_coo; call .to_dense()",
        ),
    ],
)
def test_numbers(name, x, dim, error, message):
    with pytest.raises(error, match=re.escape(f"laplex.soft.{name}: {message}")):
        CALLS[name](x, dim)


@pytest.mark.parametrize(
    ("tau", "error", "message"),
    [
        ("soft", ValueError, """`tau` must be a positive number, a tensor or "auto", got 'soft'"""),
        (None, TypeError, '`tau` must be a positive number, a tensor or "auto", got NoneType'),
        (True, TypeError, '`tau` must be a positive number, a tensor or "auto", got bool'),
        (0.0, ValueError, "`tau` must be positive and finite, got 0"),
        (1e-310, ValueError, "`tau` must be positive and finite, got 1e-310; if it is learned, learn its logarithm"),
        (10**400, ValueError, "`tau` must be positive and finite, got inf"),
        (math.inf, ValueError, "`tau` must be positive and finite, got inf"),
        (torch.tensor([1.0, -2.0]), ValueError, "`tau` must be positive and finite, got -2"),
        (math.nan, ValueError, "`tau` must be positive and finite, got nan"),
        (
            torch.ones(3),
            ValueError,
            "`tau` must be a number, or broadcast to (2,), the shape of `x` without `dim`, got",
        ),
        (
            torch.ones(2, dtype=torch.bool),
            TypeError,
            "`tau` must be a number or a tensor of real numbers, got torch.bool",
        ),
        (torch.ones(2) * 1j, TypeError, "`tau` must be a number or a tensor of real numbers, got torch.complex64; use"),
        (torch.ones(2, device="meta"), ValueError, "`tau` must be on the device of `x` (cpu), got meta; move it with"),
    ],
)
def test_softness(name, tau, error, message):
    with pytest.raises(error, match=re.escape(f"laplex.soft.{name}: {message}")):
        CALLS[name](X, tau=tau)


@pytest.mark.parametrize(
    "tau", [2, numpy.int8(2), numpy.float16(2), torch.tensor(2), torch.tensor([2, 2]).to(torch.uint8)]
)
def test_softness_of_other_types(name, tau):
    """Numbers of any real type, as for all length scales of rows."""

    assert numbers(CALLS[name](X, tau=tau)).equal(numbers(CALLS[name](X, tau=2.0)))


@pytest.mark.parametrize(
    ("k", "error", "message"),
    [
        (0, ValueError, "`k` must be at least 1, got 0"),
        (4, ValueError, "`k` must be at most 3, the size of `dim`, got 4"),
        (1.5, TypeError, "`k` must be a whole number, got 1.5"),
        (True, TypeError, "`k` must be a whole number, got True"),
        (None, TypeError, "`k` must be a whole number, got None"),
    ],
)
def test_sizes_of_topk(k, error, message):
    with pytest.raises(error, match=re.escape(f"laplex.soft.topk: {message}")):
        soft.topk(X, k, tau=1.0)
    if k is not None:
        with pytest.raises(error, match=re.escape(f"laplex.soft.ndcg: {message}")):
            soft.ndcg(X, X, tau=1.0, k=k)


@pytest.mark.parametrize(
    ("k", "error", "message"),
    [
        (-1, ValueError, "`k` must be between 0 and 3, got -1"),
        (torch.tensor([1.0, 3.5]), ValueError, "`k` must be between 0 and 3, got 3.5"),
        (math.nan, ValueError, "`k` must be between 0 and 3, got nan"),
        ("2", TypeError, "`k` must be a number or a tensor, got str"),
        (torch.ones(3), ValueError, "`k` must be a number, or broadcast to (2,), the shape of `x` without `dim`"),
    ],
)
def test_sizes_of_masks(k, error, message):
    with pytest.raises(error, match=re.escape(f"laplex.soft.topk_mask: {message}")):
        soft.topk_mask(X, k, tau=1.0)


@pytest.mark.parametrize("q", [0.0, 1.0])
def test_quantiles_at_the_ends(q):
    with pytest.raises(ValueError, match=rf"`q` must be between 0 and 1, both excluded, got {q:g}"):
        soft.quantile(X, torch.tensor([0.5, q]), tau=1.0)


@pytest.mark.parametrize("q", [50, 1, 0.0, -0.1, math.nan])
def test_quantiles_beyond(q):
    with pytest.raises(
        ValueError, match=rf"laplex\.soft\.quantile: `q` must be between 0 and 1, both excluded, got {q:g}"
    ):
        soft.quantile(X, q, tau=1.0)


def test_several_quantiles_of_one_row():
    with pytest.raises(ValueError, match=r"laplex\.soft\.quantile: `q` must be one number.*use x\.expand\(3, -1\)"):
        soft.quantile(X[0], torch.tensor([0.1, 0.5, 0.9]), tau=1.0)
    assert soft.quantile(X[0].expand(3, -1), torch.tensor([0.1, 0.5, 0.9]), tau=1.0).shape == (3,)


def test_errors_of_medians_name_them():
    with pytest.raises(ValueError, match=r"laplex\.soft\.median: `tau` must be positive"):
        soft.median(X, tau=0.0)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.ones(3), "`weights` must have the shape (2, 3) of `x`, got (3,)"),
        ([1.0], "`weights` must have the shape (2, 3) of `x`, got list"),
        (-torch.ones(2, 3), "`weights` must be finite and not negative, got -1"),
        (torch.ones(2, 3) / 0, "`weights` must be finite and not negative, got inf"),
        (torch.tensor([[1.0] * 3, [0.0] * 3]), "`weights` must be positive somewhere along `dim`, got 0"),
    ],
)
def test_weights(weights, message):
    for call in (soft.median, lambda *a, **b: soft.quantile(*a, 0.3, **b)):
        with pytest.raises(ValueError, match=re.escape(message)):
            call(X, tau=1.0, weights=weights)


def test_products_and_entries():
    P = soft.sort(X, tau=1.0).permutation
    with pytest.raises(TypeError, match=r"P @ v needs a tensor, got list"):
        P @ [1.0]
    for v in (torch.ones(3), torch.ones(2, 4), torch.ones(3, 3), torch.ones(3, 2)):
        with pytest.raises(ValueError, match=r"for P @ v, v must be \(2, 3\) or \(2, 3, columns\), got"):
            P @ v
        with pytest.raises(ValueError, match=r"for P\.mT @ v, v must be \(2, 3\) or \(2, 3, columns\), got"):
            P.mT @ v
    for product in (P.__matmul__, P.mT.__matmul__):
        with pytest.raises(TypeError, match=r"v needs a floating-point tensor, got torch.int64; use v.float\(\)"):
            product(torch.ones(2, 3, dtype=torch.int64))
    for key, got in (
        (0, "int"),
        ((0, 1, 2), "int, int, int"),
        ((0, slice(None)), "int, slice"),
        ((..., 0), "ellipsis, int"),
    ):
        with pytest.raises(TypeError, match=rf"entries are P\[rows, cols\], .* got P\[{got}\]; for whole rows use"):
            P[key]


def test_method():
    with pytest.raises(
        ValueError, match=r"laplex\.soft\.rank: `method` must be one of cdf, softsort, got 'neuralsort'"
    ):
        soft.rank(X, tau=1.0, method="neuralsort")


def test_target_of_normalization():
    with pytest.raises(ValueError, match=r"laplex\.soft\.quantile_normalize: `target` must be finite, got NaN"):
        soft.quantile_normalize(X, torch.tensor([1.0, math.nan]), tau=1.0)


FLAGS = {
    "sort: `descending`": lambda flag: soft.sort(X, tau=1.0, descending=flag),
    "sort: `hard`": lambda flag: soft.sort(X, tau=1.0, hard=flag),
    "argsort: `descending`": lambda flag: soft.argsort(X, tau=1.0, descending=flag),
    "topk: `largest`": lambda flag: soft.topk(X, 2, tau=1.0, largest=flag),
    "rank: `descending`": lambda flag: soft.rank(X, tau=1.0, descending=flag),
    "rank: `hard`": lambda flag: soft.rank(X, tau=1.0, hard=flag),
    "topk_mask: `hard`": lambda flag: soft.topk_mask(X, 1, tau=1.0, hard=flag),
    "cross_entropy: `descending`": lambda flag: soft.cross_entropy(X, X.argsort(), tau=1.0, descending=flag),
}


@pytest.mark.parametrize("flag", [3, "no", None])
@pytest.mark.parametrize("name", FLAGS)
def test_flags(name, flag):
    with pytest.raises(TypeError, match=re.escape(f"laplex.soft.{name} must be True or False, got {flag!r}")):
        FLAGS[name](flag)


@pytest.mark.parametrize("name", FLAGS)
def test_flags_of_numpy(name):
    """Such as a comparison has."""

    for flag in (True, False):
        assert numbers(FLAGS[name](numpy.bool_(flag))).equal(numbers(FLAGS[name](flag)))


def test_ranks_that_float16_does_not_have():
    x = torch.zeros(65505, dtype=torch.float16)
    assert soft.rank(x[:100], tau=1.0).equal(torch.full((100,), 50.5, dtype=torch.float16))
    with pytest.raises(ValueError, match="float16 ends at 65504, got 65505 numbers along `dim`"):
        soft.rank(x, tau=1.0)


class Operators(TorchDispatchMode):
    """The names of the operators that run in it."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.__name__)
        return function(*args, **kwargs or {})


def test_a_tau_that_cannot_be_read_is_not_looked_at():
    """Under a mode as on a GPU: nobody would read the answer."""
    x, tau = torch.randn(3, 8), torch.rand(3, dtype=torch.float64)
    with Operators() as seen:
        softness("laplex.soft.rank", tau, x)
    assert not {"gt.Scalar", "abs.default", "bitwise_and.Tensor"}.intersection(seen.names)


COLUMN = torch.randn(5, 1)
LOSSES = {
    "spearman": lambda x, dim=-1: soft.spearman(x, x, dim, tau=1.0),
    "ndcg": lambda x, dim=-1: soft.ndcg(x, x.abs(), dim, tau=1.0, k=1),
    "cross_entropy": lambda x, dim=-1: soft.cross_entropy(x, x.argsort(dim), dim, tau=1.0),
    "quantile_normalize": lambda x, dim=-1: soft.quantile_normalize(x, torch.arange(3.0), dim, tau=1.0),
}
OF_ROWS = {
    **CALLS,
    **LOSSES,
    "topk": lambda x, dim=-1: soft.topk(x, 1, dim, tau=1.0),
    "median": lambda x, dim=-1: soft.median(x, dim, tau=1.0),
}


@pytest.mark.parametrize("name", OF_ROWS)
def test_a_column_is_said_to_be_rows_of_one_number(name):
    argument = "scores" if name == "ndcg" else "x"
    ((message, file),) = shape_warnings(lambda: OF_ROWS[name](COLUMN))
    assert message.startswith(f"laplex.soft.{name}: `{argument}` has shape (5, 1): these are rows of one number each")
    assert f"for rows of 5 numbers use {argument}.squeeze(-1), or dim=0" in message
    assert file == __file__  # the user's line, not one of laplex
    assert "(3, 5, 1)" in shape_warnings(lambda: OF_ROWS[name](torch.randn(3, 5, 1)))[0][0]


@pytest.mark.parametrize("name", OF_ROWS)
def test_other_rows_warn_of_nothing(name):
    for x, dim in ((COLUMN, 0), (COLUMN.mT, 0), (COLUMN.mT, -1), (COLUMN[:1], -1), (COLUMN[0], -1), (X, -1)):
        assert shape_warnings(lambda x=x, dim=dim: OF_ROWS[name](x, dim)) == []


def test_a_target_for_each_row_warns_of_nothing():
    assert shape_warnings(lambda: soft.quantile_normalize(X, X[:, :1], tau=1.0)) == []


def test_a_graph_warns_of_no_columns():
    assert shape_warnings(lambda: torch.compile(CALLS["rank"], fullgraph=True, backend="eager")(COLUMN)) == []


def test_an_order_of_another_integer_type():
    message = "laplex.soft.cross_entropy: `order` must have indices of torch.int64, got torch.int32; use order.long()"
    with pytest.raises(TypeError, match=re.escape(message)):
        soft.cross_entropy(X, X.argsort().int(), tau=1.0)


SPARSE = X.to_sparse()
SECOND = {
    "y": lambda: soft.spearman(X, SPARSE, tau=1.0),
    "relevance": lambda: soft.ndcg(X, SPARSE, tau=1.0),
    "order": lambda: soft.cross_entropy(X, SPARSE, tau=1.0),
    "target": lambda: soft.quantile_normalize(X, SPARSE, tau=1.0),
    "weights": lambda: soft.median(X, tau=1.0, weights=SPARSE),
    "tau": lambda: soft.rank(X, tau=torch.ones(2).to_sparse()),
    "k": lambda: soft.topk_mask(X, torch.ones(2).to_sparse(), tau=1.0),
    "q": lambda: soft.quantile(X, torch.full((2,), 0.5).to_sparse(), tau=1.0),
}


@pytest.mark.parametrize("name", SECOND)
def test_sparse_tensors(name):
    with pytest.raises(TypeError, match=f"`{name}` must be a dense tensor, got layout torch.sparse_coo; call"):
        SECOND[name]()


def test_complex_numbers_have_no_order():
    with pytest.raises(TypeError, match=r"laplex.soft.spearman: `y` must have real numbers, got torch.complex64"):
        soft.spearman(X, X * 1j, tau=1.0)
    with pytest.raises(TypeError, match=r"laplex.soft.ndcg: `relevance` must have real numbers, got torch.complex64"):
        soft.ndcg(X, X * 1j, tau=1.0)

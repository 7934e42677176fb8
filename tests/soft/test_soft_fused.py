"""The compiled core's fused ranks, sorts and masks against the definitions; and how they are reached."""

import pytest
import torch
from dense_soft import CASES, SOFTNESS
from fused_cases import ERRORS, WHERE, assert_mask, assert_ranks, assert_values, lengths, rows_of

from laplex import _compiled, soft
from laplex._eager import watching
from laplex._sorted import cpp
from test_memory import NothingAsLargeAs

pytestmark = pytest.mark.skipif(bool(_compiled.MISSING), reason="the core is not compiled")


@pytest.fixture(params=CASES)
def case(request):
    return request.param


@pytest.fixture(params=ERRORS, ids=str)
def dtype(request):
    return request.param


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("softness", SOFTNESS)
def test_ranks_and_values(case, dtype, softness, descending):
    x = rows_of(case, dtype)
    assert_ranks(cpp, x, lengths(x, softness), descending)
    assert_values(cpp, x, lengths(x, softness), descending)


@pytest.mark.parametrize("share", [1e-3, 0.3, 0.999])
@pytest.mark.parametrize("softness", SOFTNESS)
def test_masks(case, dtype, softness, share):
    x = rows_of(case, dtype)
    assert_mask(cpp, x, lengths(x, softness), share)


@pytest.mark.parametrize("kind", ["normal", "ties", "equal", "clustered"])
def test_rows_of_many_chunks(kind, dtype):
    """States, and ties, are carried over borders of chunks of 512 numbers."""
    n = 1700
    x = {
        "normal": torch.randn(2, n),
        "ties": torch.randint(0, 4, (2, n)).float(),
        "equal": torch.full((2, n), 3.0),
        "clustered": torch.randint(0, 3, (2, n)) * 1e4 + 1e-3 * torch.randn(2, n),
    }[kind].to(dtype)
    for softness in (1e-9, 1e-2, 1.0):
        tau = torch.full((2,), softness, dtype=torch.float64)
        assert_ranks(cpp, x, tau, descending=False)
        assert_values(cpp, x, tau, descending=True)
        assert_mask(cpp, x, tau, 0.4)


@pytest.mark.parametrize("h", [1, 3])
def test_threads_do_not_change_bits(h):
    x, tau = torch.randn(h, 150_000), torch.full((h,), 0.01, dtype=torch.float64)
    k, g, results = torch.full((h,), 5e4, dtype=torch.float64), torch.randn(h, 150_000), []
    threads = torch.get_num_threads()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        ranks, sorted_x, order = cpp.ranks(WHERE, x, tau, False)
        values, _, _, factors = cpp.values(WHERE, x, tau, False, 150_000)
        mask, threshold = cpp.mask(WHERE, x, k, tau)
        bars = (
            *cpp.pull_ranks(g, sorted_x, order, tau, False),
            *cpp.pull_values(g, sorted_x, order, factors, tau, False),
            *cpp.pull_mask(g, x, k, tau, threshold),
        )
        results.append((ranks, sorted_x, order, values, factors, mask, *bars))
    torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))
    assert results[0][1].equal(x.sort(-1).values)


CALLS = {
    "sort": lambda x: soft.sort(x, tau=0.1).values,
    "topk": lambda x: soft.topk(x, x.shape[-1] // 3, tau=0.1).values,
    "rank": lambda x: soft.rank(x, tau=0.1),
    "topk_mask": lambda x: soft.topk_mask(x, x.shape[-1] // 3, tau=0.1),
}


@pytest.mark.parametrize("name", CALLS)
def test_public_functions_take_this_way(name, monkeypatch):
    """With nothing but what is asked for: a scan would be a detour."""

    def refuse(*args, **options):
        raise AssertionError("this was composed of scans")

    for module in ("_rank", "_threshold"):
        monkeypatch.setattr(f"laplex.soft.{module}.scan", refuse)
    monkeypatch.setattr("laplex.soft._permutation.linear", refuse)
    x = torch.randn(4, 30, requires_grad=True)
    (bar,) = torch.autograd.grad(CALLS[name](x).square().sum(), x)
    assert bar.isfinite().all()


@pytest.mark.parametrize("name", CALLS)
def test_nothing_larger_than_a_few_rows(name, monkeypatch):
    n = 20_000
    x = torch.randn(n, requires_grad=True)
    monkeypatch.setattr(watching, "modes", 1)  # the mode watches what is fused, too
    with NothingAsLargeAs(4 * n):
        (bar,) = torch.autograd.grad(CALLS[name](x).sum(), x)
    assert bar.isfinite().all()


@pytest.mark.parametrize("name", CALLS)
def test_one_sort_a_step(name):
    """Backward uses the order that forward found."""
    x = torch.randn(3, 50, requires_grad=True)
    before = _compiled.core.tally()[1]
    torch.autograd.grad(CALLS[name](x).square().sum(), x)
    assert _compiled.core.tally()[1] == before + 3


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("shape", [(7,), (2, 3, 7)], ids=str)
def test_strides_and_shapes(name, shape):
    x = torch.randn(*shape, dtype=torch.float64)
    strided = x.repeat_interleave(2, -1)[..., ::2].requires_grad_()
    results = [CALLS[name](v) for v in (x.requires_grad_(), strided)]
    assert results[0].equal(results[1])
    g = torch.randn_like(results[0])
    spread = g.repeat_interleave(2, -1)[..., ::2]
    bars = [torch.autograd.grad(y, v, c)[0] for y, v, c in zip(results, (x, strided), (g, spread), strict=True)]
    assert bars[0].equal(bars[1])

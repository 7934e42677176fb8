"""Plans over ranks: what they exchange, whose anchors they describe, and the layouts they make."""

import contextlib
import copy

import gloo_processes
import pytest
import torch
import torch.distributed as dist
from torch.autograd import forward_ad

import laplex
from helpers import error
from laplex import distributed

RANKS = 3


def sample(n=40, k=35, dtype=torch.float64):
    """Anchors, and rows of an operand, whole: the same on every rank."""
    torch.manual_seed(5)
    return torch.randn(n, dtype=dtype), torch.randn(k, dtype=dtype), torch.randn(4, k, dtype=dtype)


def mine(values):
    """Every third value."""
    return values[..., dist.get_rank() :: RANKS].clone()


@contextlib.contextmanager
def counted():
    """The collectives that are called inside, by name, with the bytes that this rank contributes."""
    calls = []
    originals = {name: getattr(dist, name) for name in ("all_gather", "all_to_all_single", "all_reduce")}

    def watched(name, place):
        def call(*args, **options):
            calls.append((name, args[place].numel() * args[place].element_size()))
            return originals[name](*args, **options)

        return call

    for name, place in (("all_gather", 1), ("all_to_all_single", 1), ("all_reduce", 0)):
        setattr(dist, name, watched(name, place))
    try:
        yield calls
    finally:
        for name, function in originals.items():
            setattr(dist, name, function)


def arranged():
    """Anchors and an operand as the plan has them; values come back as they were."""
    a, b, x = sample(3000, 2000)
    plan = distributed.Plan(mine(a), mine(b))
    rows, cols, operand = plan.arrange_rows(mine(a)), plan.arrange_columns(mine(b)), plan.arrange_columns(mine(x))
    assert (rows.numel(), cols.numel()) == plan.owned
    assert bool((rows.diff() >= 0).all() and (cols.diff() >= 0).all())
    assert torch.equal(plan.restore_rows(rows), mine(a))
    assert torch.equal(plan.restore_columns(operand), mine(x))
    return a, b, x, rows, cols, operand


def exchanges_little():
    """A product whose shards are intervals exchanges a few numbers per row, however many columns there are."""
    sizes = {}
    for m in (1, 4):
        *_, rows, cols, operand = arranged()
        plan = distributed.Plan(rows, cols)
        assert "as they are" in repr(plan)
        assert copy.deepcopy([plan])[0] is plan
        operand = operand[:m].requires_grad_()
        with counted() as calls:
            y = distributed.linear(operand, rows, cols, 0.3, plan=plan)
        forward = list(calls)
        with counted() as calls:
            y.sum().backward()
        sizes[m] = forward, list(calls)
    agreement = ("all_gather", 3 * 8)
    for m, (forward, backward) in sizes.items():
        assert forward == [agreement, ("all_gather", 4 * 8 * m)]
        assert backward == [("all_gather", 4 * 8 * m)]


def moves_operand_and_result():
    """Shards in any order: the operand, the result, and nothing of the anchors, in the dtype of the operand."""
    a, b, x = sample(3000, 2000, torch.float32)
    plan = distributed.Plan(mine(a), mine(b))
    a, b, x = mine(a), mine(b), mine(x)
    with counted() as calls:
        distributed.linear(x, a, b, plan=distributed.Plan(a, b))
    with counted() as calls:
        distributed.linear(x, a, b, plan=plan)
    moved = [size for name, size in calls if name == "all_to_all_single"]
    assert moved == [x.numel() * 4, sum(plan._shares[0].received) * x.shape[0] * 4]


def arranged_products_agree():
    a, b, x, rows, cols, operand = arranged()
    plan = distributed.Plan(mine(a), mine(b))
    y = distributed.linear(operand, rows, cols, 0.3)
    assert error(plan.restore_rows(y), mine(laplex.linear(x, a, b, 0.3))) <= 1e-14


def shares_are_even():
    """No rank owns much more than its share, however skewed, tied or concentrated the shards are."""
    torch.manual_seed(dist.get_rank())
    n = 6000
    shards = {
        "skewed": torch.randn(n).double().exp() ** (1 + dist.get_rank()),
        "tied": torch.zeros(n).double(),
        "on one rank": torch.randn(RANKS * n if dist.get_rank() == 1 else 0).double(),
        "few values": torch.randint(0, 2, (n,)).double(),
    }
    for name, values in shards.items():
        plan = distributed.Plan(values, values)
        assert plan.shape == (RANKS * n, RANKS * n), name
        assert abs(sum(plan.owned) / (2 * n) - 1) <= 0.02, (name, plan)


def transposed():
    a, b, _ = sample()
    plan = distributed.Plan(mine(a), mine(b))
    g = torch.randn(4, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    back = distributed.linear(mine(g), mine(b), mine(a), 0.3, plan=plan.mT)
    assert error(back, mine(laplex.linear(g, b, a, 0.3))) <= 1e-14
    assert plan.mT.shape == plan.shape[::-1]


def anchors_that_moved():
    """A plan serves while anchors keep their order, and otherwise raises, on all ranks, even if few of them moved."""
    a, b, x = sample()
    plan = distributed.Plan(mine(a), mine(b))
    y = distributed.linear(mine(x), mine(2 * a), mine(2 * b), 0.3, plan=plan)
    assert error(y, mine(laplex.linear(x, 2 * a, 2 * b, 0.3))) <= 1e-14
    moved = a.clone()
    moved[a.argmin()] = a.max() + 1
    with pytest.raises(laplex.StalePlanError, match="moved past one another"):
        distributed.linear(mine(x), mine(moved), mine(b), 0.3, plan=plan)
    y = distributed.linear(mine(x), mine(moved), mine(b), 0.3, plan=plan.update(mine(moved), mine(b)))
    assert error(y, mine(laplex.linear(x, moved, b, 0.3))) <= 1e-14


def written_in_place():
    """Anchors that were written to since, as an optimizer does, are seen."""
    a, b, x = sample()
    rows, cols = mine(a), mine(b).requires_grad_()
    plan = distributed.Plan(rows, cols)
    with torch.no_grad():
        rows += 1e-9
        cols += 1e-9
    y = distributed.linear(mine(x), rows, cols, 0.3, plan=plan)
    assert error(y, mine(laplex.linear(x, a + 1e-9, b + 1e-9, 0.3))) <= 1e-14
    with torch.no_grad():
        rows.neg_()
    with pytest.raises(laplex.StalePlanError):
        distributed.linear(mine(x), rows, cols, 0.3, plan=plan)


def same_bits():
    a, b, x = sample(3000, 2000, torch.float32)
    plan = distributed.Plan(mine(a), mine(b))
    first = distributed.linear(mine(x), mine(a), mine(b), 0.3)
    assert torch.equal(first, distributed.linear(mine(x), mine(a), mine(b), 0.3, plan=plan))


def forward_mode():
    a, b, x = sample()
    tangents = {"x": torch.randn_like(x), "a": torch.randn_like(a), "b": torch.randn_like(b)}
    primals = {"x": x, "a": a, "b": b}
    with forward_ad.dual_level():
        duals = {name: forward_ad.make_dual(v, tangents[name]) for name, v in primals.items()}
        truth = forward_ad.unpack_dual(laplex.linear(**duals, tau=0.3)).tangent
        duals = {name: forward_ad.make_dual(mine(v), mine(tangents[name])) for name, v in primals.items()}
        got = forward_ad.unpack_dual(distributed.linear(**duals, tau=0.3)).tangent
    assert error(got, mine(truth)) <= 1e-13


def forward_mode_of_what_all_ranks_have():
    """Tangents of tau and weight, and gradients of those tangents, which are sums over ranks."""
    a, b, x = sample()
    a, b = a.expand(2, -1).clone(), b.expand(2, -1).clone()
    primals = {"tau": torch.tensor([0.3, 0.5]).double(), "weight": torch.tensor([0.7, -0.4]).double()}
    results = []
    for product, shard in ((laplex.linear, lambda values: values), (distributed.linear, mine)):
        tangents = {name: torch.ones_like(value).requires_grad_() for name, value in primals.items()}
        with forward_ad.dual_level():
            duals = {name: forward_ad.make_dual(value, tangents[name]) for name, value in primals.items()}
            tangent = forward_ad.unpack_dual(product(shard(x), shard(a), shard(b), **duals)).tangent
            bars = torch.autograd.grad(tangent.square().sum(), list(tangents.values()))
        results.append((tangent.detach(), *bars))
    (truth, *wanted), (got, *bars) = results
    assert error(got, mine(truth)) <= 1e-13
    assert all(error(bar, want) <= 1e-12 for bar, want in zip(bars, wanted, strict=True))


def made_in_inference_mode():
    """Then a model is trained with the plan."""
    for shards in (mine, lambda values: values.sort().values[..., dist.get_rank() * 10 :][..., :10].clone()):
        a, b, x = map(shards, sample(30, 30))
        with torch.inference_mode():
            plan = distributed.Plan(a, b)
            y = distributed.linear(x.clone(), a.clone(), b.clone(), 0.3)  # tensors of that mode
        assert torch.equal(y, distributed.linear(x, a, b, 0.3, plan=plan))
        bars = []
        for given in ({"plan": plan}, {}):
            leaves = [value.clone().requires_grad_() for value in (x, a, b)]
            distributed.linear(*leaves, 0.3, **given).square().sum().backward()
            bars.append([leaf.grad for leaf in leaves])
        assert all(torch.equal(one, other) for one, other in zip(*bars, strict=True))


def imaginary_parts_of_conjugates():
    """torch stores them as they were, with a note that their signs are to be changed."""
    x, a, b = (mine(values) for values in reversed(sample(35, 35)))
    other = [torch.complex(torch.zeros_like(values), -values).conj().imag for values in (x, a, b)]
    assert all(values.is_neg() for values in other)
    assert torch.equal(distributed.linear(*other, 0.3), distributed.linear(x, a, b, 0.3))
    plan = distributed.Plan(*other[1:])
    assert torch.equal(plan.arrange_rows(other[1]), distributed.Plan(a, b).arrange_rows(a))
    assert torch.equal(plan.restore_rows(plan.arrange_rows(other[1])), a)
    assert torch.equal(distributed.gram(torch.ones(1).double(), other[2]), distributed.gram(torch.ones(1).double(), b))
    system, negated = (distributed.KernelSystem(values, 0.3, 0.1) for values in (a, other[1]))
    assert torch.equal(negated.solve(other[1]), system.solve(a))


def checks():
    functions = (
        exchanges_little, moves_operand_and_result, arranged_products_agree, shares_are_even, transposed,
        anchors_that_moved, written_in_place, same_bits, forward_mode, forward_mode_of_what_all_ranks_have,
        made_in_inference_mode, imaginary_parts_of_conjugates,
    )  # fmt: skip
    return {function.__name__: function for function in functions}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return gloo_processes.start(checks, RANKS, tmp_path_factory.mktemp("plans"))


@pytest.mark.parametrize("name", checks())
def test_plans_over_ranks(name, results):
    assert gloo_processes.failures(results, name) == {}

"""Gram matrices and systems K + diag over ranks: values and gradients are those of the dense definition."""

import functools
import re

import gloo_processes
import pytest
import torch
import torch.distributed as dist

import laplex
from helpers import error
from laplex import distributed, reference

RANKS = 3
AT_FAULT = 1


def parts(size, kind):
    """The places of this rank's shard."""
    rank = dist.get_rank()
    places = torch.randperm(size, generator=torch.Generator().manual_seed(size))
    if kind == "intervals":
        return torch.arange(size)[size * rank // RANKS : size * (rank + 1) // RANKS]
    if kind == "one":
        return places[: size if rank == 1 else 0]
    ends = {"even": (0, 1 / 3, 2 / 3, 1), "uneven": (0, 0, 0.7, 1)}[kind]
    return places[round(size * ends[rank]) : round(size * ends[rank + 1])]


def compare(ours, theirs, leaves, shards, mine, *, once, second=False):
    """Errors of a value and of its gradients by name. A replicated value is one loss on all ranks."""
    direction = torch.randn(theirs.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    want = torch.autograd.grad((theirs * direction).sum(), list(leaves.values()), create_graph=second)
    shared = RANKS if once else 1
    weights = direction if once else direction[..., mine["y"]]
    got = torch.autograd.grad((ours * weights).sum() / shared, list(shards.values()), create_graph=second)
    errors = {"value": error(ours, theirs if once else theirs[..., mine["y"]], theirs)}
    for name, value, truth in zip(leaves, got, want, strict=True):
        errors["first " + name] = error(value, truth[..., mine[name]] if name in mine else truth, truth)
    if second:
        losses = [g.square().sum() / (1 if name in mine else RANKS) for name, g in zip(leaves, got, strict=True)]
        bars = torch.autograd.grad(sum(losses), list(shards.values()))
        truths = torch.autograd.grad(sum(g.square().sum() for g in want), list(leaves.values()))
        for name, value, truth in zip(leaves, bars, truths, strict=True):
            errors["second " + name] = error(value, truth[..., mine[name]] if name in mine else truth, truth)
    return errors


def cut(values, mine):
    leaves = {name: value.detach().clone().requires_grad_() for name, value in values.items()}
    shards = {
        name: (value[..., mine[name]] if name in mine else value).detach().clone().requires_grad_()
        for name, value in values.items()
    }
    return leaves, shards


# --- Gram matrices ----------------------------------------------------------------------------------------------------


def grams(kind="uneven", *, phased=False, lead=(), batch=(), tied=False, weighted=True):
    torch.manual_seed(4)
    n, k = 7, 40
    values = {"a": torch.randn(*batch, n).double(), "b": torch.randn(*batch, k).double()}
    if tied:
        values = {name: (2 * value).round() / 2 for name, value in values.items()}
    if weighted:
        values["weight"] = torch.randn(*lead, k).double()
    values["tau"] = torch.tensor(0.7).double()
    if phased:
        values |= {"phi": torch.randn(*batch, n).double(), "psi": torch.randn(*batch, k).double()}
    mine = dict.fromkeys(("b", "weight", "psi"), parts(k, kind))
    leaves, shards = cut(values, mine)
    ours = distributed.gram(**shards)
    assert torch.equal(ours, ours.mT)
    first = ours.detach().clone()
    dist.broadcast(first, 0)
    assert torch.equal(first, ours)
    return compare(ours, reference.gram(**leaves), leaves, shards, mine, once=True, second=not tied)


def gram_of_float32():
    torch.manual_seed(4)
    a, b, weight = torch.randn(20), torch.randn(3000), torch.rand(3000)
    here = parts(3000, "even")
    plan = laplex.Plan(a, b[here])
    ours = distributed.gram(a, b[here], weight[here], 0.3, plan=plan)
    assert ours.dtype == torch.float32
    return {"value of float32": error(ours, reference.gram(a.double(), b.double(), weight.double(), 0.3))}


GRAMS = {
    "gram": grams,
    "gram, even": lambda: grams("even"),
    "gram, all on one rank": lambda: grams("one"),
    "gram without weights": lambda: grams(weighted=False),
    "gram with phases": lambda: grams(phased=True),
    "gram with several weights": lambda: grams(lead=(2, 3)),
    "gram of a batch": lambda: grams(batch=(2,), lead=(2, 1), phased=True),
    "gram of a batch of two dimensions": lambda: grams(batch=(2, 3), lead=(2, 3, 1)),
    "gram of a batch, one of them of size 1": lambda: grams(batch=(1, 3), weighted=False, phased=True),
    "gram with ties": lambda: grams(tied=True),
    "gram in float32": gram_of_float32,
}


# --- systems ----------------------------------------------------------------------------------------------------------


def dense(a, tau, diag, phi=None):
    matrix = reference.kernel(a, a, tau, phi=phi, psi=phi)
    return matrix + torch.diag(diag.expand(a.shape))


def problem(*, phased, kind, spread, number, points=33, ties=None):
    torch.manual_seed(6)
    a = torch.randn(points).double() * spread
    if ties is not None:
        a = ties(a)
    if kind == "intervals":
        a = a.sort().values
    values = {"a": a, "tau": torch.tensor(0.7).double()}
    values["diag"] = torch.tensor(0.2).double() if number else torch.rand(points).double() + 0.1
    if phased:
        values["phi"] = torch.randn(points).double()
    here = parts(points, kind)
    mine = dict.fromkeys(("a", "phi", "y") if number else ("a", "diag", "phi", "y"), here)
    return values, mine


def solved(*, phased=False, kind="uneven", spread=1.0, number=False, second=True, points=33, ties=None):
    values, mine = problem(phased=phased, kind=kind, spread=spread, number=number, points=points, ties=ties)
    values["y"] = torch.randn(2, points).double()
    leaves, shards = cut(values, mine)
    given = dict(shards)
    ours = distributed.KernelSystem(diag=given.pop("diag"), **{k: v for k, v in given.items() if k != "y"})
    given = dict(leaves)
    y = given.pop("y")
    theirs = torch.linalg.solve(dense(**given), y.mT).mT
    return compare(ours.solve(shards["y"]), theirs, leaves, shards, mine, once=False, second=second)


def likelihood(*, phased=False, kind="uneven", spread=1.0, number=False, points=33, ties=None):
    values, mine = problem(phased=phased, kind=kind, spread=spread, number=number, points=points, ties=ties)
    values["y"] = torch.randn(2, points).double()
    leaves, shards = cut(values, mine)
    given = dict(shards)
    y = given.pop("y")
    system = distributed.KernelSystem(**given)
    if dist.get_rank() == 0:  # no exchange: one rank may ask alone
        assert system.size == points
    given = dict(leaves)
    observed = given.pop("y")
    matrix = dense(**given)
    normal = torch.distributions.MultivariateNormal(torch.zeros(points).double(), matrix)
    with torch.no_grad():
        assert error(system.logdet(), torch.logdet(matrix)) <= 1e-12
    return compare(system.log_likelihood(y), normal.log_prob(observed), leaves, shards, mine, once=True)


def one_tie_each(a):
    """At every border of the thirds of the points in order one tie."""
    a = a.sort().values
    a[11], a[22] = a[10], a[21]
    return a


def several_ties(a):
    a = a.sort().values
    a[8:14], a[20:23] = a[11], a[21]
    return a


TIES = {
    "one tie at borders": one_tie_each,
    "several ties at borders": several_ties,
    "rounded points": lambda a: a.round(),
    "all points equal": lambda a: torch.full_like(a, 0.3),
}


def tight_clusters():
    """Points that all but tie across the borders, little noise: what one device gets."""
    torch.manual_seed(0)
    a = (torch.arange(60) // 20).double() * 1e-9 + torch.randn(60).double() * 1e-10
    here, y = parts(60, "even"), torch.randn(60).double()
    system = distributed.KernelSystem(a[here], 1.0, 1e-4)
    assert repr(system).startswith(f"KernelSystem({system.size} points, {a[here].numel()} of them on rank ")
    one = laplex.LaplaceOperator(a, tau=1.0)
    return {
        "clusters: solve": error(system.solve(y[here]), one.solve(y, 1e-4)[here]) / 1e4,  # its condition number is 6e5
        "clusters: logdet": error(system.logdet(), one.logdet(1e-4)),
    }


def described():
    """Attributes that lazy matrices have too: those of the whole matrix, without an exchange."""
    for dtype in (torch.float32, torch.float64):
        points = torch.linspace(0, 1, 4 + dist.get_rank(), dtype=dtype)
        system = distributed.KernelSystem(points, 0.5, 0.1)
        assert system.size == 4 + 5 + 6
        assert system.shape == torch.Size((15, 15))
        assert (system.dtype, system.device) == (dtype, torch.device("cpu"))
        assert system.logdet().dtype == dtype
    return {}


SYSTEMS = {
    "attributes": described,
    "solve": solved,
    "solve, intervals": lambda: solved(kind="intervals"),
    "solve, one number": lambda: solved(number=True),
    "solve, all on one rank": lambda: solved(kind="one"),
    "solve with phases": lambda: solved(phased=True, number=True),
    "solve, far apart": lambda: solved(spread=1e4, second=False),
    "solve, few points": lambda: solved(points=2),
    "likelihood": likelihood,
    "likelihood, intervals": lambda: likelihood(kind="intervals", number=True),
    "likelihood with phases": lambda: likelihood(phased=True),
    "likelihood, close together": lambda: likelihood(spread=1e-5),
    "likelihood, one point": lambda: likelihood(points=1),
    "tight clusters": tight_clusters,
}
for ties_name, tied in TIES.items():
    for kind in ("intervals", "uneven"):
        given = {"kind": kind, "ties": tied, "phased": kind == "uneven"}
        SYSTEMS[f"solve, {ties_name}, {kind}"] = functools.partial(solved, **given)
        SYSTEMS[f"likelihood, {ties_name}, {kind}"] = functools.partial(likelihood, **given)


# --- faults -----------------------------------------------------------------------------------------------------------

A, B = torch.linspace(0, 1, 5).double(), torch.linspace(0, 1, 9).double()
GRAM = {"a": A, "b": B, "weight": torch.ones(9).double(), "tau": 0.5}
SYSTEM = {"a": A, "tau": 0.5, "diag": 0.1}
STALE = laplex.Plan(A, B.flip(0))
WRONG = {
    "gram: another a": (GRAM, {"a": A + 1}, ValueError, r"`a` \(a digest of its values\) must be the same on all"),
    "gram: a of another size": (GRAM, {"a": A[:3]}, ValueError, "the shape of `a` must be the same on all ranks"),
    "gram: a not finite": (GRAM, {"a": A / 0}, ValueError, "rank 1: laplex.distributed.gram: `a` must be finite"),
    "gram: b not finite": (GRAM, {"b": B / 0}, ValueError, "rank 1: laplex.distributed.gram: `b` must be finite"),
    "gram: b of no tensor": (GRAM, {"b": [1.0]}, TypeError, "`b` must be a torch.Tensor"),
    "gram: b of another dtype": (GRAM, {"b": B.float()}, TypeError, "`a` and `b` must have one dtype"),
    "gram: another tau": (GRAM, {"tau": 0.6}, ValueError, "`tau` must be the same on all ranks, got 0.5 on rank 0"),
    "gram: tau not positive": (GRAM, {"tau": -1.0}, ValueError, "`tau` must be positive"),
    "gram: tau of NaN": (GRAM, {"tau": torch.tensor(torch.nan)}, ValueError, "`tau` must be positive"),
    "gram: weight of another size": (GRAM, {"weight": torch.ones(3).double()}, ValueError, "`weight`"),
    "gram: b of a batch": (
        GRAM, {"b": B[None]}, ValueError, r"the batch H \(leading dimensions of `b`\) must be the same on all ranks",
    ),
    "gram: more weights": (
        GRAM, {"weight": torch.ones(2, 9).double()}, ValueError, "leading dimensions and dtype of `weight` must be",
    ),
    "gram: no weight": (GRAM, {"weight": None}, ValueError, "leading dimensions and dtype of `weight` must be"),
    "gram: phi alone": (GRAM, {"phi": A}, ValueError, "`phi` and `psi` go together"),
    "gram: phases": (GRAM, {"phi": A, "psi": B}, ValueError, r"`phi` \(a digest of its values\) must be the same"),
    "gram: a plan on one rank": (GRAM, {"plan": laplex.Plan(A, B)}, ValueError, "whether a plan is given must be"),
    "gram: a plan of text": (GRAM, {"plan": "a"}, TypeError, "`plan` must be a laplex.Plan"),
    "gram: a stale plan": (
        GRAM | {"plan": laplex.Plan(A, B)}, {"plan": STALE}, laplex.StalePlanError, "rank 1: ",
    ),
    "gram: gradients on one rank": (
        GRAM, {"b": B.clone().requires_grad_()}, ValueError, "the set of arguments that require gradients must be",
    ),
    "gram: a group of text": (GRAM, {"group": "gloo"}, TypeError, "`group` must be a torch.distributed.ProcessGroup"),
    "system: a of two dimensions": (SYSTEM, {"a": A[None]}, ValueError, r"rank 1: .* `a` must be \(n,\)"),
    "system: a not finite": (SYSTEM, {"a": A / 0}, ValueError, "`a` must be finite"),
    "gram: a and b without values": (
        GRAM, {"a": A.to("meta"), "b": B.to("meta"), "weight": None}, RuntimeError, "gram: it runs eagerly, on plain",
    ),
    "system: a without values": (
        SYSTEM, {"a": A.to("meta")}, RuntimeError, "rank 1: laplex.distributed.KernelSystem: it runs eagerly, on plain",
    ),
    "system: a of another dtype": (SYSTEM, {"a": A.float()}, ValueError, "the dtype of `a` must be the same"),
    "system: another tau": (SYSTEM, {"tau": 0.25}, ValueError, r"`tau` must be the same on all ranks, got \[0.5\]"),
    "system: tau not positive": (SYSTEM, {"tau": 0.0}, ValueError, "`tau` must be positive"),
    "system: another diag": (
        SYSTEM, {"diag": 0.2}, ValueError, r"`diag` \(its value, or that it is sharded\) must be the same on all ranks",
    ),
    "system: diag not positive": (SYSTEM, {"diag": 0.0}, ValueError, "`diag` must be positive and finite"),
    "system: diag of a shard": (SYSTEM, {"diag": A + 1}, ValueError, "got 0.1 on rank 0 and a shard on rank 1"),
    "system: diag of another size": (SYSTEM, {"diag": A[:2] + 1}, ValueError, "`diag` must be a number or broadcast"),
    "system: diag of one number as a shard": (
        SYSTEM, {"diag": torch.tensor([0.1]).double()}, ValueError, r"rank 1: .* `diag` must be a number, or \(5,\) as",
    ),
    "system: phases on one rank": (SYSTEM, {"phi": A}, ValueError, "whether phases are given must be the same"),
    "system: gradients on one rank": (
        SYSTEM, {"a": A.clone().requires_grad_()}, ValueError, "the set of arguments that require gradients must be",
    ),
}  # fmt: skip
OPERANDS = {
    "y of another size": (
        A[:3], ValueError, "rank 1: .* `y` must be real floating point and have size n = 5 .* got torch.float64",
    ),
    "y of integers": (torch.ones(5, dtype=torch.int64), ValueError, "`y` must be real floating point and"),
    "y of complex numbers": (A.to(torch.complex128), ValueError, "`y` must be real floating .* torch.complex"),
    "y on another device": (A.to("meta"), ValueError, "rank 1: .* `y` must be on cpu, where the points are, got meta"),
    "y of no tensor": ([1.0], TypeError, "`y` must be a torch.Tensor"),
    "y of more rows": (A[None], ValueError, "the shape of `y` but for its last dimension must be the same"),
    "y of float32": (A.float(), ValueError, "the dtype of `y` must be the same on all ranks"),
}  # fmt: skip


def wrong(name):
    good, change, *_ = WRONG[name]
    given = good | (change if dist.get_rank() == AT_FAULT else {})
    return gloo_processes.caught(
        lambda: (distributed.gram if good.keys() >= GRAM.keys() else distributed.KernelSystem)(**given)
    )


def wrong_operand(name, method):
    system = distributed.KernelSystem(**SYSTEM)
    y = OPERANDS[name][0] if dist.get_rank() == AT_FAULT else A
    return gloo_processes.caught(lambda: getattr(system, method)(y))


FAULTS = {name: (lambda name=name: wrong(name), *row[2:]) for name, row in WRONG.items()} | {
    f"{method}: {name}": (lambda name=name, method=method: wrong_operand(name, method), *row[1:])
    for name, row in OPERANDS.items()
    for method in ("solve", "log_likelihood")
}


def checks():
    return GRAMS | SYSTEMS | {name: row[0] for name, row in FAULTS.items()}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return gloo_processes.start(checks, RANKS, tmp_path_factory.mktemp("systems"))


@pytest.mark.parametrize("name", GRAMS | SYSTEMS)
def test_sums_and_solves_over_ranks_are_those_of_the_dense_definition(name, results):
    assert gloo_processes.failures(results, name) == {}
    for rank, mine in enumerate(results):
        for quantity, size in mine[name].items():
            bound = 1e-7 if "float32" in quantity else 1e-10 if quantity.startswith("second") else 1e-11
            assert size <= bound, (rank, quantity)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_on_one_rank_raises_on_all(name, results):
    assert gloo_processes.failures(results, name) == {}
    _, kind, text = FAULTS[name]
    assert {mine[name][:2] for mine in results} == {(kind, results[0][name][1])}
    assert re.search(text, results[0][name][1])
    assert max(mine[name][2] for mine in results) <= 2.0

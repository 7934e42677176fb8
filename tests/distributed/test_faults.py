"""Faults over ranks: an error on one rank is the same error on all, at once; a rank that dies ends the others."""

import os
import re
import signal
import time

import gloo_processes
import pytest
import torch
import torch.distributed as dist
from torch.autograd import forward_ad

import laplex
from laplex import distributed

RANKS = 3
AT_FAULT = 1


def good():
    torch.manual_seed(dist.get_rank() if dist.is_initialized() else 0)
    sizes = (5, 4, 3)[dist.get_rank() if dist.is_initialized() else 0], 6
    a, b = torch.randn(2, sizes[0]).double(), torch.randn(2, sizes[1]).double()
    return {
        "x": torch.randn(3, sizes[1]).double(), "a": a, "b": b, "tau": 0.5, "weight": torch.ones(2).double(),
        "phi": torch.randn_like(a), "psi": torch.randn_like(b), "plan": None, "group": None,
    }  # fmt: skip


def plan_of_others():
    """Made by all ranks, for anchors of other sizes."""
    return distributed.Plan(torch.zeros(7).double(), torch.zeros(2).double())


def local_plan():
    return laplex.Plan(torch.zeros(3), torch.zeros(3))


DOUBLE = {"dtype": torch.float64}
SUBCLASS = type("Other", (torch.Tensor,), {})
# What one rank passes instead, and the type and a part of the message.
WRONG = {
    "x of no tensor": (
        {"x": [1.0]}, TypeError, "rank 1: laplex.distributed.linear: `x` must be a torch.Tensor",
    ),
    "x of integers": ({"x": torch.ones(3, 6, dtype=torch.int64)}, TypeError, "`x` must be floating point"),
    "x of another size": ({"x": torch.ones(3, 5, **DOUBLE)}, ValueError, "`x` must have size k = 6"),
    "x of more rows": (
        {"x": torch.ones(4, 6, **DOUBLE)}, ValueError, "the shape of `x` but for its last dimension must be the same",
    ),
    "x of another dtype": ({"x": torch.ones(3, 6)}, ValueError, "the dtype of `x` must be the same on all ranks"),
    "a in half precision": ({"a": torch.ones(2, 4).half()}, TypeError, "`a` must be float32 or float64"),
    "a not finite": (
        {"a": torch.full((2, 4), torch.nan, **DOUBLE)}, ValueError,
        "rank 1: laplex.distributed.linear: `a` must be finite",
    ),
    "b of another dtype": ({"b": torch.ones(2, 6)}, TypeError, "`a` and `b` must have one dtype"),
    "b not finite": ({"b": torch.full((2, 6), torch.inf, **DOUBLE)}, ValueError, "`b` must be finite"),
    "another batch": (
        {"a": torch.ones(3, 4, **DOUBLE)}, ValueError, "leading dimensions of `a` and `b` must broadcast",
    ),
    "no matrix": (
        {"a": torch.ones(0, 4, **DOUBLE), "b": torch.ones(0, 6, **DOUBLE), "phi": None, "psi": None}, ValueError,
        "there must be at least one matrix",
    ),
    "tau not positive": ({"tau": -1.0}, ValueError, "`tau` must be positive"),
    "tau of a tensor with NaN": ({"tau": torch.tensor(torch.nan)}, ValueError, "`tau` must be positive"),
    "another tau": (
        {"tau": 0.25}, ValueError, "`tau` must be the same on all ranks, got 0.5 on rank 0 and 0.25 on rank 1",
    ),
    "tau of text": ({"tau": "1"}, TypeError, "`tau` must be a positive number"),
    "weight of another shape": ({"weight": torch.ones(3, **DOUBLE)}, ValueError, "`weight` must have the shape H"),
    "another weight": ({"weight": torch.zeros(2, **DOUBLE)}, ValueError, "`weight` must be the same on all ranks"),
    "no weight": ({"weight": None, "x": torch.ones(2, 3, 6, **DOUBLE)}, ValueError, "must be the same on all ranks"),
    "phi alone": ({"psi": None}, ValueError, "`phi` and `psi` go together"),
    "no phases": ({"phi": None, "psi": None}, ValueError, "whether phases are given must be the same"),
    "psi of another shape": ({"psi": torch.ones(2, 5, **DOUBLE)}, ValueError, "`psi` must have the shape of `b`"),
    "a plan of one device": (
        {"plan": local_plan}, TypeError, "`plan` must be a laplex.distributed.Plan or None, got laplex.Plan",
    ),
    "a group of text": (
        {"group": "gloo"}, TypeError, "`group` must be a torch.distributed.ProcessGroup or None, got str",
    ),
    "gradients on one rank": (
        {"a": torch.ones(2, 4, **DOUBLE).requires_grad_()}, ValueError,
        "the set of arguments that require gradients must be the same",
    ),
    "weight of another dtype": (
        {"weight": torch.ones(2)}, ValueError, "the dtype of `weight` must be the same on all ranks",
    ),
    "a parameter without values": (
        {"x": torch.nn.UninitializedParameter()}, ValueError, "rank 1: Attempted to use an uninitialized parameter",
    ),
    "a group of an array": (
        {"group": torch.ones(2)}, TypeError, "`group` must be a torch.distributed.ProcessGroup or None, got Tensor",
    ),
    "a subclass": (
        {"x": torch.ones(3, 6, **DOUBLE).as_subclass(SUBCLASS)}, RuntimeError, "it runs eagerly, on plain tensors",
    ),
}  # fmt: skip


def wrong_argument(name):
    arguments = good()
    if dist.get_rank() == AT_FAULT:
        change = WRONG[name][0]
        arguments |= {key: value() if value is local_plan else value for key, value in change.items()}
    return gloo_processes.caught(lambda: distributed.linear(**arguments))


def wrong_plan():
    plan, arguments = plan_of_others(), good()
    return gloo_processes.caught(lambda: distributed.linear(**arguments | {"plan": plan}))


def plan_on_one_rank():
    arguments = good()
    arguments["plan"] = plan = distributed.Plan(arguments["a"], arguments["b"])
    assert plan.shape == (2, 12, 18)
    if dist.get_rank() == AT_FAULT:
        arguments["plan"] = None
    return gloo_processes.caught(lambda: distributed.linear(**arguments))


def another_function():
    arguments = good()
    if dist.get_rank() == AT_FAULT:
        return gloo_processes.caught(lambda: distributed.Plan(arguments["a"], arguments["b"]))
    return gloo_processes.caught(lambda: distributed.linear(**arguments))


def wrong_values():
    plan = distributed.Plan(torch.zeros(4).double(), torch.zeros(3).double())
    size = 5 if dist.get_rank() == AT_FAULT else 4
    return gloo_processes.caught(lambda: plan.arrange_rows(torch.zeros(size)))


CHANGES = {
    "values with gradients on one rank": (
        lambda values: values.requires_grad_(), ValueError,
        "{}: the set of arguments that require gradients must be the same on all ranks",
    ),
    "values on another device": (
        lambda values: values.to("meta"), ValueError, "rank 1: {}: `values` must be on cpu, where the plan is,",
    ),
    "sparse values": (lambda values: values.to_sparse(), TypeError, "rank 1: {}: `values` must be a dense tensor"),
    "values of a subclass": (
        lambda values: values.as_subclass(SUBCLASS), RuntimeError, "rank 1: {}: it runs eagerly, on plain tensors",
    ),
}  # fmt: skip
MOVES = ("arrange_rows", "arrange_columns", "restore_rows", "restore_columns")


def changed_values(change, method):
    anchors = torch.arange(4.0) + 4 * dist.get_rank()  # every rank owns what it holds
    plan, values = distributed.Plan(anchors, anchors), torch.zeros(2, 4)
    if dist.get_rank() == AT_FAULT:
        values = CHANGES[change][0](values)
    return gloo_processes.caught(lambda: getattr(plan, method)(values))


VALUES = {
    f"{method}, {change}": (
        lambda change=change, method=method: changed_values(change, method), kind,
        text.format(f"laplex.distributed.Plan.{method}"),
    )
    for method in MOVES for change, (_, kind, text) in CHANGES.items()
}  # fmt: skip


def wrong_owned_values():
    plan = distributed.Plan(torch.zeros(4).double(), torch.zeros(3).double())
    size = 5 + (dist.get_rank() == AT_FAULT) * 90
    return gloo_processes.caught(lambda: plan.restore_columns(torch.zeros(size)))


def values_of_a_batch():
    plan = distributed.Plan(torch.zeros(2, 4).double(), torch.zeros(2, 3).double())
    return gloo_processes.caught(lambda: plan.arrange_columns(torch.zeros(3)))


def tangent_on_one_rank():
    arguments = good()
    with forward_ad.dual_level():
        if dist.get_rank() == AT_FAULT:
            arguments["x"] = forward_ad.make_dual(arguments["x"], torch.ones_like(arguments["x"]))
        return gloo_processes.caught(lambda: distributed.linear(**arguments))


def plan_of_another_group():
    plan, group = distributed.Plan(torch.zeros(4).double(), torch.zeros(3).double()), dist.new_group([0, 1, 2])
    x, a, b = torch.zeros(3).double(), torch.zeros(4).double(), torch.zeros(3).double()
    return gloo_processes.caught(lambda: distributed.linear(x, a, b, plan=plan, group=group))


def not_in_the_group():
    group = dist.new_group([0, 2])
    x, a, b = torch.zeros(3).double(), torch.zeros(4).double(), torch.zeros(3).double()
    return gloo_processes.caught(lambda: distributed.linear(x, a, b, group=group))


def still_works():
    """After all of this."""
    arguments = good()
    assert distributed.linear(**arguments).shape == (3, arguments["a"].shape[-1])
    return None, "", 0.0


OTHERS = {
    wrong_plan: (ValueError, r"`plan` was built for shards of \(\*H, n, k\) = \(7, 2\)"),
    plan_on_one_rank: (ValueError, "whether a plan is given must be the same on all ranks, got True on rank 0"),
    another_function: (ValueError, "the function that is called must be the same on all ranks"),
    wrong_values: (
        ValueError, r"rank 1: laplex.distributed.Plan.arrange_rows: `values` must have size 4 .* got shape \(5,\)",
    ),
    wrong_owned_values: (ValueError, "laplex.distributed.Plan.restore_columns: `values` must have size"),
    tangent_on_one_rank: (
        ValueError, r"require gradients must be the same on all ranks, got \[\] on rank 0 and \['x \(forward mode\)'\]",
    ),
    values_of_a_batch: (ValueError, r"the plan must be of one matrix, got a batch of \(2,\)"),
    plan_of_another_group: (ValueError, "`plan` was built for another group than `group`"),
}  # fmt: skip


def checks():
    table = {name: lambda name=name: wrong_argument(name) for name in WRONG}
    table |= {name: row[0] for name, row in VALUES.items()}
    return table | {check.__name__: check for check in (*OTHERS, not_in_the_group, still_works)}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return gloo_processes.start(checks, RANKS, tmp_path_factory.mktemp("faults"))


EXPECTED = {name: (kind, re.escape(text)) for name, (_, kind, text) in (WRONG | VALUES).items()} | {
    check.__name__: expected for check, expected in OTHERS.items()
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_fault_on_one_rank_raises_on_all(name, results):
    assert gloo_processes.failures(results, name) == {}
    kind, text = EXPECTED[name]
    assert {mine[name][:2] for mine in results} == {(kind, results[0][name][1])}
    assert re.search(text, results[0][name][1])
    assert max(mine[name][2] for mine in results) <= 2.0


def test_a_process_outside_of_the_group_is_told(results):
    kinds = [mine["not_in_the_group"][0] for mine in results]
    assert kinds == [None, ValueError, None]
    assert "this process is not in `group`" in results[1]["not_in_the_group"][1]


def test_ranks_work_together_after_faults(results):
    assert gloo_processes.failures(results, "still_works") == {}


def test_without_a_group():
    with pytest.raises(
        RuntimeError, match=r"laplex\.distributed\.linear: there is no process group; start .* torchrun"
    ):
        distributed.linear(**good())


def killed_or_waiting(rank, folder):
    """Products without end; rank 1 is killed in the middle of them."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", RANKS), rank=rank, world_size=RANKS)
    arguments = good()
    begin = time.monotonic()
    try:
        while True:
            distributed.linear(**arguments)
            if rank == AT_FAULT and time.monotonic() - begin > 0.3:
                torch.save(time.monotonic(), f"{folder}/killed")
                os.kill(os.getpid(), signal.SIGKILL)
    except RuntimeError:
        torch.save(time.monotonic(), f"{folder}/ended-{rank}")
    os._exit(0)


def test_a_killed_rank_ends_the_others(tmp_path):
    context = torch.multiprocessing.get_context("spawn")
    members = [context.Process(target=killed_or_waiting, args=(rank, str(tmp_path))) for rank in range(RANKS)]
    for member in members:
        member.start()
    for member in members:
        member.join(timeout=60)
    assert [member.exitcode for member in members] == [0, -signal.SIGKILL, 0]
    killed = torch.load(tmp_path / "killed")
    assert all(torch.load(tmp_path / f"ended-{rank}") - killed <= 5.0 for rank in (0, 2))

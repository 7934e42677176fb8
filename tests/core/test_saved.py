"""Files: torch.load, with its default weights_only=True, gives back what torch.save was given."""

import io
import pickle
import pickletools
import re

import numpy as np
import pytest
import torch

import laplex
from helpers import error, oracle
from laplex import LaplaceOperator, Plan, _backends, _compiled
from systems import normal

INTERPRETED = pytest.mark.skipif(not _backends.interpreted(), reason="with a GPU the kernels are compiled: test_gpu")
PUBLIC = {"laplex Plan", "laplex LaplaceOperator", "laplex GramOperator", "laplex CholeskyFactor", "laplex SumOperator"}


def reloaded(value, **options):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


def phased(**arguments):
    return LaplaceOperator(normal(5), normal(6), 0.7, phi=normal(5), psi=normal(6), **arguments)


OPERATORS = {
    "plain": lambda: LaplaceOperator(normal(5), normal(6), 0.7),
    "phased": phased,
    "batched": lambda: LaplaceOperator(normal(2, 5), normal(6), torch.tensor([0.5, 2.0]).double()),
    "symmetric": lambda: LaplaceOperator(normal(5), phi=normal(5)),
    "short_axis": lambda: LaplaceOperator(normal(3), normal(60)),
    "tau_of_numpy": lambda: LaplaceOperator(normal(5), normal(6), np.float64(0.7)),
    "parameters": lambda: LaplaceOperator(torch.nn.Parameter(normal(5)), normal(6)),
}


@pytest.mark.parametrize("kind", OPERATORS)
def test_operators(kind):
    K = OPERATORS[kind]()
    restored, x = reloaded(K), normal(K.shape[-1], 2)
    assert type(restored) is LaplaceOperator
    assert repr(restored) == repr(K)
    assert torch.equal(restored @ x, K @ x)
    assert (restored.b is restored.a) == (K.b is K.a)


@pytest.mark.parametrize("weighted", [False, True])
def test_gram_operators(weighted):
    K = phased()
    M = K.gram(torch.rand(6).double() if weighted else None)
    restored, x = reloaded(M), normal(5)
    assert torch.equal(restored @ x, M @ x)
    assert torch.equal(restored.solve(x, 0.1), M.solve(x, 0.1))


MATRICES = {
    "kernel": lambda: LaplaceOperator(normal(5)),
    "phased_kernel": lambda: LaplaceOperator(normal(5), phi=normal(5)),
    "batched_kernel": lambda: LaplaceOperator(normal(2, 5)),
    "gram": lambda: phased().gram(torch.rand(6).double()),
}


@pytest.mark.parametrize("kind", MATRICES)
def test_factors(kind):
    C = MATRICES[kind]().cholesky(0.3)
    restored, x = reloaded(C), normal(5, 2)
    assert torch.equal(restored @ x, C @ x)
    assert torch.equal(restored.solve(x), C.solve(x))
    assert torch.equal(restored.logdet(), C.logdet())
    assert repr(restored) == repr(C)


def test_a_factor_is_loaded_without_the_compiled_core(monkeypatch):
    C, x = phased().gram().cholesky(0.3), normal(5)
    monkeypatch.setattr(_compiled, "MISSING", "not built")
    assert error(reloaded(C) @ x, C @ x) <= 1e-13


@pytest.mark.parametrize(("n", "k"), [(9, 8), (2, 60), (60, 2)])
def test_plans(n, k, scan_backend):
    a, b, x = normal(n), normal(k), normal(3, k)
    for plan in (Plan(a, b), Plan(b, a).mT):
        restored = reloaded(plan)
        assert repr(restored) == repr(plan)
        assert error(laplex.linear(x, a, b, plan=restored, backend=scan_backend), oracle(x, a, b)) <= 1e-14


@INTERPRETED
@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
@pytest.mark.parametrize("in_order", [False, True])
def test_plans_of_triton(in_order):
    a, b, x = normal(9), normal(8), normal(3, 8)
    if in_order:
        a, b = a.sort().values, b.sort().values
    plan = Plan(a, b, backend="triton")
    restored = reloaded(plan)
    assert repr(restored) == repr(plan)
    assert restored.backend == "triton"
    assert not restored._knows(a, b)
    assert error(laplex.linear(x, a, b, plan=restored, backend="triton"), oracle(x, a, b)) <= 1e-14


@INTERPRETED
@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("sizes", [((100,), (90,)), ((3, 70), (65,)), ((64,), (64,)), ((40,), (300,))], ids=str)
def test_plans_of_triton_with_places_and_many_words(sizes, in_order, monkeypatch):
    monkeypatch.setattr("laplex._triton.tuning.PLACES_FROM", 1)  # as for millions of points
    a, b = (normal(*size) for size in sizes)
    if in_order:
        a, b = a.sort().values, b.sort().values
    for plan in (Plan(a, b, backend="triton"), Plan(a, b, backend="triton").mT):
        restored = reloaded(plan)
        assert all(torch.equal(one, two) for one, two in zip(restored._order.tensors, plan._order.tensors))


def test_everything_in_one_file():
    K = phased()
    state = {"plan": K.plan, "operator": K, "gram": K.gram(), "factor": K.gram().cholesky(0.3), "a": K.a}
    restored = reloaded(state, map_location="cpu")
    assert restored["operator"].plan is restored["plan"]
    assert restored["gram"].kernel is restored["operator"]
    assert restored["operator"].a is restored["a"]


@pytest.mark.parametrize(
    "value",
    [phased().plan, phased(), phased().gram(), 2 * phased(), phased().gram().cholesky(0.3)],
    ids=["plan", "operator", "gram", "sum", "factor"],
)
def test_files_name_no_private_module(value):
    named = {argument for _, argument, _ in pickletools.genops(pickle.dumps(value, protocol=2)) if argument is not None}
    ours = {name for name in named if isinstance(name, str) and name.startswith("laplex")}
    assert f"laplex {type(value).__name__}" in ours
    assert ours <= PUBLIC


def test_public_classes_are_named_as_users_import_them():
    for name in laplex.__all__:
        value = getattr(laplex, name)
        if isinstance(value, type):
            assert value.__module__ == "laplex"


# --- damaged and hostile files ----------------------------------------------------------------------------------------


def put(row, place, value):
    """Write into an index of the targets."""
    return lambda order: order.target.indices[0, row].__setitem__(place, value)


def put_source(row, place, value):
    return lambda order: order.source.indices[0, row].__setitem__(place, value)


def swap(row):
    """Reverse an index: every number is in its range, and all are in the wrong place."""
    return lambda order: order.target.indices[0, row].copy_(order.target.indices[0, row].flip(0))


def repeat(order):
    order.target.indices[0, 0, 1] = order.target.indices[0, 0, 0]


PERMUTATION, COUNTS = "an order must be a permutation", "counts must be of anchors of the other side"
DAMAGES = {  # the sizes of a plan, what is written into it, and what the error says
    "order beyond the end": ((9, 8), put(0, 3, 2**30), PERMUTATION),
    "order below 0": ((9, 8), put(0, 3, -1), PERMUTATION),
    "order with a repetition": ((9, 8), repeat, PERMUTATION),
    "order of the columns": ((9, 8), put_source(0, 3, 8), PERMUTATION),
    "order of other anchors": ((9, 8), swap(0), "a rank must invert its order"),
    "rank": ((9, 8), put(1, 0, 2**31 - 1), "a rank must invert its order"),
    "below": ((9, 8), put(2, 3, 9), COUNTS),
    "below 0": ((9, 8), put(2, 3, -5), COUNTS),
    "upto": ((9, 8), put(3, 8, 9), COUNTS),
    "counts that fall": ((9, 8), lambda order: order.target.indices[0, 2:].copy_(order.target.indices[0, 2:].flip(-1)),
                         "counts must be those of its anchors"),
    "anchors": ((9, 8), lambda order: order.target.values[0, 1, 3:5].fill_(1e9), "must be the anchors, sorted"),
    "anchors that are no numbers": ((9, 8), lambda order: order.target.values.fill_(torch.nan), "must be the anchors"),
    "infinite anchors": ((9, 8), lambda order: order.target.values.fill_(torch.inf), "must be finite and rise"),
    "short rows": ((2, 60), put(0, 1, 2), PERMUTATION),
    "long columns": ((2, 60), put_source(0, 30, 3), COUNTS),
    "long columns, upto below": ((2, 60), put_source(1, 30, -1), COUNTS),
    "short columns": ((60, 2), put_source(0, 1, -3), PERMUTATION),
    "long rows": ((60, 2), put(1, 59, 3), COUNTS),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["plan", "operator", "gram", "factor", "pickle"])
def test_an_index_out_of_its_range_is_found_when_the_file_is_read(damage, kind):
    (n, k), write, message = DAMAGES[damage]
    K = LaplaceOperator(normal(n), normal(k))
    M = K.gram()
    value = {"plan": K.plan, "operator": K, "gram": M, "factor": M.cholesky(0.3), "pickle": K.plan}[kind]
    write(K.plan._order)
    with pytest.raises(ValueError, match=f"damaged, or of another version of laplex: .*{message}.*; make a new one"):
        pickle.loads(pickle.dumps(value)) if kind == "pickle" else reloaded(value)


def joined_state(**changes):
    """A plan as a GPU keeps it: rows at 0, 1, 2 and columns at 0.5, 1.5, in one order."""
    nothing = torch.empty(1, 1, 0)
    entries = torch.zeros(1, 1, 32, dtype=torch.int32)
    entries[0, 0, :5] = torch.tensor([0, -1, 1, -2, 2])
    state = {"shape": (3, 2), "layout": "joined", "order": [entries, torch.zeros(1, 1, 32), nothing.int(), nothing]}
    for place, tensor in changes.pop("order", {}).items():
        state["order"][place] = tensor
    return state | changes


def transposed_state():
    state = joined_state()
    return {"shape": (2, 3), "layout": "joined_transposed", "order": state["order"][2:] + state["order"][:2]}


def entries(*values):
    return {0: torch.tensor([*values, *[0] * (32 - len(values))], dtype=torch.int32).view(1, 1, 32)}


def bits(word, before=0):
    return {"layout": "in_order", "order": {0: torch.tensor([[[word, before]]], dtype=torch.int32)}}


NAMED = "its entries must name every row and column once"
JOINED = {
    "as it is": (joined_state(), None),
    "without positions": (joined_state(order={1: torch.empty(1, 1, 0)}), None),
    "places": (joined_state(order={2: torch.tensor([[[0, 2, 4, 1, 3]]]).int()}), None),
    "transposed": (transposed_state(), None),
    "transposed, of other sizes": (transposed_state() | {"shape": (3, 2)}, NAMED),
    "a row beyond the end": (joined_state(order=entries(0, -1, 3, -2, 2)), NAMED),
    "a column beyond the end": (joined_state(order=entries(0, -1, 1, -3, 2)), NAMED),
    "the least number": (joined_state(order=entries(0, -1, 1, -(2**31), 2)), NAMED),
    "a row twice": (joined_state(order=entries(0, -1, 0, -2, 2)), NAMED),
    "wrong places": (joined_state(order={2: torch.tensor([[[0, 2, 4, 1, 99]]]).int()}), "its places must invert"),
    "too few": (joined_state(order={0: torch.zeros(1, 1, 5).int()}), "must be (1, 1, 32), got (1, 1, 5)"),
    "bits": (joined_state(**bits(0b10101)), None),
    "bits and more behind the end": (joined_state(**bits(0b1110101)), None),
    "bits of four rows": (joined_state(**bits(0b11101)), "its bits must mark 3 rows"),
    "rows before a word": (joined_state(**bits(0b10101, 2**30)), "its words must count the rows before them"),
}


@pytest.mark.parametrize("name", JOINED)
def test_the_order_of_a_gpu_is_checked_as_well(name):
    state, message = JOINED[name]
    plan = object.__new__(Plan)
    if message is None:
        plan.__setstate__(state)
        assert plan.shape == state["shape"]
        return
    with pytest.raises(ValueError, match=re.escape(message)):
        plan.__setstate__(state)


def test_the_words_of_a_long_order_count_the_rows_before_them():
    words = torch.tensor([[[-1, 0b111, 0, 32]]], dtype=torch.int32)  # 35 rows, then 5 columns
    state = {
        "shape": (35, 5),
        "layout": "in_order",
        "order": (words, torch.zeros(1, 1, 64), *joined_state()["order"][2:]),
    }
    object.__new__(Plan).__setstate__(state)
    words[0, 0, 3] = 33
    with pytest.raises(ValueError, match="its words must count the rows before them"):
        object.__new__(Plan).__setstate__(state)


def test_a_plan_of_a_gpu_is_read_without_one_and_says_that_it_is_of_no_use(monkeypatch):
    monkeypatch.setattr(_backends, "interpreted", lambda: False)
    plan = object.__new__(Plan)
    plan.__setstate__(joined_state())
    a, b = torch.arange(3.0), torch.arange(2) + 0.5
    for call in (lambda: laplex.linear(torch.ones(2), a, b, plan=plan), lambda: LaplaceOperator(a, b, plan=plan)):
        with pytest.raises(
            ValueError, match=r"`plan` was built on a GPU, and its order is of no use on cpu.*laplex.Plan\("
        ):
            call()


def merged_state(**changes):
    state = Plan(normal(5), normal(6)).__getstate__()
    tensors = list(state["order"])
    for place, tensor in changes.pop("order", {}).items():
        tensors[place] = tensor
    return state | {"order": tuple(tensors)} | changes


def wide_index():
    return torch.zeros(1, 4, 5, dtype=torch.int64)


STATES = {
    "no state": (lambda: None, "its fields must be layout, order, shape"),
    "a field too few": (lambda: {"shape": (5, 6), "layout": "merged"}, "its fields must be"),
    "a field too many": (lambda: merged_state(code=1), "its fields must be"),
    "a shape of floats": (lambda: merged_state(shape=(5.0, 6)), "`shape` must be a tuple of sizes"),
    "one size": (lambda: merged_state(shape=(5,)), "its shape must be (*H, n, k)"),
    "other sizes": (lambda: merged_state(shape=(500, 600)), "must be (1, 4, 500), got (1, 4, 5)"),
    "a batch": (lambda: merged_state(shape=(2, 5, 6)), "must be (2, 4, 5), got (1, 4, 5)"),
    "a layout": (lambda: merged_state(layout="none"), "its layout must be one of"),
    "another layout": (lambda: merged_state(layout="short_rows"), "must be (1, 1, 5), got (1, 4, 5)"),
    "three tensors": (lambda: merged_state() | {"order": (1, 2, 3)}, "its order must be four tensors"),
    "no tensor": (lambda: merged_state(order={0: [1, 2]}), "`order` must hold dense tensors"),
    "int64": (lambda: merged_state(order={0: wide_index()}), "`order` must hold torch.int32, got torch.int64"),
    "half precision": (lambda: merged_state(order={1: torch.zeros(1, 2, 5).half()}), "got torch.float16"),
    "two dtypes": (lambda: merged_state(order={1: torch.zeros(1, 2, 5)}), "its two sides must have one dtype"),
    "two devices": (
        lambda: merged_state(order={0: torch.zeros(1, 4, 5, device="meta").int()}),
        "must be on one device",
    ),
    "negated": (lambda: merged_state(order={1: torch._neg_view(torch.zeros(1, 2, 5).double())}), "plain tensors"),
    "sparse": (lambda: merged_state(order={0: torch.zeros(1, 4, 5).int().to_sparse()}), "must hold dense tensors"),
}


@pytest.mark.parametrize("name", STATES)
def test_a_plan_of_another_form_is_refused(name):
    state, message = STATES[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        object.__new__(Plan).__setstate__(state())


def test_a_file_cannot_replace_the_memory_of_a_plan_that_was_checked():
    state = merged_state()
    plan, a, b, x = object.__new__(Plan), state["order"][1][0, 0], state["order"][3][0, 0], normal(6)
    plan.__setstate__(state)
    want = laplex.linear(x, a, b, plan=plan, backend="torch")
    state["order"][0].set_(torch.full((1, 4, 5), 2**30, dtype=torch.int32))  # as a pickle's BUILD does to a tensor
    assert torch.equal(laplex.linear(x, a, b, plan=plan, backend="torch"), want)


def changed_operator(**changes):
    K = phased()
    return K.__dict__ | changes


OPERATOR_STATES = {
    "no plan": (lambda: changed_operator(plan=None), "`plan` must be a laplex.Plan"),
    "an empty plan": (lambda: changed_operator(plan=object.__new__(Plan)), "`plan` must be a laplex.Plan"),
    "a plan of other sizes": (lambda: changed_operator(plan=Plan(normal(50), normal(60))), "`plan` was built for"),
    "longer anchors": (lambda: changed_operator(a=normal(500), phi=normal(500)), "`plan` was built for"),
    "other phases": (lambda: changed_operator(phi=normal(50)), "`phi` must have the shape of `a`"),
    "a tau of the wrong sign": (lambda: changed_operator(tau=-1.0), "`tau` must be positive"),
    "a field too few": (lambda: {"a": normal(5)}, "its fields must be"),
}


@pytest.mark.parametrize("name", OPERATOR_STATES)
def test_an_operator_of_another_form_is_refused(name):
    state, message = OPERATOR_STATES[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        object.__new__(LaplaceOperator).__setstate__(state())


def test_a_batch_that_the_anchors_have_not_is_forgotten():
    restored = object.__new__(LaplaceOperator)
    restored.__setstate__(changed_operator(_batch=(7,)))
    assert restored.shape == (5, 6)


def test_a_gram_operator_of_another_form_is_refused():
    M = phased().gram(torch.rand(6).double())
    for state, message in (
        ({"kernel": M.kernel, "weight": normal(60)}, "`weight` must be"),
        ({"kernel": M.kernel}, "its fields must be kernel, weight"),
    ):
        with pytest.raises(ValueError, match=message):
            object.__new__(laplex.GramOperator).__setstate__(state)
    with pytest.raises(TypeError, match="is made by"):
        object.__new__(laplex.GramOperator).__setstate__({"kernel": None, "weight": None})


def test_anchors_that_grew_after_the_operator_was_made_are_refused():
    a = normal(5)
    K = LaplaceOperator(a)
    a.resize_(50).zero_()
    for call in (lambda: K.logdet(0.1), lambda: K.gram().logdet(0.1), lambda: K @ normal(50)):
        with pytest.raises(ValueError, match="`plan` was built for"):
            call()


def factor_state(**changes):
    return LaplaceOperator(normal(5)).cholesky(0.3).__getstate__() | changes


def with_part(name, place, value):
    """The state of a factor with another tensor in one of its parts."""
    state = factor_state()
    parts = list(state[name])
    parts[place] = value
    return state | {name: tuple(parts)}


FACTOR_STATES = {
    "a field too few": (lambda: {"where": ""}, "its fields must be"),
    "where": (lambda: factor_state(where=1), "`where` must be a text"),
    "dtype": (lambda: factor_state(dtype=torch.int32), "its dtype must be float32 or float64"),
    "batch": (lambda: factor_state(batch=(9,)), "must have the shapes"),
    "batch of text": (lambda: factor_state(batch=("9",)), "`batch` must be a tuple of sizes"),
    "index beyond the end": (lambda: with_part("factored", 5, torch.tensor([[0, 1, 2, 3, 2**40]])), "a permutation"),
    "index below 0": (lambda: with_part("factored", 5, torch.tensor([[0, 1, 2, 3, -1]])), "must be a permutation"),
    "a short index": (lambda: with_part("factored", 5, torch.tensor([[0, 1]])), "its index must be (1, 5), got (1, 2)"),
    "int32": (lambda: with_part("factored", 5, torch.zeros(1, 5).int()), "must hold torch.int64, got torch.int32"),
    "float32": (lambda: with_part("factored", 0, torch.zeros(1, 5)), "must hold torch.float64, got torch.float32"),
    "a short factor": (
        lambda: with_part("factored", 2, torch.zeros(1, 2, 1).double()),
        "`factored` must have the shapes",
    ),
    "too few parts": (lambda: factor_state(factored=(1, 2)), "`factored` has 7 parts"),
    "generators": (lambda: factor_state(generators=()), "it has 6 generators"),
    "no sequence": (lambda: factor_state(parameters=7), "`parameters` must be a sequence"),
    "a wide state": (lambda: with_part("generators", 2, torch.zeros(1, 5, 9).double()), "must be of a known order"),
    "parameters": (lambda: with_part("parameters", 0, normal(1, 500)), "`parameters` must have the shapes"),
    "diag": (lambda: factor_state(diag=normal(1, 500)), "must have the shapes"),
    "a scalar": (lambda: factor_state(diag=torch.ones(()).double()), "must have the shapes"),
    "planned": (lambda: factor_state(planned=None), "its fields must be layout, order"),
}


@pytest.mark.parametrize("name", FACTOR_STATES)
def test_a_factor_of_another_form_is_refused(name):
    state, message = FACTOR_STATES[name]
    with pytest.raises(ValueError, match=f"laplex.CholeskyFactor: .*{re.escape(message)}.*K.cholesky"):
        object.__new__(laplex.CholeskyFactor).__setstate__(state())


def test_what_is_read_on_the_meta_device_has_no_values_to_check():
    for value in (phased().plan, phased(), LaplaceOperator(normal(5)).cholesky(0.3)):
        assert reloaded(value, map_location="meta").device.type == "meta"

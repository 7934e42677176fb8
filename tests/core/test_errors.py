"""Every message a user can get, by class and by what it says; and odd arguments that must raise, not crash."""

import io
import math
import re
import sys
import warnings
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

import laplex
from laplex import LaplaceOperator, Plan, StalePlanError, _backends, _compiled, _route, backends
from laplex._checks import tau as tau_checks

A, B, X = torch.arange(5.0), torch.arange(6.0) + 0.5, torch.ones(2, 6)


def call(**changed):
    return laplex.linear(**{"x": X, "a": A, "b": B, **changed})


def raises(kind, *parts):
    """All the parts in the message, in this order."""
    return pytest.raises(kind, match=".*".join(re.escape(part) for part in parts))


# --- tensors, dtypes and shapes --------------------------------------------------------------------------------------

NOT_TENSORS = ["a string", None, [1.0, 2.0], np.zeros(5), 3.0, object()]


@pytest.mark.parametrize("value", NOT_TENSORS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("name", ["x", "a", "b"])
def test_not_a_tensor(name, value):
    with raises(
        TypeError, f"laplex.linear: `{name}` must be a torch.Tensor, got {type(value).__name__}; use torch.as_tensor"
    ):
        call(**{name: value})


@pytest.mark.parametrize("name", ["phi", "psi"])
def test_phases_that_are_no_tensors(name):
    phases = {"phi": torch.zeros(5), "psi": torch.zeros(6), name: [0.0]}
    with raises(TypeError, f"`{name}` must be a torch.Tensor, got list"):
        call(**phases)


@pytest.mark.parametrize("name", ["x", "a", "b"])
def test_sparse(name):
    value = {"x": X, "a": A, "b": B}[name].to_sparse()
    with raises(TypeError, f"`{name}` must be a dense tensor, got layout torch.sparse_coo; call .to_dense()"):
        call(**{name: value})


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool], ids=str)
@pytest.mark.parametrize("name", ["a", "b"])
def test_anchor_dtypes(name, dtype):
    value = {"a": A, "b": B}[name].to(dtype)
    with raises(TypeError, f"`{name}` must be float32 or float64, got {dtype}; call .float()"):
        call(**{name: value})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_anchors(dtype):
    with raises(
        TypeError, f"`a` must be float32 or float64, got {dtype}; half precision would tie most anchors together"
    ):
        call(a=A.to(dtype))
    with raises(TypeError, f"`phi` must be float32 or float64, got {dtype}"):
        call(phi=A.to(dtype), psi=B)


def test_scalar_anchors():
    with raises(ValueError, "`a` must have at least one dimension, got a scalar; use a.reshape(1)"):
        call(a=torch.tensor(1.0))
    with raises(ValueError, "`b` must have at least one dimension, got a scalar; use b.reshape(1)"):
        call(b=torch.tensor(1.0))


def test_anchors_of_two_dtypes():
    with raises(TypeError, "`a` and `b` must have one dtype, got torch.float64 and torch.float32; cast one of them"):
        call(a=A.double())


@pytest.mark.parametrize(("name", "other"), [("x", "b"), ("b", "a"), ("tau", "a"), ("phi", "a"), ("psi", "b")])
def test_two_devices(name, other):
    values = {"x": X, "b": B, "tau": torch.tensor(1.0), "phi": A, "psi": B}
    given = {key: values[key] for key in (("phi", "psi") if name in ("phi", "psi") else ())}
    given[name] = values[name].to("meta")
    with raises(
        ValueError, f"`{name}` must be on the device of `{other}` (cpu), got meta; move it with {name}.to({other}"
    ):
        call(**given)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8], ids=str)
def test_dtypes_of_x(dtype):
    with raises(TypeError, f"`x` must be floating point or complex, got {dtype}; call .float()"):
        call(x=X.to(dtype))


@pytest.mark.parametrize("shape", [(), (5,), (2, 5), (6, 2), (0,)])
def test_shapes_of_x(shape):
    with raises(ValueError, "`x` must have size k = 6 in its last dimension to match `b`", f"got shape {shape}"):
        call(x=torch.ones(shape))


@pytest.mark.parametrize("shape", [(6,), (2, 2, 6), (4, 2, 6)])
def test_shapes_of_x_with_batched_anchors(shape):
    with raises(ValueError, "`a` and `b` lead with H = (3,), so `x` must be (*H, m, k)", f"got shape {shape}"):
        call(x=torch.ones(shape), a=A.expand(3, 5))


@pytest.mark.parametrize("function", [laplex.linear, Plan, laplex.rank, LaplaceOperator])
def test_batches_that_do_not_broadcast(function):
    a, b = A.expand(3, 5), B.expand(2, 6)
    arguments = (X, a, b) if function is laplex.linear else (a, b)
    with raises(ValueError, "must broadcast together, got `a` (3, 5), `b` (2, 6)"):
        function(*arguments)


def test_a_tau_that_does_not_broadcast():
    with raises(ValueError, "laplex.linear: `tau` must have one element, or broadcast to H = (3,)", "got shape (4,)"):
        call(a=A.expand(3, 5), tau=torch.ones(4))


@pytest.mark.parametrize(("given", "missing"), [("phi", "psi"), ("psi", "phi")])
def test_one_phase_without_the_other(given, missing):
    with raises(
        ValueError, f"`phi` and `psi` go together, got `{given}` without `{missing}`; pass zeros for `{missing}`"
    ):
        call(**{given: A if given == "phi" else B})


def test_shapes_of_phases():
    with raises(ValueError, "`phi` must have the shape of `a`, (5,), got (6,)"):
        call(phi=B, psi=B)
    with raises(ValueError, "`psi` must have the shape of `b`, (6,), got (1, 6)"):
        call(phi=A, psi=B[None])


# --- the weight of laplex.gram ----------------------------------------------------------------------------------------


def gram(**changed):
    return laplex.gram(**{"a": A, "b": B, **changed})


@pytest.mark.parametrize("value", [3.0, [1.0], np.zeros(6)], ids=lambda value: type(value).__name__)
def test_a_weight_that_is_no_tensor(value):
    with raises(TypeError, "laplex.gram: `weight` must be a torch.Tensor, got", "use torch.as_tensor"):
        gram(weight=value)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.bfloat16], ids=str)
def test_weight_dtypes(dtype):
    with raises(TypeError, f"laplex.gram: `weight` must be float32 or float64, got {dtype}; call .float()"):
        gram(weight=torch.ones(6, dtype=dtype))


@pytest.mark.parametrize("shape", [(), (5,), (6, 1)], ids=str)
def test_weight_shapes(shape):
    with raises(
        ValueError, "laplex.gram: `weight` must have size k = 6 in its last dimension to match `b`, got", str(shape)
    ):
        gram(weight=torch.ones(shape))


def test_weights_of_batched_anchors():
    with raises(
        ValueError,
        "laplex.gram: `a` and `b` lead with H = (2,), so `weight` must be (*H, m, k) or broadcast to it, got "
        "shape (3, 1, 6); use weight.unsqueeze(-2) for one vector per matrix",
    ):
        gram(a=A.expand(2, 5), weight=torch.ones(3, 1, 6))


def test_the_other_arguments_of_gram_are_checked_as_those_of_linear(backend):
    with raises(TypeError, "laplex.gram: `a` must be float32 or float64, got torch.int64"):
        gram(a=torch.arange(5))
    with raises(ValueError, "laplex.gram: `tau` must be positive and finite, got -1.0"):
        gram(tau=-1.0, backend=backend)
    with raises(ValueError, "laplex.gram: `tau` must be positive and finite, got -1.0;"):
        gram(tau=torch.tensor(-1.0), backend=backend)
    with raises(ValueError, "laplex.gram: `phi` and `psi` go together, got `phi` without `psi`"):
        gram(phi=A)
    with raises(TypeError, "laplex.gram: `plan` must be a laplex.Plan or None, got str"):
        gram(plan="a plan")
    with raises(ValueError, "laplex.gram: `plan` was built for (*H, n, k) = (6, 5), `a` and `b` here give (5, 6)"):
        gram(plan=Plan(B, A))
    with raises(ValueError, "laplex", "`b` must be finite, got NaN or infinity"):
        gram(b=B * math.inf, backend=backend)


def test_no_memory_for_the_gram(monkeypatch):
    monkeypatch.setattr(_compiled.core, "gram", lambda *_: _compiled.core.OUT_OF_MEMORY)
    with raises(MemoryError, "laplex.gram: no memory for the compiled core's scratch arrays; use smaller batches"):
        gram(backend="cpp")


# --- tau -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [True, False, "1", None, [1.0], 1j, np.ones(1)], ids=repr)
def test_kinds_of_tau(tau):
    with raises(TypeError, f"`tau` must be a positive number or a tensor, got {type(tau).__name__}"):
        call(tau=tau)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float16, torch.bfloat16], ids=str)
def test_dtypes_of_tau(dtype):
    with raises(TypeError, f"`tau` must be float32 or float64, got {dtype}; call .float()"):
        call(tau=torch.ones((), dtype=dtype))


BAD_TAUS = [0, 0.0, -0.0, -1, -1.0, math.nan, math.inf, -math.inf, 10**400, Fraction(-1, 3)]


@pytest.mark.parametrize("tau", BAD_TAUS, ids=lambda tau: repr(tau)[:20])
@pytest.mark.parametrize("function", [lambda tau: call(tau=tau), lambda tau: LaplaceOperator(A, B, tau)])
def test_values_of_tau(function, tau):
    with raises(ValueError, "`tau` must be positive and finite, got ", "if it is learned, learn its logarithm"):
        function(tau)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("n", "k"), [(5, 6), (2, 40), (40, 2)])
def test_values_of_a_tensor_tau(value, n, k, backend):
    a, b, x = torch.randn(3, n), torch.randn(3, k), torch.randn(3, 2, k)
    with raises(ValueError, "`tau` must be positive and finite, got ", "learn its logarithm"):
        laplex.linear(x, a, b, torch.tensor([1.0, value, 2.0]), backend=backend)
    with raises(ValueError, "`tau` must be positive and finite"):
        laplex.linear(x, a, b, torch.tensor(value), backend=backend)


@pytest.mark.parametrize("tau", [1, Fraction(1, 2), np.float32(0.5), np.float64(0.5), np.int64(2)], ids=repr)
def test_numbers_that_are_good_for_tau(tau):
    assert torch.equal(call(tau=tau), call(tau=float(tau)))


def test_a_sparse_tau():
    with pytest.raises((TypeError, ValueError), match="`tau`"):
        call(tau=torch.tensor([1.0]).to_sparse())


# --- values of anchors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize(("n", "k"), [(5, 6), (2, 40), (40, 2)])
def test_anchors_that_are_not_finite(value, name, n, k, backend):
    anchors = {"a": torch.randn(n), "b": torch.randn(k)}
    anchors[name][1] = value
    with raises(ValueError, f"`{name}` must be finite, got NaN or infinity; find it with torch.isfinite({name})"):
        laplex.linear(torch.randn(k), **anchors, backend=backend)
    with raises(ValueError, f"laplex: `{name}` must be finite"):
        Plan(**anchors)
    with raises(ValueError, f"laplex.rank: `{name}` must be finite"):
        laplex.rank(**anchors)


@pytest.mark.parametrize("name", ["a", "b"])
def test_the_torch_planner_finds_anchors_that_are_not_finite(name, monkeypatch):
    monkeypatch.setattr(_backends, "planner", lambda device: "torch")
    anchors = {"a": A.clone(), "b": B.clone()}
    anchors[name][1] = math.nan
    with raises(ValueError, f"laplex: `{name}` must be finite"):
        Plan(**anchors)


# --- plans -----------------------------------------------------------------------------------------------------------


def test_not_a_plan():
    with raises(TypeError, "laplex.linear: `plan` must be a laplex.Plan or None, got str"):
        call(plan="plan")
    with raises(TypeError, "laplex.LaplaceOperator: `plan` must be a laplex.Plan or None, got Tensor"):
        LaplaceOperator(A, B, plan=A)


def test_a_plan_of_other_sizes():
    message = ("`plan` was built for (*H, n, k) = (6, 5), `a` and `b` here give (5, 6); build one",)
    with raises(ValueError, "laplex.linear: ", *message):
        call(plan=Plan(B, A))
    with raises(ValueError, "laplex.LaplaceOperator: ", *message):
        LaplaceOperator(A, B, plan=Plan(B, A))
    with raises(ValueError, "Plan.update: ", *message):
        Plan(B, A).update(A, B)
    with raises(ValueError, "Plan.validate: ", *message):
        Plan(B, A).validate(A, B)


def test_a_plan_on_another_device():
    with raises(ValueError, "`plan` is on meta, the anchors on cpu; use plan.to('cpu')"):
        call(plan=Plan(A, B).to("meta"))


def test_a_stale_plan(scan_backend):
    with raises(
        StalePlanError, "laplex.linear: `plan` does not describe the order of these anchors", "plan.update(a, b)"
    ):
        call(a=A.flip(0), plan=Plan(A, B), backend=scan_backend)


@pytest.mark.parametrize("function", [Plan, laplex.rank, LaplaceOperator, Plan(A, B).update, Plan(A, B).validate])
def test_every_entrance_checks_its_anchors(function):
    with raises(TypeError, ": `a` must be a torch.Tensor, got list"):
        function([1.0], B)
    with raises(TypeError, ": `b` must be float32 or float64, got torch.int64"):
        function(A, B.long())


# --- operators -------------------------------------------------------------------------------------------------------

K = LaplaceOperator(A, B)
BATCHED = LaplaceOperator(A.expand(3, 5), B)


@pytest.mark.parametrize("shape", [(), (5,), (5, 2), (2, 5, 6)])
def test_inner_sizes_on_the_right(shape):
    with raises(
        ValueError, "LaplaceOperator @ x: the operator is (5, 6) and `x` must have size 6 where they meet", "got shape"
    ):
        K @ torch.ones(shape)


@pytest.mark.parametrize("shape", [(), (6,), (2, 6), (2, 5, 6)])
def test_inner_sizes_on_the_left(shape):
    with raises(
        ValueError, "x @ LaplaceOperator: the operator is (5, 6) and `x` must have size 5 where they meet", "got shape"
    ):
        torch.ones(shape) @ K


@pytest.mark.parametrize("value", [None, [1.0], np.zeros(6), 3, K], ids=lambda value: type(value).__name__)
def test_products_with_what_is_no_tensor(value):
    with raises(TypeError, "LaplaceOperator @ x: `x` must be a torch.Tensor"):
        K @ value


def test_other_functions_of_an_operator():
    with raises(TypeError, "maximum is not defined for a LaplaceOperator; use .to_dense() if the matrix fits"):
        torch.maximum(K, A)
    with raises(TypeError, "is not defined for a LaplaceOperator"):
        torch.linalg.svd(K)


@pytest.mark.parametrize("key", [(0, 1, 2), (..., 0), (0, ...), "rows"], ids=repr)
def test_indices(key):
    with raises(TypeError, "LaplaceOperator: index with K[rows, cols], got ", "use K[rows, :] for whole rows"):
        K[key]


@pytest.mark.parametrize("key", [(99, 0), (slice(None), [0, 99]), (torch.tensor([-9]), 0)], ids=repr)
def test_indices_out_of_range(key):
    with pytest.raises(IndexError):
        K[key]


def test_only_single_matrices():
    with raises(ValueError, "LaplaceOperator.T: needs a single matrix, got batch shape (3,); use .mT"):
        _ = BATCHED.T
    with raises(ValueError, "aslinearoperator: needs a single matrix, got batch shape (3,)"):
        BATCHED.aslinearoperator()


def test_scipy_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.sparse.linalg", None)
    with raises(RuntimeError, "aslinearoperator: SciPy is not installed; pip install scipy"):
        K.aslinearoperator()


# --- backends --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "numpy", "CPP", 3])
def test_unknown_backends(name):
    with raises(ValueError, "laplex: `backend` must be one of torch, cpp", f" or None, got {name!r}"):
        call(backend=name)
    with raises(ValueError, "laplex: `backend` must be one of "):
        backends.which(X, A, B, backend=name)


def test_a_core_that_is_missing(monkeypatch):
    monkeypatch.setattr(_compiled, "MISSING", "it was not built")
    with raises(RuntimeError, "laplex: backend 'cpp' cannot run: it was not built"):
        call(backend="cpp")
    assert backends.available()["cpp"] == "it was not built"
    assert backends.which(torch.ones(999), torch.ones(999), torch.ones(999)) == "torch"


def test_the_core_on_another_device():
    with raises(RuntimeError, "laplex: backend 'cpp' runs on the CPU, the tensors are on meta; use backend='torch'"):
        laplex.linear(X.to("meta"), A.to("meta"), B.to("meta"), backend="cpp")


def test_no_memory_for_the_core(monkeypatch):
    monkeypatch.setattr(_compiled.core, "scan", lambda *_: _compiled.core.OUT_OF_MEMORY)
    with raises(MemoryError, "laplex.linear: no memory for the compiled core's scratch arrays; use smaller batches"):
        call(backend="cpp")


# --- what is allowed, but not meant -----------------------------------------------------------------------------------

COLUMN, VALUES = torch.rand(7, 1).double(), torch.randn(7).double()  # times as scikit-learn and GPyTorch have them
ANSWERED = {
    "LaplaceOperator.logdet": lambda K: K.logdet(0.1),
    "LaplaceOperator.cholesky": lambda K: K.cholesky(0.1),
    "LaplaceOperator.sample": lambda K: K.sample(diag=0.1),
    "LaplaceOperator.solve": lambda K: K.solve(VALUES[:, None, None], 0.1),
    "GramOperator.logdet": lambda K: K.gram().logdet(0.1),
    "GramOperator.cholesky": lambda K: K.gram().cholesky(0.1),
}
ONE_MATRIX = "7 matrices of 1 x 1", "for one matrix of 7 anchors use a.squeeze(-1)"


def warned(category, function):
    """What the function warns of, with the file that is said to be the cause."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return [(str(one.message), one.filename) for one in caught if one.category is category]


@pytest.mark.parametrize("name", ANSWERED)
def test_times_in_a_column_are_said_to_be_many_matrices(name):
    ((message, file),) = warned(laplex.ShapeWarning, lambda: ANSWERED[name](LaplaceOperator(COLUMN)))
    assert message.startswith(f"{name}: `a` has shape (7, 1): these are {ONE_MATRIX[0]}")
    assert ONE_MATRIX[1] in message
    assert "filter laplex.ShapeWarning" in message
    assert file == __file__  # the user's line, not one of laplex


OPERANDS = {
    "K.solve": lambda: LaplaceOperator(COLUMN).solve(VALUES, 0.1),
    "K.solve of a column": lambda: LaplaceOperator(COLUMN).solve(VALUES[:, None], 0.1),
    "K @ x": lambda: LaplaceOperator(COLUMN) @ VALUES,
    "K @ a column": lambda: LaplaceOperator(COLUMN) @ VALUES[:, None],
    "x @ K": lambda: VALUES @ LaplaceOperator(COLUMN),
    "diag": lambda: LaplaceOperator(COLUMN).logdet(VALUES.abs()),
    "linear": lambda: laplex.linear(VALUES, COLUMN, COLUMN),
    "linear of rows": lambda: laplex.linear(torch.randn(3, 7).double(), COLUMN, COLUMN),
}


@pytest.mark.filterwarnings("ignore::laplex.ShapeWarning")
@pytest.mark.parametrize("name", OPERANDS)
def test_an_operand_that_shows_that_one_matrix_is_meant_raises(name):
    with raises(ValueError, "anchors of shape (7, 1) are", *ONE_MATRIX):
        OPERANDS[name]()


def test_two_columns_of_other_lengths_are_told_to_lose_a_dimension():
    with raises(ValueError, "must broadcast together", "use a.squeeze(-1) and b.squeeze(-1)"):
        LaplaceOperator(COLUMN, torch.rand(9, 1).double())


def test_a_product_of_columns_is_said_to_be_many():
    _route.forget()
    ((message, file),) = warned(laplex.ShapeWarning, lambda: laplex.linear(VALUES[:, None], COLUMN, COLUMN))
    assert message.startswith("laplex.linear: `x` and `b` have shape (7, 1): these are 7 rows of one number")
    assert file == __file__


PLAIN = {
    "one matrix": lambda: LaplaceOperator(COLUMN[:, 0]).logdet(0.1),
    "a batch of one": lambda: LaplaceOperator(COLUMN[:1]).logdet(0.1),
    "a batch of two anchors each": lambda: LaplaceOperator(torch.rand(7, 2)).logdet(0.1),
    "batches of batches": lambda: LaplaceOperator(COLUMN[None]).logdet(0.1),
    "one row, many columns": lambda: LaplaceOperator(COLUMN, torch.rand(7, 3).double()).gram().logdet(0.1),
    "layers of one feature": lambda: laplex.nn.LaplexLinear(1, 1, kernels=7)(torch.randn(7, 1)),
    "one column": lambda: laplex.linear(torch.randn(3, 1), torch.rand(7, 5), torch.rand(7, 1)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_what_is_meant_warns_of_nothing(name):
    _route.forget()
    assert warned(laplex.ShapeWarning, PLAIN[name]) == []


@pytest.fixture
def _untold(monkeypatch):
    monkeypatch.setattr(tau_checks._precision, "shown", False)
    _route.forget()


DATES = 2459000.5 + 2 * torch.rand(50, dtype=torch.float64)  # Julian dates of two nights
TIMES = 1e5 * torch.rand(50)
COARSE = {
    "operator": lambda: LaplaceOperator(DATES.float(), tau=0.1),
    "operator with a plan": lambda: LaplaceOperator(DATES.float(), tau=0.1, plan=Plan(DATES.float(), DATES.float())),
    "rectangular": lambda: LaplaceOperator(DATES.float(), DATES[:9].float(), 0.1),
    "tau as a tensor": lambda: LaplaceOperator(DATES.float(), tau=torch.tensor([0.1], requires_grad=True)),
    "one of two": lambda: LaplaceOperator(torch.stack([DATES.float(), TIMES]), tau=torch.tensor([0.1, 1e4])),
    "a long time": lambda: LaplaceOperator(TIMES, tau=0.1),
    "linear": lambda: laplex.linear(torch.ones(50), DATES.float(), DATES.float(), 0.1),
    "gram": lambda: laplex.gram(DATES.float(), DATES.float(), None, Fraction(1, 10)),
}


@pytest.mark.usefixtures("_untold")
@pytest.mark.parametrize("name", COARSE)
def test_dates_in_float32_warn_once(name):
    ((message, file),) = warned(laplex.PrecisionWarning, COARSE[name])
    assert re.search(r"float32 anchors near [\d.]+ are [\d.]+ apart, which is [\d.]+ of tau = 0\.1", message), message
    assert "subtract an offset before they are rounded" in message
    assert "or keep float64" in message
    assert file == __file__
    assert warned(laplex.PrecisionWarning, COARSE[name]) == []  # once per process


@pytest.mark.usefixtures("_untold")
def test_as_an_error_it_is_raised_every_time():
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("error", laplex.PrecisionWarning)
            with pytest.raises(laplex.PrecisionWarning, match=r"are 0\.25 apart, which is 2\.5 of tau = 0\.1"):
                LaplaceOperator(DATES.float(), tau=0.1)


def test_the_warning_is_about_a_large_error():
    y = torch.randn(50).double()
    exact, shifted, coarse = (
        LaplaceOperator(a, tau=0.1).solve(y, 0.1) for a in (DATES, (DATES - DATES[0]).float(), DATES.float())
    )
    assert (coarse - exact).norm() > 0.3 * exact.norm()
    assert (shifted - exact).norm() < 1e-4 * exact.norm()


FINE = {
    "float64": lambda: LaplaceOperator(DATES, tau=0.1),
    "an offset": lambda: LaplaceOperator((DATES - DATES.mean()).float(), tau=0.1),
    "a long tau": lambda: LaplaceOperator(DATES.float(), tau=100.0),
    "whole days": lambda: LaplaceOperator(2459000.5 + torch.arange(50.0), tau=0.1),
    "whole numbers": lambda: LaplaceOperator(torch.arange(1e5), tau=1e-3),
    "one of two": lambda: LaplaceOperator(torch.stack([DATES.float(), TIMES]), tau=torch.tensor([100.0, 1e4])),
    "a layer": lambda: laplex.linear(torch.ones(50), TIMES, TIMES, 0.1),
    "many outputs": lambda: laplex.nn.LaplexProjection(10, 200_000)(torch.randn(10)),
    "no anchors": lambda: LaplaceOperator(torch.empty(0)),
    "traced": lambda: torch.func.vmap(lambda a: laplex.linear(torch.ones(50), a, a, 0.1))(DATES.float()[None]),
}


@pytest.mark.usefixtures("_untold")
@pytest.mark.parametrize("name", FINE)
def test_what_has_enough_digits_warns_of_nothing(name):
    assert warned(laplex.PrecisionWarning, FINE[name]) == []


SMALL = {"one tau": ((50,), 0.1), "a tau for each": ((2, 50), torch.tensor([0.1, 2.0]))}


@pytest.mark.usefixtures("_untold")
@pytest.mark.parametrize("name", SMALL)
def test_products_look_at_one_anchor_where_that_is_small(monkeypatch, name):
    shape, tau = SMALL[name]
    monkeypatch.setattr(tau_checks, "_widest", lambda *_: pytest.fail("all anchors were read"))
    laplex.linear(torch.ones(3, 50), torch.rand(shape), torch.rand(shape), tau)


# --- other forms of a model -------------------------------------------------------------------------------------------


def model_of(layer):
    return torch.nn.Sequential(layer, torch.nn.ReLU()).eval()


def traced_by_onnx(model, monkeypatch):
    """What the exporter that is torch's default does; it needs a package that is not installed here."""
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    return torch.export.export(model, (torch.randn(2, 6),))


EXPORTERS = {
    "torch.jit.script": lambda model, patch: torch.jit.script(model),
    "torch.onnx.export": traced_by_onnx,
    "torch.onnx.export, before": lambda model, patch: torch.onnx.export(
        model, (torch.randn(2, 6),), io.BytesIO(), dynamo=False
    ),
}


@pytest.mark.filterwarnings("ignore")  # that these are deprecated
@pytest.mark.parametrize("name", EXPORTERS)
def test_what_cannot_take_a_layer_says_to_make_it_dense(name, monkeypatch):
    parts = f"LaplexLinear: {name.split(',')[0]} does not know", "replace it by its dense layer first", "to_linear()"
    with raises(RuntimeError, *parts):
        EXPORTERS[name](model_of(laplex.nn.LaplexLinear(6, 5, kernels=2)), monkeypatch)
    with pytest.raises(RuntimeError, match=r"LaplexProjection: .* does not know laplex's products; use torch\.export"):
        EXPORTERS[name](model_of(laplex.nn.LaplexProjection(6, 5)), monkeypatch)


@pytest.mark.filterwarnings("ignore")
def test_the_dense_layer_is_scripted_and_a_layer_is_exported():
    layer, x = laplex.nn.LaplexLinear(6, 5, kernels=2).double(), torch.randn(2, 6).double()
    assert torch.allclose(torch.jit.script(model_of(layer.to_linear()))(x), model_of(layer)(x))
    assert torch.allclose(torch.export.export(model_of(layer), (x,)).module()(x), model_of(layer)(x))


def test_the_comparison_says_which_second_derivatives_there_are():
    lines = (Path(__file__).parents[2] / "docs/comparison.md").read_text().splitlines()
    (row,) = [line.split(" | ")[1] for line in lines if line.startswith("| second derivatives")]
    products = "of products, Gram matrices and solves, and of all of `laplex.gp`"
    assert row == f"{products}; not of an operator's log determinants and factors"
    a, y = torch.randn(4).double().requires_grad_(), torch.randn(4).double().requires_grad_()
    twice = {
        "products": lambda a, y: laplex.linear(y, a, a + 0.3),
        "Gram matrices": lambda a, y: laplex.gram(a, a + 0.3, y),
        "solves": lambda a, y: LaplaceOperator(a).solve(y, 0.5),
    }
    once = {
        "log determinants": lambda a, y: LaplaceOperator(a).logdet(0.5) + y.sum(),
        "factors": lambda a, y: LaplaceOperator(a).cholesky(0.5) @ y,
    }
    for name, function in twice.items():
        assert torch.autograd.gradgradcheck(function, (a, y)), name
    for function in once.values():
        with pytest.raises(RuntimeError, match="are differentiable once"):
            torch.autograd.gradgradcheck(function, (a, y))

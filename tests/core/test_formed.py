"""The matrix formed and multiplied by torch, and sums of matrices in one call: values, derivatives, errors."""

import pytest
import torch

import laplex
from cases import every, named
from helpers import error, inputs_for, named_gradients, oracle, phases_for, rows_for, wide
from laplex import _backends, reference
from laplex._scan import weighted

TOLERANCE = {torch.float32: 5e-7, torch.float64: 1e-14}  # torch's matrix product adds to the rounding of the entries
SMALL = ("generic", "ties_everywhere", "batched", "offset", "short_rows", "clustered", "one_point")
BATCHES = {"one": (3,), "two": (2, 2), "none": ()}


def formed(**arguments):
    return laplex.linear(**arguments, backend="formed")


def a_sum(batch, dtype=torch.float64, phased=True, n=19, k=23, ties=True):
    """Every differentiable argument of a sum of matrices, by name."""
    a, b = torch.randn(*batch, n, dtype=dtype), torch.randn(*batch, k, dtype=dtype)
    if ties:
        b[..., 1] = a[..., 2]
    inputs = {"x": torch.randn(4, k, dtype=dtype), "a": a, "b": b, "tau": torch.rand(batch, dtype=dtype) + 0.5}
    inputs["weight"] = torch.randn(batch, dtype=dtype)
    if phased:
        inputs["phi"], inputs["psi"] = phases_for(a, b)
    return inputs


# --- values -----------------------------------------------------------------------------------------------------------


@every()
def test_values(case, dtype):
    a, b, tau = case(dtype)
    x = rows_for(a, b, 3)
    y, true = laplex.linear(x, a, b, tau, backend="formed"), oracle(x, a, b, tau)
    assert y.dtype == dtype
    by_torch = x @ reference.kernel(wide(a), wide(b), wide(tau)).to(dtype).mT  # a long sum loses digits in any product
    assert error(y, true) <= max(TOLERANCE[dtype], 1.5 * error(by_torch, true))


@pytest.mark.parametrize("phased", [False, True], ids=["plain", "phased"])
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("backend", ["torch", "cpp", "dense", "formed", None])
def test_sums_of_matrices(backend, batch, phased, dtype):
    inputs = a_sum(batch, dtype, phased)
    y = laplex.linear(**inputs, backend=backend)
    true = reference.linear(**{name: wide(value) for name, value in inputs.items()})
    assert y.dtype == dtype
    assert error(y, true) <= TOLERANCE[dtype]


@pytest.mark.parametrize("shape", [(23,), (2, 3, 23), (0, 23), (5, 1, 23)])
@pytest.mark.parametrize("backend", ["cpp", "formed"])
def test_x_has_any_leading_dimensions(backend, shape):
    inputs = a_sum((3,)) | {"x": torch.randn(shape, dtype=torch.float64)}
    y = laplex.linear(**inputs, backend=backend)
    assert y.shape == (*shape[:-1], 19)
    assert error(y, reference.linear(**inputs)) <= TOLERANCE[torch.float64]


@pytest.mark.parametrize("backend", ["cpp", "formed"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.float64])
def test_x_of_another_dtype_than_the_anchors(backend, dtype):
    inputs = a_sum((3,), torch.float32) | {"x": torch.randn(4, 23).to(dtype)}
    y = laplex.linear(**inputs, backend=backend)
    assert y.dtype == dtype
    true = {name: wide(value) for name, value in inputs.items()}
    tolerance = 2 * torch.finfo(dtype).eps if dtype.itemsize == 2 else 5e-7
    assert error(y, reference.linear(**true)) <= tolerance


@pytest.mark.parametrize("backend", ["cpp", "formed"])
@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 5), (4, 2, 3, 5), (1, 3, 5), (0, 5)])
def test_complex_rows_over_a_batch(shape, backend):
    a, b = torch.randn(2, 4, dtype=torch.float64), torch.randn(2, 5, dtype=torch.float64)
    x = torch.randn(shape, dtype=torch.complex128)
    y = laplex.linear(x, a, b, 0.7, backend=backend)
    assert error(y, torch.complex(*(reference.linear(part, a, b, 0.7) for part in (x.real, x.imag)))) <= 1e-14


def test_one_weight_for_all_matrices():
    inputs = a_sum((3,)) | {"weight": torch.tensor(0.5, dtype=torch.float64), "tau": 0.7}
    assert error(laplex.linear(**inputs), reference.linear(**inputs)) <= TOLERANCE[torch.float64]


@pytest.mark.parametrize("backend", ["cpp", "formed"])
def test_a_plan_of_the_matrices(backend):
    inputs = a_sum((3,))
    plan = laplex.Plan(inputs["a"], inputs["b"])
    assert error(laplex.linear(**inputs, plan=plan, backend=backend), reference.linear(**inputs)) <= 1e-14


# --- derivatives ------------------------------------------------------------------------------------------------------


@named(*SMALL)
@pytest.mark.parametrize("phased", [False, True], ids=["plain", "phased"])
def test_gradients(case, phased, dtype):
    a, b, tau = case(dtype)
    inputs = inputs_for(a, b, tau, phased=phased)
    g = torch.randn(*inputs["x"].shape[:-1], a.shape[-1], dtype=dtype)
    got = named_gradients(formed, inputs, g)
    true = named_gradients(reference.linear, {name: wide(value) for name, value in inputs.items()}, wide(g))
    scales = named_gradients(reference.linear, {name: wide(value) for name, value in inputs.items()}, wide(g).abs())
    for name in inputs:
        assert error(got[name], true[name], scales[name]) <= TOLERANCE[dtype], name


@pytest.mark.parametrize("phased", [False, True], ids=["plain", "phased"])
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("backend", ["torch", "cpp", "dense", "formed"])
def test_gradients_of_sums(backend, batch, phased, dtype):
    inputs = a_sum(batch, dtype, phased)
    g = torch.randn(4, 19, dtype=dtype)
    got = named_gradients(lambda **given: laplex.linear(**given, backend=backend), inputs, g)
    doubles = {name: wide(value) for name, value in inputs.items()}
    true = named_gradients(reference.linear, doubles, wide(g))
    sizes = named_gradients(reference.linear, doubles | {"x": doubles["x"].abs()}, wide(g).abs())  # terms may cancel
    for name in inputs:
        assert error(got[name], true[name], sizes[name]) <= 2 * TOLERANCE[dtype], name


@pytest.mark.parametrize("wanted", ["x", "a", "b", "tau", "weight", "phi", "psi"])
@pytest.mark.parametrize("backend", ["cpp", "formed"])
def test_one_gradient_alone(backend, wanted):
    inputs = a_sum((3,))
    leaf = inputs[wanted].requires_grad_()
    (got,) = torch.autograd.grad(laplex.linear(**inputs, backend=backend).square().sum(), leaf)
    (true,) = torch.autograd.grad(reference.linear(**inputs).square().sum(), leaf)
    assert error(got, true) <= 1e-13


@pytest.mark.parametrize("backend", ["cpp", "formed"])
def test_second_derivatives(backend):
    inputs = a_sum((2,), phased=backend == "formed", n=4, k=3, ties=False)
    del inputs["tau"]  # its second derivatives cancel
    leaves = [value.requires_grad_() for value in inputs.values()]

    def function(*values):
        return laplex.linear(**dict(zip(inputs, values)), tau=0.7, backend=backend)

    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves, atol=1e-4)


@pytest.mark.parametrize("backend", ["cpp", "formed"])
def test_transforms(backend):
    inputs = a_sum((2,), phased=False, n=5, k=6)

    def of_x(x):
        return laplex.linear(**inputs | {"x": x}, backend=backend)

    x = torch.randn(3, 4, 6, dtype=torch.float64)
    assert error(torch.func.vmap(of_x)(x), of_x(x)) <= 1e-14
    tangent = torch.randn_like(x)
    assert error(torch.func.jvp(of_x, (x,), (tangent,))[1], of_x(tangent)) <= 1e-14

    def of_weight(weight):
        return laplex.linear(**inputs | {"weight": weight}, backend=backend).square().sum()

    leaf = inputs["weight"].clone().requires_grad_()
    (true,) = torch.autograd.grad(of_weight(leaf), leaf)
    assert error(torch.func.grad(of_weight)(inputs["weight"]), true) <= 1e-13


@pytest.mark.parametrize("backend", ["cpp", "formed"])
def test_forward_mode_beside_gradients(backend):
    """Dual tensors of leaves that require gradients."""
    inputs = a_sum((2,), phased=False, n=5, k=6)
    x, tangent = inputs["x"].requires_grad_(), torch.randn(4, 6, dtype=torch.float64)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        y = laplex.linear(**inputs | {"x": dual}, backend=backend)
        pushed = torch.autograd.forward_ad.unpack_dual(y).tangent
    assert error(pushed, reference.linear(**inputs | {"x": tangent})) <= 1e-14


@pytest.mark.parametrize("weighted", [False, True], ids=["one", "sum"])
@pytest.mark.parametrize("backend", ["cpp", "formed"])
def test_one_tensor_given_twice(backend, weighted):
    """With create_graph too, where a gradient by autograd would count both uses at each place."""
    a, phi = (torch.randn(3, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    x = torch.randn(3, 4, 5, dtype=torch.float64) if not weighted else torch.randn(4, 5, dtype=torch.float64)
    weight = {"weight": torch.rand(3, dtype=torch.float64)} if weighted else {}
    options = {"tau": 0.7, "phi": phi, "psi": phi} | weight
    for create_graph in (False, True):
        got, true = (
            torch.autograd.grad(y.square().sum(), (a, phi), create_graph=create_graph)
            for y in (laplex.linear(x, a, a, **options, backend=backend), reference.linear(x, a, a, **options))
        )
        assert all(error(one, two) <= 1e-13 for one, two in zip(got, true))


@pytest.mark.parametrize("backend", ["cpp", "formed"])
def test_lazily_negated_and_transposed_inputs(backend):
    inputs = a_sum((3,))
    odd = inputs | {"a": torch._neg_view(-inputs["a"]), "tau": torch._neg_view(-inputs["tau"])}
    odd |= {"b": inputs["b"].mT.contiguous().mT, "x": inputs["x"].mT.contiguous().mT}
    for name in odd:
        odd[name] = odd[name].detach().requires_grad_()
    y, true = laplex.linear(**odd, backend=backend), reference.linear(**odd)
    assert error(y, true) <= 1e-14
    grads = [torch.autograd.grad(v.square().sum(), list(odd.values())) for v in (y, true)]
    assert all(error(one, two) <= 1e-12 for one, two in zip(*grads))


@pytest.mark.parametrize("backend", ["cpp", "formed"])
def test_backward_under_autocast(backend):
    given = a_sum((3,), torch.float32, phased=backend == "formed")
    inputs, g = {name: value.requires_grad_() for name, value in given.items()}, torch.randn(4, 19)
    true = torch.autograd.grad(laplex.linear(**inputs, backend=backend), list(inputs.values()), g)
    y = laplex.linear(**inputs, backend=backend)
    with torch.autocast("cpu", torch.bfloat16):
        got = torch.autograd.grad(y, list(inputs.values()), g)
    assert all(torch.equal(one, two) for one, two in zip(got, true))


@pytest.mark.parametrize("backend", ["cpp", "formed"])
def test_second_derivatives_of_a_batch_of_two_dimensions(backend):
    inputs = {name: value.requires_grad_() for name, value in a_sum((2, 2), n=4, k=3).items()}
    leaves = list(inputs.values())
    got, true = (
        torch.autograd.grad(torch.autograd.grad(y.square().sum(), inputs["a"], create_graph=True)[0].sum(), leaves)
        for y in (laplex.linear(**inputs, backend=backend), reference.linear(**inputs))
    )
    assert all(error(one, two) <= 1e-10 for one, two in zip(got, true))


@pytest.mark.parametrize("backend", ["cpp", "formed", None])
@pytest.mark.parametrize(("n", "k"), [(0, 3), (3, 0), (0, 0)])
def test_empty_sides(n, k, backend):
    inputs = a_sum((2,), n=n, k=k, ties=False, phased=False)
    leaves = [value.requires_grad_() for value in inputs.values()]
    y = laplex.linear(**inputs, backend=backend)
    assert torch.equal(y, torch.zeros(4, n, dtype=torch.float64))
    assert all(not bool(bar.any()) for bar in torch.autograd.grad(y.sum(), leaves))


@pytest.mark.parametrize("backend", ["cpp", "formed"])
def test_second_derivatives_while_something_watches(backend):
    from torch.utils.flop_counter import FlopCounterMode

    inputs = {name: value.requires_grad_() for name, value in a_sum((2,), n=4, k=3, phased=False).items()}

    def twice(y):
        first = torch.autograd.grad(y.square().sum(), inputs["a"], create_graph=True)[0]
        return torch.autograd.grad(first.square().sum(), list(inputs.values()))

    with FlopCounterMode(display=False):
        got = twice(laplex.linear(**inputs, backend=backend))
    assert all(error(one, two) <= 1e-9 for one, two in zip(got, twice(reference.linear(**inputs))))


def test_arguments_that_depend_on_one_another():
    a = torch.randn(5, dtype=torch.float64, requires_grad=True)
    x = torch.randn(3, 5, dtype=torch.float64)
    for backend in ("cpp", "formed"):
        given = x * a, a, 2 * a, a.square().mean() + 0.5
        got, true = (
            torch.autograd.grad(y.square().sum(), a, create_graph=True)[0]
            for y in (laplex.linear(*given, backend=backend), reference.linear(*given))
        )
        assert error(got, true) <= 1e-13


def test_a_sum_of_no_matrices():
    with pytest.raises(ValueError, match=r"a sum needs at least one matrix, got H = \(0,\)"):
        laplex.linear(**a_sum((0,), ties=False))


@pytest.mark.parametrize("phased", [False, True], ids=["plain", "phased"])
def test_sums_in_parts(phased, monkeypatch):
    inputs, g = a_sum((5,), phased=phased), torch.randn(4, 19, dtype=torch.float64)
    complete = named_gradients(lambda **given: laplex.linear(**given, backend="cpp"), inputs, g)
    monkeypatch.setattr(weighted, "MOST_NUMBERS", 2 * 4 * 23)
    parts = named_gradients(lambda **given: laplex.linear(**given, backend="cpp"), inputs, g)
    assert all(error(parts[name], complete[name]) <= 1e-14 for name in inputs)


@pytest.mark.parametrize("backend", ["cpp", "formed"])
def test_compiled(backend, unpoisoned):
    inputs = a_sum((2,), phased=False)
    leaves = {name: value.requires_grad_() for name, value in inputs.items()}

    def function(**given):
        return laplex.linear(**given, backend=backend)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    eager = torch.autograd.grad(function(**leaves).square().sum(), list(leaves.values()))
    got = torch.autograd.grad(compiled(**leaves).square().sum(), list(leaves.values()))
    assert all(error(one, two) <= 1e-13 for one, two in zip(got, eager))


@pytest.mark.parametrize("phased", [False, True], ids=["plain", "phased"])
def test_operators(phased):
    inputs = a_sum((4,), torch.float32, phased)
    tensors = [inputs.get(name) for name in ("a", "b", "tau", "weight", "phi", "psi")]
    torch.library.opcheck(torch.ops.laplex.form.default, (*tensors, 2, torch.float32, torch.float32, "formed"))
    g = torch.randn(2, 19, 23)
    arguments = g, *tensors, 2, [True, True, False, phased], torch.float32, "formed"
    torch.library.opcheck(torch.ops.laplex.form_pullback.default, arguments)


@pytest.mark.parametrize("batch", [(), (3,)], ids=["one", "batch"])
@pytest.mark.parametrize("transposed", ["neither", "left", "right"])
def test_the_operator_that_multiplies(batch, transposed):
    left, right = torch.randn(*batch, 7, 5, requires_grad=True), torch.randn(*batch, 5, 4, requires_grad=True)
    if transposed == "left":
        left = torch.randn(*batch, 5, 7).mT.requires_grad_()
    if transposed == "right":
        right = torch.randn(*batch, 4, 5).mT.requires_grad_()
    torch.library.opcheck(torch.ops.laplex.matmul.default, (left, right, torch.float32, "formed"))


# --- errors -----------------------------------------------------------------------------------------------------------

WRONG = {
    "a_shape": (torch.ones(4), ValueError, r"`weight` must have the shape H = \(3,\).*got shape \(4,\)"),
    "columns": (torch.ones(23), ValueError, r"for weights of columns use laplex.gram"),
    "a_dtype": (torch.ones(3, dtype=torch.int64), TypeError, r"`weight` must be float32 or float64, got torch.int64"),
    "a_list": ([1.0, 2.0, 3.0], TypeError, r"`weight` must be a torch.Tensor, got list"),
    "a_device": (torch.ones(3, device="meta"), ValueError, r"`weight` must be on the device of `a` \(cpu\), got meta"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_weights(name):
    weight, kind, message = WRONG[name]
    with pytest.raises(kind, match=message):
        laplex.linear(**a_sum((3,)) | {"weight": weight})


@pytest.mark.parametrize("backend", ["cpp", "formed"])
@pytest.mark.parametrize(("name", "value"), [("a", torch.inf), ("b", torch.nan), ("tau", -1.0)])
def test_faulty_values(backend, name, value):
    inputs = a_sum((3,))
    inputs[name].view(-1)[-1] = value
    with pytest.raises(ValueError, match=f"`{name}` must be {'positive' if name == 'tau' else 'finite'}"):
        laplex.linear(**inputs, backend=backend)


# --- the choice -------------------------------------------------------------------------------------------------------


def chosen(n, k, rows, r=1, gradients=True, device="cuda"):
    return _backends.cheapest(_backends.cost.Work(1, r, rows, n, k, gradients), device)


def test_layers_are_formed_and_long_sides_are_scanned():
    assert chosen(1000, 768, 128, 16) == "formed"
    assert chosen(3072, 768, 4096, 8) == "formed"
    assert chosen(16384, 16384, 64) == "scan"
    assert chosen(1 << 20, 1 << 20, 1) == "scan"
    assert chosen(1000, 150528, 64) == "scan"


def test_many_rows_are_multiplied_by_a_matrix_that_is_formed():
    assert chosen(1024, 1024, 512) == "formed"
    assert chosen(256, 256, 4096, gradients=False) == "formed"


def test_which_says_so():
    inputs = a_sum((3,))
    given = {name: inputs[name] for name in ("x", "a", "b", "weight")}
    assert laplex.backends.which(**given, backend="formed") == "formed"
    assert laplex.backends.which(**given) in _backends.NAMES
    with pytest.raises(TypeError, match=r"laplex.backends.which: `plan` must be a laplex.Plan"):
        laplex.backends.which(**given, plan="x")

"""The oracle in float64, distances, and the two operators called by name."""

import warnings

import torch

import laplex
from laplex import _backends, reference
from laplex._scan.order import Matrix, Order

LAYOUTS = ("merged", "short_rows", "short_cols")
TOLERANCE = {torch.float32: 2e-7, torch.float64: 1e-14}  # relative l2 errors, of every backend


def wide(value):
    """A tensor in double precision, detached; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().to(torch.complex128 if value.is_complex() else torch.float64)


def oracle(x, a, b, tau=1.0, phi=None, psi=None):
    return reference.linear(wide(x), wide(a), wide(b), wide(tau), phi=wide(phi), psi=wide(psi))


def odd_kernel(a, b, tau=1.0, even=None):
    """S[i, j] = sign(b_j - a_i) exp(-|a_i - b_j| / tau), of which ``even`` is the exponential, where it is known."""
    a, b = wide(a), wide(b)
    even = reference.kernel(a, b, wide(tau)) if even is None else even
    return (b[..., None, :] - a[..., :, None]).sign() * even


def error(got, want, unphased=None):
    """Relative l2 error; absolute where the truth is 0.

    cos phi cos psi + sin phi sin psi is exact to eps of 1, not of the cosine: `unphased` is a second scale.
    """
    got, want = wide(got), wide(want)
    assert got.shape == want.shape
    scale = max(float(want.norm()), 0.0 if unphased is None else float(wide(unphased).norm()))
    return float((got - want).norm()) / (scale if scale > 0 else 1.0)


def all_nan(*tensors):
    return all(tensor.numel() > 0 and bool(tensor.isnan().all()) for tensor in tensors)


def shape_warnings(function):
    """The text of every ShapeWarning of a function, with the file that is said to be the cause."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return [(str(one.message), one.filename) for one in caught if one.category is laplex.ShapeWarning]


def rows_for(a, b, m, dtype=None):
    """x (*H, m, k) for anchors that may be batched."""
    return torch.randn(*b.shape[:-1], m, b.shape[-1], dtype=dtype or b.dtype)


def phases_for(a, b):
    return torch.randn_like(a), torch.randn_like(b)


def table(backend):
    """The table of a backend, for tensors on the CPU."""
    return _backends.load(backend, "cpu")


def make_order(a, b, layout, backend):
    """The order of the anchors, as a backend finds it."""
    return Order.from_tensors(torch.ops.laplex.plan(a, b, layout, backend), layout)


def pullback(g, x, odd_x, matrix, to_tau):
    """x_bar, t_bar, s_bar and tau_bar, by the operator that PyTorch sees."""
    return torch.ops.laplex.pullback(g, x, odd_x, *matrix.flat, to_tau)


def distance_kernel(a, b, tau=1.0):
    """u exp(-u) of u = |a_i - b_j| / tau."""
    scale = wide(tau)[..., None, None] if isinstance(tau, torch.Tensor) else tau
    u = (wide(a)[..., :, None] - wide(b)[..., None, :]).abs() / scale
    return u.clamp(max=1e3) * torch.exp(-u)


def scan(x, target, source, tau, order, odd, backend, degree=0):
    """The even and the odd sums."""
    return torch.ops.laplex.scan(x, *Matrix(target, source, tau, order, table(backend)).flat, odd, degree)


def assert_sums(x, target, source, tau, order, backend):
    """Both sums are those of the dense definition."""
    even, odd = scan(x, target, source, tau, order, True, backend)
    assert error(even, oracle(x, target, source, tau)) <= TOLERANCE[x.dtype]
    assert error(odd, wide(x) @ odd_kernel(target, source, tau).mT) <= TOLERANCE[x.dtype]


def assert_distance_sums(x, target, source, tau, order, backend):
    """The same of the sums weighted by distance."""
    even, odd = scan(x, target, source, tau, order, True, backend, degree=1)
    weighted = distance_kernel(target, source, tau)
    assert error(even, wide(x) @ weighted.mT) <= TOLERANCE[x.dtype]
    assert error(odd, wide(x) @ odd_kernel(target, source, tau, weighted).mT) <= TOLERANCE[x.dtype]


def assert_pullback(g, x, a, b, tau, order, backend):
    """x_bar, t_bar, s_bar and tau_bar are those of the dense definition; returned."""
    dense, rate = reference.kernel(wide(a), wide(b), tau), (1 / tau)[:, None]
    odd = odd_kernel(a, b, tau, dense)
    odd_x = (wide(x) @ odd.mT).to(x.dtype)
    bars = pullback(g, x, odd_x, Matrix(a, b, tau, order, table(backend)), True)
    g_, x_, odd_x_ = wide(g), wide(x), wide(odd_x)
    assert error(bars[0], g_ @ dense) <= TOLERANCE[x.dtype]
    assert error(bars[1], (g_ * odd_x_).sum(1) * rate) <= TOLERANCE[a.dtype]
    assert error(bars[2], (x_ * (g_ @ -odd)).sum(1) * rate) <= TOLERANCE[a.dtype]
    weighted = distance_kernel(a, b, tau)
    summed, scale = (
        (left * (right @ weighted.mT)).sum((1, 2)) / tau for left, right in ((g_, x_), (g_.abs(), x_.abs()))
    )
    assert bool(((bars[3] - summed).abs() <= TOLERANCE[x.dtype] * scale).all())
    assert bars[0].dtype == x.dtype
    assert bars[1].dtype == bars[2].dtype == a.dtype
    return bars


def emptied(order):
    """A GPU's order as it is for anchors that may have moved: without values, so that the kernels check it."""
    return order.unchecked()


def flat(a, b, tau):
    """One kernel dimension, and tau as the operator wants it."""
    a, b = a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1])
    return a, b, torch.as_tensor(tau, dtype=torch.float64).expand(a.shape[0]).contiguous()


def named_gradients(function, inputs, weight):
    """The gradients of sum(weight * function(**inputs)) by name."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in inputs.items()}
    total = (function(**leaves) * weight).sum()
    return dict(zip(leaves, torch.autograd.grad(total, list(leaves.values()))))


def inputs_for(a, b, tau, m=3, phased=True):
    """Every differentiable argument of laplex.linear, by name."""
    inputs = {"x": rows_for(a, b, m), "a": a, "b": b, "tau": torch.as_tensor(tau, dtype=a.dtype)}
    if phased:
        inputs["phi"], inputs["psi"] = phases_for(a, b)
    return inputs


def on(backend, **fixed):
    """laplex.linear with its backend chosen."""
    return lambda **arguments: laplex.linear(**arguments, **fixed, backend=backend)


def direct(x, a, b, tau, *, odd, degree=0):
    """The even and the odd sums of the GPU's dense product, which needs no order."""
    from laplex._triton.scan import dense

    return dense.scan(x, Matrix(a, b, tau, Order.none(a, b), table("triton")), odd=odd, degree=degree)

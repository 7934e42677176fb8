"""The catalogue of Gaussian processes: named kernels, each with its formula, and named sets of times; the dense oracle.

Every test compares with dense float64 matrices, to within ``allowance``: what rounding errors of a matrix's entries may
change, given its condition number. The formulas are written from the literature, for mpmath.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import mpmath
import pytest
import torch

from laplex import gp

ENTRY = 1e-13  # relative errors of the entries of a matrix
FLOOR = 1e-12  # no result is asked to be closer


# --- Formulas, for numbers of mpmath ----------------------------------------------------------------------------------


def exponential(D, scale, sigma):
    return sigma**2 * mpmath.exp(-D / scale)


def matern32(D, scale, sigma):
    u = mpmath.sqrt(3) * D / scale
    return sigma**2 * (1 + u) * mpmath.exp(-u)


def matern52(D, scale, sigma):
    u = mpmath.sqrt(5) * D / scale
    return sigma**2 * (1 + u + u**2 / 3) * mpmath.exp(-u)


def damped(D, omega, quality, variance):
    """The oscillator of Foreman-Mackey et al. (2017), equation 23: a case for every quality."""
    decay = mpmath.exp(-omega * D / (2 * quality))
    if quality == mpmath.mpf(1) / 2:
        return variance * decay * (1 + omega * D)
    eta = mpmath.sqrt(abs(1 - 1 / (4 * quality**2)))
    even, odd = (mpmath.cos, mpmath.sin) if quality > 0.5 else (mpmath.cosh, mpmath.sinh)
    return variance * decay * (even(eta * omega * D) + odd(eta * omega * D) / (2 * eta * quality))


def sho(D, period, quality, sigma):
    return damped(D, 2 * mpmath.pi / period, quality, sigma**2)


def cosine(D, period, sigma):
    return sigma**2 * mpmath.cos(2 * mpmath.pi * D / period)


def celerite(D, a, b, c, d):
    return mpmath.exp(-c * D) * (a * mpmath.cos(d * D) + b * mpmath.sin(d * D))


def rotation(D, period, quality, difference, fraction, sigma):
    """RotationTerm in the documentation of celerite2."""
    Q1, Q2 = mpmath.mpf(1) / 2 + quality + difference, mpmath.mpf(1) / 2 + quality
    w1 = 4 * mpmath.pi * Q1 / (period * mpmath.sqrt(4 * Q1**2 - 1))
    w2 = 8 * mpmath.pi * Q2 / (period * mpmath.sqrt(4 * Q2**2 - 1))
    first = sigma**2 / (1 + fraction)
    return damped(D, w1, Q1, first) + damped(D, w2, Q2, fraction * first)


def carma(D, alpha, beta):
    """The sum over roots of Kelly et al. (2014), equation 4, with white noise of unit power."""
    roots = mpmath.polyroots([1, *reversed(alpha)], maxsteps=200, extraprec=200)
    total = mpmath.mpc(0)
    for k, r in enumerate(roots):
        plus = sum(b * r**l for l, b in enumerate(beta))
        minus = sum(b * (-r) ** l for l, b in enumerate(beta))
        others = [(s - r) * (mpmath.conj(s) + r) for l, s in enumerate(roots) if l != k]
        total += plus * minus * mpmath.exp(r * D) / (-2 * mpmath.re(r) * mpmath.fprod(others))
    return mpmath.re(total)


def state_space(D, feedback, noise, readout):
    """h^T exp(F D) P h, where P solves F P + P F^T + Q = 0, entry by entry."""
    s = len(readout)
    system, right = mpmath.zeros(s * s), mpmath.zeros(s * s, 1)
    for i in range(s):
        for j in range(s):
            right[i * s + j] = -noise[i][j]
            for k in range(s):
                system[i * s + j, k * s + j] += feedback[i][k]
                system[i * s + j, i * s + k] += feedback[j][k]
    flat = mpmath.lu_solve(system, right)
    P = mpmath.matrix(s, s)
    for i in range(s):
        for j in range(s):
            P[i, j] = flat[i * s + j]
    h = mpmath.matrix(readout)
    return (h.T * mpmath.expm(mpmath.matrix(feedback) * D) * P * h)[0]


def distance_only(formula):
    """A formula of the distance, as one of both times."""
    return lambda t, s, **parameters: formula(abs(t - s), **parameters)


# --- Kernels ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelCase:
    """A kernel: its parameters, which ``build`` takes as numbers or tensors, and its formula of two times."""

    name: str
    build: Callable
    formula: Callable
    parameters: dict = field(default_factory=dict)
    frequency: float = 0.0  # the largest angular frequency that does not decay

    def kernel(self, origin=0.0, **changes):
        """With some parameters changed; times are meant from an origin."""
        return self.build(**(self.values(origin) | changes))

    def values(self, origin=0.0):
        shifted = {"center": self.parameters["center"] + origin} if "center" in self.parameters else {}
        lists = {name: as_tensor(value) for name, value in self.parameters.items() if isinstance(value, list)}
        return self.parameters | lists | shifted

    def tensors(self):
        """Every parameter as a tensor of its own."""
        return {name: as_tensor(value) for name, value in self.parameters.items()}

    def exact(self, t, s, **changes):
        """k(t, s) in the precision of mpmath."""
        return self.formula(mpmath.mpf(t), mpmath.mpf(s), **{**lifted(self.parameters), **changes})


def as_tensor(value):
    return torch.tensor(value, dtype=torch.float64)


def lifted(value):
    """Numbers, in dictionaries and lists, as numbers of mpmath."""
    if isinstance(value, dict):
        return {name: lifted(one) for name, one in value.items()}
    return [lifted(one) for one in value] if isinstance(value, list) else mpmath.mpf(value)


def stationary(name, build, formula, frequency=0.0, **parameters):
    return KernelCase(name, build, distance_only(formula), parameters, frequency)


def oscillator(name, quality):
    return stationary(name, gp.SHO, sho, period=4.2, quality=quality, sigma=1.3)


def sum_of_two(scale, sigma, period, quality, amplitude):
    return gp.Matern32(scale, sigma) + gp.SHO(period, quality, amplitude)


def sum_of_two_formula(D, scale, sigma, period, quality, amplitude):
    return matern32(D, scale, sigma) + sho(D, period, quality, amplitude)


def product_of_two(scale, period, quality, sigma):
    return gp.Matern52(scale) * gp.SHO(period, quality, sigma)


def product_of_two_formula(D, scale, period, quality, sigma):
    return matern52(D, scale, 1) * sho(D, period, quality, sigma)


def quasiperiodic(scale, period, sigma):
    return gp.Exponential(scale, sigma) * gp.Cosine(period)


def quasiperiodic_formula(D, scale, period, sigma):
    return exponential(D, scale, sigma) * cosine(D, period, 1)


def product_of_sums(one, two, scale, other):
    return (gp.Cosine(one) + gp.Cosine(two)) * (gp.Exponential(scale) + gp.Matern32(other))


def product_of_sums_formula(D, one, two, scale, other):
    waves = cosine(D, one, 1) + cosine(D, two, 1)
    return waves * (exponential(D, scale, 1) + matern32(D, other, 1))


def multiple(factor, scale, sigma):
    return factor * gp.Matern32(scale, sigma)


def multiple_of_sum(factor, scale, period):
    return factor * (gp.Exponential(scale) + gp.Cosine(period)) * 0.5


def multiple_of_sum_formula(D, factor, scale, period):
    return factor * (exponential(D, scale, 1) + cosine(D, period, 1)) / 2


def multiple_of_carma(factor, alpha, beta):
    return factor * gp.CARMA(alpha, beta) + gp.Exponential(3.0, 0.5)


def multiple_of_carma_formula(D, factor, alpha, beta):
    return factor * carma(D, alpha, beta) + exponential(D, 3, mpmath.mpf(1) / 2)


def line_formula(t, s, sigma, center):
    return sigma**2 * (t - center) * (s - center)


def trend(slope, center, offset, scale, sigma):
    return gp.Linear(slope, center) + gp.Constant(offset) + gp.Matern32(scale, sigma)


def trend_formula(t, s, slope, center, offset, scale, sigma):
    return line_formula(t, s, slope, center) + offset**2 + matern32(abs(t - s), scale, sigma)


def fading_line(sigma, center, scale):
    return gp.Linear(sigma, center) * gp.Matern32(scale)


def fading_line_formula(t, s, sigma, center, scale):
    return line_formula(t, s, sigma, center) * matern32(abs(t - s), scale, 1)


def many(scale, sigma):
    """40 states, more than the likelihood of the compiled core takes: the chain takes any number."""
    return many_terms(scale, sigma, gp.Matern32, lambda one, two: one + two)


def many_terms(scale, sigma, term, add):
    total = term(scale, sigma)
    for i in range(1, 20):
        total = add(total, term(scale * (1 + i), sigma))
    return total


def many_formula(D, scale, sigma):
    return many_terms(scale, sigma, lambda *values: matern32(D, *values), lambda one, two: one + two)


KERNELS = [
    stationary("exponential", gp.Exponential, exponential, scale=1.7, sigma=0.8),
    stationary("matern32", gp.Matern32, matern32, scale=2.1, sigma=1.4),
    stationary("matern52", gp.Matern52, matern52, scale=1.9, sigma=0.6),
    oscillator("sho_overdamped", 0.2),
    oscillator("sho_just_below", 0.5 - 1e-9),
    oscillator("sho_critical", 0.5),
    oscillator("sho_just_above", 0.5 + 1e-9),
    oscillator("sho", 8.0),
    stationary("cosine", gp.Cosine, cosine, frequency=2.0, period=3.3, sigma=1.1),
    stationary("celerite", gp.Celerite, celerite, a=1.1, b=0.3, c=0.9, d=2.5),
    stationary("rotation", gp.Rotation, rotation, period=3.1, quality=1.2, difference=0.4, fraction=0.7, sigma=1.2),
    KernelCase("constant", gp.Constant, lambda t, s, sigma: sigma**2, {"sigma": 0.9}),
    KernelCase("linear", gp.Linear, line_formula, {"sigma": 0.4, "center": 5.0}),
    stationary("carma_1", gp.CARMA, carma, alpha=[0.4], beta=[0.7]),
    stationary("carma_real_roots", gp.CARMA, carma, alpha=[0.3, 1.3], beta=[1.0, 0.6]),
    stationary("carma_3_1", gp.CARMA, carma, alpha=[1.4, 2.3, 1.5], beta=[0.9, 0.5]),
    stationary(
        "state_space",
        gp.StateSpace,
        state_space,
        feedback=[[-0.5, 1.2, 0.0], [-1.1, -0.4, 0.3], [0.1, 0.0, -0.8]],
        noise=[[0.8, 0.2, 0.1], [0.2, 0.5, 0.0], [0.1, 0.0, 0.3]],
        readout=[1.0, 0.3, -0.4],
    ),
    stationary("sum", sum_of_two, sum_of_two_formula, scale=4.0, sigma=1.5, period=2.2, quality=3.0, amplitude=0.5),
    stationary("product", product_of_two, product_of_two_formula, scale=3.0, period=2.7, quality=0.7, sigma=1.2),
    stationary("quasiperiodic", quasiperiodic, quasiperiodic_formula, scale=5.0, period=1.9, sigma=0.9),
    stationary("product_of_sums", product_of_sums, product_of_sums_formula, one=1.5, two=4.0, scale=2.0, other=3.0),
    stationary("multiple", multiple, lambda D, factor, scale, sigma: factor * matern32(D, scale, sigma),
               factor=2.5, scale=1.3, sigma=0.7),
    stationary("multiple_of_sum", multiple_of_sum, multiple_of_sum_formula, frequency=3.2,
               factor=1.6, scale=2.0, period=2.0),
    stationary("multiple_of_carma", multiple_of_carma, multiple_of_carma_formula,
               factor=0.6, alpha=[0.9, 0.5], beta=[0.8]),
    KernelCase("trend", trend, trend_formula,
               {"slope": 0.2, "center": 4.0, "offset": 0.7, "scale": 1.8, "sigma": 1.0}),
    KernelCase("fading_line", fading_line, fading_line_formula, {"sigma": 0.3, "center": 3.0, "scale": 2.4}),
    stationary("many_states", many, many_formula, scale=0.7, sigma=0.3),
]  # fmt: skip
KERNEL = {case.name: case for case in KERNELS}
FEW = ("exponential", "matern52", "sho", "carma_3_1", "sum", "product", "trend")  # one of each kind


def every_kernel(cases=KERNELS):
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])


def named_kernels(*names):
    return every_kernel([KERNEL[name] for name in names])


# --- Times ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Times:
    name: str
    draw: Callable  # generator -> times
    origin: float = 0.0

    def __call__(self):
        """The times, the same at every call."""
        return self.draw(seeded(1)).double() + self.origin


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def uniform(generator, *shape):
    return 10 * torch.rand(*shape, generator=generator, dtype=torch.float64)


def equal_and_close(generator):
    """Times equal, one float apart, 1e-12 apart, and others."""
    t = uniform(generator, 12)
    return torch.cat([t, t[:4], t[4:8] + 1e-12, torch.nextafter(t[8:], t.new_tensor(torch.inf)), t[:4] + 2e-12])


def clusters(generator):
    return torch.cat([center + 1e-3 * uniform(generator, 8) for center in (0.5, 0.6, 9.0)])


def huge_gap(generator):
    """A million scales between the two halves, the second of which comes first."""
    return torch.cat([1e6 + uniform(generator, 11), uniform(generator, 12)])


TIMES = [
    Times("in_order", lambda g: uniform(g, 33).sort().values),
    Times("unsorted", lambda g: uniform(g, 30)),
    Times("reversed", lambda g: uniform(g, 17).sort(descending=True).values),
    Times("duplicates", lambda g: torch.randint(0, 9, (25,), generator=g)),
    Times("equal_and_close", equal_and_close),
    Times("all_equal", lambda g: torch.full((6,), 2.5)),
    Times("one_point", lambda g: uniform(g, 1)),
    Times("two_points", lambda g: torch.tensor([3.0, 1.0])),
    Times("clusters", clusters),
    Times("regular", lambda g: torch.arange(32) / 4),
    Times("huge_gap", huge_gap),
    Times("julian_dates", lambda g: uniform(g, 30), 2459000.5),
    Times("negative", lambda g: -uniform(g, 20), -1000.0),
]
BY_NAME = {times.name: times for times in TIMES}


def every_times(cases=TIMES):
    return pytest.mark.parametrize("times", cases, ids=[times.name for times in cases])


def named_times(*names):
    return every_times([BY_NAME[name] for name in names])


def observed(t, seed=3):
    """Variances of noise, and observations, at times (*batch, n)."""
    generator = seeded(seed)
    diag = 0.05 + 0.1 * torch.rand(t.shape, generator=generator, dtype=torch.float64)
    return diag, torch.sin(t) + 0.3 * torch.randn(t.shape, generator=generator, dtype=torch.float64)


# --- The oracle -------------------------------------------------------------------------------------------------------


def with_noise(kernel, t, diag):
    """K + diag, (*batch, n, n)."""
    return kernel(t) + torch.diag_embed(torch.as_tensor(diag, dtype=t.dtype).expand(t.shape))


def density(matrix, residual):
    """The logarithm of the density of N(0, matrix)."""
    factor = torch.linalg.cholesky(matrix)
    white = torch.linalg.solve_triangular(factor, residual[..., None], upper=False)[..., 0]
    logdet = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return -0.5 * (white.square().sum(-1) + logdet + residual.shape[-1] * math.log(2 * math.pi))


def exact_density(case, t, noise, y, **changes):
    """The same in the precision of mpmath, with some parameters changed."""
    times, n = [mpmath.mpf(one) for one in t.tolist()], len(t)
    matrix = mpmath.matrix(n, n)
    for i in range(n):
        for j in range(n):
            matrix[i, j] = case.exact(times[i], times[j], **changes) + (mpmath.mpf(noise) if i == j else 0)
    factor = mpmath.cholesky(matrix)
    solved = mpmath.lu_solve(matrix, mpmath.matrix(y.tolist()))
    quad = mpmath.fdot(solved, y.tolist())
    logdet = 2 * sum(mpmath.log(factor[i, i]) for i in range(n))
    return -(quad + logdet + n * mpmath.log(2 * mpmath.pi)) / 2


def posterior(matrix, cross, prior, residual):
    """Mean and covariance at new times, from K + diag, the covariances (*batch, m, n), and those of the new times."""
    factor = torch.linalg.cholesky(matrix)
    solved = torch.cholesky_solve(torch.cat([residual[..., None], cross.mT], -1), factor)
    return (cross @ solved[..., :1])[..., 0], prior - cross @ solved[..., 1:]


def condition_number(matrix):
    values = torch.linalg.eigvalsh(matrix.detach())
    return float((values[..., -1] / values[..., 0].clamp(min=1e-300)).max())


def allowance(matrix, case=None, t=None):
    """The relative error that is allowed of what is computed from a matrix.

    Its entries have the relative error ENTRY, to which a wave that does not decay adds the rounding error of its phase.
    """
    phase = 0.0 if case is None or t is None else case.frequency * float(t.max() - t.min()) * 2.0**-52
    return max(FLOOR, (ENTRY + phase) * condition_number(matrix))


def assert_close(got, want, tolerance, scale=0.0):
    """The largest error, relative to the largest number that is wanted, or to ``scale`` if that is larger."""
    assert got.shape == want.shape
    assert bool(torch.isfinite(got).all())
    largest = max(float(want.detach().abs().max()), float(scale)) or 1.0
    worst = float((got - want).detach().abs().max()) / largest
    assert worst <= tolerance, f"relative error {worst:.2g}, allowed {tolerance:.2g}"


def size_of(matrix, residual):
    """The sizes of the terms of a log density, which may cancel."""
    matrix, residual = matrix.detach(), residual.detach()
    quad = (residual * torch.linalg.solve(matrix, residual)).sum(-1)
    return float((quad.abs() + torch.linalg.slogdet(matrix).logabsdet.abs() + residual.shape[-1]).max())

"""Writes published.json: results of tinygp and smolgp for the cases of their own test suites, for test_published.py.

Run it with these libraries installed, which the tests do without:

    python tests/gp/make_published.py

The inputs are made here and in the test by the same formulas: those of tests/test_kernels/test_quasisep.py and
tests/test_solvers of tinygp, and of tests/test_kernels.py and tests/test_multicomponent.py of smolgp. There JAX draws
the observations; here a formula takes their place.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import smolgp
import tinygp
from tinygp.kernels import quasisep

jax.config.update("jax_enable_x64", True)

PERIOD = 83.3
SHO1, SHO2 = (0.0195, 7.63, 0.59), (0.0023, 1 / np.sqrt(2), 0.329)


def sum_of_products(ones, others):
    first, *rest = [one * other for one in ones for other in others]
    for product in rest:
        first = first + product
    return first


TINYGP = {
    "matern32": quasisep.Matern32(sigma=1.8, scale=1.5),
    "matern32_unit": quasisep.Matern32(1.5),
    "matern52": quasisep.Matern52(sigma=1.8, scale=1.5),
    "celerite": quasisep.Celerite(1.1, 0.8, 0.9, 0.1),
    "sho_critical": quasisep.SHO(omega=1.5, quality=0.5, sigma=1.3),
    "sho": quasisep.SHO(omega=1.5, quality=3.5, sigma=1.3),
    "sho_overdamped": quasisep.SHO(omega=1.5, quality=0.1, sigma=1.3),
    "exponential": quasisep.Exp(sigma=1.8, scale=1.5),
    "sum": 1.5 * quasisep.Matern52(1.5) + 0.3 * quasisep.Exp(1.5),
    "product": quasisep.Matern52(1.5) * quasisep.SHO(omega=1.5, quality=0.1),
    "multiple_of_product": 1.5 * quasisep.Matern52(1.5) * quasisep.Celerite(1.1, 0.8, 0.9, 0.1),
    "cosine": quasisep.Cosine(sigma=1.8, scale=1.5),
    # Not CARMA(alpha=[1.4, 2.3, 1.5], beta=[0.1, 0.5]): the matrix of tinygp 0.3.1 has 0.0322 on its diagonal, but the
    # sum over roots, its own attribute ``acf``, and the integral of the spectrum all are 0.0636.
    "carma_complex": quasisep.CARMA(alpha=jnp.array([1, 1.2]), beta=jnp.array([1.0, 3.0])),
    "carma_real": quasisep.CARMA(alpha=jnp.array([0.1, 1.1]), beta=jnp.array([1.0, 3.0])),
    "carma_1": quasisep.CARMA(alpha=jnp.array([1.0 / 100]), beta=jnp.array([0.3])),
    "two_materns": quasisep.Matern32(sigma=1.8, scale=1.5) + quasisep.Matern52(sigma=0.9, scale=0.7),
    # Products of sums, multiplied out: tinygp 0.3 does not take them otherwise.
    "product_of_sum": sum_of_products([quasisep.Cosine(1.0), quasisep.Cosine(2.0)], [quasisep.Exp(1.0)]),
    "sum_times_sum": sum_of_products(
        [quasisep.Cosine(1.0), quasisep.Cosine(2.0)], [quasisep.Exp(0.5), quasisep.Matern32(1.0)]
    ),
}

SMOLGP = {
    "exponential": smolgp.kernels.Exp(scale=PERIOD, sigma=2.1),
    "matern32": smolgp.kernels.Matern32(scale=PERIOD, sigma=2.1),
    "matern52": smolgp.kernels.Matern52(scale=PERIOD, sigma=2.1),
    "cosine": smolgp.kernels.Cosine(scale=PERIOD, sigma=2.1),
    "sho": smolgp.kernels.SHO(2 * np.pi / PERIOD, 5.3, 2.1),
    "sho_critical": smolgp.kernels.SHO(2 * np.pi / PERIOD, 0.5, 2.1),
    "sho_overdamped": smolgp.kernels.SHO(2 * np.pi / PERIOD, 0.1, 2.1),
    "sum": smolgp.kernels.SHO(*SHO1) + smolgp.kernels.SHO(*SHO2) + smolgp.kernels.Matern52(scale=600.0, sigma=5.3),
    "product": (smolgp.kernels.SHO(*SHO1) * smolgp.kernels.SHO(*SHO2))
    * smolgp.kernels.Matern52(scale=600.0, sigma=5.3),
}


def tinygp_results():
    random = np.random.default_rng(84930)
    x = np.sort(random.uniform(-3, 3, 50))
    t = np.sort(random.uniform(-3, 3, 12))
    return {name: tinygp_result(kernel, x, np.sin(x), t) for name, kernel in TINYGP.items()}


def tinygp_result(kernel, x, y, t):
    process = tinygp.GaussianProcess(kernel, x, diag=0.1)
    likelihood, given = process.condition(y, t)
    return numbers(likelihood, given.loc, np.diag(np.asarray(given.covariance)))  # ``variance`` adds noise to them


def smolgp_results():
    x = np.linspace(0, 1000, 50)
    y = 2 * np.sin(x / 30) + 0.3 * np.cos(x / 7)
    t = np.linspace(-100, 1100, 25)
    results = {}
    for name, kernel in SMOLGP.items():
        process = smolgp.GaussianProcess(kernel=kernel, X=jnp.asarray(x), noise=jnp.full(50, 0.09))
        mean, variance = process.predict(jnp.asarray(t), jnp.asarray(y), return_var=True)
        results[name] = numbers(process.log_probability(jnp.asarray(y)), mean, variance)
    return results


def numbers(likelihood, mean, variance):
    return {
        "likelihood": float(likelihood),
        "mean": np.asarray(mean).tolist(),
        "variance": np.asarray(variance).tolist(),
    }


def main(path):
    versions = {name: version(name) for name in ("tinygp", "smolgp", "jax")}
    content = {"versions": versions, "tinygp": tinygp_results(), "smolgp": smolgp_results()}
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("published.json"))

"""The default of ``laplex.linear`` gives up no more than 5e-7 in float32, in values and in all gradients, at any size.

Errors are relative to the sum of the terms' sizes, and the terms are of one sign: such sums lose the most. These are
sizes at which the default forms the matrix, or used to; ``benchmarks.studies.errors`` draws many more.
"""

import pytest
import torch

from benchmarks.studies import errors

BOUND = 5e-7
SIZES = {  # n, k, rows, matrices
    "few outputs of a million inputs": (4, 1_000_000, 2, 1),
    "few outputs of many inputs": (5, 300_000, 4, 1),
    "one output": (1, 1 << 20, 1, 1),
    "long sums": (17, 60_001, 8, 1),
    "many outputs of few inputs": (60_001, 17, 8, 1),
    "a layer": (1000, 768, 128, 4),
    "a layer of many rows": (256, 64, 4096, 1),
    "short sums": (768, 64, 256, 2),
    "one entry": (1, 1, 4096, 1),
}


def shape(sizes, gradients, phases=False, dtype="float32", tau=0.7):
    n, k, rows, matrices = sizes
    named = {"n": n, "k": k, "rows": rows, "matrices": matrices, "tau": tau, "phases": phases, "positive": True}
    return {**named, "gradients": gradients, "dtype": dtype, "seed": n + k}


@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "gradients"])
@pytest.mark.parametrize("size", SIZES)
def test_the_default_is_exact(size, gradients):
    measured = errors.point(shape(SIZES[size], gradients), "cpu")["errors"]
    assert max(measured.values()) <= BOUND, measured


@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "gradients"])
def test_the_default_is_exact_with_phases(gradients):
    measured = errors.point(shape((3, 3000, 64, 1), gradients, phases=True), "cpu")["errors"]
    assert max(measured.values()) <= BOUND, measured


def test_weights_of_a_phased_sum_have_exact_gradients():
    """They add one term for every result."""
    measured = errors.point(shape((68_171, 799, 1, 16), True, phases=True, tau=50.0), "cpu")["errors"]
    assert max(measured.values()) <= BOUND, measured


@pytest.mark.parametrize("tau", [1e-3, 1e3])
def test_the_default_is_exact_at_any_length_scale(tau):
    measured = errors.point(shape((300, 700, 64, 2), True, tau=tau), "cpu")["errors"]
    assert max(measured.values()) <= BOUND, measured


def test_equal_terms_are_summed_exactly():
    """Equal terms are the worst case of a sum in float32: every addition of a binade is rounded the same way."""
    x, anchors = torch.full((64, 4096), 0.1), (torch.zeros(256), torch.zeros(4096))
    y = errors.laplex.linear(x, *anchors)
    assert (y.double() / (4096 * x[0, 0].double()) - 1).abs().max() <= BOUND


@pytest.mark.parametrize("backend", ["formed", "cpp", "torch"])
def test_the_measure_agrees_with_every_backend(backend, monkeypatch):
    """The oracle itself: float64 products of all ways have no error to speak of."""
    linear = errors.laplex.linear
    monkeypatch.setattr(errors.laplex, "linear", lambda **given: linear(**given, backend=backend))
    measured = errors.point(shape((37, 53, 5, 3), True, phases=True, dtype="float64"), "cpu")["errors"]
    assert {"y", "x", "a", "b", "phi", "psi", "weight", "tau"} == set(measured)
    assert max(measured.values()) <= 1e-7, measured  # the gradients of float32 anchors are float32

"""What an import does and does not do, in fresh interpreters; this file alone needs no compiled core."""

import os
import subprocess
import sys

import torch

import laplex

BLOCKED = """
import sys
sys.modules["laplex._core"] = None
sys.modules["triton"] = None
import torch
import laplex

available = laplex.backends.available()
assert available["torch"] == available["dense"] == "yes", available
assert "compiled core did not load" in available["cpp"] and "pip install" in available["cpp"], available

a, b, x = (torch.randn(size, dtype=torch.float64, requires_grad=True) for size in (600, 601, 601))
assert laplex.backends.which(x, a, b) == "torch"
y = laplex.linear(x, a, b)
want = laplex.reference.linear(x, a, b)
assert torch.allclose(y, want, rtol=1e-12, atol=1e-12)
for one, other in zip(torch.autograd.grad(y.sin().sum(), (x, a, b)), torch.autograd.grad(want.sin().sum(), (x, a, b))):
    assert torch.allclose(one, other, rtol=1e-9, atol=1e-9)
plan = laplex.Plan(a, b).update(a + 1e-3, b)
laplex.LaplaceOperator(a, b) @ x
laplex.rank(a, b)
gram, y = laplex.LaplaceOperator(a, b).gram(), torch.randn(600, dtype=torch.float64)
solved = gram.solve(y, 1.0)
assert torch.allclose(gram @ solved + solved, y, rtol=1e-8, atol=1e-8)
try:
    laplex.linear(x, a, b, backend="cpp")
except RuntimeError as error:
    assert "backend 'cpp' cannot run" in str(error), error
else:
    raise AssertionError("backend='cpp' ran without the core")
"""

WATCHED = """
import os, sys
import torch
deeds = []

def watch(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            deeds.append((event, str(path)))
    elif event in ("subprocess.Popen", "os.system", "os.mkdir", "os.rename", "os.posix_spawn", "socket.connect"):
        deeds.append((event, str(arguments)))

sys.addaudithook(watch)
before = set(sys.modules)
import laplex
assert not deeds, deeds
new = set(sys.modules) - before
for name in ("torch.utils.cpp_extension", "torch._inductor", "scipy", "matplotlib", "typer", "sklearn"):
    assert name not in new, name
"""


def run(script, tmp_path):
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    return done


def test_works_without_the_core_and_without_triton(tmp_path):
    run(BLOCKED, tmp_path)


def test_an_import_writes_nothing_and_starts_nothing(tmp_path):
    done = run(WATCHED, tmp_path)
    assert not list(tmp_path.iterdir())
    assert done.stdout == done.stderr == ""


def test_public_names():
    names = ["CholeskyFactor", "GramOperator", "LaplaceOperator", "PerformanceWarning", "Plan", "PrecisionWarning"]
    names += [
        "Seats",
        "ShapeWarning",
        "StalePlanError",
        "SumOperator",
        "__version__",
        "backends",
        "density",
        "disk",
        "distributed",
        "gp",
        "gram",
    ]
    names += ["linear", "nn", "rank", "reference", "reseat", "seriate", "soft", "stats"]
    assert laplex.__all__ == names
    assert all(hasattr(laplex, name) for name in names)


def shown(value):
    """What completion offers of it."""
    return [name for name in dir(value) if not name.startswith("_")]


FRESH = """
import laplex
shown = [name for name in dir(laplex) if not name.startswith("_")]
assert shown == [name for name in laplex.__all__ if not name.startswith("_")], shown
for part in "backends", "density", "disk", "distributed", "gp", "nn", "reference", "stats":
    module = getattr(laplex, part)
    shown = [name for name in dir(module) if not name.startswith("_")]
    assert shown == sorted(module.__all__), (part, shown)
"""


def test_a_fresh_import_shows_the_public_names_and_no_others(tmp_path):
    run(FRESH, tmp_path)


def test_public_names_of_objects():
    K = laplex.LaplaceOperator(torch.randn(3))
    lazy = ["device", "dtype", "logdet", "shape", "solve", "to_dense"]
    operator = [*lazy, "T", "add_diagonal", "cholesky", "clone", "detach", "diagonal", "mT", "requires_grad", "to"]
    of_kernel = ["a", "aslinearoperator", "b", "gram", "phi", "plan", "psi", "sample", "tau"]
    assert shown(K) == sorted([*operator, *of_kernel])
    assert shown(K.gram()) == sorted([*operator, "kernel", "weight"])
    assert shown(2 * K) == sorted([*operator, "diag", "operators", "sample", "scales"])
    assert shown(K.cholesky(0.1)) == sorted([*lazy, "sample"])
    assert shown(K.plan) == sorted(["backend", "device", "mT", "shape", "to", "update", "validate"])


def test_public_names_of_modules():
    assert shown(laplex.backends) == ["available", "warm_up", "which"]
    assert shown(laplex.reference) == ["gram", "kernel", "linear"]
    layers = ["LaplaceAttention", "LaplexLinear", "LaplexProjection", "Remainder", "Replacement", "Replacements"]
    layers += ["SpreadLinear"]
    functions = ["laplace_attention", "parameter_groups", "parametrize", "replace_linear", "reseat_step", "routing"]
    assert shown(laplex.nn) == [*layers, *functions]
    models = [
        "EM",
        "Evaluation",
        "Examples",
        "FactorGaussian",
        "Fitted",
        "LaplexGaussian",
        "PlacedGaussian",
        "Round",
        "State",
    ]
    others = ["StructuredGaussian", "Trainer", "evaluate", "files", "fit", "images", "pictures", "start"]
    assert shown(laplex.density) == [*models, *others]


def test_public_names_have_docstrings():
    public = [getattr(laplex, name) for name in laplex.__all__ if name != "__version__"]
    assert all(value.__doc__ for value in [laplex, *public])


def test_the_version_is_the_distribution_s():
    from importlib.metadata import version

    assert laplex.__version__ == version("laplex")

"""Texts for faults that other modules find. They return the text; the caller raises."""

from __future__ import annotations

_METHODS = {  # a method of the operators, and the functions of torch that it replaces
    "solve(y, diag)": ("linalg_solve", "linalg_inv", "inverse"),
    "logdet(diag)": ("logdet", "slogdet", "linalg_slogdet", "det", "linalg_det"),
    "cholesky(diag)": ("linalg_cholesky", "cholesky"),
}


# --- Values ----------------------------------------------------------------------------------------------------------


def not_finite(where: str, name: str) -> str:
    return (
        f"{where}: `{name}` must be finite, got NaN or infinity; "
        f"find it with torch.isfinite({name}).logical_not().nonzero()"
    )


def not_definite(where: str, index: int, tied: list[int] | None) -> str:
    """``index`` is the anchor at which the factorisation failed; ``tied`` are two equal anchors if they caused it."""
    if tied is not None:
        return (
            f"{where}: the matrix is singular: anchors a[{tied[0]}] and a[{tied[1]}] are equal, or nearly so "
            "compared with tau; drop one of them, or add a positive `diag`"
        )
    return (
        f"{where}: the matrix is not positive definite in float64: its factorisation broke down at a[{index}]; `diag` "
        "is too small compared with the entries there (or an argument is not finite); use a larger one"
    )


# --- Plans and backends ----------------------------------------------------------------------------------------------


def not_a_plan(where: str, plan: object) -> str:
    return f"{where}: `plan` must be a laplex.Plan or None, got {type(plan).__name__}"


def stale_plan(where: str, plan: str = "laplex.Plan") -> str:
    """``plan``: the class that the caller needs."""
    keeper = ", or a new LaplaceOperator, which keeps a plan" if plan == "laplex.Plan" else ""
    return (
        f"{where}: `plan` does not describe the order of these anchors: they moved past one another, or onto one "
        f"another, since it was built (or are not finite); build a new one with {plan}(a, b) or "
        f"plan = plan.update(a, b){keeper}"
    )


def other_backend(where: str, backend: str, planned: str) -> str:
    return (
        f"{where}: `plan` was built for backend '{planned}', got backend='{backend}', which needs an order of another "
        f"form; leave the backend out, or build laplex.Plan(a, b, backend='{backend}')"
    )


def without_core(missing: str) -> str:
    return (
        "laplex: on the CPU products, Gram matrices and solves run in plain torch, several times slower than with the "
        f"compiled core (shown once; filter laplex.PerformanceWarning to silence it): {missing}"
    )


# --- What lazy matrices do not offer ---------------------------------------------------------------------------------


def not_defined(function: str, name: str) -> str:
    """``function`` is a torch function that would need all entries of the matrix, which is a ``name``."""
    methods = [method for method, functions in _METHODS.items() if function in functions]
    instead = f"K.{methods[0]} if it is symmetric, or " if methods else ""
    return f"{function} is not defined for a {name}; use {instead}.to_dense() if the matrix fits"


def not_defined_for_factors(function: str) -> str:
    return (
        f"{function} is not defined for a CholeskyFactor; use C @ x with C on the left, C.solve(y), C.logdet(), or "
        ".to_dense() if the matrix fits"
    )


def not_an_index(name: str, key: object) -> str:
    parts = key if isinstance(key, tuple) else (key,)
    if any(part is None for part in parts):
        instead = "for a leading dimension make LaplaceOperator(a[None], b[None], tau)"
    else:
        instead = "use K[rows, :] for whole rows, and K[matrices] or K[matrices][rows, cols] of a batch"
    return f"{name}: index with K[rows, cols], got {key!r}; {instead}"


def not_symmetric(where: str) -> str:
    return (
        f"{where}: needs a symmetric matrix, LaplaceOperator(a) without `b` (and with `phi` alone); for "
        "least squares with a rectangular K use K.mT.gram().solve(K.mT @ y, diag), or K.aslinearoperator() and SciPy"
    )


def not_copied() -> str:
    return (
        "CholeskyFactor: a factor that carries gradients cannot be copied or saved: the copy would lose them; make it "
        "under torch.no_grad(), or save the tensors that it was made from"
    )


# --- What is not differentiated or captured --------------------------------------------------------------------------


def differentiable_once() -> str:
    return (
        "laplex: log determinants and Cholesky factors are differentiable once (solves to any order); for second "
        "derivatives of small matrices use .to_dense()"
    )


def not_exported(layer: object, by: str) -> str:
    """``by`` is a function that turns models into graphs of torch's own operators only."""
    dense = "replace it by its dense layer first, as in model.set_submodule(name, layer.to_linear()), or "
    instead = dense if hasattr(layer, "to_linear") else ""
    return (
        f"{type(layer).__module__}.{type(layer).__name__}: {by} does not know laplex's products; {instead}use "
        "torch.export, which keeps them"
    )


def not_captured(where: str) -> str:
    return (
        f"{where}: solves, log determinants and factors are not captured in a graph; use torch.compile without "
        "fullgraph=True and put this call into a function under @torch.compiler.disable: the graph breaks there"
    )

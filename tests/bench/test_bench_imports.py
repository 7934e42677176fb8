"""benchmarks/ sees laplex as a user does: it imports public names only."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import laplex

FOLDER = Path(__file__).parents[2] / "benchmarks"
LOOKS_INSIDE = {"ways_picture.py"}  # it draws what the cost model chooses
FILES = sorted(
    path for path in FOLDER.rglob("*.py") if path.parent.name != "studies" and path.name not in LOOKS_INSIDE
)  # studies change internal constants and functions, to find where time and digits go
PUBLIC = {"laplex", "laplex.reference", "laplex.backends"}
OF_PUBLIC_MODULES = {"laplex.density", "laplex.nn", "laplex.testing"}  # their modules are public, too


def imported(source: str) -> Iterator[tuple[str, str]]:
    """Every module that is imported, with the name that is taken from it ("" for the module itself)."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def private(source: str) -> list[str]:
    """What is imported from laplex that is not public."""
    ours = [(module, name) for module, name in imported(source) if module.split(".")[0] == "laplex"]
    ours = [(module, name) for module, name in ours if module not in OF_PUBLIC_MODULES or name.startswith("_")]
    public = {*laplex.__all__, "testing", ""}
    return [f"{module} {name}".strip() for module, name in ours if module not in PUBLIC or name not in public]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_public_names_only(path: Path) -> None:
    assert private(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "line",
    [
        "import laplex._ops",
        "from laplex import _ops",
        "from laplex._plan import Plan",
        "from laplex import cli",
        "from laplex.testing import _timing",
    ],
)
def test_private_names_are_found(line: str) -> None:
    assert private(line)

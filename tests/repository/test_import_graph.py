"""Imports form a directed graph: between modules, and between the parts of the repository. Nothing is imported here."""

import ast
import functools
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LAYERS = {  # of laplex: what each may import besides itself; `core` is all that is not named
    "core": set(),
    "testing": {"core", "public"},
    "nn": {"core"},
    "sklearn": {"core", "nn"},
    "density": {"core", "nn"},
    "public": {"core", "nn", "density"},  # laplex/__init__.py
    "cli": {"core", "public", "testing", "nn", "density"},
    "__main__": {"cli"},
}
INSTALLED_WITH_LAPLEX = {"torch", "numpy"}
NOT_EVERYWHERE = {"fcntl", "resource"}  # in the standard library of some systems only
# The table of backends, and commands, whose help must not wait for torch.
LATE = ("laplex._backends", "laplex.cli", "_laplex_command", "paper.commands", "paper.__main__")


class Import(NamedTuple):
    """A module, imported in a line of another; late where that happens in a function."""

    target: str
    line: int
    late: bool


@functools.cache
def modules() -> dict[str, Path]:
    """The files of the library, the paper and the benchmarks, by the names of their modules."""
    named = {}
    for folder in ("src/laplex", "src/_laplex_command", "paper", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts[parts[0] == "src" :]
            if parts[:2] != ("paper", "tests"):
                named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


@functools.cache
def imports() -> dict[str, list[Import]]:
    """What each module imports. What only a type checker sees does not count."""
    return {name: list(_imports(ast.parse(path.read_text(encoding="utf-8")))) for name, path in modules().items()}


def _imports(node: ast.AST, late: bool = False) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, late) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"a relative import in line {child.lineno}"
            for alias in child.names:
                member = f"{child.module}.{alias.name}"
                yield Import(member if member in modules() else str(child.module), child.lineno, late)
        yield from _imports(child, late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))


def part(module: str) -> str:
    """The part of the repository that a module belongs to: a layer of laplex, or a folder beside it."""
    top, _, rest = module.partition(".")
    if top != "laplex":
        return top
    first = rest.partition(".")[0]
    return first if first in LAYERS else "core" if rest else "public"


@functools.cache
def optional(module: str) -> bool:
    """Whether a module needs more than what laplex requires, or an import of it does."""
    if module in modules():
        return any(optional(each.target) for each in imports()[module] if not each.late)
    top = module.partition(".")[0]
    return top in NOT_EVERYWHERE or top not in INSTALLED_WITH_LAPLEX | sys.stdlib_module_names


def test_no_cycle_of_modules():
    graph = {
        name: {each.target for each in imported if not each.late and each.target in modules()} - {name}
        for name, imported in imports().items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" imports ".join(reversed(error.args[1]))) from None


def test_parts_use_only_those_below():
    below = {**LAYERS, "_laplex_command": {"cli"}, "paper": set(LAYERS), "benchmarks": {*LAYERS, "paper"}}
    wrong = [
        f"{name}, line {each.line}: {each.target}"
        for name, imported in imports().items()
        for each in imported
        if each.target in modules() and part(each.target) not in {*below[part(name)], part(name)}
    ]
    assert wrong == []


def test_imports_in_functions_are_of_optional_packages():
    late = [
        f"{name}, line {each.line}: {each.target}"
        for name, imported in imports().items()
        for each in imported
        if each.late and not optional(each.target) and not name.startswith(LATE)
    ]
    assert late == []

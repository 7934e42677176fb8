"""What the library promises of its own shape: few long parameter lists, and one table of backends."""

import ast
import functools
from pathlib import Path

import laplex
from laplex import _backends

PACKAGE = Path(laplex.__file__).parent


@functools.cache
def trees():
    return {path.relative_to(PACKAGE): ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}


def is_program(function):
    """A Triton program, or a part of one."""
    decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
    return any(decorator.startswith(("triton.jit", "program(")) for decorator in decorators)


def test_few_functions_take_eight_parameters():
    many = []
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and not is_program(node):
                taken = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
                if len([argument for argument in taken if argument.arg not in ("self", "cls", "ctx")]) >= 8:
                    many.append(f"{path}:{node.name}")
    assert len(many) <= 20, many


def test_only_the_table_of_backends_imports_the_gpu_programs():
    doors = set()
    for path, tree in trees().items():
        if path.parts[0] == "_triton":
            continue
        for node in ast.walk(tree):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []
            if any(name.startswith("laplex._triton") and " " not in name for name in names):
                doors.add(str(path))
    assert doors == {"_backends/__init__.py"}


def test_backends_are_compared_by_name_in_one_place():
    """Everything else asks the table; what reports to users may name them."""
    names, files = set(_backends.NAMES), set()
    for path, tree in trees().items():
        compared = [node for node in ast.walk(tree) if isinstance(node, ast.Compare) and path.parts[0] != "cli"]
        sides = [side for node in compared for side in (node.left, *node.comparators)]
        if any(isinstance(side, ast.Constant) and side.value in names for side in sides):
            files.add(str(path))
    assert files == {"_backends/__init__.py"}

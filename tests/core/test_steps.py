"""How many functions stand between a public call and the compiled code, counted on the way; and what the house promises
of its own shape: few long parameter lists, and one door to the GPU wing."""

import ast
import functools
import sys
from pathlib import Path

import pytest
import torch

import laplex
from laplex import _backends, _compiled

PACKAGE = Path(laplex.__file__).parent


def functions_on_the_way():
    """The laplex functions on the stack, from the public call on."""
    frame, found = sys._getframe(2), []
    while frame is not None:
        if frame.f_code.co_filename.startswith(str(PACKAGE)):
            found.append(f"{Path(frame.f_code.co_filename).relative_to(PACKAGE)}:{frame.f_code.co_name}")
        frame = frame.f_back
    return found[::-1]


CALLS = {
    "product": lambda x, a, b: laplex.linear(x, a, b, 1.0),
    "plan_kept": lambda x, a, b: laplex.linear(x, a, b, 1.0, plan=laplex.Plan(a, b)),
    "training": lambda x, a, b: laplex.linear(x, a.requires_grad_(), b, 1.0),
    "with_phases": lambda x, a, b: laplex.linear(x, a, b, 1.0, phi=a, psi=b),
}


@pytest.mark.parametrize("name", CALLS)
def test_six_functions_to_the_compiled_core(name, monkeypatch):
    monkeypatch.setattr(_backends, "cheapest", lambda work, device: "scan")
    ways, scan = [], _compiled.core.scan

    def watched(*arguments):
        ways.append(functions_on_the_way())
        return scan(*arguments)

    monkeypatch.setattr(_compiled.core, "scan", watched)
    CALLS[name](torch.randn(2, 50), torch.randn(60), torch.randn(50))
    assert ways
    assert all(len(way) <= 6 for way in ways), ways


@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
@pytest.mark.skipif(not _backends.interpreted(), reason="with a GPU programs are compiled")
@pytest.mark.parametrize("name", CALLS)
def test_eight_functions_to_a_launch(name, tiles, monkeypatch):
    """The way a CUDA tensor takes: to the launch of the program that scans."""
    from laplex._triton.scan import launch as module

    ways, launch = [], module.launch

    def watched(program, *rest):
        if program.__name__ == "scan_program":
            ways.append([*functions_on_the_way(), "_triton/launch.py:launch"])
        return launch(program, *rest)

    monkeypatch.setattr(_backends, "cheapest", lambda work, device: "scan")
    monkeypatch.setattr(_backends, "planner", lambda device: "triton")
    monkeypatch.setattr(module, "launch", watched)
    CALLS[name](torch.randn(2, 50), torch.randn(60), torch.randn(50))
    assert ways
    assert all(len(way) <= 8 for way in ways), ways


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


def test_one_door_to_the_gpu_wing():
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
    names, found = set(_backends.NAMES), set()
    for path, tree in trees().items():
        compared = [node for node in ast.walk(tree) if isinstance(node, ast.Compare) and path.parts[0] != "cli"]
        sides = [side for node in compared for side in (node.left, *node.comparators)]
        if any(isinstance(side, ast.Constant) and side.value in names for side in sides):
            found.add(str(path))
    assert found == {"_backends/__init__.py"}

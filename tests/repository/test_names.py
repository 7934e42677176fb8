"""A thing is called what it is: these words, which name nothing, are not identifiers."""

import ast
import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMELESS = {"of", "us", "them", "how", "told", "made", "found", "kept", "whole", "beside", "at", "alike"}
ONE_CLASS = ("Order", "Form", "Table", "Study", "Call", "Variant", "Job")  # one word, one meaning


@functools.cache
def trees() -> dict[str, ast.Module]:
    files = [path for folder in ("src", "paper", "benchmarks", "tests") for path in (ROOT / folder).rglob("*.py")]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}
    texts["conftest.py"] = (ROOT / "conftest.py").read_text(encoding="utf-8")
    return {name: ast.parse(text) for name, text in texts.items()}


def bound(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every name that is given to something, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.arg(arg=name):
                yield name, node.lineno
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from ((alias.asname, node.lineno) for alias in aliases if alias.asname)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, node.lineno


def test_identifiers_say_what_a_thing_is():
    wrong = [
        f"{file}, line {line}: {name}"
        for file, tree in trees().items()
        for name, line in bound(tree)
        if name.strip("_").lower() in NAMELESS
    ]
    assert wrong == []


def test_one_word_has_one_meaning():
    classes = Counter(
        node.name.strip("_") for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    assert [name for name in ONE_CLASS if classes[name] > 1] == []

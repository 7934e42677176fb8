"""The rooms of the GPU wing are a directed graph: each imports only from those below it."""

import ast
from pathlib import Path

import pytest

import laplex

WING = Path(laplex.__file__).parent / "_triton"
# What every room may use.
TOOLS = {"tuning", "program", "launch", "precision", "recording", "repetition", "replay", "branch"}
BELOW = {
    "points": set(),
    "running": {"points"},
    "order": {"points"},
    "distance": {"points", "running", "order"},
    "short": {"points", "running", "order"},
    "scan": {"points", "running", "order", "distance", "short"},
    "phase": {"points", "running", "order", "distance", "short", "scan"},
    "gram": {"points", "running", "order", "distance", "short", "scan"},
    "formed": {"points"},
    "soft": {"points", "running"},
    "layer": {"order", "scan", "formed"},
    "states": {"points"},
}
ALLOWED = {room: below | TOOLS for room, below in BELOW.items()}
ALLOWED |= {
    "tuning": set(),
    "program": set(),
    "launch": {"tuning", "program"},
    "branch": set(),
    "precision": {"launch"},
    "recording": {"launch"},
    "repetition": {"launch", "recording"},
    "replay": {"tuning", "launch", "precision", "recording", "repetition"},
    "warm_up": TOOLS,
    "backend": {*BELOW, *TOOLS, "warm_up"},
}


def imported_rooms(path):
    """The rooms of the wing from which a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "laplex._triton":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("laplex._triton."):
            yield node.module.split(".")[2]


@pytest.mark.parametrize("room", sorted({path.stem for path in WING.iterdir()} - {"__init__", "__pycache__"}))
def test_a_room_imports_only_from_those_below(room):
    files = [WING / f"{room}.py"] if (WING / f"{room}.py").exists() else [*(WING / room).glob("*.py")]
    rooms = {name for path in files for name in imported_rooms(path)} - {room}
    assert rooms <= ALLOWED[room]

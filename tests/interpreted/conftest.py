"""Programs in Triton's interpreter. With a GPU they are compiled, and tests/gpu has the same cases."""

from pathlib import Path

import pytest

from laplex import _backends

ANYWHERE = ("test_rooms.py", "test_first_call.py", "test_triton_compiles.py", "test_triton_replay.py")
collect_ignore_glob = []
if not _backends.interpreted():
    collect_ignore_glob = [path.name for path in Path(__file__).parent.glob("test_*.py") if path.name not in ANYWHERE]


def pytest_collection_modifyitems(items):
    """Programs overflow on purpose, which the interpreter warns of."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"))
            item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning:numpy"))

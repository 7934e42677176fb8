"""The compiled C++ core (csrc/), or why it is missing."""

from __future__ import annotations

import importlib
from typing import Any

try:
    core: Any = importlib.import_module("laplex._core")
    MISSING = ""
except ImportError as error:
    core = None
    MISSING = (
        f"the compiled core did not load ({error}); with a C++17 compiler at hand, reinstall laplex, in the folder of "
        "laplex's source: pip install --force-reinstall --no-deps ."
    )

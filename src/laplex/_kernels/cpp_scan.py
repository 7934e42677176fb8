"""The ordered scan in C++ (csrc/), called with addresses: this file owns dtypes, contiguity and messages."""

from __future__ import annotations

MISSING = "the compiled core laplex._core is not in this checkout"

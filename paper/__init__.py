"""The paper beside the library: its claims, measured again and judged. Not installed; `python -m paper` runs it."""

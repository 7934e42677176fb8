"""Scripts that each measure one thing: the figures behind constants in laplex, and behind some tables in the docs.

Run one as ``python -m benchmarks.studies.NAME``; its docstring says what it writes. Most of them force a choice that
laplex would make, or change its constants, so unlike the suites they may use private names.
"""

from collections.abc import Callable

from laplex.testing import Budget, interleave


def wall(call: Callable[[], object], seconds: float, device: str) -> float:
    """Milliseconds per call, without waiting between calls, over two rounds of as many calls as fit into the time."""
    call()
    times = interleave({"": call}, device, Budget(min_s=0.0, min_samples=2, turn_s=seconds))
    return 1e3 * times[""].median

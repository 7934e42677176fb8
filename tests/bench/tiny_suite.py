"""A benchmark of three measurements that takes no time, for the tests of the benchmark and of its front ends."""

from benchmarks import report
from benchmarks.problems import Row, Side, Size, Suite
from benchmarks.result import Result
from laplex.testing import Budget

INSTANT = Budget(min_s=0.0, min_samples=2, max_s=0.1, turn_s=0.0)
SIZE = Size(70, 50, 2)
ROW = Row("dense", "against dense", (SIZE,), "ratio", 1e9, against=Side("dense", "whole"))
ERROR = Row("error", "an error", (SIZE, Size(300, 300, 1)), "error", 1e-6, Side(backend="torch"))
SUITE = Suite("tiny", "cpu", (ERROR, ROW), INSTANT, committed=False)


class Silent:
    """A progress that remembers what it was told."""

    def __init__(self, interrupt_at: int | None = None) -> None:
        self.begun: list[str] = []
        self.interrupt_at = interrupt_at

    def start(self, report: report.Report, total: int) -> None:
        self.total = total

    def begin(self, what: str) -> None:
        if len(self.begun) == self.interrupt_at:
            raise KeyboardInterrupt
        self.begun.append(what)

    def done(self, result: Result) -> None:
        pass

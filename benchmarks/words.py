"""What every front end says when a run starts and when it ends."""

import importlib.util

from benchmarks.report import SCRATCH, Report
from laplex.testing import busy

INTERRUPTED = "benchmarks: interrupted; what was finished is saved, and the same command with --resume continues"
FAULTS = ("wrong", "failed")


def opening_line(report: Report, total: int) -> str:
    """Name the file, which is what an interrupted run leaves, and warn if others use the machine."""
    return "\n".join(filter(None, [f"{total} measurements to make; each is saved in {report.path}", busy(report.load)]))


def closing_lines(report: Report) -> list[str]:
    """Draw the plots where matplotlib is there, and say where everything is."""
    lines = [f"results: {report.path}"]
    if importlib.util.find_spec("matplotlib") is None:
        lines.append("plots: none, they need matplotlib: pip install matplotlib")
    else:
        from benchmarks.page import save  # matplotlib takes a second to import, and may be missing

        png, html = save(report)
        lines += [f"plot:    {png}", f"page:    {html}"]
    if report.path.parent == SCRATCH:
        lines.append(f"({SCRATCH}/ is for looking: git ignores it)")
    return lines


def exit_code(report: Report) -> int:
    """1 if an answer was wrong or a row failed. A missed bar is a result, not a fault."""
    return int(any(result.status in FAULTS for result in report.results))

"""What came of the paper's tables and figures, in a table for the documentation."""

from benchmarks.committed import table
from benchmarks.report import COMMITTED
from paper.entry import VERDICTS
from paper.sections import outcomes

WORDS = {verdict: f"**{verdict}**" if verdict == "not reproduced" else verdict for verdict in VERDICTS}


def verdicts() -> str:
    """A line per verdict: the number of entries that have it, and their names."""
    results = [one for one in outcomes([COMMITTED]) if not one.entry.added]
    rows = []
    for verdict in VERDICTS:
        names = [f"`{one.entry.name}`" for one in results if one.verdict == verdict]
        rows.append((WORDS[verdict], str(len(names)), ", ".join(names)))
    return table(("verdict", "entries", "which"), rows, "From all files in `benchmarks/results`.")

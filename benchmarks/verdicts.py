"""What came of the paper's tables and figures, in a table for README and documentation."""

from pathlib import Path

from benchmarks.report import COMMITTED
from paper.reproduce import VERDICTS, outcomes

WORDS = {verdict: f"**{verdict}**" if verdict == "not reproduced" else verdict for verdict in VERDICTS}


def verdicts() -> str:
    """A line a verdict: how many entries have it, and which."""
    found = outcomes([Path(COMMITTED)])
    lines = ["| verdict | entries | which |", "| --- | --- | --- |"]
    for verdict in VERDICTS:
        names = [f"`{one.entry.name}`" for one in found if one.verdict == verdict]
        lines.append(f"| {WORDS[verdict]} | {len(names)} | {', '.join(names)} |")
    return "\n".join([*lines, "", "From all files in `benchmarks/results`, by `paper.reproduce.outcomes`."])

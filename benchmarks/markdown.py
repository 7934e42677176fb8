"""The tables of README.md, made from the committed JSON: `make readme`. No figure there is typed by hand."""

import re
from itertools import groupby
from pathlib import Path

from benchmarks.problems import Size, power
from benchmarks.report import load
from benchmarks.result import Result
from benchmarks.tables import bar_of, value_of

README = Path("README.md")
RESULTS = Path("benchmarks/results")


def table(results: list[Result]) -> str:
    """One line a claim, with its figure at every size."""
    lines = ["| claim | sizes | measured | bar | verdict |", "| --- | --- | --- | --- | --- |"]
    claims = [result for result in results if result.bar is not None]  # a sweep is for the figures
    for _, group in groupby(claims, key=lambda result: result.row):
        same = list(group)
        sizes = in_words([result.size for result in same if result.size is not None])
        values = " / ".join(value_of(result) for result in same)
        missed = sum(result.status == "miss" for result in same)
        unmeasured = sorted({result.status for result in same} - {"pass", "miss"})
        verdict = ", ".join([f"missed at {missed} of {len(same)}" if missed else "met", *unmeasured])
        lines.append(f"| {same[0].says} | {sizes} | {values} | {bar_of(same[0])} | {verdict} |")
    return "\n".join(lines)


def in_words(sizes: list[Size]) -> str:
    """n = k = 2^14, 2^18; B = 1: what sizes have in common is said once."""
    if not all(size.n == size.k for size in sizes):
        return "; ".join(map(str, sizes))
    batches = groupby(sizes, key=lambda size: size.batch)
    return " and ".join(f"n = k = {', '.join(power(size.n) for size in same)}; B = {b}" for b, same in batches)


def filled(text: str) -> str:
    """The text with the table between each pair of markers `begin: NAME results` and `end: NAME results` renewed."""

    def renew(match: re.Match[str]) -> str:
        files = sorted(RESULTS.glob(f"{match['name']}-*.json"))
        if not files:
            return match[0]
        machine, results = load(files[-1])
        return f"{match['begin']}\n{table(results)}\n\n{machine}\n{match['end']}"

    pattern = r"(?P<begin><!-- begin: (?P<name>\w+) results -->)\n.*?(?P<end><!-- end: \w+ results -->)"
    return re.sub(pattern, renew, text, flags=re.DOTALL)


if __name__ == "__main__":
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")

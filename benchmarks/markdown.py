"""`make readme`: the tables and the plot of the two README files and of the documentation, from the committed JSON.

No figure in them is typed by hand. A table stands between `<!-- begin: NAME -->` and `<!-- end: NAME -->`:
"cpu results" and "gpu results" are every claim of a suite, and "figures" the few rows of `FIGURES`.
"""

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from benchmarks import accuracies, densities, docs_tables, verdicts
from benchmarks.problems import Size, power
from benchmarks.report import COMMITTED, load
from benchmarks.result import Result
from benchmarks.tables import bar_of, value_of

GUIDES = "densities", "gpu-and-memory", "layers", "plans", "projections", "reproduce"
PAGES = "benchmarks", "honest", "maths", "troubleshooting", *(f"guides/{guide}" for guide in GUIDES)
FILES = Path("README.md"), COMMITTED / "README.md", *(Path(f"docs/{page}.md") for page in PAGES)
PLOT, WAYS = COMMITTED / "sizes.png", COMMITTED / "ways.png"
MARKED = re.compile(r"(?P<begin><!-- begin: (?P<name>[\w ]+) -->)\n.*?(?P<end><!-- end: (?P=name) -->)", re.DOTALL)
LARGE = Size(1 << 20, 1 << 20, 1)


@dataclass(frozen=True)
class Figure:
    """One row of the README's short table: a result of a suite, in words for a first reader."""

    suite: str
    row: str
    size: Size
    says: str


# Each figure that looks good stands beside one of the same kind that does not.
FIGURES = (
    Figure("cpu", "error-float32-cpp-normal", Size(1 << 20, 1 << 20, 8),
           "Relative error of a float32 product, n = k = 2^20 (one float32 rounding is 6e-08)"),
    Figure("cpu", "time-celerite2", LARGE,
           "Product with different row and column anchors, n = k = 2^20, against celerite2's `general_matmul`"),
    Figure("layers", "time-celerite2-symmetric-1-thread", LARGE,
           "Symmetric product, b = a, n = 2^20, float64, one thread, against celerite2's symmetric product"),
    Figure("gpu", "time-toeplitz", LARGE,
           "Product, n = k = 2^20, plan kept, against a Toeplitz product by FFT, which needs a uniform grid"),
)  # fmt: skip


def filled(text: str) -> str:
    """The text with what stands between its markers made again from the committed results."""

    def renew(match: re.Match[str]) -> str:
        return f"{match['begin']}\n{CONTENT[match['name']]()}\n{match['end']}"

    return MARKED.sub(renew, text)


def claims(suite: str) -> str:
    """Every claim of a suite, and where it was measured."""
    origin, results = load(committed(suite))
    return f"{table(results)}\n\n{origin}"


def _device(suite: str) -> str:
    """Where a suite runs, in the README's words."""
    return "GPU" if suite == "gpu" else "CPU"


def committed(suite: str) -> Path:
    """The file with the suite's committed results."""
    return sorted(COMMITTED.glob(f"{suite}-*.json"))[-1]


def table(results: list[Result]) -> str:
    """One line a claim, with its figure at every size."""
    lines = ["| claim | sizes | measured | bar | verdict |", "| --- | --- | --- | --- | --- |"]
    with_bar = [result for result in results if result.bar is not None]  # a sweep is for the plots
    for _, group in groupby(with_bar, key=lambda result: result.row):
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


def figures() -> str:
    """The short table, and where its figures were measured."""
    loaded = {suite: load(committed(suite)) for suite in sorted({figure.suite for figure in FIGURES})}
    lines = ["| measured | on | result |", "| --- | --- | --- |"]
    for figure in FIGURES:
        found = [one for one in loaded[figure.suite][1] if (one.row, one.size) == (figure.row, figure.size)]
        shown = in_short(found[0]) if found else "not measured yet"
        lines.append(f"| {figure.says} | {_device(figure.suite)} | {shown} |")
    says, shown, origin = docs_tables.wide_layer()
    lines.append(f"| {says} | CPU | {shown} |")
    origins = [
        *(f"{_device(suite)}: {origin}" for suite, (origin, _) in loaded.items()),
        f"Wide layer: {origin[0].lower()}{origin[1:]}",
    ]
    return "\n".join([*lines, "", "<br>\n".join(origins)])


def in_short(result: Result) -> str:
    """A ratio as both times and how they compare; anything else as its value."""
    times = [side.time.median for side in result.sides.values() if side.time is not None]
    if result.unit != "ratio" or len(times) < 2:
        return value_of(result)
    return docs_tables.against(*times[:2])


def trained_layers() -> str:
    from benchmarks.trained import table  # needs matplotlib

    return table()


CONTENT: dict[str, Callable[[], str]] = {
    "cpu results": lambda: claims("cpu"),
    "gpu results": lambda: claims("gpu"),
    "figures": figures,
    "trained layers": trained_layers,
    "heads": accuracies.heads,
    "projections": accuracies.projections,
    "densities": densities.densities,
    "starts": densities.starts,
    "longer fits": densities.longer,
    "photographs": densities.photographs,
    "verdicts": verdicts.verdicts,
    **docs_tables.CONTENT,
}


def main() -> None:
    """Renew the files, and the plots where matplotlib is there."""
    for path in FILES:
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
    if importlib.util.find_spec("matplotlib") is not None:
        from benchmarks.plot import draw_sweep
        from benchmarks.trained import draw

        origin, results = load(committed("gpu"))
        draw_sweep(results, "sweep-size", origin).savefig(PLOT, dpi=110)
        draw().savefig(WAYS, dpi=110)


if __name__ == "__main__":
    main()

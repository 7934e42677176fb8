"""`make tables`: the tables and plots of README and documentation, made from the committed JSON.

No figure in them is typed by hand. A table stands between `<!-- begin: NAME -->` and `<!-- end: NAME -->`, on one page
only; `CONTENT` says which function makes it.
"""

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    accuracies,
    attention_tables,
    cost_tables,
    densities,
    docs_tables,
    figures,
    process_tables,
    rate_tables,
    series_tables,
    soft_tables,
    step_tables,
    verdicts,
)
from benchmarks.committed import suite_results
from benchmarks.report import COMMITTED

MARKED = re.compile(r"(?P<begin><!-- begin: (?P<name>[\w ]+) -->)\n.*?(?P<end><!-- end: (?P=name) -->)", re.DOTALL)


def pages() -> list[Path]:
    """The files that have a table, from the root of a checkout."""
    files = [Path("README.md"), *sorted(Path("docs").rglob("*.md"))]
    return [path for path in files if MARKED.search(path.read_text(encoding="utf-8"))]


def filled(text: str) -> str:
    """The text with what stands between its markers made again from the committed results."""

    def renew(match: re.Match[str]) -> str:
        return f"{match['begin']}\n{CONTENT[match['name']]()}\n{match['end']}"

    return MARKED.sub(renew, text)


CONTENT: dict[str, Callable[[], str]] = {
    "figures": figures.figures,
    "verdicts": verdicts.verdicts,
    **accuracies.CONTENT,
    **attention_tables.CONTENT,
    **soft_tables.CONTENT,
    **densities.CONTENT,
    **docs_tables.CONTENT,
    **rate_tables.CONTENT,
    **series_tables.CONTENT,
    **step_tables.CONTENT,
    **process_tables.CONTENT,
    **cost_tables.CONTENT,
}


def main() -> None:
    """Renew the files, and the plots where matplotlib is there."""
    for path in pages():
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
    if importlib.util.find_spec("matplotlib") is not None:
        from benchmarks import ranks_picture, rates_picture, series_picture
        from benchmarks.plot import draw_sweep
        from benchmarks.ways_picture import draw

        origin, results = suite_results("gpu")
        draw_sweep(results, "sweep-size", origin).savefig(COMMITTED / "sizes.png", dpi=110)
        draw().savefig(COMMITTED / "ways.png", dpi=110)
        rates_picture.draw().savefig(COMMITTED / "learning-rates.png", dpi=110)
        ranks_picture.draw().savefig(COMMITTED / "soft-ranks.png", dpi=110)
        series_picture.draw_co2().savefig(COMMITTED / "co2.png", dpi=110)
        series_picture.draw_sunspots().savefig(COMMITTED / "sunspots.png", dpi=110)


if __name__ == "__main__":
    main()

"""The committed results, read for the tables of README and documentation, and the tables in Markdown."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.report import COMMITTED, load
from benchmarks.result import Result
from paper.results import Results, read

LONGEST_FIGURE = 10  # characters
THOUSANDS = re.compile(r"(?<=\d) (?=\d{3}\b)")  # the space in 10 000


def suite_results(suite: str) -> tuple[str, list[Result]]:
    """The results of a suite, and a line that says where they were measured."""
    return load(sorted(COMMITTED.glob(f"{suite}-*.json"))[-1])


def content(name: str) -> dict[str, Any]:
    """A file of the folder of results."""
    return json.loads((COMMITTED / name).read_text())  # type: ignore[no-any-return]


def experiments(name: str) -> Results:
    """The runs of an experiment."""
    return read(COMMITTED / "experiments" / f"{name}.json")


def source(*files: str | Path) -> str:
    """The line below a table that names its files, those of the folder of results by their names."""
    paths = (COMMITTED / file if isinstance(file, str) else file for file in files)
    return "From " + ", ".join(f"`{path.as_posix()}`" for path in paths) + "."


def table(header: Iterable[str], rows: Iterable[Iterable[str]], *origins: str) -> str:
    """A Markdown table, and below it where its figures come from."""
    lines = [list(header), *([unbroken(cell) for cell in row] for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", "<br>\n".join(origins)])


def unbroken(cell: str) -> str:
    """A figure and its unit stay on one line of a narrow column: 4.7 ms, <= 2e-07. So do 1 000 000 and 384 -> 150."""
    cell = THOUSANDS.sub("\N{NO-BREAK SPACE}", cell)
    cell = cell.replace(" -> ", "\N{NO-BREAK SPACE}\N{NON-BREAKING HYPHEN}>\N{NO-BREAK SPACE}")
    if len(cell) > LONGEST_FIGURE:
        return cell
    return cell.replace(" ", "\N{NO-BREAK SPACE}").replace("e-", "e\N{NON-BREAKING HYPHEN}")


def rival_cell(row: dict[str, Any], name: str) -> str:
    """Milliseconds of a rival, and those of laplex over them, bold where laplex is slower."""
    if name not in row["ms"]:
        return ""
    ratio = row["ratio"][name]
    return f"{row['ms'][name]:.3g}: {f'{ratio:.2g}' if ratio <= 1 else f'**{ratio:.2g}**'}"

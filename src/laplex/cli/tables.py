"""Tables of the command: rich's in a terminal where rich is installed, aligned text everywhere else."""

import importlib.util
import sys
from dataclasses import dataclass

GOOD, BAD = ("pass", "faster", "fewer"), ("wrong", "slower", "more")  # how a cell ends


@dataclass(frozen=True)
class Table:
    """Rows of cells under a header."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


def show(table: Table) -> None:
    """Print it."""
    if sys.stdout is not None and sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
        _show_rich(table)
    else:
        print(plain(table))


def plain(table: Table) -> str:
    """The table as aligned columns of text."""
    lines = [table.header, *table.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.header))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([table.title, *("  " + line for line in text)])


def _show_rich(table: Table) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(*table.header, title=table.title, title_justify="left")
    grouped = any(not row[0] for row in table.rows)  # a row with an empty first cell belongs to the one above
    for row in table.rows:
        if grouped and row[0]:
            shown.add_section()
        shown.add_row(*(Text(cell, style=_style(cell)) for cell in row))
    Console(highlight=False, markup=False).print(shown)


def _style(cell: str) -> str:
    return "green" if cell.endswith(GOOD) else "red" if cell.endswith(BAD) else ""

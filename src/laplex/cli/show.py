"""How things look in a terminal."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable
from rich.text import Text

from laplex.bench.report import Report
from laplex.bench.results import Result
from laplex.bench.tables import Table, outcome
from laplex.bench.words import opening_line

VERDICTS = {"pass": "green", "miss": "red", "wrong": "bold red", "failed": "bold red", "skipped": "dim"}


def rich_table(table: Table) -> RichTable:
    """The same cells; a verdict in its colour."""
    shown = RichTable(
        *table.header, title=table.title, title_justify="left", caption=table.note or None, caption_justify="left"
    )
    for row in table.rows:
        shown.add_row(*(Text(cell, style=VERDICTS.get(cell, "")) for cell in row))
    return shown


class RichProgress:
    """A bar with the row that runs, and a line for every result with a bar to meet or a reason to give."""

    def __init__(self, console: Console) -> None:
        columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task("starting", total=None)

    def start(self, report: Report, total: int) -> None:
        """Say what is to come."""
        self._progress.console.print(opening_line(report, total), soft_wrap=True)
        self._progress.update(self._task, total=total)

    def begin(self, what: str) -> None:
        """Show what is running."""
        self._progress.update(self._task, description=what)

    def done(self, result: Result) -> None:
        """Move on, and say how it went."""
        if result.status != "info":
            self._progress.console.print(Text(f"{result.key}: {outcome(result)}", style=VERDICTS[result.status]))
        self._progress.advance(self._task)

    def __enter__(self) -> "RichProgress":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

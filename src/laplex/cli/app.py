"""The commands and their options."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import laplex
from laplex.bench.run import SUITES, choose_suite, run
from laplex.bench.tables import tables
from laplex.bench.words import INTERRUPTED, closing_lines, exit_code
from laplex.cli import ABOUT, DOCTOR
from laplex.cli.doctor import examine
from laplex.cli.show import RichProgress, rich_table

# rich's form of the help shows flags as if they took a value, and breaks file names over lines.
app = typer.Typer(help=ABOUT, no_args_is_help=True, rich_markup_mode=None)
console = Console(highlight=False, markup=False)  # square brackets are text: laplex[cli]


@app.callback(invoke_without_command=True)
def options(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """What every command shares."""
    if version:
        print(laplex.__version__)
        raise typer.Exit


@app.command()
def bench(
    suite: Annotated[str, typer.Option(help=f"Which rows to run: {', '.join(SUITES)}.")] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="A look of under a minute instead of a suite.")] = False,
    out: Annotated[Path | None, typer.Option(file_okay=False, help="The folder the results go to.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Skip what the result file already holds.")] = False,
    only: Annotated[str | None, typer.Option(help="Only rows whose name contains this; * and ? are wild.")] = None,
    threads: Annotated[int | None, typer.Option(help="How many threads torch uses.")] = None,
) -> None:
    """Measure error and speed here, beside dense, FFTs and others."""
    try:
        chosen = choose_suite(suite, quick)
        with RichProgress(console) as progress:
            report = run(chosen, progress, out=out, resume=resume, only=only, threads=threads)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    except KeyboardInterrupt:
        console.print(INTERRUPTED)
        raise typer.Exit(130) from None
    for table in tables(report.results):
        console.print(rich_table(table))
    for line in closing_lines(report):
        console.print(line, soft_wrap=True)
    raise typer.Exit(exit_code(report))


@app.command(help=DOCTOR)
def doctor() -> None:
    """`laplex.cli._doctor` in colour."""
    findings = examine()
    for table in findings.tables:
        console.print(rich_table(table))
    raise typer.Exit(0 if findings.healthy else 1)

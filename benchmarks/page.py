"""The PNG of a report, and one HTML page with it and the tables, which needs no other file."""

import base64
import html
import io
from pathlib import Path

from benchmarks.plot import draw
from benchmarks.report import Report
from benchmarks.tables import Grid, tables
from laplex.testing import busy

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; }
body { max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2rem; }
img { max-width: 100%; margin-top: 1rem; }
td:not(:first-child):not(:last-child) { white-space: nowrap; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { padding: 0.3rem 0.8rem 0.3rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #e4e4e4; }
td { font-variant-numeric: tabular-nums; }
.pass { color: #1f5fbf; } .miss, .wrong, .failed { color: #c8382c; font-weight: 600; } .skipped { color: #888; }
"""


def save(report: Report) -> tuple[Path, Path]:
    """Write both next to the JSON."""
    png, page = report.path.with_suffix(".png"), report.path.with_suffix(".html")
    buffer = io.BytesIO()
    draw(report.results, caption(report)).savefig(buffer, format="png", dpi=150)
    png.write_bytes(buffer.getvalue())
    page.write_text(to_html(report, buffer.getvalue()), encoding="utf-8")
    return png, page


def caption(report: Report) -> str:
    """Machine, versions, commit and date, in one line."""
    machine, versions, git = (report.conditions[name] for name in ("machine", "versions", "git"))
    device = machine.get("gpu") or f"{machine['cpu']}, torch threads: {machine['torch_threads']}"
    commit = f", commit {git['commit'][:10]}{' with changes' if git['dirty'] else ''}" if git["commit"] else ""
    line = f"{device}; laplex {versions['laplex']}{commit}, torch {versions['torch']}; {report.date[:10]}"
    return ". ".join(filter(None, [line, busy(report.load)]))


def to_html(report: Report, png: bytes) -> str:
    """The whole page."""
    picture = base64.b64encode(png).decode()
    title = f"benchmarks: {report.suite}"
    parts = [
        f"<h1>{title}</h1>",
        f'<img alt="{html.escape(caption(report))}" src="data:image/png;base64,{picture}">',
        *(_table(table) for table in tables(report.results)),
    ]
    head = f'<meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def _table(grid: Grid) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in grid.header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in grid.rows)
    return f'<h2>{html.escape(grid.title)}</h2><div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _cell(text: str) -> str:
    """A verdict is also its own style class."""
    return f'<td class="{text}">{text}</td>' if text.isalpha() else f"<td>{html.escape(text)}</td>"

"""Where the figures of an entry come from: the machines that they were measured on, and the files that hold them."""

from __future__ import annotations

from typing import Any

from paper.entry import Outcome
from paper.report.markup import Markup, join, tag


def origin(outcome: Outcome) -> Markup:
    """The machines, in a line each with all details behind it, and the files."""
    by_line: dict[str, list[dict[str, Any]]] = {}
    for machine in outcome.machines:
        by_line.setdefault(machine_name(machine) + _rest(machine), []).append(machine)
    machines = [_ran_on(runs) for runs in by_line.values()]
    files = [tag("code", file) for file in outcome.files]
    named = tag("p", "From ", files[0], *(Markup(", ") + file for file in files[1:]), ".") if files else Markup("")
    return tag("div", *machines, named, class_="origin") if machines or files else Markup("")


def _ran_on(runs: list[dict[str, Any]]) -> Markup:
    """Runs of one machine with one version and date: a line, which unfolds."""
    summary = tag("summary", "Ran on ", tag("strong", machine_name(runs[0])), _rest(runs[0]))
    distinct = [machine for index, machine in enumerate(runs) if machine not in runs[:index]]
    return tag("details", summary, join(map(_details, distinct)))


def machine_name(machine: dict[str, Any]) -> str:
    """The accelerator, or else the processor."""
    name = machine.get("gpu") or machine.get("cpu") or machine.get("device") or "an unnamed machine"
    return str(name)


def _rest(machine: dict[str, Any]) -> str:
    """Versions and the date, for the line."""
    parts = [f"torch {machine['torch']}" if machine.get("torch") else "", str(machine.get("date") or "")[:10]]
    return "".join(f", {part}" for part in parts if part)


def _details(machine: dict[str, Any]) -> Markup:
    given = [(name, value) for name, value in machine.items() if value not in (None, "")]
    return tag("dl", *(tag("dt", str(name)) + tag("dd", str(value)) for name, value in given))

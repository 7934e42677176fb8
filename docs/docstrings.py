"""Docstrings as reStructuredText.

Our docstrings are plain text for readers of the source: formulas are indented, `|x|` and `*H` are not markup, and
arguments carry their shapes, as in `a (*H, n): row anchors`. This extension turns them into what Sphinx reads: formulas
and tables become literal blocks, sections become fields, and markup characters in sentences are escaped. Roles
(:func:`laplex.linear`), ``code``, **bold** text and lists stay as they are.
"""

import re
from collections.abc import Iterator
from typing import Any

FIELDS = {"Args:": "Arguments", "Attributes:": "Attributes", "Returns:": "Returns", "Raises:": "Raises"}
LISTS = ("Args:", "Attributes:", "Raises:")  # sections of items, `name: what it is`
ITEM = re.compile(r"^ {4}(?P<term>[^ ].*?): (?P<text>.*)$")
UNCHANGED = re.compile(r"(:[\w:]+:`[^`]+`|``.+?``|\*\*[^*]+\*\*)")


def converted(lines: list[str]) -> list[str]:
    """A docstring."""
    output: list[str] = []
    for title, part in sections(lines):
        if title == "":
            output += text(part)
        elif title == "Example:":
            output += [".. code-block:: pycon", "", *part, ""]
        else:
            inner = items(part) if title in LISTS else text([line[4:] for line in part])
            output += [f":{FIELDS[title]}:", *("    " + line if line else "" for line in inner), ""]
    return output


def sections(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """The docstring in its parts: title and lines; what is not indented below a title has the title ""."""
    title, part = "", list[str]()
    for line in lines:
        if line in FIELDS or line == "Example:":
            yield title, part
            title, part = line, []
        elif title and line and not line.startswith(" "):
            yield title, part
            title, part = "", [line]
        else:
            part.append(line)
    yield title, part


def items(lines: list[str]) -> list[str]:
    """`name (shape): text` as a definition list."""
    output: list[str] = []
    for line in lines:
        match = ITEM.match(line)
        if match:
            output += [f"``{match['term']}``", "    " + escaped(match["text"])]
        else:
            output.append("    " + escaped(line.strip()) if line.strip() else "")
    return output


def text(lines: list[str]) -> list[str]:
    """Sentences, with what is indented after an empty line as a literal block."""
    output: list[str] = []
    literal, announced = False, False
    for line in lines:
        if line.startswith("    ") and (literal or not output or output[-1] == ""):
            if not literal and not announced:
                output += ["::", ""]
            literal = True
            output.append(line)
        elif line:
            literal, announced = False, line.endswith("::")
            output.append(escaped(line))
        else:
            output.append("")
    return output


def escaped(line: str) -> str:
    """The line with `*`, `|` and a `_` at the end of a word as characters."""
    parts = UNCHANGED.split(line)
    parts[::2] = [re.sub(r"([*|]|_(?=\W|$))", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def process(app: Any, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    """The hook of autodoc: changes the lines in place."""
    lines[:] = converted(lines)


def setup(app: Any) -> dict[str, bool]:
    """The entry point of an extension."""
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}

"""Docstrings as reStructuredText.

Our docstrings are plain text for readers of the source: formulas are indented, `|x|` and `*H` are no markup, and
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
KEPT = re.compile(r"(:[\w:]+:`[^`]+`|``.+?``|\*\*[^*]+\*\*)")


def converted(lines: list[str]) -> list[str]:
    """A whole docstring."""
    made: list[str] = []
    for title, part in sections(lines):
        if title == "":
            made += text(part)
        elif title == "Example:":
            made += [".. code-block:: pycon", "", *part, ""]
        else:
            inner = items(part) if title in LISTS else text([line[4:] for line in part])
            made += [f":{FIELDS[title]}:", *("    " + line if line else "" for line in inner), ""]
    return made


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
    made: list[str] = []
    for line in lines:
        found = ITEM.match(line)
        if found:
            made += [f"``{found['term']}``", "    " + escaped(found["text"])]
        else:
            made.append("    " + escaped(line.strip()) if line.strip() else "")
    return made


def text(lines: list[str]) -> list[str]:
    """Sentences, with what is indented after an empty line as a literal block."""
    made: list[str] = []
    literal, announced = False, False
    for line in lines:
        if line.startswith("    ") and (literal or not made or made[-1] == ""):
            if not literal and not announced:
                made += ["::", ""]
            literal = True
            made.append(line)
        elif line:
            literal, announced = False, line.endswith("::")
            made.append(escaped(line))
        else:
            made.append("")
    return made


def escaped(line: str) -> str:
    """The line with `*`, `|` and a `_` at the end of a word as characters."""
    parts = KEPT.split(line)
    parts[::2] = [re.sub(r"([*|]|_(?=\W|$))", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def process(app: Any, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    """The hook of autodoc: changes the lines in place."""
    lines[:] = converted(lines)


def setup(app: Any) -> dict[str, bool]:
    """The entry point of an extension."""
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}

"""HTML from text: everything that comes from results is escaped here, and numbers are written for reading."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable
from itertools import starmap, zip_longest
from typing import Any

PLAIN = (1e-3, 1e7)  # sizes of numbers that are written without a power of ten
NONE = "–"  # what stands for a number that is not there


class Markup(str):
    """Text that is HTML already, and is not escaped again."""

    def __add__(self, other: str) -> Markup:
        """Text that is added is escaped unless it is Markup, too."""
        return Markup(str.__add__(self, escaped(other)))


def tag(name: str, /, *children: str | Markup, **attributes: str | bool | None) -> Markup:
    """An element; a trailing underscore of an attribute's name is dropped, and others become hyphens."""
    return Markup(f"<{name}{_attributes(attributes)}>{''.join(map(escaped, children))}</{name}>")


def void(name: str, /, **attributes: str | bool | None) -> Markup:
    """An element without content, such as <img>."""
    return Markup(f"<{name}{_attributes(attributes)}>")


def join(parts: Iterable[str | Markup]) -> Markup:
    """Parts one after another."""
    return Markup("".join(map(escaped, parts)))


def escaped(text: str | Markup) -> Markup:
    """Text as HTML."""
    return text if isinstance(text, Markup) else Markup(html.escape(text, quote=True))


def _attributes(attributes: dict[str, str | bool | None]) -> str:
    written = []
    for name, value in attributes.items():
        plain = name.rstrip("_").replace("_", "-")
        if value is True:
            written.append(f" {plain}")
        elif value is not None and value is not False:
            written.append(f' {plain}="{html.escape(value, quote=True)}"')
    return "".join(written)


def prose(text: str) -> Markup:
    """A sentence: `names` in code, and powers such as 2^20 raised."""
    pieces = re.split(r"`([^`]+)`", text)
    return join(tag("code", piece) if index % 2 else _powers(piece) for index, piece in enumerate(pieces))


def _powers(text: str) -> Markup:
    return Markup(re.sub(r"(?<![\w.])(\d+|n|k|m)\^(-?\d+)", r"\1<sup>\2</sup>", escaped(text)))


def number(value: float | None) -> Markup:
    """Four digits, thousands apart; very large and very small ones with a power of ten."""
    if value is None or math.isnan(value):
        return Markup(NONE)
    if math.isinf(value):
        return Markup("∞" if value > 0 else "−∞")
    if value != 0 and not PLAIN[0] <= abs(value) < PLAIN[1]:
        digits, power = f"{value:.2e}".split("e")
        return Markup(f"{_minus(digits)}&nbsp;×&nbsp;10<sup>{_minus(str(int(power)))}</sup>")
    if abs(value) >= 1000:
        return Markup(_minus(f"{value:,.0f}"))
    return Markup(_minus(f"{value:.4g}"))


def _minus(text: str) -> str:
    return text.replace("-", "−")


def embedded_json(data: Any) -> Markup:
    """JSON inside a <script>: no text in it can end the element, and numbers that JSON has not become null."""
    text = json.dumps(_finite(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)


def _finite(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, dict):
        return {name: _finite(value) for name, value in data.items()}
    return [_finite(item) for item in data] if isinstance(data, list | tuple) else data


def _cell(content: str | Markup, column: str | Markup) -> Markup:
    return tag("td", content, data_column=None if isinstance(column, Markup) else column)


def table(columns: Iterable[str | Markup], rows: Iterable[Iterable[str | Markup]], class_: str = "") -> Markup:
    """A table that scrolls within its box where it is too wide. Cells know their columns, for narrow pages."""
    names = list(columns)
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in names)))
    body = tag("tbody", *(tag("tr", *starmap(_cell, zip_longest(row, names, fillvalue=""))) for row in rows))
    return tag("div", tag("table", head, body), class_=f"wide {class_}".strip(), tabindex="0", role="group")

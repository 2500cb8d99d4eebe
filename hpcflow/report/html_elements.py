"""HTML elements: every text is escaped, since names, labels and logs of a run may hold anything."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Container, Iterable, Sequence
from typing import Any

from hpcflow.platform.terminal_escaping import escape_text

_NUMBER = re.compile(r"(\d) (?=[a-zA-Z])")
VOID = frozenset({"meta", "img", "input", "br", "rect", "path", "line", "circle"})


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(tag: str, *children: Any, **attributes: Any) -> Html:
    """An element; children that are not `Html` are texts, None is left out.

    An attribute's trailing underscore is dropped and others become hyphens: `class_`, `aria_label`.
    """
    words = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        name = name.rstrip("_").replace("_", "-")
        words.append(name if value is True else f'{name}="{escaped(value)}"')
    opened = "<" + " ".join(words)
    if tag in VOID:
        return Html(opened + "/>")
    inner = "".join(
        child if isinstance(child, Html) else escaped(child)
        for child in children
        if child is not None
    )
    return Html(f"{opened}>{inner}</{tag}>")


def escaped(text: Any) -> str:
    """A text without markup, control and invisible characters."""
    return html.escape(escape_text(str(text)), quote=True)


def unbroken(text: str) -> Html:
    """A text in which no line ends between a number and its unit or noun."""
    return Html(_NUMBER.sub(r"\1&nbsp;", escaped(text)))


def joined(parts: Iterable[Any]) -> Html:
    """Elements and texts one after the other."""
    return Html("".join(p if isinstance(p, Html) else escaped(p) for p in parts if p is not None))


def table(
    head: Sequence[Any],
    rows: Iterable[Sequence[Any]],
    caption: str = "",
    texts: Container[int] = (),
) -> Html:
    """A table; the first cell of a row is its header. The columns `texts` are left-aligned."""
    body = [
        element(
            "tr",
            *(
                element("th", cell, scope="row")
                if i == 0
                else element("td", cell, class_="text" if i in texts else None)
                for i, cell in enumerate(row)
            ),
        )
        for row in rows
    ]
    return element(
        "div",
        element(
            "table",
            element("caption", caption) if caption else None,
            element("thead", element("tr", *_heads(head, texts))),
            element("tbody", *body),
        ),
        class_="wide",
        tabindex="0",
        role="group",
        aria_label=caption or ", ".join(map(str, head)),
    )


def _heads(head: Sequence[Any], texts: Container[int]) -> list[Html]:
    return [
        element("th", cell, scope="col", class_="text" if i in texts else None)
        for i, cell in enumerate(head)
    ]


def data_script(value: Any) -> Html:
    """A JSON value for the page's script; no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Html(f'<script type="application/json">{safe}</script>')


def with_code(text: str) -> list[Html | str]:
    """A text whose parts between back quotes are code."""
    return [
        element("code", part) if number % 2 else part
        for number, part in enumerate(text.split("`"))
        if part
    ]

"""Terminal escaping: text without control or invisible characters."""

from __future__ import annotations


def escape_text(text: str) -> str:
    r"""`text` with control and invisible characters escaped, `\x1b` for ESC; line breaks stay.

    Escaped are control characters (C0, C1), bidirectional marks, other invisible characters, and
    lone surrogates, which stand for bytes of a file name that are not UTF-8.
    """
    return "\n".join(escape_line(line, keep="\t") for line in text.split("\n"))


def escape_line(text: str, keep: str = "") -> str:
    r"""The same for a name or a field: line breaks are escaped too, as `\n`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _written_out(c) for c in text)


def _written_out(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")

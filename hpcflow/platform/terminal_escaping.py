"""Text of files made fit for a terminal: nothing in it moves the cursor, colours or hides."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""`text` with what a terminal obeys or hides written out, `\x1b` for ESC; lines stay lines.

    That is control characters (C0, C1), marks that turn the direction of text, other invisible
    ones, and lone surrogates, which stand for bytes of a file's name that are no UTF-8.
    """
    return "\n".join(one_line(line, keep="\t") for line in text.split("\n"))


def one_line(text: str, keep: str = "") -> str:
    r"""The same for a name or a field: the end of a line in it is written out too, as `\n`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _written_out(c) for c in text)


def _written_out(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")

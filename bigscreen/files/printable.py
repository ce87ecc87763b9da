"""Text from files, such as labels and names of columns, as a terminal may be given it."""

import sys
import unicodedata
from io import TextIOWrapper


def printable(text: str) -> str:
    r"""The text with every character that does something in place of being seen spelled out.

    A label may hold the escapes that colour, move and rename a terminal, turn the direction of
    writing or end the line: ESC becomes ``\x1b``, and what is a letter, a mark or a blank stays,
    if standard output can encode it.
    """
    if not text.isprintable():
        text = "".join(map(_seen, text))
    if text.isascii():
        return text
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _seen(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode("ascii")


def print_any_text() -> None:
    r"""Let standard output and standard error spell out characters that their encoding lacks.

    On a terminal that knows ASCII alone a sign that `printable` has not seen, such as the dots by
    which a table is cut, is printed as ``\u2026`` and does not raise UnicodeEncodeError.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")

"""Make text from files, such as labels and column names, safe to print on a terminal."""

import sys
import unicodedata
from io import TextIOWrapper


def printable(text: str) -> str:
    r"""Return the text with control characters and other invisible characters spelled out.

    A label may hold escapes that colour or rename a terminal, reverse the writing direction, or
    end the line. ESC becomes ``\x1b``; letters, marks and blanks stay if standard output can encode
    them.
    """
    if not text.isprintable():
        text = "".join(map(_spell_out, text))
    if text.isascii():
        return text
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _spell_out(character: str) -> str:
    """Return a printable character or a space unchanged, else its escape in ASCII."""
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode("ascii")


def print_any_text() -> None:
    r"""Let standard output and standard error spell out characters that their encoding lacks.

    On an ASCII terminal, a character that did not pass through `printable`, such as an ellipsis in
    a table, is printed as ``\u2026`` and does not raise UnicodeEncodeError.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")

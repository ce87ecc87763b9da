"""Text from files, such as labels and names of columns, as a terminal may be given it."""

import unicodedata


def printable(text: str) -> str:
    r"""The text with every character that does something in place of being seen spelled out.

    A label may hold the escapes that colour, move and rename a terminal, turn the direction of
    writing or end the line: ESC becomes ``\x1b``, and what is a letter, a mark or a blank stays.
    """
    if text.isprintable():
        return text
    return "".join(map(_seen, text))


def _seen(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode("ascii")

"""A few lines of HTML that show an object in a notebook."""

from collections.abc import Mapping
from html import escape


def html_card(title: str, sentence: str, facts: Mapping[str, str], colour: str) -> str:
    """Render a title, a sentence in a colour, and a table of names and texts."""
    rows = "".join(
        f"<tr><td style='text-align:left;color:#666'>{escape(name)}</td>"
        f"<td style='text-align:left'>{escape(text)}</td></tr>"
        for name, text in facts.items()
    )
    return (
        f"<div style='border-left:4px solid {colour};padding:.2em .8em;margin:.5em 0'>"
        f"<b>{escape(title)}</b><br><span style='color:{colour}'>{escape(sentence)}</span>"
        f"<table style='margin:.3em 0'>{rows}</table></div>"
    )

"""Self-contained HTML pages: a verdict, key numbers, and sections with figures and tables."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bigscreen.files.output import replacing

TEMPLATE = "page.html.j2"
"""The Jinja template of a page: a file of this folder."""


class Grid(NamedTuple):
    """A table of a page: caption, column names, and rows of texts, one text for each column."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes
    ----------
    title : str
    text : str
        A sentence or two on how to read the section; may be empty.
    figures : mapping
        Data URLs of images (see `bigscreen.report.figures.picture`) by caption.
    facts : mapping
        Texts by name.
    tables : sequence of Grid
    """

    title: str
    text: str = ""
    figures: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    tables: Sequence[Grid] = ()


@dataclass(frozen=True)
class Page:
    """The content of an HTML page.

    Attributes
    ----------
    title, subtitle : str
        The model's name, and the model described in one line.
    verdict : str
        What is proved, in a sentence.
    proved : bool
        Whether anything is proved; if not, the verdict is marked.
    tiles : mapping
        The key numbers, by name.
    warnings : sequence of str
    sections : sequence of Section
    """

    title: str
    subtitle: str
    verdict: str
    proved: bool
    tiles: Mapping[str, str]
    warnings: Sequence[str]
    sections: Sequence[Section]

    def html(self) -> str:
        """Render the page as HTML; names and labels are escaped."""
        from jinja2 import Environment, PackageLoader, StrictUndefined

        here = PackageLoader("bigscreen.report", package_path="")
        rules = Environment(
            loader=here,
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        version = importlib.metadata.version("bigscreen")
        footer = f"Written by bigscreen {version}. This file needs no other and no network."
        parts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return rules.get_template(TEMPLATE).render(**parts, version=version, footer=footer)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all."""
        with replacing(path) as file:
            file.write(self.html().encode("utf-8", "backslashreplace"))

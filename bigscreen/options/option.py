"""The description of an option: its values, the machines that use it, its help text."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral
from typing import Any, ClassVar, NamedTuple, Protocol

from bigscreen.errors import InputError, is_number

GROUPS = ("Data", "Kernel", "Machine", "Stopping", "Running", "Expert")
"""Headings of --help, in their order."""


class Scope(NamedTuple):
    """The machines that use an option, and what to say if another machine is given it."""

    fits: Callable[[Any], bool]
    """Whether a machine uses the option; takes an object with the options as attributes."""
    where: str
    """The end of the command line's message, which begins "has no meaning"."""
    refusal: str = ""
    """The error message in Python; empty: Python ignores the option."""


def without_refusal(*scopes: Scope) -> tuple[Scope, ...]:
    """Return the scopes without their error messages: Python then ignores the option."""
    return tuple(scope._replace(refusal="") for scope in scopes)


class Values(Protocol):
    """The values that an option can have."""

    @property
    def metavar(self) -> str:
        """The name of a value in help texts."""

    @property
    def must(self) -> str:
        """The requirement for a value, which continues "must" in error messages."""

    def accept(self, value: Any) -> bool:
        """Whether a value meets the requirement."""


@dataclass(frozen=True)
class Words:
    """The values of an option that is one of several words.

    Parameters
    ----------
    words : tuple of str
    only : dict
        The machines that a word is for, if it is not for all.
    inside : tuple of str
        Words that only Python accepts.
    """

    words: tuple[str, ...]
    only: Mapping[str, Scope] = field(default_factory=dict)
    inside: tuple[str, ...] = ()
    metavar: ClassVar[str] = ""

    @property
    def must(self) -> str:
        """The requirement for a value, which continues "must" in error messages."""
        return f"be one of {', '.join(self.words)}"

    def accept(self, value: Any) -> bool:
        """Whether a value is one of the words."""
        return isinstance(value, str) and value in self.words


@dataclass(frozen=True)
class Count:
    """The values of an option that is a whole number, at least ``least``."""

    least: int = 1
    metavar: ClassVar[str] = "N"

    @property
    def must(self) -> str:
        """The requirement for a value, which continues "must" in error messages."""
        return f"be a whole number, at least {self.least}"

    def accept(self, value: Any) -> bool:
        """Whether a value is a whole number of any type, and not too small."""
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        return whole and value >= self.least


class CountOrFile(Count):
    """The values of an option that is a whole number, or on the command line also a file."""


@dataclass(frozen=True)
class Number:
    """The values of an option that is a finite number which passes ``test``, or one of ``words``.

    ``must``: the requirement in words.
    """

    must: str = "be a finite number"
    test: Callable[[float], bool] = lambda value: True
    words: tuple[str, ...] = ()
    metavar: ClassVar[str] = "X"

    def accept(self, value: Any) -> bool:
        """Whether a value is one of the words, or a number that passes the test."""
        if isinstance(value, str):
            return value in self.words
        return is_number(value) and self.test(value)


class Bytes(Number):
    """The values of an option that is a size of memory in bytes."""

    metavar = "SIZE"


class Seconds(Number):
    """The values of an option that is a time in seconds."""

    metavar = "TIME"


@dataclass(frozen=True)
class Other:
    """The values of an option that pass the test ``accept``; ``must``: the requirement in words.

    ``words``: the values that the command line accepts.
    """

    must: str = ""
    accept: Callable[[Any], bool] = lambda value: True
    words: tuple[str, ...] = ()
    metavar: str = ""


@dataclass(frozen=True)
class NamedNumbers:
    """The values of an option that maps some of these names to numbers above 0, or several times.

    A value is a mapping, or a sequence of mappings.
    """

    names: tuple[str, ...]

    @property
    def metavar(self) -> str:
        """The name of a value in help texts."""
        return ",".join(f"{name}=X" for name in self.names[:2])

    @property
    def must(self) -> str:
        """The requirement for a value, which continues "must" in error messages."""
        return f"map some of {', '.join(self.names)} to positive finite numbers"

    def accept(self, value: Any) -> bool:
        """Whether a value has these names and such numbers, in mappings that are not empty."""
        parts = value if isinstance(value, (list, tuple)) else [value]
        return bool(parts) and all(
            isinstance(part, Mapping)
            and bool(part)
            and all(name in self.names and POSITIVE.accept(own) for name, own in part.items())
            for part in parts
        )


POSITIVE = Number("be a positive finite number", lambda value: value > 0)
INSIDE = Number("lie strictly between 0 and 1", lambda value: 0 < value < 1)
SHARE = Number("lie in (0, 1]", lambda value: 0 < value <= 1)
NOT_NEGATIVE = Number("be a finite number, 0 or more", lambda value: value >= 0)
SIZE = Bytes("be a number of bytes, at least 1", lambda value: value >= 1)
DURATION = Seconds("be a positive number of seconds", lambda value: value > 0)
FLAG = Other()
FOLDER = Other(metavar="FOLDER")


class Option(NamedTuple):
    """The description of an option.

    Parameters
    ----------
    group : str
        Its heading in --help, one of `GROUPS`.
    values : Values
    help : str
        What it does, with the names that the command line has for options.
    scopes : tuple of Scope
        The machines that use it; empty: all.
    detail : str
        More help, for Python only.
    metavar : str
        The name of a value in help texts; empty: that of ``values``.
    otherwise : str
        What happens without the option, if its default value does not say so.
    called : str
        Its name in error messages; empty: its own name.
    flag : str or None
        Its name on the command line; empty: made from its name; None: it has none there.
    """

    group: str
    values: Values
    help: str = ""
    scopes: tuple[Scope, ...] = ()
    detail: str = ""
    metavar: str = ""
    otherwise: str = ""
    called: str = ""
    flag: str | None = ""

    def typed(self, name: str) -> str:
        """Return the flag on the command line of an option with this name."""
        return self.flag or f"--{name.replace('_', '-')}"


def option(default: Any, *args: Any, **kwargs: Any) -> Any:
    """Make a dataclass field for an option: its default, and its `Option` as metadata."""
    return field(default=default, metadata={"option": Option(*args, **kwargs)})


def options_of(kind: Any) -> dict[str, Option]:
    """Return the `Option` of each field of ``kind``, a dataclass of options, by name."""
    return {own.name: own.metadata["option"] for own in fields(kind)}


def check_values(given: Any, prefix: str = "") -> None:
    """Raise an InputError if a field of a dataclass of options has a wrong value.

    Parameters
    ----------
    given : dataclass
    prefix : str
        Precedes the name of the field in the error message.
    """
    for own in fields(given):
        value, said = getattr(given, own.name), own.metadata["option"]
        if not ((value is None and own.default is None) or said.values.accept(value)):
            name = f"{prefix}{said.called or own.name}"
            raise InputError(f"{name} must {said.values.must}, got {value!r}")


def make_docstring(kind: Any, title: str) -> str:
    """Make the docstring of ``kind``, a dataclass of options; ``title`` is its first sentence."""
    names = {own.typed(name): name for name, own in options_of(kind).items()}
    lines = [title, "", "Parameters", "----------"]
    for own in fields(kind):
        said = own.metadata["option"]
        words = said.values.words if isinstance(said.values, Words) else ()
        of = f"{{{', '.join(map(repr, words))}}}" if words else own.type
        lines.append(f"{own.name} : {of}, default={own.default!r}")
        text = " ".join(filter(None, (said.help, said.detail)))
        if said.otherwise and own.default is None:
            text += f" None: {said.otherwise}."
        if said.values.must and not words:
            text += f" Must {said.values.must}."
        plain = re.sub(r"--[A-Za-z0-9-]+", lambda found: names.get(found[0], found[0]), text)
        lines += textwrap.wrap(plain, 100, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)

"""What there is to say of an option: its values, the machines that have a use for it, its help."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral
from typing import Any, ClassVar, NamedTuple, Protocol

from bigscreen.errors import InputError, is_number

GROUPS = ("Data", "Kernel", "Machine", "Stopping", "Running", "Expert")
"""Headings under which --help shows options, in its order."""


class Scope(NamedTuple):
    """The machines that have a use for an option, and what is said of it where it has none."""

    fits: Callable[[Any], bool]
    """Of options, as attributes."""
    where: str
    """On the command line, behind "has no meaning"."""
    refusal: str = ""
    """The sentence for Python; empty: the value is not looked at there, whatever it is."""


def unsaid(*scopes: Scope) -> tuple[Scope, ...]:
    """The scopes without their sentences: Python does not look at the value there."""
    return tuple(scope._replace(refusal="") for scope in scopes)


class Values(Protocol):
    """The values that an option can have."""

    @property
    def metavar(self) -> str:
        """What help calls one of them."""

    @property
    def must(self) -> str:
        """What a value has to do, in a sentence."""

    def accept(self, value: Any) -> bool:
        """Whether a value does."""


@dataclass(frozen=True)
class Words:
    """Some words.

    Parameters
    ----------
    words : tuple of str
    only : dict
        Which machines a word is for, where it is not for all.
    inside : tuple of str
        Words that the command line does not have.
    """

    words: tuple[str, ...]
    only: Mapping[str, Scope] = field(default_factory=dict)
    inside: tuple[str, ...] = ()
    metavar: ClassVar[str] = ""

    @property
    def must(self) -> str:
        """What a value has to do."""
        return f"be one of {', '.join(self.words)}"

    def accept(self, value: Any) -> bool:
        """Whether it is one of the words."""
        return isinstance(value, str) and value in self.words


@dataclass(frozen=True)
class Count:
    """Whole numbers from ``least`` on."""

    least: int = 1
    metavar: ClassVar[str] = "N"

    @property
    def must(self) -> str:
        """What a value has to do."""
        return f"be a whole number, at least {self.least}"

    def accept(self, value: Any) -> bool:
        """Whether it is such a number, of whatever type."""
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        return whole and value >= self.least


@dataclass(frozen=True)
class Number:
    """Finite numbers that pass a test, or words in their place."""

    must: str = "be a finite number"
    test: Callable[[float], bool] = lambda value: True
    words: tuple[str, ...] = ()
    metavar: ClassVar[str] = "X"

    def accept(self, value: Any) -> bool:
        """Whether it is one of the words, or a number that passes."""
        if isinstance(value, str):
            return value in self.words
        return is_number(value) and self.test(value)


class Bytes(Number):
    """Sizes of memory."""

    metavar = "SIZE"


class Seconds(Number):
    """Times."""

    metavar = "TIME"


@dataclass(frozen=True)
class Other:
    """Whatever passes a test; ``words`` are those that the command line has for it, if any."""

    must: str = ""
    accept: Callable[[Any], bool] = lambda value: True
    words: tuple[str, ...] = ()
    metavar: str = ""


POSITIVE = Number("be a positive finite number", lambda value: value > 0)
INSIDE = Number("lie strictly between 0 and 1", lambda value: 0 < value < 1)
SHARE = Number("lie in (0, 1]", lambda value: 0 < value <= 1)
NOT_NEGATIVE = Number("be a finite number, 0 or more", lambda value: value >= 0)
SIZE = Bytes("be a number of bytes, at least 1", lambda value: value >= 1)
DURATION = Seconds("be a positive number of seconds", lambda value: value > 0)
FLAG = Other()
FOLDER = Other(metavar="FOLDER")


class Option(NamedTuple):
    """All that there is to say of an option.

    Parameters
    ----------
    group : str
        Which of `GROUPS` it stands in.
    values : Values
    help : str
        What it does, in the words of the command line.
    scopes : tuple of Scope
        The machines that have a use for it; empty: all.
    detail : str
        What only Python's users need to know.
    metavar : str
        What help calls a value; empty: as its kind has it.
    otherwise : str
        How help says what happens without it, where the default itself does not say it.
    called : str
        What sentences call it; empty: its name.
    flag : str or None
        Its name on the command line; empty: made of its name; None: it is not there.
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
        """Its flag on the command line, where this is its name."""
        return self.flag or f"--{name.replace('_', '-')}"


def option(default: Any, *args: Any, **kwargs: Any) -> Any:
    """A field of `TrainOptions` or `Tuning`: its default, and an `Option`."""
    return field(default=default, metadata={"option": Option(*args, **kwargs)})


def table(kind: Any) -> dict[str, Option]:
    """The options of a dataclass, by the names of its fields."""
    return {own.name: own.metadata["option"] for own in fields(kind)}


def check_values(given: Any, prefix: str = "") -> None:
    """Refuse values of a dataclass of options that no fit could use.

    Parameters
    ----------
    given : dataclass
    prefix : str
        What stands before a field's name in a sentence.
    """
    for own in fields(given):
        value, said = getattr(given, own.name), own.metadata["option"]
        if not (value is None and own.default is None or said.values.accept(value)):
            name = f"{prefix}{said.called or own.name}"
            raise InputError(f"{name} must {said.values.must}, got {value!r}")


def documented(kind: Any, title: str) -> str:
    """The documentation of a dataclass of options, with a title as its first sentence."""
    names = {own.typed(name): name for name, own in table(kind).items()}
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

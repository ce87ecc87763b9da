"""Click options of a fit, made from the table of options, for `fit`, `plan`, `path` and others."""

import inspect
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bigscreen.cli.common import (
    Bytes,
    CountOrFile,
    NamedNumbers,
    Number,
    Seconds,
    read_landmarks,
    threads_option,
)
from bigscreen.errors import InputError
from bigscreen.options import option
from bigscreen.options import train as options

if TYPE_CHECKING:
    from bigscreen.data.dataset import Dataset

OWN_DEFAULTS = {"class_weight": "none", "work": None}
"""Defaults of options on the command line, where they differ from those in Python."""

Command = TypeVar("Command", bound=Callable[..., Any])


def _kind(values: option.Values) -> Any:
    """Return the click type that parses an option's values."""
    if isinstance(values, option.Bytes):
        return Bytes()
    if isinstance(values, option.Seconds):
        return Seconds()
    if isinstance(values, option.Number):
        return Number(values)
    if isinstance(values, option.NamedNumbers):
        return NamedNumbers(values)
    if isinstance(values, option.CountOrFile):
        return CountOrFile()
    if isinstance(values, option.Count):
        return click.IntRange(min=values.least)
    if isinstance(values, option.Words):
        return click.Choice([word for word in values.words if word not in values.inside])
    words = getattr(values, "words", ())
    return click.Choice(words) if words else str


def _option(name: str) -> Any:
    """Make the click option named ``name`` from the table of options of a fit."""
    own = options.OPTIONS[name]
    if own.values is option.FLAG:
        return click.option(options.flag(name), name, is_flag=True, help=own.help)
    default = OWN_DEFAULTS.get(name, options.DEFAULTS[name])
    return click.option(
        options.flag(name),
        name,
        type=_kind(own.values),
        metavar=own.metavar or own.values.metavar or None,
        default=default,
        show_default=default is not None and not own.otherwise,
        help=own.help + (f"  [default: {own.otherwise}]" if own.otherwise else ""),
    )


# The click options of a fit by their names in Python; decorators of commands.
OPTIONS = {name: _option(name) for name, own in options.OPTIONS.items() if own.flag is not None}
OPTIONS["no_intercept"] = click.option(
    "--no-intercept", is_flag=True, help="Short for --intercept none."
)
# The click options of where a command runs: threads, local processes or a cluster.
WHERE_IT_RUNS = {
    "workers": click.option(
        "--workers",
        type=click.IntRange(min=1),
        metavar="N",
        help="Worker processes on this machine; without it threads of one process do the work.",
    ),
    "threads": threads_option,
    "scheduler": click.option(
        "--scheduler",
        metavar="ADDRESS",
        help="A running Dask scheduler to work on instead, such as tcp://10.0.0.1:8786, or "
        "tls://... with --tls-ca, --tls-cert and --tls-key.",
    ),
    "scheduler_timeout": click.option(
        "--scheduler-timeout",
        type=Seconds(),
        metavar="TIME",
        help="Most time that the scheduler may take to answer, such as 90s or 5m, before the "
        "command ends.  [default: 30s]",
    ),
    "tls_ca": click.option(
        "--tls-ca",
        metavar="FILE",
        help="Certificate of the authority that an encrypted cluster trusts, as PEM.",
    ),
    "tls_cert": click.option(
        "--tls-cert",
        metavar="FILE",
        help="Certificate that this authority has signed for you.",
    ),
    "tls_key": click.option("--tls-key", metavar="FILE", help="Its private key."),
}
GROUP_OF = {
    **{name: own.group for name, own in options.OPTIONS.items()},
    **dict.fromkeys(("folds", "metric", "way", "fits"), "Data"),
    **dict.fromkeys(("kinds", "kernels"), "Kernel"),
    "no_intercept": "Machine",
    **dict.fromkeys(("rules", "cold", "static", "elimination"), "Expert"),
    **dict.fromkeys(WHERE_IT_RUNS, "Running"),
    **dict.fromkeys(
        ("resume", "overwrite", "verbose", "plots", "page", "log", "json_file"), "Running"
    ),
}
"""The group in the help of every option of a `GroupedCommand`, by its name in Python."""


OTHER = "Other"
"""The heading of options that no group names."""

CELL_WIDTH = 26
"""Shorten the list of an option's words in the overview if it would be wider than this."""


class GroupedCommand(click.Command):
    """A command whose help begins with the options used most, and shows all of them in groups.

    Parameters
    ----------
    most_used : sequence of str
        Names of the options that stand on the first screen, a few words each.
    groups : mapping
        For each heading the names of its options, where they differ from `GROUP_OF`.
    **settings
        Parameters of `click.Command`.
    """

    def __init__(
        self,
        *,
        most_used: Sequence[str] = (),
        groups: Mapping[str, Sequence[str]] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.most_used = most_used
        self.group_of = GROUP_OF | {
            name: heading for heading, names in (groups or {}).items() for name in names
        }
        self.headings = tuple(dict.fromkeys((*(groups or {}), *option.GROUPS, OTHER)))

    def heading(self, name: str) -> str:
        """Return the heading of the option with this name in Python."""
        return self.group_of.get(name, OTHER)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what the command does; before its details the options that are used most."""
        if not self.most_used:
            super().format_help_text(ctx, formatter)
            return
        first, _, details = inspect.cleandoc(self.help or "").partition("\n\n")
        params = {str(param.name): param for param in self.get_params(ctx)}
        cells = [_overview(params[name], ctx) for name in self.most_used]
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(first)
        with formatter.section("Used most (all options follow, in groups)"):
            formatter.write_dl(cells)
        with formatter.indentation():
            formatter.write_paragraph()
            formatter.write_text(details)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for every group that has options."""
        shown: dict[str, list[tuple[str, str]]] = {heading: [] for heading in self.headings}
        asking = self.get_help_option(ctx)
        for param in self.get_params(ctx):
            if not isinstance(param, click.Option):
                continue
            record = param.get_help_record(ctx)
            if record is not None:
                heading = "Running" if param is asking else self.heading(str(param.name))
                shown[heading].append(record)
        for heading, records in shown.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def _overview(param: click.Parameter, ctx: click.Context) -> tuple[str, str]:
    """Return an option and the first words of its help, up to a colon, semicolon or full stop.

    A default is shown if it is one short word or number.
    """
    record = param.get_help_record(ctx)
    assert record is not None, param.name
    cell, said = record
    if len(cell) > CELL_WIDTH:
        cell = re.sub(r"\|.*", "|...]" if cell.endswith("]") else "|...", cell)
    default = re.search(r"  \[default: (?!none)[\w.]{1,12}(?=[;\]])", said)
    words = re.split(r"(?<!\.)[.:;](?= |$)|  \[", said, maxsplit=1)[0]
    return cell, f"{words}{default[0]}]" if default else words


def fit_options(
    names: Sequence[str] = tuple(OPTIONS), where: Sequence[Any] = tuple(WHERE_IT_RUNS.values())
) -> Callable[[Command], Command]:
    """Return a decorator that adds options of a fit, by name, and of where a command runs."""
    wanted = [OPTIONS[name] for name in OPTIONS if name in names]

    def add(command: Command) -> Command:
        """Add the options to a command, in their order."""
        for decorate in reversed([*wanted, *where]):
            command = decorate(command)
        return command

    return add


def train_options(
    context: click.Context, dataset: "Dataset", values: dict[str, Any], work: Path, resume: bool
) -> options.TrainOptions:
    """Make the options of a fit, checked against each other and against the store.

    Parameters
    ----------
    context : click.Context
        The command's context, which knows the options that were given.
    dataset : Dataset
        The store.
    values : dict
        Values of the command's options; missing ones have the table's defaults.
    work : Path
        The folder of features and checkpoints.
    resume : bool
        Whether to continue from its checkpoints.

    Raises
    ------
    InputError
        If two options contradict, if one has no meaning for the machine, or if there are more
        landmarks than rows.
    """
    _check(context, dataset, values)
    asked = {name: values[name] for name in options.OPTIONS if name in values}
    if asked["class_weight"] == "none":
        asked["class_weight"] = None
    if values.get("no_intercept"):
        asked["intercept"] = "none"
    if isinstance(asked["landmarks"], Path):
        asked["components"] = read_landmarks(asked["landmarks"], dataset, asked.get("memory"))
        asked["landmarks"] = len(asked["components"])
    elif not is_given(context, "landmarks"):
        asked["landmarks"] = min(asked["landmarks"], dataset.n_rows)
    return options.TrainOptions.from_record({**asked, "work": work, "resume": resume})


def fit_command(
    store: str, record: Mapping[str, Any], always: Sequence[str], landmarks: Any = None
) -> str:
    """Return the line that fits a machine with the same options on the command line.

    Parameters
    ----------
    store : str
    record : mapping
        The options of the fit: `provenance["parameters"]` of its model.
    always : sequence of str
        Names of options that the line states even if they have their defaults.
    landmarks : Path or None
        The file of landmarks that the fit was given.
    """
    known = {**options.DEFAULTS, **record, "kernel": record["kernel"]["name"]}
    known |= {} if landmarks is None else {"landmarks": landmarks}
    parts = ["bigscreen", "fit", store, "again.bsm"]
    for name in (name for name in OPTIONS if name in options.OPTIONS):
        value = known[name]
        usual = name not in always and value == options.DEFAULTS[name]
        if usual or name in options.CHANGEABLE or _useless(name, known) is not None:
            continue
        parts.append(options.flag(name))
        if options.OPTIONS[name].values is not option.FLAG:
            parts.append(_typed(value))
    return shlex.join(parts)


def _typed(value: Any) -> str:
    """Return the text of an option's value on the command line; numbers lose no digit."""
    if isinstance(value, list):
        return "/".join(map(_typed, value))
    if isinstance(value, Mapping):
        return ",".join(f"{name}={_typed(own)}" for name, own in value.items())
    return str(value)


def _check(context: click.Context, dataset: "Dataset", values: dict[str, Any]) -> None:
    """Refuse options that contradict, have no meaning, or name more landmarks than rows."""
    check_used(context, values)
    if is_given(context, "strategy") and len(dataset.labels) <= 2:
        raise meaningless(options.flag("strategy"), "with two labels")
    where = _useless("intercept", values) if values.get("no_intercept") else None
    if where is not None:
        raise meaningless("--no-intercept", where)
    count = values["landmarks"]
    given = is_given(context, "landmarks") and not isinstance(count, Path)
    if given and count > dataset.n_rows:
        raise InputError(
            f"--landmarks {count} is more than the {dataset.n_rows} rows of "
            f"{dataset.path}; give at most {dataset.n_rows}"
        )
    if is_given(context, "C") and is_given(context, "lam"):
        raise InputError(
            "--C and --lambda say the same in two ways (C = 1 / (2 x rows x lambda)); give one"
        )
    other = is_given(context, "intercept") and values["intercept"] != "none"
    if values.get("no_intercept") and other:
        raise InputError(f"--no-intercept contradicts --intercept {values['intercept']}; give one")


def check_used(context: click.Context, values: Mapping[str, Any]) -> None:
    """Refuse an option that was given but has no effect with the other options ``values``."""
    for name in options.OPTIONS:
        where = _useless(name, values) if is_given(context, name) else None
        if where is not None:
            raise meaningless(options.flag(name), where)


def _useless(name: str, values: Mapping[str, Any]) -> str | None:
    """Say in which case the option ``name`` has no meaning; None if it has one.

    ``values``: the command's options, on which the case depends.
    """
    tuning = SimpleNamespace(**values)
    return options.explain_useless(name, SimpleNamespace(**values, tuning=tuning))


def is_given(context: click.Context, name: str) -> bool:
    """Whether an option was given on the command line."""
    return context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE


def meaningless(flag: str, where: str) -> InputError:
    """Make the error for an option that was given, but that nothing uses.

    ``where`` says in which case, such as "with two labels".
    """
    return InputError(f"{flag} has no meaning {where}; leave it out")

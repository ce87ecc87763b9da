"""Parts shared by all commands: one-sentence errors, parameter types, checks before work begins."""

import ast
import errno
import math
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from bigscreen.cli.signals import INTERRUPTED, exit_code, held_back, note_ending, orderly
from bigscreen.errors import (
    DeviceFailed,
    InputError,
    MissingValue,
    NoLabels,
    TimeOver,
    in_units,
    reason_of,
)
from bigscreen.files.output import (
    is_written_in_place,
    lock_path,
    reserve_stdout,
    resolve_destination,
)
from bigscreen.files.printable import print_any_text, printable
from bigscreen.files.remote import as_path, is_url
from bigscreen.files.work import in_use_message

if TYPE_CHECKING:
    from bigscreen.data.dataset import Dataset
    from bigscreen.features.landmarks import GivenLandmarks
    from bigscreen.fleet.protocol import Each, Fleet
    from bigscreen.model.model import Model
    from bigscreen.options import option

BAD_INPUT = 2
"""Exit code of a command that refuses its input, or that fails by an error of the operating system
(a missing file, a full disk, too little memory)."""

# Bytes and seconds of each unit that `Bytes` and `Seconds` know.
_BYTES = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _BYTES |= {_letter: 1024**_power, f"{_letter}ib": 1024**_power, f"{_letter}b": 1000**_power}
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


NO_MEMORY = "there is not enough memory; see `bigscreen plan STORE --memory`"
"""The error of a command that runs out of memory."""


class Commands(click.Group):
    """A group of commands that reports errors as one sentence on stderr, with exit code 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands in the order in which a person needs them."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; errors name options as they are typed on the command line."""
        try:
            return super().invoke(ctx)
        except InputError as error:
            command = self.commands[ctx.invoked_subcommand or ""]
            error.args = (as_typed(str(error), command.params),)
            raise

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command that ``args`` name, with the parameters of `click.Command.main`.

        With ``standalone_mode`` the process exits, and an error is printed as one sentence; else
        the command's result is returned.
        """
        run = partial(super().main, args, prog_name, complete_var, standalone_mode=False, **extra)
        if not standalone_mode:
            return run()
        print_any_text()
        with orderly(last=args is None):
            return self._run(run)

    def _run(self, run: Callable[[], Any]) -> NoReturn:
        """Run a command and exit the process; an error becomes one sentence and an exit code."""
        try:
            code: Any = run()
        except (click.Abort, KeyboardInterrupt):
            _stop("interrupted", INTERRUPTED)
        except click.ClickException as error:
            _stop(_usage_sentence(error), BAD_INPUT)
        except InputError as error:
            _stop(reason_of(error), BAD_INPUT)
        except BrokenPipeError:
            # The reader of our output (`| head`) is gone: say nothing.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        except OSError as error:
            _stop(system_sentence(error), BAD_INPUT)
        except MemoryError:
            _stop(NO_MEMORY, BAD_INPUT)
        except RuntimeError as error:
            if "can't start new thread" not in str(error):
                raise
            # (A thread's stack is address space, which `ulimit -v` bounds.)
            _stop(NO_MEMORY, BAD_INPUT)
        sys.exit(exit_code(code) if isinstance(code, int) else 0)


def _stop(sentence: str, code: int) -> NoReturn:
    """Print an error as one line on standard error, and exit the process."""
    click.echo(f"error: {printable(' '.join(sentence.split()))}", err=True)
    sys.exit(exit_code(code))


def as_typed(sentence: str, params: Sequence[click.Parameter]) -> str:
    """Replace Python's names of options in an error or a note by the command's flags.

    An option stands in backquotes, perhaps with a value: `tuning.solver="smo"` becomes --solver
    smo.
    """
    flags = {each.name: each.opts[0] for each in params if isinstance(each, click.Option)}

    def as_flag(found: re.Match[str]) -> str:
        """Return `name=value`, matched in a sentence, as the flag of that name and its value.

        The text is unchanged if no option has that name, or the value is no literal.
        """
        name, value = found.groups()
        try:
            said = "" if value is None else f" {shlex.quote(str(ast.literal_eval(value)))}"
        except (ValueError, SyntaxError):  # text of the user's that only looks like an option
            return found[0]
        return flags[name] + said if name in flags else found[0]

    return re.sub(r"`(?:tuning\.)?(\w+)(?:=('[^`]*'|\"[^`]*\"|[\d.e+-]+))?`", as_flag, sentence)


def _usage_sentence(error: click.ClickException) -> str:
    """Return the sentence of a usage error; print the help if no arguments were given."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
        click.echo(context.get_help())
        sys.exit(0)
    sentence = error.format_message().rstrip(".")
    return f"{sentence}; `{context.command_path} --help` explains" if context else sentence


def system_sentence(error: OSError) -> str:
    """Describe an error of the operating system in one sentence."""
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"the disk is full{where}; free some space and run the command again"
    return f"{reason_of(error)}{where}"


class Bytes(click.ParamType):  # type: ignore[type-arg] # not generic in click 8.2
    """A size such as 4GiB, 500MB or 1073741824."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Parse a size such as "4GiB" to bytes; an int, such as a default, is bytes already."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", value)
        if match is None or match[2].lower() not in _BYTES:
            self.fail(f"{value!r} is not a size such as 4GiB or 500MB", param, ctx)
        n_bytes = int(float(match[1]) * _BYTES[match[2].lower()])
        if n_bytes < 1:
            self.fail(f"{value!r} must be above 0", param, ctx)
        return n_bytes


class Seconds(click.ParamType):  # type: ignore[type-arg] # not generic in click 8.2
    """A time such as 90s, 10m or 2h."""

    name = "time"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Parse a time such as "10m" to seconds; a float, such as a default, is seconds already."""
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", value)
        if match is None or match[2].lower() not in _SECONDS:
            self.fail(f"{value!r} is not a time such as 90s, 10m or 2h", param, ctx)
        duration = float(match[1]) * _SECONDS[match[2].lower()]
        if duration <= 0:
            self.fail(f"{value!r} must be above 0", param, ctx)
        return duration


class Number(click.ParamType):  # type: ignore[type-arg] # not generic in click 8.2
    """A number, or one of the words allowed in its place (see `bigscreen.options.option`)."""

    name = "number"

    def __init__(self, values: "option.Number") -> None:
        """Keep the numbers and words that are allowed."""
        self.values = values

    def convert(self, value: Any, param: Any, ctx: Any) -> float | str:
        """Parse a number; one of the allowed words is returned as it is."""
        if isinstance(value, str) and value in self.values.words:
            return value
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not self.values.accept(number):
            words = "".join(f" or the word {word}" for word in self.values.words)
            called = " or ".join(param.opts) if param else "a value"
            raise click.UsageError(f"{called} must {self.values.must}{words}, got {value!r}", ctx)
        return number


class NamedNumbers(click.ParamType):  # type: ignore[type-arg] # not generic in click 8.2
    """Numbers by name, such as gamma=0.05,C=10, or several with / between them.

    See `bigscreen.options.option.NamedNumbers`.
    """

    name = "named numbers"

    def __init__(self, values: "option.NamedNumbers") -> None:
        """Keep the names that are allowed."""
        self.values = values

    def convert(self, value: Any, param: Any, ctx: Any) -> list[dict[str, float]]:
        """Parse numbers by name; a list, such as a default, is parsed already."""
        if isinstance(value, list):
            return value
        parts = [[part.partition("=") for part in one.split(",")] for one in value.split("/")]
        try:
            found = [{name.strip(): float(number) for name, _, number in one} for one in parts]
        except ValueError:
            found = []
        if not self.values.accept(found) or [*map(len, found)] != [*map(len, parts)]:
            called = param.opts[0] if param else "a value"
            raise click.UsageError(
                f"{called} must be numbers above 0 with names, such as gamma=0.05,C=10, of "
                f"{', '.join(self.values.names)}, got {value!r}",
                ctx,
            )
        return found


class CountOrFile(click.ParamType):  # type: ignore[type-arg] # not generic in click 8.2
    """A whole number, at least 1, or the path of a file or folder that exists."""

    name = "count or file"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | Path:
        """Parse a whole number; the path of something that exists is returned as a path."""
        if isinstance(value, (int, Path)):
            return value
        if value.isdecimal() and int(value) > 0:
            return int(value)
        if not Path(value).exists():
            called = param.opts[0] if param else "a value"
            raise click.UsageError(
                f"{called} must be a whole number, at least 1, or a file of rows, and there is no "
                f"file {value!r}",
                ctx,
            )
        return Path(value)


def check_output(path: str, overwrite: bool, folder: bool = False) -> None:
    """Refuse an output that cannot be written, before any work begins.

    Parameters
    ----------
    path : str
        What the command will write; "-" is standard output.
    overwrite : bool
        Whether an existing output may be replaced. What is not a regular file is never replaced,
        but written to.
    folder : bool
        Whether the output is a folder (a store), not a file.

    Raises
    ------
    InputError
    """
    if is_url(path):
        if as_path(path).exists() and not overwrite:
            raise InputError(f"{path} exists; choose another name or give --overwrite")
        return
    final = os.path.realpath(path) if folder else resolve_destination(path)
    if isinstance(final, int):
        if final == 1:
            click.get_current_context().with_resource(reserve_stdout())
        return
    if not folder and is_written_in_place(final):
        if not os.access(final, os.W_OK):
            raise InputError(f"{path} cannot be written: permission denied")
        return
    parent = Path(final).absolute().parent
    if not parent.is_dir():
        raise InputError(f"{path} cannot be written: there is no folder {parent}; create it first")
    if os.path.lexists(path):
        if not overwrite:
            raise InputError(f"{path} exists; choose another name or give --overwrite")
        if Path(path).is_dir() != folder:
            kind = "a folder" if Path(path).is_dir() else "a file"
            raise InputError(f"{path} is {kind} and will not be replaced; choose another name")
    try:
        # (Permission bits do not suffice: the disk may be read-only, or the user root.)
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        raise InputError(f"{path} cannot be written: {reason_of(error)} in {parent}") from error


def check_json(path: str | None, *others: str) -> None:
    """Refuse a ``--json FILE`` that cannot be written or is another argument of the command."""
    if path is not None:
        _check_extra("--json", path, others)


def check_log(path: str | None, *others: str) -> None:
    """Refuse a ``--log FILE`` that cannot be written or is another argument of the command."""
    if path is not None:
        _check_extra("--log", path, others)


def _check_extra(option: str, path: str, others: Sequence[str]) -> None:
    """Refuse an extra output that cannot be written, or is also another file of the command.

    ``option``: its flag; ``path``: its file; ``others``: the other files.
    """
    if any(_place(path) == _place(other) for other in others):
        raise InputError(f"{option} {path} would replace another file of this command")
    check_output(path, overwrite=True)


@contextmanager
def each_block(threads: int | None) -> Iterator["Each"]:
    """Yield ``each(function, blocks)``, a map over blocks that runs on threads of this process.

    ``threads``: their number; None: one for each core.
    """
    from bigscreen.fleet.inline import Inline

    fleet = Inline(threads)
    try:
        yield fleet.each
    finally:
        fleet.close()


def check_page(path: str | None, *others: str) -> None:
    """Refuse a ``--report FILE`` that cannot be written, or if matplotlib is not installed."""
    from bigscreen.report.path import check_matplotlib

    if path is None:
        return
    check_matplotlib()
    if not path.endswith((".html", ".htm")):
        raise InputError(f"--report {path} does not end in .html, by which browsers know a page")
    _check_extra("--report", path, others)


def _place(path: str) -> str | int:
    """Return the real path that an output is written to, or the number of an open file."""
    final = resolve_destination(path)
    return final if isinstance(final, int) else os.path.realpath(final)


json_option = click.option(
    "--json",
    "json_file",
    metavar="FILE",
    help="Also write the result as JSON to FILE, for scripts (an old FILE is replaced); - is "
    "standard output, and what people read goes to standard error then.",
)
report_option = click.option(
    "--report",
    "page",
    metavar="FILE",
    help="Also write a page with figures to FILE.html: one file that any browser shows, without a "
    "network (an old one is replaced).",
)
log_option = click.option(
    "--log",
    metavar="FILE",
    help="Add each event as a line of JSON, with its time, to FILE; `tail -f FILE` follows it.",
)
verbose_option = click.option(
    "--verbose",
    is_flag=True,
    help="Show the whole certificate: objectives, rounding, rows, screening and passes.",
)
overwrite_option = click.option(
    "--overwrite", is_flag=True, help="Replace the output if it exists already."
)
time_option = click.option(
    "--time-budget",
    type=Seconds(),
    metavar="TIME",
    help="Most time to take, such as 90s, 10m, 2h; then one sentence says what is kept.",
)
threads_option = click.option(
    "--threads",
    type=click.IntRange(min=1),
    metavar="T",
    help="Threads to compute with.  [default: one per core]",
)


def check_work(work: str, own: bool, resume: bool, overwrite: bool) -> None:
    """Refuse a work folder that cannot be used, or that holds an interrupted run.

    Parameters
    ----------
    work : str
        The folder.
    own : bool
        Whether the command chose the folder, and removes it at its end.
    resume, overwrite : bool
        Whether to continue the interrupted run, or to remove it.
    """
    if is_url(work):
        raise InputError(
            f"checkpoints are kept on a disk of this machine, and {work} is elsewhere: name a "
            "folder with --work"
        )
    if resume:
        if not Path(work).is_dir():
            raise InputError(
                f"there is nothing to resume: {work} does not exist; leave out --resume to start"
            )
    elif own and os.path.lexists(work):
        if not overwrite:
            raise InputError(
                f"an interrupted run left {work}; give --resume to go on with it or --overwrite to "
                "start again"
            )
        if Path(work).is_dir():
            with lock_path(work, in_use_message(Path(work))):
                shutil.rmtree(work)
    elif not own:
        check_output(work, overwrite=True, folder=True)


def is_finished(path: str, resume: bool, overwrite: bool) -> bool:
    """Whether a command with --resume finds its output complete, so that it only has to show it.

    ``path``: the output; ``resume``, ``overwrite``: whether these options are given.
    """
    return resume and not overwrite and os.path.isfile(path)


def check_own(path: str, other: str) -> None:
    """Refuse a finished output that was made with other options or rows.

    ``other`` says in words how the output differs; empty if it does not.
    """
    if other:
        raise InputError(
            f"{path} is finished, and was made otherwise: {other}; choose another name or give "
            "--overwrite"
        )
    click.echo(f"{path} is finished: there is nothing left to do", err=True)


def lock_output(path: str) -> AbstractContextManager[None]:
    """Lock an output that takes long to make; a second process that wants to make it is refused."""
    busy = f"another process is making {path}: wait for it, or choose another name"
    return lock_path(path, busy)


class GridRun(NamedTuple):
    """The state in which a command that fits a grid (`path`, `tune`) begins.

    Attributes
    ----------
    is_finished : bool
        Whether an earlier run has finished the output, so that it only has to be shown.
    work : str
        Folder that keeps finished work until the output is written.
    owns_work : bool
        Whether the command chose the folder, so that it may be removed.
    deadline : float or None
        Value of ``time.monotonic()`` at which the time budget ends; None without a budget.
    """

    is_finished: bool
    work: str
    owns_work: bool
    deadline: float | None


def begin_grid(context: click.Context, out: str, values: dict[str, Any]) -> GridRun:
    """Check the files that a command for a grid writes, before any work, and lock its output.

    Parameters
    ----------
    context : click.Context
        Unlocks the output when the command ends.
    out : str
        The output: a file of a path or of a model.
    values : dict
        The options resume, overwrite, plots, page, log, json_file, work, time_budget, and those
        of where it runs.
    """
    deadline = deadline_of(values["time_budget"])
    resume, overwrite = values["resume"], values["overwrite"]
    before = is_finished(out, resume, overwrite)
    check_output(out, overwrite or before)
    page, json_file, plots = values["page"], values["json_file"], values["plots"]
    check_json(json_file, out)
    check_page(page, out, *filter(None, [json_file]))
    check_log(values["log"], out, *filter(None, [json_file, page]))
    check_fleet(values)
    if plots is not None:
        from bigscreen.report.path import check_matplotlib

        check_output(plots, overwrite=True, folder=True)
        check_matplotlib()
    work, owns_work = values["work"] or f"{out}.work", values["work"] is None
    context.with_resource(lock_output(out))
    if not before:
        check_work(work, owns_work, resume, overwrite)
    return GridRun(before, work, owns_work, deadline)


@contextmanager
def shown_warnings() -> Iterator[None]:
    """Show Python's warnings as lines of the report, except warnings of a missed gap."""
    from bigscreen.report import report

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        """Print a warning as a line, in place of `warnings.showwarning`."""
        # The certificate at the end shows a missed gap. (Compared by name: see `warn_missed`.)
        if category.__name__ != "ConvergenceWarning":
            report.warn(str(message))

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


@contextmanager
def resumable(
    context: click.Context, work: str, own: bool, done: tuple[str, ...]
) -> Iterator[None]:
    """Say how to resume a run that ends too soon; remove its folder if it has nothing to resume.

    Parameters
    ----------
    work : str
        The folder that keeps finished work.
    own : bool
        Whether the command chose the folder, so that it may be removed.
    done : tuple of str
        Patterns of the files in the folder that a later run continues with.
    """
    try:
        with shown_warnings():
            yield
    except KeyboardInterrupt:
        click.echo(f"interrupted; {_how_to_resume(work)}", err=True)
        context.exit(INTERRUPTED)
    except (ConnectionError, DeviceFailed, TimeOver) as error:
        # (The workers' finished work is in the folder, as after an interruption.)
        raise type(error)(f"{reason_of(error)}; {_how_to_resume(work)}") from error
    except (InputError, OSError) as error:
        # Keep what can be resumed: a full disk must not cost finished work.
        kept = any(file for pattern in done for file in Path(work).glob(pattern))
        if own and not kept:
            shutil.rmtree(work, ignore_errors=True)
        if kept and isinstance(error, OSError):
            raise InputError(f"{system_sentence(error)}; {_how_to_resume(work)}") from error
        raise


def _how_to_resume(work: str) -> str:
    """Say how to continue a run whose finished work is in the folder ``work``."""
    if not Path(work).is_dir():
        return "nothing was written"
    return f"what is done so far is in {work}: the same command with --resume goes on"


TLS = ("tls_ca", "tls_cert", "tls_key")
"""Options that name the files of an encrypted cluster; all three or none are given."""


def deadline_of(budget: float | None) -> float | None:
    """Return the value of ``time.monotonic()`` at which a time budget that starts now ends."""
    return None if budget is None else time.monotonic() + budget


def check_fleet(values: dict[str, Any]) -> None:
    """Refuse contradicting options of where a command runs, before anything is started."""
    chosen = [f"--{name}" for name in ("workers", "scheduler", "threads") if values[name]]
    if len(chosen) > 1:
        raise InputError(
            f"{' and '.join(chosen)} are different ways to run (processes here, a cluster, threads "
            "of one process); give one"
        )
    if values.get("scheduler_timeout") and not values["scheduler"]:
        raise InputError("--scheduler-timeout is for a --scheduler; leave it out")
    flags = [f"--{name.replace('_', '-')}" for name in TLS]
    given = [flag for flag, name in zip(flags, TLS, strict=True) if values[name]]
    if given and not (values["scheduler"] or "").startswith("tls://"):
        raise InputError(
            f"{given[0]} is for a --scheduler of the form tls://HOST:PORT; leave it out"
        )
    if given and len(given) < len(TLS):
        raise InputError(f"{' and '.join(given)} alone will not do: give {', '.join(flags)}")


@contextmanager
def open_fleet(values: dict[str, Any], deadline: float | None = None) -> Iterator["Fleet"]:
    """Open a fleet (the workers): threads, local processes or a Dask cluster; close it at the end.

    ``values``: the options of where a command runs, by name. ``deadline``, a value of
    ``time.monotonic()``, bounds the waiting for workers.
    """
    with ExitStack() as owned:
        fleet = _opened(values, deadline, owned)
        try:
            yield fleet
        except BaseException:
            note_ending()
            raise


def _opened(values: dict[str, Any], deadline: float | None, owned: ExitStack) -> "Fleet":
    """Open the fleet (the workers) that the options ``values`` ask for; ``owned`` closes it.

    ``deadline``, a value of ``time.monotonic()``, bounds the waiting for workers.
    """
    from bigscreen.fleet.inline import Inline

    if not (values["workers"] or values["scheduler"]):
        return owned.enter_context(Inline(values["threads"]))
    # (Dask is slow to import, and threads do not need it.)
    from bigscreen.fleet.connecting import ANSWER_SECONDS, connect
    from bigscreen.fleet.local import local_cluster
    from bigscreen.fleet.memory import limit_of
    from bigscreen.fleet.secure import certificates

    if values["scheduler"]:
        files = [values[name] for name in TLS if values.get(name)]
        security = certificates(*files) if files else None
        timeout = values.get("scheduler_timeout") or ANSWER_SECONDS
        fleet = connect(values["scheduler"], timeout, security, deadline)
        return owned.enter_context(fleet)
    # The coordinating process needs its share of the memory too.
    share = values["memory"] and limit_of(values["memory"] // (values["workers"] + 1))
    devices = None
    if values.get("device", "cpu") != "cpu":
        from bigscreen.device.find import device_of_each_worker

        devices = device_of_each_worker(values["workers"], values["device"])
    with held_back():  # signals wait until the cluster has started
        started = local_cluster(values["workers"], share, deadline=deadline, devices=devices)
        return owned.enter_context(started)


def read_landmarks(place: Path, data: "Dataset", memory: int | None) -> "GivenLandmarks":
    """Read landmarks from a file, prepared as the rows of a store were, or from another store.

    Parameters
    ----------
    place : Path
        A store, or a file that `bigscreen ingest` reads; labels in it are not used.
    data : Dataset
        The store of the rows to fit.
    memory : int or None
        Bytes that the command may use, or None for the default.

    Raises
    ------
    InputError
        If the file's columns differ from the store's, or it has too many rows.
    """
    from bigscreen.data.dataset import Dataset
    from bigscreen.features.landmarks import GivenLandmarks
    from bigscreen.files.scratch import scratch
    from bigscreen.fleet.memory import allowed_memory

    with ExitStack() as stack:
        if place.is_dir():
            found = Dataset.open(place)
        else:
            folder = stack.enter_context(scratch("landmarks"))
            found = _ingest_like(place, folder / place.name, data, str(data.path), memory=memory)
        if found.preparation.features_fingerprint != data.preparation.features_fingerprint:
            raise InputError(
                f"{place} was scaled or encoded otherwise than {data.path}; ingest it with "
                f"`--like {data.path}`, or give the file itself"
            )
        needed = found.n_rows * (found.row_bytes + 8.0 * found.n_rows)
        if needed > allowed_memory(memory):
            raise InputError(
                f"{found.n_rows} landmarks take {in_units(needed)} with their kernel matrix, more "
                f"than the memory allowed, {in_units(allowed_memory(memory))}; give fewer rows"
            )
        return GivenLandmarks(found.X(0, found.n_rows))


def _ingest_like(
    place: str | Path, store: Path, like: "Dataset | Model", name: str, **how: Any
) -> "Dataset":
    """Prepare the raw rows of a file as a store or a model prepared its own; return a new store.

    Parameters
    ----------
    place : str or Path
        The file.
    store : Path
        Where the new store goes.
    like : Dataset or Model
    name : str
        Path of ``like``, for messages.
    **how
        Further options of `bigscreen.intake.ingest.ingest`.
    """
    from bigscreen.intake.ingest import ingest
    from bigscreen.report import report

    by_hand = f"`bigscreen ingest {place} STORE --like {name}"
    try:
        made = ingest([place], store, like=like, shuffle=False, **how)
    except MissingValue as error:
        raise InputError(
            f"{error.place}: the value is missing; fill it in, or leave such rows out by {by_hand} "
            "--drop-missing` and give that STORE"
        ) from None
    except NoLabels as error:
        raise InputError(
            f"{str(error).removesuffix('.')}; {by_hand} --label COLUMN` makes a STORE to give "
            "instead"
        ) from None
    for sentence in made.notes:
        report.note(sentence)
    return made.store


@contextmanager
def open_rows(
    place: str, model: "Model", name: str, deadline: float | None = None
) -> "Iterator[tuple[Dataset, Model]]":
    """Open a store, or a file of raw rows that is prepared as a model's training data was.

    Parameters
    ----------
    place : str
        A store, or a file that `bigscreen ingest` reads. A file's rows are kept in a temporary
        folder while the block runs.
    model : Model
    name : str
        The model's name, for messages.
    deadline : float, optional
        Value of ``time.monotonic()`` at which reading a file stops.

    Yields
    ------
    dataset, model
        The rows, and the model that scores them: see `match_store`.
    """
    from bigscreen.data.dataset import Dataset
    from bigscreen.files.scratch import scratch
    from bigscreen.model.model import match_store

    if not as_path(place).is_file():
        dataset = Dataset.open(place)
        yield dataset, match_store(model, dataset, name)
        return
    with scratch("rows") as folder:
        store = folder / Path(place).name
        try:
            dataset = _ingest_like(place, store, model, name, deadline=deadline)
            yield dataset, match_store(model, dataset, name)
        except InputError as error:
            # (The user knows the file, not its temporary store.)
            error.args = (str(error).replace(str(store), place),)
            raise

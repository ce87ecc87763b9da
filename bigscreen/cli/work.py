"""The work folder of a command that can be interrupted: checked, kept, cleared away."""

import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import click

from bigscreen.cli.common import check_output, system_sentence
from bigscreen.cli.signals import INTERRUPTED
from bigscreen.errors import InputError, TimeOver
from bigscreen.files import held
from bigscreen.work import in_use


def check_work(work: str, own: bool, resume: bool, overwrite: bool) -> None:
    """Refuse a work folder that cannot be used, and to forget an interrupted run by accident.

    Parameters
    ----------
    own : bool
        Whether the command chose it, and removes it at its end.
    """
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
            with held(work, in_use(Path(work))):
                shutil.rmtree(work)
    elif not own:
        check_output(work, overwrite=True, folder=True)


def being_made(path: str) -> AbstractContextManager[None]:
    """Hold an output that takes long to make: who comes second is told so."""
    return held(path, f"another process is making {path}: wait for it, or choose another name")


@contextmanager
def resumable(
    context: click.Context, work: str, own: bool, done: tuple[str, ...]
) -> Iterator[None]:
    """Say how to go on with a run that ends too soon; clear away a folder in which nothing is done.

    Parameters
    ----------
    done : tuple of str
        Patterns of the files in the folder that a later run goes on with.
    """
    from sklearn.exceptions import ConvergenceWarning

    from bigscreen import report

    try:
        with warnings.catch_warnings():
            # What was proved is shown at the end, with its numbers.
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.showwarning = lambda message, *_, **__: report.warn(str(message))
            yield
    except KeyboardInterrupt:
        click.echo(f"interrupted; {_how_to_resume(work)}", err=True)
        context.exit(INTERRUPTED)
    except (ConnectionError, TimeOver) as error:
        # What the workers have done is in the folder, as after an interruption.
        raise type(error)(f"{error}; {_how_to_resume(work)}") from error
    except (InputError, OSError) as error:
        # What can be resumed is kept: a full disk must not cost what was done before.
        kept = any(file for pattern in done for file in Path(work).glob(pattern))
        if own and not kept:
            shutil.rmtree(work, ignore_errors=True)
        if kept and isinstance(error, OSError):
            raise InputError(f"{system_sentence(error)}; {_how_to_resume(work)}") from error
        raise


def _how_to_resume(work: str) -> str:
    if not Path(work).is_dir():
        return "nothing was written"
    return f"what is done so far is in {work}: the same command with --resume goes on"

"""The folder that a run keeps what it has done in: whose it is, and who is at work there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bigscreen.errors import InputError
from bigscreen.files.output import held, replacing
from bigscreen.files.scratch import check_own
from bigscreen.files.sealed import Damaged, sealed, unsealed

PROBLEM = "problem.json"


@contextmanager
def owned(
    work: Path, fields: dict[str, Any], resume: bool, noun: str, stale: str
) -> Iterator[None]:
    """Take a work folder for a problem, and hold it against other processes.

    Parameters
    ----------
    fields : dict
        JSON-able: all that the result depends on.
    resume : bool
        Go on with what is there, which must be of the same fields; else it is forgotten.
    noun : str
        What is done there: "fit", "path".
    stale : str
        Pattern of the folders that a run leaves, which must not be resumed as another's.

    Raises
    ------
    InputError
        If another process is at work there, there is nothing to go on with, it belongs to another
        problem, or another user may have put it there.
    """
    if resume and not (work / PROBLEM).exists():
        raise InputError(f"there is nothing to resume in {work}; leave out --resume")
    check_own(work)
    work.mkdir(parents=True, exist_ok=True)
    with held(work, in_use(work)):
        record = work / PROBLEM
        if resume:
            _check_same(work, json.loads(json.dumps(fields)), noun)
        else:
            for folder in work.glob(stale):
                shutil.rmtree(folder)
            with replacing(record) as file:
                file.write(sealed(fields))
        yield


def in_use(work: Path) -> str:
    """The sentence for who comes second."""
    return f"another process is at work in {work}: wait for it, or choose another name"


def _check_same(work: Path, fields: dict[str, Any], noun: str) -> None:
    try:
        # Those of old folders have no checksum, and are compared value by value all the same.
        before = unsealed((work / PROBLEM).read_bytes(), needed=False)
    except Damaged as error:
        raise InputError(
            f"{work / PROBLEM} is damaged ({error}), so nobody knows what {work} belongs to; "
            "leave out --resume to start again"
        ) from error
    if what := changes(before, fields):
        raise InputError(f"{work} belongs to another {noun} and cannot be resumed: {what}")


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What of the fields now was something else before, in words; empty where nothing was."""
    changed = sorted(k for k in now if k not in before or now[k] != before[k])
    return ", ".join(f"{k} was {_short(before.get(k))}, now {_short(now[k])}" for k in changed)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:28]}...{text[-28:]}"

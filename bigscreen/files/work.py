"""Work folder of a run that can be resumed: which problem it belongs to, and its lock."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bigscreen.errors import InputError
from bigscreen.files.output import lock_path, replacing
from bigscreen.files.scratch import check_own
from bigscreen.files.sealed import Damaged, seal, unseal

PROBLEM = "problem.json"
"""Name of the file in a work folder with all that the result depends on."""


@contextmanager
def lock_work_folder(
    work: Path, fields: dict[str, Any], resume: bool, noun: str, stale: str
) -> Iterator[None]:
    """Create or resume the work folder of a problem, and lock it against other processes.

    Parameters
    ----------
    work : Path
        The folder, which keeps what a run has finished.
    fields : dict
        JSON values: everything that the result depends on.
    resume : bool
        Whether to resume: the folder must have equal fields. Else its content is removed.
    noun : str
        Kind of run, for messages: "fit", "path".
    stale : str
        Pattern of subfolders to remove before a new run.

    Raises
    ------
    InputError
        If another process uses the folder, there is nothing to resume, it belongs to another
        problem, or another user may have created it.
    """
    if resume and not (work / PROBLEM).exists():
        raise InputError(f"there is nothing to resume in {work}; leave out --resume")
    check_own(work)
    work.mkdir(parents=True, exist_ok=True)
    with lock_path(work, in_use_message(work)):
        record = work / PROBLEM
        if resume:
            _check_same(work, json.loads(json.dumps(fields)), noun)
        else:
            for folder in work.glob(stale):
                shutil.rmtree(folder)
            with replacing(record) as file:
                file.write(seal(fields))
        yield


def in_use_message(work: Path) -> str:
    """Return the message for a process that finds the work folder locked."""
    return f"another process is at work in {work}: wait for it, or choose another name"


def _check_same(work: Path, fields: dict[str, Any], noun: str) -> None:
    """Raise `InputError` unless a work folder's record has these fields (``noun``: its owner)."""
    try:
        # Records of older versions have no checksum; their values are compared all the same.
        before = unseal((work / PROBLEM).read_bytes(), needed=False)
    except Damaged as error:
        raise InputError(
            f"{work / PROBLEM} is damaged ({error}), and what {work} belongs to is not known; "
            "leave out --resume to start again"
        ) from error
    if what := describe_changes(before, fields):
        raise InputError(f"{work} belongs to another {noun} and cannot be resumed: {what}")


def describe_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return a text that lists the fields whose values differ from before; empty if none do."""
    changed = sorted(k for k in now if k not in before or now[k] != before[k])
    return ", ".join(f"{k} was {_shorten(before.get(k))}, now {_shorten(now[k])}" for k in changed)


def _shorten(value: Any) -> str:
    """Return a value as text of at most 60 characters: its first and last 28 if it is longer."""
    text = str(value)
    return text if len(text) <= 60 else f"{text[:28]}...{text[-28:]}"

"""Ctrl-C and SIGTERM: the same orderly end, once."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

from bigscreen.cli import end

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM

CLOSING_SECONDS = 10.0
"""An end that takes longer may be cut short by a further Ctrl-C."""

AGAIN_SECONDS = 0.01
"""When a KeyboardInterrupt is raised again that Python has dropped.

It drops those raised in the callbacks of its garbage collection (Dask has one), in those of weak
references and in finalizers, prints them and goes on.
"""

LOST_SECONDS = 2.0
"""When one is raised again that nobody handles by then: compiled code drops some without a word."""


class _Signals:
    """The signals that this process has had, and what it does with further ones."""

    terminated = False
    waits = False
    held: int | None = None  # the first signal that waits
    closing: float | None = None  # since when


_signals = _Signals()


@contextmanager
def orderly(last: bool) -> Iterator[None]:
    """Inside, the first signal raises KeyboardInterrupt, or what a command has put in its place.

    Those that come while the command then ends are passed by: its end is not to be interrupted
    half-way. SIGTERM is another way to press Ctrl-C. ``last``: the process ends after this.
    """
    before = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    if not main or before not in (end, signal.default_int_handler, signal.SIG_IGN):
        yield  # somebody else's business
        return
    _signals.terminated, _signals.held, _signals.closing = False, None, None
    term = signal.signal(signal.SIGTERM, _terminate)
    alarm = signal.signal(signal.SIGALRM, _again)
    dropped, sys.unraisablehook = sys.unraisablehook, partial(_dropped, sys.unraisablehook)
    if before is not signal.SIG_IGN:  # of a command in the background of a shell
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
        sys.unraisablehook = dropped
        # Nor is what Python does at its exit to be interrupted.
        signal.signal(signal.SIGINT, signal.SIG_IGN if last else before)
        signal.signal(signal.SIGTERM, signal.SIG_IGN if last else term)


def closing() -> None:
    """Say that the command ends: signals are passed by from now on."""
    if _signals.closing is None:
        _signals.closing = time.monotonic()


@contextmanager
def held_back() -> Iterator[None]:
    """Inside, signals wait: the first of them is raised at the end.

    A cluster that is stopped half-way through its start would leave processes behind.
    """
    _signals.waits, _signals.held = True, None
    try:
        yield
    finally:
        _signals.waits = False
    if _signals.held is not None:
        number, _signals.held, _signals.closing = _signals.held, None, None
        _interrupt(number, None)


def exit_code(code: int) -> int:
    """The code to end with: that of an interruption tells the two signals apart."""
    return TERMINATED if code == INTERRUPTED and _signals.terminated else code


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _signals.waits and _signals.held is None:
        _signals.held, _signals.closing = number, time.monotonic()
    elif _signals.closing is None:
        _signals.closing = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, LOST_SECONDS)
        raise KeyboardInterrupt
    elif time.monotonic() - _signals.closing > CLOSING_SECONDS:
        sys.stderr.write("interrupted\n")
        os._exit(exit_code(INTERRUPTED))  # worker processes end when their parent is gone


def _dropped(otherwise: Callable[[Any], object], of: Any) -> None:
    """An exception that Python drops: an interruption comes again."""
    if of.exc_type is KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
    else:
        otherwise(of)


def _again(number: int, frame: FrameType | None) -> None:
    """Raise the interruption again, unless the command is on its way to its end."""
    handled = sys.exc_info()[1]
    while handled is not None and not isinstance(handled, KeyboardInterrupt):
        handled = handled.__context__
    if handled is None:
        signal.setitimer(signal.ITIMER_REAL, LOST_SECONDS)
        raise KeyboardInterrupt


def _terminate(number: int, frame: FrameType | None) -> None:
    _signals.terminated = True
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler) and not _signals.waits:
        handler(number, frame)
    else:
        _interrupt(number, frame)

"""Handling of Ctrl-C and SIGTERM: one KeyboardInterrupt, then an end that is not interrupted."""

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

# Exit codes after Ctrl-C and after SIGTERM, as shells have them.
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM


class _Signals:
    """The state of this process's handling of SIGINT (Ctrl-C) and SIGTERM.

    Attributes
    ----------
    terminated : bool
        Whether a SIGTERM came.
    waits : bool
        Whether signals are held back.
    held : int or None
        The first signal that was held back.
    ending_since : float or None
        When the command began to end (``time.monotonic()``), by a signal or an error; None before.
    max_ending_seconds : float
        A further Ctrl-C exits at once if the end has taken longer than this.
    dropped_seconds : float
        Delay after which a KeyboardInterrupt that Python has dropped is raised again. (Python
        drops exceptions in callbacks of its garbage collection, of which Dask has one, in
        callbacks of weak references and in finalizers.)
    lost_seconds : float
        Delay after which a KeyboardInterrupt that was not handled is raised again. (Compiled code
        drops some silently.)
    """

    terminated = False
    waits = False
    held: int | None = None
    ending_since: float | None = None
    max_ending_seconds = 10.0
    dropped_seconds = 0.01
    lost_seconds = 2.0


_signals = _Signals()


@contextmanager
def orderly(last: bool, lost_seconds: float = _Signals.lost_seconds) -> Iterator[None]:
    """Raise KeyboardInterrupt at the first signal inside this context, and ignore further signals.

    The end of a command is thus not interrupted half-way. SIGTERM acts like Ctrl-C.

    Parameters
    ----------
    last : bool
        Whether the process ends after this context.
    lost_seconds : float
        An interrupt that was not handled is raised again after this time: compiled code drops
        some silently.
    """
    before = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    if not main or before not in (end, signal.default_int_handler, signal.SIG_IGN):
        yield  # (the caller handles its own signals)
        return
    _signals.lost_seconds = lost_seconds
    _signals.terminated, _signals.held, _signals.ending_since = False, None, None
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
        # (Python's own exit must not be interrupted either.)
        signal.signal(signal.SIGINT, signal.SIG_IGN if last else before)
        signal.signal(signal.SIGTERM, signal.SIG_IGN if last else term)


def note_ending() -> None:
    """Note that the command ends: ignore signals from now on."""
    if _signals.ending_since is None:
        _signals.ending_since = time.monotonic()


@contextmanager
def held_back() -> Iterator[None]:
    """Hold signals back inside this context; at its end, the first one raises KeyboardInterrupt.

    (A cluster that is stopped half-way through its start would leave processes behind.)
    """
    _signals.waits, _signals.held = True, None
    try:
        yield
    finally:
        _signals.waits = False
    if _signals.held is not None:
        number, _signals.held, _signals.ending_since = _signals.held, None, None
        _interrupt(number, None)


def exit_code(code: int) -> int:
    """Return the exit code; an interruption by SIGTERM has another code than by Ctrl-C."""
    return TERMINATED if code == INTERRUPTED and _signals.terminated else code


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Handle SIGINT: hold it back, raise KeyboardInterrupt, or ignore it during the end.

    If the end takes too long (`_Signals.max_ending_seconds`), exit at once.
    """
    if _signals.waits and _signals.held is None:
        _signals.held, _signals.ending_since = number, time.monotonic()
    elif _signals.ending_since is None:
        _signals.ending_since = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, _signals.lost_seconds)
        raise KeyboardInterrupt
    elif time.monotonic() - _signals.ending_since > _signals.max_ending_seconds:
        sys.stderr.write("interrupted\n")
        os._exit(exit_code(INTERRUPTED))  # worker processes end when their parent is gone


def _dropped(otherwise: Callable[[Any], object], of: Any) -> None:
    """Raise a KeyboardInterrupt that Python drops again, by a timer; pass other exceptions on.

    ``otherwise``: the earlier `sys.unraisablehook`; ``of``: what that hook is called with.
    """
    if of.exc_type is KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, _signals.dropped_seconds)
    else:
        otherwise(of)


def _again(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt again, unless it is being handled: the handler of a timer's signal.

    A timer starts with every KeyboardInterrupt, because Python or compiled code may drop it.
    """
    handled = sys.exc_info()[1]
    while handled is not None and not isinstance(handled, KeyboardInterrupt):
        handled = handled.__context__
    if handled is None:
        signal.setitimer(signal.ITIMER_REAL, _signals.lost_seconds)
        raise KeyboardInterrupt


def _terminate(number: int, frame: FrameType | None) -> None:
    """Handle SIGTERM: note it, and then do what SIGINT does."""
    _signals.terminated = True
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler) and not _signals.waits:
        handler(number, frame)
    else:
        _interrupt(number, frame)

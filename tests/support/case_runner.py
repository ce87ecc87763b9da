"""The command line of a judge: random cases of several kinds, on all cores, with a summary.

A judge hands in a table of kinds; a `Kind` names a function that judges the case of one number. The
summary is printed in the end, and also when Ctrl-C or SIGTERM ends the run. The exit code is 1 if a
case is wrong, 128 plus the signal's number if the run was ended by one, and 0 otherwise.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any

from threadpoolctl import threadpool_limits

SECONDS_TO_SIGNAL = 0.5
"""Look for a signal at least this often."""

MAX_CASE_SECONDS = 300
"""A case that has not ended by then is wrong."""


@dataclass
class Outcome:
    """What a judge found of one case.

    Parameters
    ----------
    spec : str
        The case, as code that makes it again.
    name : str
        What became of it, such as "fitted" or "refused"; the summary counts these.
    wrong : dict of str to str
        Each kind of failure, and one line that says what failed. Empty: nothing is wrong.
    figures : Counter of (str, str)
        Numbers by row and column of the summary's table, which adds them up over all cases.
    twists : int
        How far the case is from a plain one; the summary shows the plainest wrong case.
    """

    spec: str
    name: str = "judged"
    wrong: dict[str, str] = field(default_factory=dict)
    figures: Counter[tuple[str, str]] = field(default_factory=Counter)
    twists: int = 0


@dataclass(frozen=True)
class Kind:
    """One kind of case.

    Parameters
    ----------
    judge : callable
        A module's function that judges the case of one number.
    cases : int
        The number of cases of a run without arguments.
    """

    judge: Callable[[int], Outcome]
    cases: int


Pending = dict[Future[tuple[Outcome, float]], tuple[str, int]]
"""The cases (kind, number) that processes work on or hold next."""


@dataclass
class Summary:
    """The outcomes of a run so far."""

    names: dict[str, Counter[str]] = field(default_factory=dict)
    seconds: Counter[str] = field(default_factory=Counter)
    figures: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: dict[tuple[str, str], list[tuple[int, Outcome]]] = field(default_factory=dict)
    guilty: Counter[str] = field(default_factory=Counter)

    @property
    def cases(self) -> int:
        """The number of judged cases."""
        return sum(sum(names.values()) for names in self.names.values())

    def add(self, kind: str, number: int, outcome: Outcome, seconds: float) -> None:
        """Count the outcome of case ``number`` of a kind."""
        self.names.setdefault(kind, Counter())[outcome.name] += 1
        self.seconds[kind] += seconds
        self.figures.update(outcome.figures)
        self.guilty[kind] += bool(outcome.wrong)
        for failure in outcome.wrong:
            self.wrong.setdefault((kind, failure), []).append((number, outcome))

    def lines(self, script: str) -> Iterator[str]:
        """The summary as text, without the first line."""
        for kind, names in sorted(self.names.items()):
            count = sum(names.values())
            told = ", ".join(f"{n} {name}" for name, n in names.most_common())
            wrong, seconds = f"{self.guilty[kind]} wrong", self.seconds[kind] / count
            yield f"{kind:>12}: {count} cases, {wrong}, {seconds:.3f} s each: {told}"
        yield from self._table()
        for (kind, failure), found in sorted(self.wrong.items(), key=lambda one: -len(one[1])):
            number, least = min(found, key=lambda one: one[1].twists)
            yield f"WRONG {len(found)} x {kind}, {failure}: {least.wrong[failure]}"
            yield f"      {least.spec}"
            yield f"      python {script} --kind {kind} --seed {number} --cases 1"

    def _table(self) -> Iterator[str]:
        columns = list(dict.fromkeys(column for _, column in self.figures))
        rows = sorted({row for row, _ in self.figures})
        if rows:
            yield f"{'':>24}" + "".join(f"{column:>12}" for column in columns)
        for row in rows:
            cells = (self.figures.get((row, column), "") for column in columns)
            yield f"{row:>24}" + "".join(
                f"{cell:>12,}" if cell != "" else " " * 12 for cell in cells
            )


def run(
    kinds: Mapping[str, Kind], about: str | None, arguments: Sequence[str] | None = None
) -> int:
    """Judge the cases that the command line asks for; return the exit code.

    Parameters
    ----------
    kinds : mapping of str to Kind
    about : str or None
        What ``--help`` says of the judge.
    arguments : sequence of str, optional
        The command line; that of the process if left out.
    """
    given = _parsed(kinds, about, arguments)
    chosen = {name: kinds[name] for name in given.kind or kinds}
    counts = _shared_out(chosen, given.cases)
    wanted, found, began = sum(counts.values()), Summary(), time.monotonic()
    signals: list[int] = []
    before = {
        one: signal.signal(one, lambda number, _: signals.append(number))
        for one in (signal.SIGINT, signal.SIGTERM)
    }
    pending: Pending = {}
    pool = ProcessPoolExecutor(given.jobs, initializer=_prepare_process)
    try:
        queue = iter(_by_turns(counts, given.seed))
        for kind, number, outcome, seconds in _judged(
            pool, chosen, queue, pending, signals, 2 * given.jobs
        ):
            found.add(kind, number, outcome, seconds)
            for failure, what in outcome.wrong.items() if given.verbose else ():
                print(f"{kind} {number}: {failure}: {what}\n    {outcome.spec}", flush=True)
            if found.cases % 500 == 0:
                told = f"{found.cases} of {wanted} cases, {sum(found.guilty.values())} wrong"
                print(told, file=sys.stderr, flush=True)
    finally:
        # No case goes on beyond the summary.
        for child in multiprocessing.active_children():
            child.kill()
        pool.shutdown(wait=True, cancel_futures=True)
    guilty = sum(found.guilty.values())
    how = f"ended by {signal.Signals(signals[0]).name}: " if signals else ""
    took = f"{time.monotonic() - began:.0f} s on {given.jobs} processes"
    print(f"{how}{found.cases} of {wanted} cases in {took}: {guilty} wrong")
    if pending:
        open_cases = ", ".join(f"{kind} {number}" for kind, number in pending.values())
        print(f"      not judged to the end: {open_cases}")
    for line in found.lines(sys.argv[0]):
        print(line)
    sys.stdout.flush()
    for one, handler in before.items():
        signal.signal(one, handler)
    return 1 if guilty else 128 + signals[0] if signals else 0


def _parsed(
    kinds: Mapping[str, Kind], about: str | None, arguments: Sequence[str] | None
) -> argparse.Namespace:
    every = sum(kind.cases for kind in kinds.values())
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cases",
        type=_positive,
        default=None,
        help=f"cases of all kinds together (default: {every})",
    )
    parser.add_argument("--seed", type=int, default=0, help="number of the first case of each kind")
    parser.add_argument(
        "--kind", action="append", choices=list(kinds), help="judge this kind only; may be repeated"
    )
    parser.add_argument(
        "--jobs", type=_positive, default=_cores(), help="processes (default: all cores)"
    )
    parser.add_argument("--verbose", action="store_true", help="print every wrong case at once")
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {text}")
    return value


def _cores() -> int:
    """The number of cores that this process may use."""
    able = getattr(os, "sched_getaffinity", None)
    return len(able(0)) if able else os.cpu_count() or 1


def _shared_out(kinds: Mapping[str, Kind], cases: int | None) -> dict[str, int]:
    """How many cases of each kind: ``cases`` in all, in the proportions of the table."""
    every = sum(kind.cases for kind in kinds.values())
    if cases is None:
        return {name: kind.cases for name, kind in kinds.items()}
    counts = {name: cases * kind.cases // every for name, kind in kinds.items()}
    for name in list(counts)[: cases - sum(counts.values())]:
        counts[name] += 1
    return counts


def _by_turns(counts: Mapping[str, int], seed: int) -> list[tuple[str, int]]:
    """All cases (kind, number), the kinds mixed evenly: a run that is ended has seen all kinds."""
    places = [
        ((k + 0.5) / count, name, seed + k) for name, count in counts.items() for k in range(count)
    ]
    return [(name, number) for _, name, number in sorted(places)]


def _judged(
    pool: ProcessPoolExecutor,
    kinds: Mapping[str, Kind],
    queue: Iterator[tuple[str, int]],
    pending: Pending,
    signals: Sequence[int],
    ahead: int,
) -> Iterator[tuple[str, int, Outcome, float]]:
    """The outcomes as they come, until all are judged or a signal is there.

    ``pending`` holds the cases that the processes have, at most ``ahead``.
    """
    while not signals:
        for kind, number in itertools.islice(queue, ahead - len(pending)):
            pending[pool.submit(_judge, kinds[kind].judge, number)] = kind, number
        if not pending:
            return
        for done in wait(pending, SECONDS_TO_SIGNAL, FIRST_COMPLETED).done:
            kind, number = pending.pop(done)
            try:
                yield kind, number, *done.result()
            except BrokenProcessPool:
                cases = ", ".join(f"{k} {n}" for k, n in [(kind, number), *pending.values()])
                said = {"a process of the judge died": f"one of the cases {cases}"}
                pending.clear()
                yield kind, number, Outcome("", "died", said), 0.0
                return


def _judge(judge: Callable[[int], Outcome], number: int) -> tuple[Outcome, float]:
    """The outcome of one case and its seconds of processor time; an error is an outcome, too."""
    began = time.process_time()
    signal.signal(signal.SIGALRM, _end_case)
    signal.alarm(MAX_CASE_SECONDS)
    try:
        outcome = judge(number)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        failure = f"{type(error).__name__} in {os.path.basename(where.filename)}, {where.name}"
        outcome = Outcome("", "error", {failure: traceback.format_exc()})
    finally:
        signal.alarm(0)
    return outcome, time.process_time() - began


def _end_case(number: int, frame: Any) -> None:
    raise TimeoutError(f"the case did not end within {MAX_CASE_SECONDS} s")


def _prepare_process() -> None:
    """Leave signals to the process above, and the other cores to the other processes."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threadpool_limits(1)

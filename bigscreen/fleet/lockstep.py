"""Run several solves over the same shards in lockstep: their rounds become one round.

Each solve (of one class against the rest, for instance) runs in a thread of its own and sees a
fleet of its own. Its calls wait until all solves have called; then one round of the real fleet
steps each shard once for all solves, and one `Fleet.each` serves all that called it. Between rounds
as many solves compute as keep the fleet's processors busy. A message with ``alone`` set, because
its answer is large, gets a round of its own.

On a shard, `Joint` holds the states of all solves. A step requests what it needs of the rows by
`Ask` objects, and equal requests of several solves are computed once. Each solve gets the same
answers as it would alone, bit for bit.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import Paused
from bigscreen.files.checkpoint import check_owner
from bigscreen.files.remote import RemotePath
from bigscreen.fleet.protocol import Fleet
from bigscreen.fleet.shards import Arrays, FloatArray, Program, Totals, Yielding

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_COPIED_NUMBERS = 1 << 16
"""Copy one solve's part of a joint array of numbers, in which several solves get their answers, if
the part has at most this many numbers; a larger part stays a view, to save memory. Sums over a
contiguous copy have the same bits as if the solve had run by itself."""


class Ask(Protocol):
    """A request of a solve's step for something computed from a shard's rows.

    Equal requests of several solves on one shard are computed once.
    """

    @property
    def key(self) -> Any:
        """A hashable key; requests with equal keys are answered together."""

    def answers(self, alike: list[Self]) -> list[Any]:
        """Answer several requests with one key; this request is the first of them."""


Work = Generator[Any, Any, FloatArray]
"""A step as a generator: it yields requests, is sent their answers, and returns its vector."""


class Sharing(Yielding, Protocol):
    """A program (what each shard computes) that several solves can run together on a shard.

    It is a dataclass, and its steps are generators that yield requests (`Ask`).
    """

    def open(self, shard: int, lent: MutableMapping[Any, Any] | None = None) -> Any:
        """Make a shard's state before the first round.

        ``lent`` is a mapping that all solves on the shard share, for instance for its rows.
        """

    def load(self, shard: int, arrays: Arrays, lent: MutableMapping[Any, Any] | None = None) -> Any:
        """Make a shard's state again from the arrays that `save` returned.

        ``lent`` is a mapping that all solves on the shard share.
        """

    def work(self, state: Any, message: dict[str, Any], totals: Totals) -> Work | FloatArray:
        """Return a step as a generator of requests, or its vector if it requests nothing."""


class _Member(NamedTuple):
    """One solve on a shard: its program, the program's fields that have changed, and its state.

    ``differs`` has the fields that differ from the program with which the solve began.
    """

    program: Any
    differs: dict[str, Any]
    state: Any


@dataclass
class _Shard:
    """One shard of all solves: its number, the solves on it by name, and what they share."""

    number: int
    members: dict[str, _Member]
    lent: MutableMapping[Any, Any]


@dataclass(frozen=True)
class Joint:
    """The program of several solves that step together, by the solve's name.

    A message has the ``steps`` of the solves that step, the names of all ``members`` that are left,
    and the ``starts`` of solves that begin anew with changed fields. If several solves step, the
    vector of the step begins with the lengths of their vectors.
    """

    programs: dict[str, Any]

    def open(self, shard: int) -> _Shard:
        """Open a shard for all solves, before the first round."""
        return self._opened(shard, lambda name, lent: self._member(name, {}, shard, lent))

    def step(self, state: _Shard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Step the solves that the message names on one shard, and return their joined vectors."""
        for name in state.members.keys() - set(message["members"]):
            del state.members[name]
        for name, differs in message["starts"].items():
            del state.members[name]  # frees its memory before the next one is made
            state.members[name] = self._member(name, differs, state.number, state.lent)
        works, own = {}, {}
        for name, part in message["steps"].items():
            member, own[name] = state.members[name], _arrays_of(totals, name)
            works[name] = member.program.work(member.state, part, own[name])
        vectors = _answer_all(works)
        for name, known in own.items():
            totals.update({f"{name}.{key}": total for key, total in known.items()})
        if len(works) == 1:  # without a copy: it can be large
            return next(iter(vectors.values()))
        lengths = [float(len(vectors[name])) for name in works]
        return np.concatenate([lengths, *(vectors[name] for name in works)])

    def kept_bytes(self, shard: int) -> int:
        """Return the bytes of rows that the solves of a shard keep; they share the rows."""
        most: int = max(program.kept_bytes(shard) for program in self.programs.values())
        return most

    def lean(self) -> Joint:
        """Return the program with solves that keep no rows of the data in memory.

        A solve that begins anew keeps rows again.
        """
        return Joint({name: program.lean() for name, program in self.programs.items()})

    def give_up(self, state: _Shard) -> int:
        """Stop keeping the rows of a shard; returns the bytes that this frees."""
        members = state.members.values()
        return max((one.program.give_up(one.state) for one in members), default=0)

    def save(self, state: _Shard) -> Arrays:
        """Return the states of all solves on a shard as arrays, named ``solve.array``."""
        saved: Arrays = {}
        for name, (program, differs, own) in state.members.items():
            parts = {**program.save(own), _DIFFERS: _as_bytes(differs)}
            saved |= {f"{name}.{key}": array for key, array in parts.items()}
        return saved

    def load(self, shard: int, arrays: Arrays) -> _Shard:
        """Make a shard of all solves again from the arrays that `save` returned."""

        def made(name: str, lent: MutableMapping[Any, Any]) -> _Member:
            """Make one solve's state again from its arrays, or anew if it has none."""
            own = _arrays_of(arrays, name)
            if not own:  # a run that was not saved
                return self._member(name, {}, shard, lent)
            differs = json.loads(own.pop(_DIFFERS).tobytes())
            program = replace(self.programs[name], **differs)
            return _Member(program, differs, program.load(shard, own, lent))

        return self._opened(shard, made)

    def _opened(
        self, shard: int, made: Callable[[str, MutableMapping[Any, Any]], _Member]
    ) -> _Shard:
        """Make a shard; ``made`` makes one solve's state from its name and the shared mapping."""
        lent: MutableMapping[Any, Any] = WeakValueDictionary()
        return _Shard(shard, {name: made(name, lent) for name in self.programs}, lent)

    def _member(
        self, name: str, differs: dict[str, Any], shard: int, lent: MutableMapping[Any, Any]
    ) -> _Member:
        """Open a solve on a shard, with its program's fields changed by ``differs``."""
        program = replace(self.programs[name], **differs)
        return _Member(program, differs, program.open(shard, lent))


_DIFFERS = "differs"
"""Name of the array in checkpoints that holds the changed fields of a solve's program."""


def _arrays_of(arrays: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the arrays named ``name.key`` under their keys: the arrays of the solve ``name``."""
    head = f"{name}."
    return {key[len(head) :]: each for key, each in arrays.items() if key.startswith(head)}


def _as_bytes(record: dict[str, Any]) -> NDArray[np.uint8]:
    """Return a JSON-able record as an array of bytes, which a checkpoint can hold."""
    return np.frombuffer(json.dumps(record).encode(), np.uint8)


def _answer_all(works: Mapping[str, Work | FloatArray]) -> dict[str, FloatArray]:
    """Complete several steps, answering equal requests once; returns their vectors by name."""
    vectors: dict[str, FloatArray] = {}
    pending: dict[str, tuple[Any, Any]] = {}

    def sent(name: str, answer: Any) -> None:
        """Send a step its answer; keep its next request in ``pending``, or its final vector."""
        work: Any = works[name]
        try:
            ask = work.send(answer)
            pending[name] = ask.key, ask
        except StopIteration as end:
            pending.pop(name, None)
            vectors[name] = end.value

    for name, work in works.items():
        if isinstance(work, np.ndarray):
            vectors[name] = work
        else:
            sent(name, None)
    while pending:
        # The last answered step continues first, so that it frees its memory sooner.
        key, ask = next(reversed(pending.values()))
        alike = [name for name, (other, _) in pending.items() if other == key]
        asks = [pending.pop(name)[1] for name in alike]
        for name, answer in zip(alike, ask.answers(asks), strict=True):
            sent(name, answer)
    return vectors


class GivenUp(Exception):
    """Raised by the fleet that a solve sees if the solve is given up, as another one has failed."""


class _Question(NamedTuple):
    """A solve's call to the fleet: the name of the method, and its arguments."""

    kind: str
    given: tuple[Any, ...] = ()


class _View:
    """The fleet (workers) that one of several solves sees; its calls go to the `Lockstep`.

    The lockstep waits until all solves have called, and serves them by one call of the real fleet.
    ``replies``: (True, answer) or (False, error) for each call.
    """

    def __init__(self, lockstep: Lockstep, name: str) -> None:
        """Make the fleet that the solve ``name`` of a lockstep sees."""
        self._lockstep, self._name = lockstep, name
        self.replies: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    @property
    def workers(self) -> int:
        """The number of steps that run at once, one on each thread."""
        return self._lockstep.fleet.workers

    @property
    def worker_memory(self) -> int | None:
        """Bytes that a worker may hold for each thread; None without a limit."""
        return self._lockstep.fleet.worker_memory

    @property
    def peak_pss(self) -> int:
        """An upper bound on the peak memory of all processes, in bytes."""
        return self._lockstep.fleet.peak_pss

    def start(self, program: Program, n_shards: int) -> None:
        """Make the state of every shard (part of the rows), as ``program`` opens it."""
        self._asked("start", program, n_shards)

    def round(self, message: dict[str, Any]) -> tuple[FloatArray, Totals]:
        """Send a message to all shards, each of which computes one step of the program.

        Returns the shards' vectors, (n_shards, k), and their totals: exact integer sums by name.
        """
        answer: tuple[FloatArray, Totals] = self._asked("round", message)
        return answer

    def save(self, folder: Path, meta: Mapping[str, Any]) -> None:
        """Save this solve as part of a checkpoint of all solves, in their common folder."""
        self._asked("save", meta)

    def load(self, folder: Path) -> dict[str, Any] | None:
        """Load this solve from the checkpoint of all solves, in their common folder."""
        answer: dict[str, Any] | None = self._asked("load")
        return answer

    def each(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        in_flight: int | None = None,
    ) -> Iterator[Result]:
        """Yield ``function(item)`` for every item, in order, with ``in_flight`` at a time."""
        return iter(self._asked("each", function, list(items), in_flight))

    def everywhere(self, function: Callable[[], Result]) -> list[Result]:
        """Return ``function()`` of each process that computes."""
        return self._lockstep.fleet.everywhere(function)

    def rely_on(self, files: Iterable[Path | RemotePath]) -> None:
        """Do nothing: the real fleet uses these files already."""

    def memory(self) -> int:
        """Return the bytes that all processes hold now."""
        return self._lockstep.fleet.memory()

    def stop(self) -> None:
        """Do nothing: the other solves still use the fleet."""

    def close(self) -> None:
        """Do nothing: this solve does not own the fleet."""

    def _asked(self, kind: str, *given: Any) -> Any:
        """Send a request to the lockstep, wait, and return its answer or raise its error."""
        lockstep = self._lockstep
        if lockstep.over:
            raise GivenUp
        lockstep.turns.release()
        try:
            lockstep.inbox.put((self._name, _Question(kind, given)))
            fine, answer = self.replies.get()
        finally:
            lockstep.turns.acquire()
        if not fine:
            raise answer
        return answer


class Lockstep:
    """Runs several solves of one kind of program together.

    Parameters
    ----------
    fleet : Fleet
    folder : Path or None
        Where checkpoints go; each is one of all solves.
    of : str
        A digest of the problem; checkpoints with another one are refused.

    Attributes
    ----------
    seconds : float
        Time of all calls of `Fleet.each`; if solves certify, these are the closing passes.
    inbox : queue of (name, message)
        What solves send: a `_Question`, or at the end a 1-tuple of the result, or an error.
    turns : Semaphore
        Limits how many solves compute at once.
    over : bool
        Whether the remaining solves are given up.
    """

    def __init__(self, fleet: Fleet, folder: Path | None = None, of: str = "") -> None:
        """Prepare to run solves on ``fleet``.

        ``folder`` is for checkpoints (None: there are none), and ``of`` identifies their problem.
        """
        self.fleet, self.folder, self.of = fleet, folder, of
        self.seconds = 0.0
        self.inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        # Two runs a processor: while one waits for Python's lock, or for memory, another computes.
        self.turns = threading.Semaphore(2 * max(1, min(fleet.workers, os.cpu_count() or 1)))
        self._views: dict[str, _View] = {}
        self._living: list[str] = []
        self._waiting: dict[str, _Question] = {}
        self._programs: dict[str, Any] = {}
        self._starts: dict[str, dict[str, Any]] = {}
        self._shards = 0
        self._started = False
        self.over = False

    def run(
        self, runs: Mapping[str, Callable[[Fleet], Result]], ended: Callable[[str, Result], None]
    ) -> None:
        """Run all solves until each has ended.

        Parameters
        ----------
        runs : mapping of str to callable
            Functions by name (without dots). Each is called in its own thread, with the fleet
            that it is to use.
        ended : callable
            Called in this thread with the name and result of each solve when it ends.

        Raises
        ------
        Exception
            The first error of a solve; the other solves are given up. After a Paused they continue
            until the next checkpoint.
        """
        self._views = {name: _View(self, name) for name in runs}
        self._living = list(runs)
        threads = [
            threading.Thread(target=self._live, args=(name, run), name=f"run {name}", daemon=True)
            for name, run in runs.items()
        ]
        paused: Paused | None = None
        try:
            for thread in threads:
                thread.start()
            while self._living:
                while len(self._waiting) < len(self._living):
                    name, said = self.inbox.get()
                    if isinstance(said, _Question):
                        self._waiting[name] = said
                        continue
                    self._living.remove(name)
                    if isinstance(said, Paused):
                        paused = said
                    elif isinstance(said, BaseException):
                        raise said
                    else:
                        ended(name, said[0])
                self._serve()
            if paused is not None:
                raise paused
        finally:
            self._give_up()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()

    def _live(self, name: str, run: Callable[[Fleet], Any]) -> None:
        """Run one solve on its own thread, and put its result or its error in the inbox."""
        said: Any
        try:
            with self.turns:
                said = (run(self._views[name]),)
        except BaseException as error:
            said = error
        self.inbox.put((name, said))

    def _give_up(self) -> None:
        """Make each remaining solve end at its next call of the fleet that it sees.

        This works even if a second Ctrl-C has interrupted this object between two statements.
        """
        self.over = True
        for view in self._views.values():
            view.replies.put((False, GivenUp()))

    def _reply(self, name: str, fine: bool, answer: Any) -> None:
        """Answer the call of the waiting solve ``name``.

        ``answer`` is what the call returns if ``fine``, else the error that it raises.
        """
        del self._waiting[name]
        self._views[name].replies.put((fine, answer))

    # -- answering the calls of runs -----------------------------------------------------------
    def _serve(self) -> None:
        """Answer some or all of the pending calls of solves; called when all living solves wait.

        In the code ``asked`` has the arguments of the calls, by method and by the solve's name.
        """
        asked: dict[str, dict[str, tuple[Any, ...]]] = {}
        for name in self._living:
            if name in self._waiting:
                question = self._waiting[name]
                asked.setdefault(question.kind, {})[name] = question.given
        for name, (program, shards) in asked.get("start", {}).items():
            self._shards = shards
            if self._started:
                self._starts[name] = _differences(self._programs[name], program)
            else:
                self._programs[name] = program
            self._reply(name, True, None)
        if "each" in asked:
            began = time.monotonic()
            self._each(asked["each"])
            self.seconds += time.monotonic() - began
        if "start" in asked or "each" in asked:
            return  # these runs soon make calls for the same round
        if "round" in asked:
            steps = {name: given[0] for name, given in asked["round"].items()}
            # Large answers one by one: a run continues while the next answer is computed.
            alone = [name for name in steps if steps[name].get("alone", False)]
            turns = [{name: steps.pop(name)} for name in alone]
            for turn in [*turns, steps]:
                if turn and not self._round(turn):
                    return
        elif "save" in asked:  # only if all runs save: those that call rounds will save later
            self._save({name: given[0] for name, given in asked["save"].items()})
        elif "load" in asked:
            self._load(list(asked["load"]))

    def _start(self) -> None:
        """Start the joint program of all solves on the fleet, unless it runs already."""
        if not self._started:
            self.fleet.start(Joint(dict(self._programs)), self._shards)
            self._started = True

    def _round(self, steps: dict[str, dict[str, Any]]) -> bool:
        """Run one round of the fleet for several solves, and send each its answer.

        ``steps``: the message of each solve that steps, by name. Returns False if the round failed.
        """
        self._start()
        starts, self._starts = self._starts, {}
        message = {"members": list(self._living), "starts": starts, "steps": steps}
        try:
            stack, totals = self.fleet.round(message)
        except Exception as error:
            # One run gets the error and ends, and with it all other runs.
            self._reply(next(iter(steps)), False, error)
            return False
        ends = np.array([0, stack.shape[1]])
        if len(steps) > 1:
            ends = len(steps) + np.cumsum([0, *stack[0, : len(steps)].astype(np.int64)])
        for k, name in enumerate(steps):
            part = stack[:, ends[k] : ends[k + 1]]
            if part.size <= MAX_COPIED_NUMBERS:
                part = part.copy()  # contiguous, as without other runs: sums have the same bits
            self._reply(name, True, (part, _arrays_of(totals, name)))
        return True

    def _each(self, asked: dict[str, tuple[Any, ...]]) -> None:
        """Answer the solves that wait in `each`, given (function, items, in_flight) by name.

        Functions that say (by ``alike``) that they can be computed together, are.
        """
        together: dict[Any, list[str]] = {}
        for name, (function, items, _) in asked.items():
            alike = getattr(function, "alike", None)
            key = name if alike is None else (type(function), alike, len(items))
            together.setdefault(key, []).append(name)
        for names in together.values():
            functions = [asked[name][0] for name in names]
            items, in_flight = [asked[name][1] for name in names], asked[names[0]][2]
            try:
                if len(names) == 1:
                    answers = [list(self.fleet.each(functions[0], items[0], in_flight))]
                else:
                    joint = functions[0].together(functions)
                    parts = self.fleet.each(joint, zip(*items, strict=True), in_flight)
                    answers = [list(part) for part in zip(*parts, strict=True)]
            except Exception as error:
                self._reply(names[0], False, error)
                return
            for name, answer in zip(names, answers, strict=True):
                self._reply(name, True, answer)

    def _save(self, metas: dict[str, Mapping[str, Any]]) -> None:
        """Write one checkpoint of all solves; ``metas`` has the record of each, by its name."""
        assert self.folder is not None
        arrays = {
            f"{name}.{key}": value
            for name, meta in metas.items()
            for key, value in meta.items()
            if isinstance(value, np.ndarray)
        }
        plain = {
            name: {key: value for key, value in meta.items() if not isinstance(value, np.ndarray)}
            for name, meta in metas.items()
        }
        self.fleet.save(self.folder, {"of": self.of, "runs": plain, **arrays})
        for name in metas:
            self._reply(name, True, None)

    def _load(self, names: list[str]) -> None:
        """Load the newest checkpoint of all solves; send each of ``names`` its own record, or None.

        A checkpoint holds the states of all shards, and a record (meta) of each solve.
        """
        assert self.folder is not None
        check_owner(self.folder, self.of)
        self._start()
        meta = self.fleet.load(self.folder) or {"runs": {}}
        for name in names:
            found = meta["runs"].get(name)
            self._reply(name, True, None if found is None else {**found, **_arrays_of(meta, name)})


def _differences(first: Any, program: Any) -> dict[str, Any]:
    """Return the fields (numbers) in which a program differs from the first one of its solve."""
    pairs = {
        each.name: (getattr(first, each.name), getattr(program, each.name))
        for each in fields(first)
    }
    return {name: now for name, (then, now) in pairs.items() if then is not now and then != now}

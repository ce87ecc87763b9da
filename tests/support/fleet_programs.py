"""Programs and functions for the tests of the fleet; importable by worker processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info

SCALE = 2.0**30
FEATURES = 12


class Gradient:
    """Logistic gradient descent on random data, with velocities kept by shard.

    The state is float and history-dependent, so a lost, doubled or misplaced message shows.
    """

    def __init__(self, rows: int = 50, ballast: int = 0) -> None:
        self.rows = rows
        self.ballast = np.zeros(ballast)

    def open(self, shard):
        rng = np.random.default_rng(shard)
        X = rng.standard_normal((self.rows + shard, FEATURES))
        return {"X": X, "y": np.sign(X[:, 0] + 0.3), "v": np.zeros(len(X)), "steps": 0}

    def step(self, state, message, totals):
        if message.get("sleep"):
            time.sleep(message["sleep"])
        margins = state["y"] * (state["X"] @ message["w"])
        state["v"] = 0.9 * state["v"] + 1 / (1 + np.exp(margins))
        state["steps"] += 1
        gradient = (state["v"] * state["y"]) @ state["X"]
        fixed = np.rint(gradient * SCALE).astype(np.int64)
        totals["gradient"] = totals.get("gradient", np.zeros(FEATURES, np.int64)) + fixed
        totals.setdefault("steps", np.zeros(1, np.int64))[0] += state["steps"]
        return np.array([state["v"].sum(), np.logaddexp(0, -margins).sum()])

    def save(self, state):
        return {"v": state["v"], "steps": np.array(state["steps"])}

    def load(self, shard, arrays):
        return self.open(shard) | {"v": arrays["v"], "steps": int(arrays["steps"])}


class Wide(Gradient):
    """Has totals of some megabytes in some rounds, of different names by shard."""

    NUMBERS = (500, 701)  # not a multiple of anything

    def step(self, state, message, totals):
        found = super().step(state, message, totals)
        if state["steps"] % 3:
            name = "even" if len(state["X"]) % 2 else "odd"
            wide = np.arange(np.prod(self.NUMBERS)).reshape(self.NUMBERS) * (state["steps"] + 7)
            totals[name] = totals.get(name, 0) + wide * len(state["X"])
        return found


class Recorded(Gradient):
    """Records its calls, and kills its process once if a file is there."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def open(self, shard):
        self._note(f"open:{shard}")
        self._die("die")
        return super().open(shard)

    def step(self, state, message, totals):
        self._note("step")
        return super().step(state, message, totals)

    def save(self, state):
        self._die("die while saving")
        return super().save(state)

    def load(self, shard, arrays):
        self._note(f"load:{shard}")
        return super().load(shard, arrays)

    def _note(self, entry):
        with open(self.folder / "log", "a") as file:
            file.write(entry + "\n")

    def _die(self, name):
        try:
            (self.folder / name).unlink()
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


class Murderous(Gradient):
    """Kills each process that steps one shard in a round with "die", and counts the deaths."""

    def __init__(self, folder: Path, victim: int) -> None:
        super().__init__()
        self.folder, self.victim = folder, victim

    def open(self, shard):
        return super().open(shard) | {"shard": shard}

    def step(self, state, message, totals):
        if message.get("die") and state["shard"] == self.victim:
            with open(self.folder / "deaths", "a") as file:
                file.write("+")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(state, message, totals)


class Failing(Gradient):
    """Raises an OSError in one shard of a round whose message requests it."""

    def open(self, shard):
        return super().open(shard) | {"shard": shard}

    def step(self, state, message, totals):
        if message.get("fail") == state["shard"]:
            raise OSError(f"disk of shard {state['shard']}")
        if message.get("unsavable"):
            state["v"] = np.array([state], dtype=object)
            return np.zeros(2)
        return super().step(state, message, totals)


class Odd(Gradient):
    """Breaks the rules of a program in the way a message names."""

    def step(self, state, message, totals):
        if message["way"] == "length":
            return np.zeros(len(state["X"]))
        if message["way"] == "float":
            totals["gradient"] = np.zeros(3)
        return np.zeros(2)


class Echo:
    """Returns the properties of the messages that it receives."""

    def open(self, shard):
        return None

    def step(self, state, message, totals):
        array = message["array"]
        flags = array.flags
        return np.array(
            [
                float((array * np.arange(array.size).reshape(array.shape)).sum()),
                flags.aligned,
                flags.writeable,
                flags.f_contiguous,
            ],
            dtype=np.float64,
        )

    def save(self, state):
        return {}

    def load(self, shard, arrays):
        return None


def square(item):
    return item * item


def slow_square(item):
    time.sleep(0.05)
    return item * item


def kill_self(_):
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(item):
    """Kill the own process on item 7, the first time."""
    number, marker = item
    if number == 7:
        try:
            Path(marker).touch(exist_ok=False)
        except FileExistsError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def fails_on_five(item):
    if item == 5:
        raise ZeroDivisionError("five")
    return item


def blas_threads(_):
    """The most threads that any BLAS of this process would use now."""
    libraries = threadpool_info()
    return max(each["num_threads"] for each in libraries if each["user_api"] == "blas")


def environment(names):
    time.sleep(0.01)
    return {name: os.environ.get(name) for name in names}, os.getpid()


def descend(fleet, rounds, w=None, between=None, record=None):
    """Run rounds of gradient descent; returns the weights and all that the rounds returned."""
    w = np.zeros(FEATURES) if w is None else w
    record = [] if record is None else record
    for number in range(rounds):
        if between is not None:
            between(number)
        stack, totals = fleet.round({"w": w})
        record.append((stack, totals))
        w = w - 1e-4 * totals["gradient"] / SCALE
    return w, record


def same(record, other):
    """Whether two records are equal bit for bit."""
    return len(record) == len(other) and all(
        stack.tobytes() == other_stack.tobytes()
        and totals.keys() == other_totals.keys()
        and all(totals[key].tobytes() == other_totals[key].tobytes() for key in totals)
        for (stack, totals), (other_stack, other_totals) in zip(record, other, strict=True)
    )

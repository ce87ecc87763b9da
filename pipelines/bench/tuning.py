"""Which tuned values matter: each one halved and doubled, over fits that use all solvers.

    python -m pipelines.bench.tuning
    python -m pipelines.bench.tuning --only BlockTuning --repeat 3

A tuned value is a number in a frozen dataclass whose name ends in Tuning. One line for each: in how
many fits the published machine differs in any bit, and the least and the greatest ratio of
processor time to that with the default. "not felt" are values that change no bit of any fit:
candidates for removal, unless they bound memory or waiting. Times say little on a busy machine.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import pkgutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import bigscreen
from pipelines.bench.golden import digest, published


def kinds() -> list[type]:
    """The dataclasses of tuned values of the package."""
    found: dict[str, type] = {}
    for module in pkgutil.walk_packages(bigscreen.__path__, "bigscreen."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if name.endswith("Tuning") and is_dataclass(value) and value is not bigscreen.Tuning:
                found[f"{value.__module__}.{name}"] = value
    return [found[name] for name in sorted(found)]


def numbers(kind: type) -> dict[str, Any]:
    """The names and defaults of a dataclass's numeric fields."""
    return {
        field.name: field.default
        for field in fields(kind)
        if isinstance(field.default, int | float) and not isinstance(field.default, bool)
    }


@contextmanager
def changed(kind: type, name: str, value: Any) -> Iterator[None]:
    """Give a field another value in every instance, those that are made meanwhile included."""
    made = [each for each in gc.get_objects() if type(each) is kind]
    before = [getattr(each, name) for each in made]
    init: Any = kind.__init__
    defaults = list(init.__defaults__)
    parameters = init.__code__.co_varnames[: init.__code__.co_argcount]
    defaults[parameters.index(name) - len(parameters)] = value
    kept, init.__defaults__ = init.__defaults__, tuple(defaults)
    for each in made:
        object.__setattr__(each, name, value)
    try:
        yield
    finally:
        init.__defaults__ = kept
        for each, own in zip(made, before, strict=True):
            object.__setattr__(each, name, own)


def cases() -> dict[str, Callable[[], str]]:
    """Fits of about a second or less each, which return a digest of what they publish."""
    rng = np.random.default_rng(3)
    n, d = 12_000, 12
    X = rng.normal(size=(n, d)).astype(np.float32)
    score = X[:, 0] + np.sin(2 * X[:, 1]) + X[:, 2] * X[:, 3] + 0.3 * rng.normal(size=n)
    y, several = (score > 0).astype(int), np.digitize(score, [-1, 0, 1])
    few = slice(0, 3_000)
    b = bigscreen
    landmarks: dict[str, Any] = {"n_components": 200, "gamma": 0.1, "random_state": 0}
    machines: dict[str, tuple[Any, Any, Any]] = {
        "landmarks": (b.NystroemSVC(C=1.0, **landmarks), X, y),
        "landmarks, 1e-6": (b.NystroemSVC(C=1.0, tol=1e-6, **landmarks), X, y),
        "landmarks, C=1000, 1e-6": (b.NystroemSVC(C=1000.0, tol=1e-6, **landmarks), X[few], y[few]),
        "landmarks, classes": (b.NystroemSVC(C=1.0, **landmarks), X, several),
        "landmarks, snacks": (b.NystroemSVC(C=1.0, solver="snacks", **landmarks), X[few], y[few]),
        "exact": (b.SVC(C=1.0, gamma=0.1), X[few], y[few]),
        "exact, 1e-6": (b.SVC(C=10.0, gamma=0.1, tol=1e-6), X[few], y[few]),
        "exact, pairs": (b.SVC(C=10.0, gamma=0.1, solver="pairs"), X[:1500], y[:1500]),
        "exact, regression": (b.SVR(C=1.0, gamma=0.1), X[:2000], score[:2000]),
        "linear": (b.LinearSVC(loss="hinge", C=10.0), X, y),
    }
    Cs = np.geomspace(0.1, 100.0, 6)
    rbf: dict[str, Any] = {"kernel": "rbf", "gamma": 0.1}

    def path(rows: int, **how: Any) -> str:
        return digest([b.svm_path(X[:rows], y[:rows], Cs, **how).points])

    fits = {name: (lambda case=case: published(*case)) for name, case in machines.items()}
    return {
        **fits,
        "path, linear": lambda: path(n),
        "path, exact": lambda: path(800, tol=1e-6, **rbf),
        "path, landmarks": lambda: path(4000, n_components=100, **rbf),
    }


def measure(case: Callable[[], str], repeat: int) -> tuple[str, float]:
    """The digest of a fit, and the least processor seconds of several runs."""
    least = np.inf
    for _ in range(repeat):
        began = time.process_time()
        digest = case()
        least = min(least, time.process_time() - began)
    return digest, float(least)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Halve and double each tuned value.")
    parser.add_argument("--only", default="", help="dataclasses or fields with this in their name")
    parser.add_argument("--repeat", type=int, default=2, help="runs of each fit, the best counts")
    given = parser.parse_args()
    table = Table("value", "default", "times", "fits that differ", "processor time", "")
    warnings.simplefilter("ignore")
    fits = cases()
    own = {name: measure(case, given.repeat + 1) for name, case in fits.items()}
    for kind in kinds():
        for name, default in numbers(kind).items():
            if given.only not in f"{kind.__name__}.{name}":
                continue
            for factor in (0.5, 2):
                value = type(default)(default * factor)
                differ, ratios = 0, []
                try:
                    with changed(kind, name, value):
                        for case, fit in fits.items():
                            digest, seconds = measure(fit, given.repeat)
                            differ += digest != own[case][0]
                            ratios.append(seconds / own[case][1])
                except (bigscreen.errors.InputError, ValueError) as error:
                    row = ("", "", f"refused: {error}"[:40])
                else:
                    times = f"{min(ratios):.2f} to {max(ratios):.2f}"
                    row = (f"{differ} of {len(fits)}", times, "" if differ else "not felt")
                table.add_row(f"{kind.__name__}.{name}", str(default), str(factor), *row)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()

"""How fast this machine is: measured once in about a second, kept in the user's cache folder.

Only the times that `plan` says rest on it: choices, and so results, are the same on every machine.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bigscreen.data.limits import read_json
from bigscreen.errors import InputError
from bigscreen.files.output import replacing
from bigscreen.files.sealed import Damaged, check_seal, sealed
from bigscreen.fleet.blas import blas_threads
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import Rbf

ROUNDS = 5
"""Of each measurement the best of so many counts."""


class Speed(NamedTuple):
    """Nanoseconds of one thread.

    Parameters
    ----------
    entry : float
        A float32 entry of an RBF kernel between rows of 18 columns, summed at once.
    product : float
        A multiplication and addition of float32 matrices.
    product64 : float
        The same of float64 matrices.
    row : float
        A row of a pass: a handful of float64 operations on arrays larger than the caches.
    """

    entry: float
    product: float
    product64: float
    row: float


USUAL = Speed(entry=0.8, product=0.018, product64=0.036, row=3.0)
"""Of a core of 2023 with AVX-512."""


def measure() -> Speed:
    """The speed of one thread of this machine, now."""
    rng = np.random.default_rng(0)
    rows, side = (Operand(rng.standard_normal((n, 18)).astype(np.float32)) for n in (4096, 512))
    ones, square = np.ones((512, 1)), rng.standard_normal((1024, 1024))
    narrow, many = square.astype(np.float32), rng.standard_normal(1 << 21)
    kernel = Rbf(gamma=1 / 32)
    with blas_threads(1):
        return Speed(
            entry=_best(lambda: kernel.dots(rows, side, ones)) / (4096 * 512),
            product=_best(lambda: narrow @ narrow) / 1024**3,
            product64=_best(lambda: square @ square, 3) / 1024**3,
            row=_best(lambda: np.maximum(many, 1.0 - many * 0.5).sum()) / len(many),
        )


def _best(call: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """Nanoseconds of the fastest call, after one that compiles: of the processor, not of the clock.

    What is kept is kept for good, and other programs may be busy while it is measured.
    """
    call()
    took = []
    for _ in range(rounds):
        began = time.thread_time_ns()
        call()
        took.append(time.thread_time_ns() - began)
    return float(min(took))


def cache_folder() -> Path:
    """Where this user's programs keep what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bigscreen"


def known() -> Speed:
    """The speed of this machine: measured where it is not known, and kept if it can be."""
    file, machine = cache_folder() / "speed.json", _machine()
    try:
        record = read_json(file)
        check_seal(record, needed=True)
        found = record["machines"]
        speed = Speed(**found[machine])
        if all(value > 0 for value in speed):
            return speed
    except (OSError, ValueError, TypeError, LookupError, Damaged, InputError):
        found = {}
    speed = measure()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as stream:
            stream.write(sealed({"machines": {**found, machine: speed._asdict()}}))
    except (OSError, InputError):
        pass
    return speed


def _machine() -> str:
    """What a speed is of: home folders are shared between machines."""
    return f"{platform.node()} {platform.machine()} {os.cpu_count()} numpy {np.__version__}"

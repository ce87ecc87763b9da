"""How many calls lie between a public fit and the arithmetic: a reader follows each of them."""

import sys
from pathlib import Path

import numpy as np
import pytest

import bigscreen
from bigscreen.kernels import cache
from bigscreen.solvers.newton import shard

ROOT = str(Path(bigscreen.__file__).parent)

NEWTON, BLOCK = 11, 15
"""Calls from the fit to the compiled loop of a Newton shard, and to the entries of a block."""


class Reached(Exception):
    """The innermost function was called."""


def calls(machine, monkeypatch, module, name):
    """The package's own functions from ``fit`` to this one, the outermost first."""
    found = []

    def spy(*args, **options):
        frame = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(ROOT):
                found.append(f"{code.co_filename[len(ROOT) + 1 :]}:{code.co_qualname}")
            frame = frame.f_back
        raise Reached

    monkeypatch.setattr(module, name, spy)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 5)).astype(np.float32)
    with pytest.raises(Reached):
        machine.fit(X, (X[:, 0] > 0).astype(int))
    return found[::-1]


def test_from_a_landmark_machine_to_the_newton_shards_loop(monkeypatch):
    machine = bigscreen.NystroemSVC(n_components=50)
    found = calls(machine, monkeypatch, shard, "segment_losses")
    assert found[0].endswith("fit") and found[-1].endswith("NewtonProgram._trial")
    assert len(found) <= NEWTON, "\n".join(found)


def test_from_an_exact_machine_to_a_block_of_kernel_columns(monkeypatch):
    machine = bigscreen.SVC(gamma=0.5, solver="block")
    found = calls(machine, monkeypatch, cache.KernelCache, "_compute")
    assert found[0].endswith("fit") and found[-1].endswith("KernelCache.accumulate")
    assert len(found) + 1 <= BLOCK, "\n".join(found)

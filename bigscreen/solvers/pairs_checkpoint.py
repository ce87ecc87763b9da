"""Checkpoints of pair steps: what cannot be computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.checkpoint import save_alone
from bigscreen.solvers.pairs_state import State

PLACE = "pairs"
"""Where in the folder of a problem they are."""

ARRAYS = ("alpha", "alive", "x", "F", "since", "side", "streak", "counts")
TALLIES = ("value", "fine_at", "steps", "checks", "false_removals", "violation")


def save(state: State, folder: Path, meta: dict[str, Any]) -> None:
    """Write a checkpoint, whole or not at all; kernel rows are computed again."""
    record = {name: getattr(state, name) for name in TALLIES}
    record |= {"entries": state.rows.entries, "wide": state.rows.dtype is np.float64}
    arrays = {name: getattr(state, name) for name in ARRAYS}
    save_alone(folder / PLACE, {**meta, "pairs": record}, arrays)


def restore(state: State, meta: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    """Go on from what ``save`` wrote; ``meta`` is then what it was given."""
    for name in ARRAYS:
        setattr(state, name, arrays[name])
    record = meta.pop("pairs")
    for name in TALLIES:
        setattr(state, name, record[name])
    state.rows.computed = record["entries"]
    if record["wide"]:
        state.rows.refine()
    state.bounds()
    if len(state.alive) < len(state.rows.alive):
        state.rows.look_at(state.alive)
    state.restored = True

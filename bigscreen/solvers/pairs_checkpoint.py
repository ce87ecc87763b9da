"""Checkpoints of pair steps: what cannot be computed again, in one file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from bigscreen.solvers.pairs_state import State

CHECKPOINT = "pairs.npz"

ARRAYS = ("alpha", "alive", "x", "F", "since", "side", "streak", "counts")
TALLIES = ("value", "fine_at", "steps", "checks", "false_removals", "violation")


def save(state: State, folder: Path, meta: dict[str, Any]) -> None:
    """Write a checkpoint, whole or not at all; kernel rows are computed again."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / (CHECKPOINT + ".tmp")
    record = {**{name: getattr(state, name) for name in TALLIES}, "meta": meta}
    record |= {"entries": state.rows.entries, "wide": state.rows.dtype is np.float64}
    with open(part, "wb") as file:
        arrays: dict[str, Any] = {name: getattr(state, name) for name in ARRAYS}
        np.savez(file, record=np.frombuffer(json.dumps(record).encode(), np.uint8), **arrays)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, folder / CHECKPOINT)


def load(state: State, path: Path) -> dict[str, Any]:
    """Go on from a checkpoint; returns the meta that was saved with it."""
    with np.load(path, allow_pickle=False) as saved:
        for name in ARRAYS:
            setattr(state, name, saved[name])
        record = json.loads(saved["record"].tobytes())
    for name in TALLIES:
        setattr(state, name, record[name])
    state.rows.entries = record["entries"]
    if record["wide"]:
        state.rows.refine()
    state.bounds()
    if len(state.alive) < len(state.rows.alive):
        state.rows.look_at(state.alive)
    state.restored = True
    return record["meta"]

"""The block solver: block decomposition of the exact kernel machine over shards.

A round makes a block of the rows that violate optimality most and of free rows of the last block
(at most half of the block; without them the solver would zigzag). It solves the block's problem by
pair steps, and sends the rows whose alpha has changed to the shards, which add their kernel columns
to the scores. Only such rows cost a kernel column: n entries each, once while it stays cached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bigscreen.errors import InputError
from bigscreen.problems.point import Point
from bigscreen.problems.recipes import refuse_uncommon
from bigscreen.solvers.block.coordinator import BlockRun
from bigscreen.solvers.block.tuning import BlockTuning
from bigscreen.solvers.protocol import Check, Run


@dataclass(frozen=True)
class Block:
    """The block solver.

    Parameters
    ----------
    size : int
        Rows of a block, at least 4 and at most an eighth of all rows. It doubles, up to 4,096,
        while more than half of the block is free. All rows that are free or violate make one block
        if they are at most 8,192.
    cache : int
        Bytes of cached kernel columns, over all shards.
    depth : float
        Solve a block until its violation is this fraction of the violation of all rows before.
    seed : int
        Seed of the first block.
    tuning : BlockTuning
    """

    size: int = 2048
    cache: int = 1 << 30
    depth: float = 0.1
    seed: int = 0
    tuning: BlockTuning = BlockTuning()

    run_class: ClassVar[type[BlockRun]] = BlockRun
    """The coordinator of a solve; a subclass can watch its steps."""

    def __post_init__(self) -> None:
        if self.size < 4:
            raise InputError(f"a block needs at least 4 rows, not {self.size}")

    def solve(self, run: Run, check: Check) -> Point:
        """Solve until ``check`` is satisfied; return the last point.

        Raises
        ------
        InputError
            For a design with columns, which has better solvers, and for squared losses.
        """
        if not run.design.exact:
            raise InputError("the block solver needs an exact kernel; use newton or cd")
        refuse_uncommon(run.problem)
        block = self.run_class(self, run.design, run.problem, run.fleet)
        folder = run.checkpoint
        meta = None if folder is None else run.fleet.load(folder)
        if folder is not None and meta is not None:
            block.restore(folder, meta)
            check.restored(meta)
        elif run.start is not None:
            block.open_at(run.start)
        else:
            block.open_cold()
        return block.run(check)

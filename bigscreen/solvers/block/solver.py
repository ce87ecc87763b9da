"""Block decomposition of the exact kernel machine, over shards.

Every round takes the rows that violate optimality most into a block, keeps half of the last block
that is still free (or it would zig-zag), solves the block's own problem by pair steps, and sends
the rows whose alpha has changed to the shards, which add their kernel columns to the scores. Only
rows that have moved cost a kernel column: n entries each, once, while the cache lasts.
"""

from __future__ import annotations

from dataclasses import dataclass

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
        Rows of a block, 4 or more; an eighth of all at most. It doubles, up to 4,096, while more
        rows than half of it are free; up to 8,192 make a block where these are all rows that
        are free or violate.
    cache : int
        Bytes of kernel columns kept, all shards together.
    depth : float
        A block is solved until its violation is this part of that of all rows.
    seed : int
        Of the first block.
    tuning : BlockTuning
    """

    size: int = 2048
    cache: int = 1 << 30
    depth: float = 0.1
    seed: int = 0
    tuning: BlockTuning = BlockTuning()

    def __post_init__(self) -> None:
        if self.size < 4:
            raise InputError(f"a block needs at least 4 rows, not {self.size}")

    def solve(self, run: Run, check: Check) -> Point:
        """Solve to whatever ``check`` asks for; returns the last point.

        Raises
        ------
        InputError
            For a design with columns: it has better solvers; for squared losses.
        """
        if not run.design.exact:
            raise InputError("the block solver needs an exact kernel; use newton or cd")
        refuse_uncommon(run.problem)
        block = BlockRun(self, run.design, run.problem, run.fleet)
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

"""Block decomposition of the exact kernel machine, over shards.

Every round takes the rows that violate optimality most into a block, keeps half of the last block
that is still free (or it would zig-zag), solves the block's own problem by pair steps, and sends
the rows whose alpha has changed to the shards, which add their kernel columns to the scores. Only
rows that have moved cost a kernel column: n entries each, once, while the cache lasts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bigscreen.design import Design
from bigscreen.dual import FloatArray
from bigscreen.errors import InputError
from bigscreen.point import Point
from bigscreen.problems import Problem, refuse_uncommon
from bigscreen.solvers.block_open import open_at, open_cold, refine
from bigscreen.solvers.block_screen import revive, screen
from bigscreen.solvers.block_solve import Solve
from bigscreen.solvers.protocol import Check


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
    """

    size: int = 2048
    cache: int = 1 << 30
    depth: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.size < 4:
            raise InputError(f"a block needs at least 4 rows, not {self.size}")

    def run(
        self,
        design: Design,
        problem: Problem,
        fleet: Any,
        check: Check,
        *,
        weight_bound: float,
        resident: bool = True,
        resume: Path | None = None,
        start: FloatArray | None = None,
    ) -> Point:
        """Solve to whatever ``check`` asks for; returns the last point.

        Raises
        ------
        InputError
            For a design with columns: it has better solvers; for squared losses.
        """
        if not design.exact:
            raise InputError("the block solver needs an exact kernel; use newton or cd")
        refuse_uncommon(problem)
        solve = Solve(self, design, problem, fleet)
        meta = None if resume is None else fleet.load(resume)
        if resume is not None and meta is not None:
            solve.restore(resume, meta)
            check.restored(meta)
        elif start is not None:
            open_at(solve, start)
        else:
            open_cold(solve)
        return driven(solve, check)


def driven(solve: Solve, check: Check) -> Point:
    """Go from block to block until ``check`` answers None; returns the last point."""
    while True:
        point = solve.point()
        verdict = check(point, solve.stats(), solve.save)
        if verdict is None:
            return point
        if not verdict.restart and not solve.fine and (verdict.doubted or solve.stuck):
            refine(solve)  # check has seen this point and asks for more
            continue
        solve.counts = (0, 0)
        if verdict.restart:
            revive(solve)
        elif verdict.region is not None:
            screen(solve, verdict.region)
        solve.advance()

"""Grids of C and nu: what is wrong with one is said before any kernel entry is computed."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from bigscreen.dual import FloatArray
from bigscreen.errors import InputError

LARGEST = 1e30
"""Values of C lie between this and 1 by this: squares of their ratios stay in the range of float64,
as do those of scores."""


def checked_grid(values: ArrayLike, name: str) -> FloatArray:
    """The values of a grid, float64 (points,): in range and strictly ascending.

    Parameters
    ----------
    name : {"C", "nu"}

    Raises
    ------
    InputError
        If they are not; sorting them silently would hide from the caller which point is which.
    """
    try:
        grid = np.atleast_1d(np.asarray(values, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise InputError(f"the values of {name} must be numbers, got {values!r}") from error
    if grid.ndim != 1 or not len(grid):
        raise InputError(f"the values of {name} must be a list of one number or more")
    least, most = (0.0, 1.0) if name == "nu" else (1 / LARGEST, LARGEST)
    wrong = ~((grid > 0) & (grid >= least) & (grid <= most))
    if wrong.any():
        k = int(np.argmax(wrong))
        allowed = "lie in (0, 1]" if name == "nu" else f"lie from {least:g} to {most:g}"
        raise InputError(f"the values of {name} must {allowed}, and value {k + 1} is {grid[k]:g}")
    steps = np.diff(grid)
    if (steps <= 0).any():
        k = int(np.argmax(steps <= 0))
        how = "comes twice" if steps[k] == 0 else f"comes after {grid[k]:g}"
        raise InputError(
            f"the values of {name} must ascend without repeats, and {grid[k + 1]:g} {how} "
            f"(value {k + 2}); sort them, and give each once"
        )
    return grid

"""Exact products of rows of 8-bit integers (AVX-512 VNNI), where a processor has the instructions.

Bytes, flags, one-hot columns, small counts and pixels that were divided by 255 are multiplied as
the integers they stand for, sixteen sums of four products an instruction: a quarter of what BLAS
takes for float32 numbers, and nothing is rounded. All other rows go through BLAS as they would.

    <a, b> = <a - l, b - r> + r <a, 1> + l <1, b> - d l r

with l and r, 0 or 128, so that what stands on the left fits a signed byte and what stands on the
right an unsigned one. Sums are 32 bits wide and may wrap around on the way: what they come to fits.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, cast

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from bigscreen.kernels import amx
from bigscreen.numerics.rows import aligned, njit

LEFT, RIGHT = 8, 32
"""Rows of a panel on either side: their 8 x 32 sums stay in registers."""

QUAD = 4
"""Columns that are multiplied and added at once."""

PITCH = 528
"""Distance of two rows of sums: not to fall on the same places of the first-level cache."""

MOST = 2**14
"""Columns; of more a distance might not fit its 32 bits."""

SHIFT = 128


@cache
def available() -> bool:
    """Whether this process may use the instructions, and has no matrix unit, which is faster.

    ``BIGSCREEN_VNNI=0`` in the environment switches it off.
    """
    if os.environ.get("BIGSCREEN_VNNI") == "0" or platform.machine() not in ("x86_64", "AMD64"):
        return False
    features = binding.get_host_cpu_features()
    if amx.available() or not all(features.get(name) for name in ("avx512vnni", "avx512f")):
        return False
    # numba compiles no assembly unless LLVM is told to read it.
    binding.initialize_native_asmparser()
    return True


class Grid(NamedTuple):
    """What the rows on the right are multiples of, and how they and others become bytes.

    steps: rows times steps are integers. left, right: what is taken off those on either side.
    """

    steps: float
    left: int
    right: int

    @property
    def least(self) -> int:
        """The smallest integer that may stand on the left; the largest is 255 more."""
        return self.left - SHIFT


class Bytes(NamedTuple):
    """Rows as the instructions read them.

    numbers: uint8 (panels, quads, rows of a panel, QUAD). sums, squares: int64 (rows,), of the
    integers and of their squares. fits: bool (rows,), whether a row is on the grid (others are 0).
    """

    numbers: NDArray[np.uint8]
    sums: NDArray[np.int64]
    squares: NDArray[np.int64]
    fits: NDArray[np.bool_]


def grid_of(rows: NDArray[Any]) -> Grid | None:
    """The grid that all these rows (n, d) are on; None if there is none that bytes can hold."""
    d = rows.shape[1]
    if not 1 <= d <= MOST or not len(rows):
        return None
    for steps in (1.0, amx.LEVELS) if d >= amx.FEWEST else (1.0,):
        low, high = _range(rows, steps)
        if low >= 0 and high <= 255:
            return Grid(steps, SHIFT if high >= SHIFT else 0, 0)
        if low >= -SHIFT and high < SHIFT:
            return Grid(steps, 0, -SHIFT)
    return None


def space(n_rows: int, d: int, panel: int) -> NDArray[np.uint8]:
    """Of the numbers of that many rows, beginning where a cache line does."""
    return aligned((-(-n_rows // panel), -(-d // QUAD), panel, QUAD), np.uint8)


def packed(numbers: NDArray[np.uint8], n_rows: int) -> Bytes:
    """Rows yet to be packed, in this space."""
    sums = np.empty((2, n_rows), np.int64)
    return Bytes(numbers, sums[0], sums[1], np.empty(n_rows, np.bool_))


def pack(rows: NDArray[Any], into: Bytes, first: int, grid: Grid, right: bool) -> None:
    """Put rows (n, d) where products read them, from row ``first`` on, a multiple of the panel."""
    end, panel = first + len(rows), into.numbers.shape[2]
    here = slice(first // panel, -(-end // panel))
    least, shift = (grid.right, 0) if right else (grid.least, SHIFT)
    _pack(
        rows,
        grid.steps,
        (least, shift),
        into.numbers[here],
        (into.sums[first:end], into.squares[first:end], into.fits[first:end]),
    )


@njit(nogil=True, cache=True)
def _level(x: Any, steps: float) -> float:
    """The integer that a number stands for on this grid; NaN if there is none."""
    number = np.float64(x)
    level = np.rint(number * steps)
    # What was divided by the steps was rounded: amx._levels.
    off = abs(number - level * (1.0 / steps))
    near = off == 0.0 if steps == 1.0 else off <= 2.0**-23 * abs(number)
    return level if near else np.nan


@njit(nogil=True, cache=True)
def _range(rows: NDArray[Any], steps: float) -> tuple[float, float]:
    """The least and the largest integer that these rows stand for; infinite if not all do."""
    low, high = 0.0, 0.0
    for i in range(len(rows)):
        wrong = 0
        for k in range(rows.shape[1]):
            level = _level(rows[i, k], steps)
            wrong += not abs(level) <= 255.0
            low, high = min(low, level), max(high, level)
        if wrong:
            return -np.inf, np.inf
    return low, high


@njit(nogil=True, cache=True)
def _pack(
    rows: NDArray[Any],
    steps: float,
    least: tuple[int, int],
    numbers: NDArray[np.uint8],
    known: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]],
) -> None:
    n, d = rows.shape
    quads, panel = numbers.shape[1], numbers.shape[2]
    sums, squares, fits = known
    row = np.zeros(quads * QUAD, np.uint8)
    words, to = row.view(np.uint32), numbers.reshape(-1).view(np.uint32)
    # A row's bytes are what it is above the least one, the sign of those on the left turned.
    low, sign = least
    for i in range(panel * len(numbers)):
        total, square, wrong = np.int64(0), np.int64(0), 0
        row[:] = 0
        if i < n:
            for k in range(d):
                level = _level(rows[i, k], steps)
                there = low <= level <= low + 255
                wrong += not there
                x = np.int64(level if there else 0.0)
                total += x
                square += x * x
                row[k] = np.uint8((x - low) ^ sign)
            if wrong:
                row[:] = 0
                total, square = np.int64(0), np.int64(0)
            sums[i], squares[i], fits[i] = total, square, wrong == 0
        place = (i // panel) * quads * panel + i % panel
        for q in range(quads):
            to[place + q * panel] = words[q]


def _instruction(function: Callable[..., Any]) -> Callable[..., None]:
    """`numba.extending.intrinsic`, typed as compiled code calls it: without the typing context."""
    return cast("Callable[..., None]", intrinsic(function))


def _text() -> str:
    """Of `multiply_panels`: $0 and $1 walk along the panels, $2 counts, $6 is where sums go."""
    lines = [f"vpxord %zmm{k}, %zmm{k}, %zmm{k}" for k in range(2 * LEFT)]
    lines += ["1:", "vmovdqu64 ($1), %zmm16", "vmovdqu64 64($1), %zmm17"]
    for r in range(LEFT):
        lines += [
            f"vpbroadcastd {QUAD * r}($0), %zmm{18 + r % 4}",
            f"vpdpbusd %zmm{18 + r % 4}, %zmm16, %zmm{2 * r}",
            f"vpdpbusd %zmm{18 + r % 4}, %zmm17, %zmm{2 * r + 1}",
        ]
    lines += [f"addq $${QUAD * LEFT}, $0", f"addq $${QUAD * RIGHT}, $1", "decq $2", "jnz 1b"]
    for k in range(2 * LEFT):
        lines.append(f"vmovdqu32 %zmm{k}, {4 * PITCH * (k // 2) + 64 * (k % 2)}($6)")
    return "\n".join(lines)


@_instruction
def multiply_panels(typing: Any, left: Any, right: Any, quads: Any, sums: Any) -> Any:
    """The LEFT x RIGHT sums of two panels (addresses, at least one quad), PITCH numbers apart."""
    words = ir.IntType(64)
    registers = [f"~{{zmm{k}}}" for k in range(22)]
    flags = ["~{memory}", "~{dirflag}", "~{fpsr}", "~{flags}"]

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = ir.FunctionType(ir.LiteralStructType([words] * 3), [words] * 4)
        constraints = ",".join(["=&r"] * 3 + ["0", "1", "2", "r"] + registers + flags)
        builder.asm(function, _text(), constraints, arguments, side_effect=True)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), emit

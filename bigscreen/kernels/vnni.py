"""Exact products of columns of 8-bit integers with AVX-512 VNNI instructions.

Flags, one-hot columns, small counts, bytes, and pixels divided by 255 are multiplied as the
integers that they represent: sixteen sums of four products per instruction. That takes a quarter of
the time of float32 BLAS, and rounds nothing. If most columns are such, the other columns are
multiplied in float32 and added.

    <a, b> = <a - l, b - r> + r <a, 1> + l <1, b> - d l r

Here l is 0 or 128, and r is 0 or -128, so that a - l fits a signed byte and b - r an unsigned one.
Sums have 32 bits and may wrap around in between, since the final value fits.
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

from bigscreen.numerics.rows import FloatArray, aligned, njit

LEFT, RIGHT = 8, 32
"""Numbers of data rows that one matrix product of bytes multiplies: 8 from its left factor, each
with 32 from its right factor. Their 8 x 32 sums fit the AVX-512 registers."""

WORD = 4
"""Bytes of a data row that one lane of a vector instruction multiplies: four 8-bit integers, or one
float32 number."""

SUMS_ROW_STRIDE = 528
"""Stride, in array elements of 4 bytes, between two rows of the buffer of LEFT rows of sums. It is
no power of 2: then the rows would share cache sets and evict each other."""

MAX_BYTE_COLUMNS = 2**14
"""Multiply rows as bytes (8-bit integers) only if they have at most this many columns; with more,
squared distances might exceed int32."""

SHIFT = 128
"""Number added to a signed byte (-128 to 127) to get an unsigned byte (0 to 255)."""


@cache
def is_available() -> bool:
    """Whether this process may use AVX-512 VNNI instructions.

    The environment variable ``BIGSCREEN_VNNI=0`` switches them off.
    """
    if os.environ.get("BIGSCREEN_VNNI") == "0" or platform.machine() not in ("x86_64", "AMD64"):
        return False
    features = binding.get_host_cpu_features()
    if not all(features.get(name) for name in ("avx512vnni", "avx512f")):
        return False
    # numba compiles inline assembly only with LLVM's assembly parser.
    binding.initialize_native_asmparser()
    return True


class Grid(NamedTuple):
    """The columns whose values are multiples of 1 / steps, and the shifts that make them bytes.

    ``small`` (int64) are the columns in which rows times ``steps`` are integers of 8 bits,
    ``others`` all other columns. ``left`` and ``right`` are subtracted from the integers of rows
    on the left and right side of products, so that they fit a signed and an unsigned byte.
    """

    steps: float
    left: int
    right: int
    small: NDArray[np.int64]
    others: NDArray[np.int64]

    @property
    def exact(self) -> bool:
        """Whether all columns are unscaled integers, so that products of rows are exact."""
        return self.steps == 1.0 and not len(self.others)


class Panels(NamedTuple):
    """Rows in the memory order that the VNNI instructions read.

    Attributes
    ----------
    small : uint8 (panels, words, rows of a panel, WORD)
        The columns of integers; a word is WORD of them.
    sums, squares : int64 (rows,)
        Sums of each row's integers and of their squares.
    fits : bool (rows,)
        Whether a row's values are on the grid; rows that are not are stored as 0.
    others : float32 (panels, other columns, rows of a panel)
        The columns that are no integers.
    halves : float64 (rows,)
        Half the squared norms of the other columns.
    """

    small: NDArray[np.uint8]
    sums: NDArray[np.int64]
    squares: NDArray[np.int64]
    fits: NDArray[np.bool_]
    others: NDArray[np.float32]
    halves: FloatArray


Space = Callable[[tuple[int, ...], type], NDArray[Any]]
"""A function that returns an array of a shape and type, aligned to a cache line."""


def find_grid(rows: NDArray[Any]) -> Grid | None:
    """Find the grid of rows (n, d); None if fewer than half of their columns are bytes.

    A grid is the multiples of ``1 / steps``. A column is one of bytes if all its values times
    ``steps`` are integers within a range of 256.

    With 16 columns or more, multiples of 1/255 (scaled 8-bit pixels) are tried, too: rounding such
    numbers to the grid changes a sum of fewer terms by more than its rounding.
    """
    n, d = rows.shape
    if not (n and d):
        return None
    for steps in (1.0, 255.0) if d >= 16 else (1.0,):
        low, high = _ranges(rows, steps, d // 2)
        plain, signed = (low >= 0) & (high <= 255), (low >= -SHIFT) & (high < SHIFT)
        unsigned = np.sum(plain) >= np.sum(signed)
        small = np.flatnonzero(plain if unsigned else signed)
        if d <= 2 * len(small) and len(small) <= MAX_BYTE_COLUMNS:
            others = np.setdiff1d(np.arange(d), small)
            if not unsigned:
                return Grid(steps, 0, -SHIFT, small, others)
            return Grid(steps, SHIFT if high[small].max() >= SHIFT else 0, 0, small, others)
    return None


def pack_rows(
    rows: NDArray[Any], grid: Grid, origin: NDArray[Any], panel: int, space: Space = aligned
) -> Panels:
    """Pack rows (n, d) into panels for products of bytes.

    Parameters
    ----------
    rows : ndarray (n, d)
    grid : Grid
    origin : (d,)
        Subtracted from the other columns; 0 for columns of bytes.
    panel : int
        Rows of a panel: LEFT or RIGHT, which also says on which side of products the rows are.
    space : Space
        Provides the memory.
    """
    n, m = len(rows), -(-len(rows) // panel)
    small = space((m, -(-len(grid.small) // WORD), panel, WORD), np.uint8)
    others = space((m, len(grid.others), panel), np.float32)
    sums, fits, halves = np.empty((2, n), np.int64), np.empty(n, np.bool_), np.empty(n)
    least, sign = (grid.left - SHIFT, SHIFT) if panel == LEFT else (grid.right, 0)
    _pack(rows, grid.steps, grid.small, (least, sign), small, (sums[0], sums[1], fits))
    _pack_others(rows, grid.others, origin, others, halves)
    return Panels(small, sums[0], sums[1], fits, others, halves)


@njit(nogil=True, cache=True)
def _level(x: Any, steps: float) -> float:
    """Return the integer that a number represents on this grid, ``x steps``; NaN if none.

    A grid is the multiples of ``1 / steps``; for 8-bit pixels divided by 255 ``steps`` is 255.
    """
    number = np.float64(x)
    level = np.rint(number * steps)
    # The division by the steps may have been rounded.
    off = abs(number - level * (1.0 / steps))
    near = off == 0.0 if steps == 1.0 else off <= 2.0**-23 * abs(number)
    return level if near else np.nan


@njit(nogil=True, cache=True)
def _ranges(rows: NDArray[Any], steps: float, most: int) -> tuple[FloatArray, FloatArray]:
    """Return the least and the largest integer (values times ``steps``) of each column, (d,) each.

    The least is -inf for a column with a value that is no integer or whose size exceeds 255; it is
    -inf for all columns if more than ``most`` columns have such a value.
    """
    n, d = rows.shape
    low, high = np.zeros(d), np.zeros(d)
    for i in range(n):
        wrong = 0
        for k in range(d):
            level = _level(rows[i, k], steps)
            there = abs(level) <= 255.0
            low[k] = min(low[k], level) if there else -np.inf
            high[k] = max(high[k], level)
            wrong += low[k] == -np.inf
        if wrong > most:
            low[:] = -np.inf
            break
    return low, high


@njit(nogil=True, cache=True)
def _levels(
    rows: NDArray[Any],
    i: int,
    steps: float,
    columns: NDArray[np.int64],
    low: int,
    levels: NDArray[np.int32],
) -> bool:
    """Write the integers of row i to `levels`; return whether all are within [low, low + 255].

    The integers are the values in ``columns`` times ``steps``; 0 is written for others.
    """
    d, wrong = len(columns), 0
    every = d == rows.shape[1]
    for k in range(d):
        level = _level(rows[i, k] if every else rows[i, columns[k]], steps)
        there = low <= level <= low + 255
        wrong += not there
        levels[k] = np.int32(level if there else 0.0)
    return wrong == 0


@njit(nogil=True, cache=True)
def _pack(
    rows: NDArray[Any],
    steps: float,
    columns: NDArray[np.int64],
    least: tuple[int, int],
    numbers: NDArray[np.uint8],
    known: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]],
) -> None:
    """Write the integers of rows to panels of bytes (see `Panels`).

    ``columns``: where rows times ``steps`` are integers. ``least``: the least integer of a byte,
    and a bit to flip (128 on the left, else 0). ``numbers``: the panels, written. ``known``: the
    rows' sums, sums of squares, and whether their integers fit, written.
    """
    n, d = len(rows), len(columns)
    words, panel = numbers.shape[1], numbers.shape[2]
    sums, squares, fits = known
    row, levels = np.zeros(words * WORD, np.uint8), np.zeros(d, np.int32)
    here, to = row.view(np.uint32), numbers.reshape(-1).view(np.uint32)
    # The bytes are the integers less the least one; on the left with the sign bit flipped.
    low, sign = np.int32(least[0]), np.int32(least[1])
    for i in range(panel * len(numbers)):
        row[:] = 0
        if i < n:
            fits[i] = _levels(rows, i, steps, columns, least[0], levels)
            if not fits[i]:
                levels[:] = 0
            total, square = np.int32(0), np.int32(0)  # (MAX_BYTE_COLUMNS squares fit)
            for k in range(d):
                x = levels[k]
                total = np.int32(total + x)
                square = np.int32(square + x * x)
                row[k] = np.uint8((x - low) ^ sign)
            sums[i], squares[i] = total, square
        place = (i // panel) * words * panel + i % panel
        for q in range(words):
            to[place + q * panel] = here[q]


@njit(nogil=True, cache=True)
def _pack_others(
    rows: NDArray[Any],
    columns: NDArray[np.int64],
    origin: NDArray[Any],
    numbers: NDArray[np.float32],
    halves: FloatArray,
) -> None:
    """Write columns that are no bytes, less the origin, to panels of float32 (see `Panels`).

    ``columns``: their numbers. ``numbers``: the panels, written. ``halves``: half the squared norm
    of each row over these columns, written.
    """
    panel = numbers.shape[2]
    for i in range(panel * len(numbers)):
        to, square = numbers[i // panel, :, i % panel], 0.0
        for k in range(len(columns)):
            x = np.float32(0)
            if i < len(rows):
                x = np.float32(rows[i, columns[k]] - origin[columns[k]])
            to[k] = x
            square += np.float64(x) * np.float64(x)
        if i < len(rows):
            halves[i] = 0.5 * square


def instruction(function: Callable[..., Any]) -> Callable[..., None]:
    """Apply `numba.extending.intrinsic`: the function makes an instruction for compiled callers.

    The result has the type that callers see, without numba's typing context.
    """
    return cast("Callable[..., None]", intrinsic(function))


def _panels(multiply: str) -> Any:
    """Make an intrinsic (left, right, words, sums) that multiplies two panels.

    ``multiply``: the AVX-512 instruction that multiplies a word of a left row with words of right
    rows. Returned are numba's signature and code generator.

    Registers: $0 and $1 point into the panels, $2 counts words down, $6 is the address of the sums.
    """
    lines = [f"vpxord %zmm{k}, %zmm{k}, %zmm{k}" for k in range(2 * LEFT)]
    lines += ["1:", "vmovdqu64 ($1), %zmm16", "vmovdqu64 64($1), %zmm17"]
    for r in range(LEFT):
        lines += [
            f"vpbroadcastd {WORD * r}($0), %zmm{18 + r % 4}",
            f"{multiply} %zmm{18 + r % 4}, %zmm16, %zmm{2 * r}",
            f"{multiply} %zmm{18 + r % 4}, %zmm17, %zmm{2 * r + 1}",
        ]
    lines += [f"addq $${WORD * LEFT}, $0", f"addq $${WORD * RIGHT}, $1", "decq $2", "jnz 1b"]
    for k in range(2 * LEFT):
        lines.append(f"vmovdqu32 %zmm{k}, {4 * SUMS_ROW_STRIDE * (k // 2) + 64 * (k % 2)}($6)")
    words = ir.IntType(64)
    registers = [f"~{{zmm{k}}}" for k in range(22)]
    flags = ["~{memory}", "~{dirflag}", "~{fpsr}", "~{flags}"]

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Emit the assembly code (numba's code generator)."""
        function = ir.FunctionType(ir.LiteralStructType([words] * 3), [words] * 4)
        constraints = ",".join(["=&r"] * 3 + ["0", "1", "2", "r"] + registers + flags)
        builder.asm(function, "\n".join(lines), constraints, arguments, side_effect=True)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), emit


@instruction
def multiply_bytes(typing: Any, left: Any, right: Any, words: Any, sums: Any) -> Any:
    """Multiply two panels of bytes: LEFT x RIGHT int32 sums, in rows SUMS_ROW_STRIDE numbers apart.

    ``left``, ``right`` and ``sums`` are addresses, ``words`` the words of a row (WORD bytes each).
    Bytes on the left are signed, on the right unsigned.
    """
    return _panels("vpdpbusd")


@instruction
def multiply_floats(typing: Any, left: Any, right: Any, words: Any, sums: Any) -> Any:
    """Multiply two panels of float32 numbers: LEFT x RIGHT float32 sums, in column order.

    Arguments as in `multiply_bytes`.
    """
    return _panels("vfmadd231ps")

"""Float32 kernel entries on a processor's matrix unit (Intel AMX), where there is one.

The unit multiplies bfloat16 numbers of 8 significant bits and adds up in float32. A float32 number
is the exact sum of three of them, ``x = x1 + x2 + x3``, so ``x y`` takes the six products
``x1 y1 + x1 y2 + x2 y1 + x2 y2 + x1 y3 + x3 y1``; what they leave out is below 2^-24 of it. Rows of
few significant bits (bytes, counts, flags, one-hot columns) take ONE product, and so do pixels that
were divided by 255: such rows are multiplied as the integers they stand for.

The bits of a product depend on its two rows alone, never on what they are computed with: parts that
are 0 change no sum.
"""

from __future__ import annotations

import ctypes
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

from bigscreen.numerics.rows import njit

PANEL = 32
"""Rows that go through the unit at once: two of its tiles."""
CHUNK = 32
"""Columns of a tile."""
PARTS = 3
LEVELS = 255.0
"""Rows that are multiples of 1/255 (8-bit pixels scaled to [0, 1]) are taken as integers, ..."""
FEWEST = 16
"""... if they have so many columns: what is rounded by that is then less than sums are."""
WORDS = CHUNK // 4
HUGE = np.float32(2.0**110)
_UPPER = np.uint32(0xFFFF0000)


@cache
def available() -> bool:
    """Whether this process may use the unit; asks the system for it (Linux, x86-64).

    ``BIGSCREEN_AMX=0`` in the environment switches it off.
    """
    if os.environ.get("BIGSCREEN_AMX") == "0":
        return False
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    features = binding.get_host_cpu_features()
    if not all(features.get(name) for name in ("amx-tile", "amx-bf16", "avx512f")):
        return False
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    if ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) != 0:
        return False
    # numba compiles no assembly unless LLVM is told to read it.
    binding.initialize_native_asmparser()
    return True


class Packed(NamedTuple):
    """Rows as the unit reads them.

    tiles: uint16 (panels, chunks, parts, 2, 16, CHUNK), bfloat16 numbers; on the right every tile
    is transposed in pairs of columns. most: uint8 (panels, chunks), parts that are not all 0.
    scale: float32 (rows,), what a row's numbers are to be multiplied with.
    """

    tiles: NDArray[Any]
    most: NDArray[Any]
    scale: NDArray[Any]


def shape(n_rows: int, d: int, parts: int = PARTS) -> tuple[int, ...]:
    """Of the tiles of that many rows."""
    return -(-n_rows // PANEL), -(-d // CHUNK), parts, 2, 16, CHUNK


def row_bytes(d: int) -> int:
    """Of a row of d columns in the tiles, with all parts."""
    return 2 * PARTS * CHUNK * -(-d // CHUNK)


def packed(tiles: NDArray[Any], n_rows: int) -> Packed:
    """Space for that many rows in these tiles, which begin where a cache line does."""
    return Packed(tiles, np.empty(tiles.shape[:2], np.uint8), np.empty(n_rows, np.float32))


def pack(rows: NDArray[Any], into: Packed, first: int, right: bool) -> bool:
    """Put rows where a product reads them; returns whether they have no more parts than it has.

    Parameters
    ----------
    rows : float32 (n, d)
    into : Packed
        Rows ``first`` to ``first + n`` are set, ``first`` a multiple of PANEL.
    right : bool
        For the right side.
    """
    end = first + len(rows)
    here, scale = slice(first // PANEL, -(-end // PANEL)), into.scale[first:end]
    return bool(_pack(rows, into.tiles[here], into.most[here], scale, right))


def instruction(function: Callable[..., Any]) -> Callable[..., None]:
    """`numba.extending.intrinsic`, typed as compiled code calls it: without the typing context."""
    return cast("Callable[..., None]", intrinsic(function))


@instruction
def wide(typing: Any) -> Any:
    """Lets the loops of the function that calls it use vectors of 512 bits.

    LLVM keeps to 256 by itself, for processors that slow down with wider ones; those with the
    matrix unit do not.
    """

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # llvmlite knows no attributes with values, and writes down what the set holds. (Should that
        # change, loops are as they would be without.)
        if isinstance(builder.function.attributes, set):
            set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), emit


@njit(nogil=True, cache=True, fastmath={"reassoc", "nsz"})
def _levels(rows: NDArray[Any], i: int, k: int, end: int) -> bool:
    """Whether numbers k to end of a row are multiples of 1 / LEVELS, of 8 bits and rounded."""
    wrong = 0
    for j in range(k, end):
        x = np.float64(rows[i, j])
        level = np.rint(x * LEVELS)
        wrong += not (
            (abs(x - level * (1.0 / LEVELS)) <= 2.0**-23 * abs(x)) & (abs(level) <= 256.0)
        )
    return wrong == 0


@njit(nogil=True, cache=True)
def _read(rows: NDArray[Any], i: int, out: NDArray[Any]) -> np.float32:
    """out = a row, or the integers it stands for; returns what to multiply them with."""
    wide()
    d, few = rows.shape[1], np.uint32(0)
    for k in range(d):
        x = np.float32(rows[i, k])
        few |= x.view(np.uint32)
        out[k] = x
    if few & np.uint32(0xFFFF) == 0 or d < FEWEST:
        return np.float32(1.0)
    if not (_levels(rows, i, 0, FEWEST) and _levels(rows, i, FEWEST, d)):  # mostly known at once
        return np.float32(1.0)
    for k in range(d):
        out[k] = np.rint(np.float64(rows[i, k]) * LEVELS)
    return np.float32(1.0 / LEVELS)


@njit(nogil=True, cache=True)
def _split(x: NDArray[Any], high: NDArray[Any], p: int) -> bool:
    """high[p] = the bfloat16 numbers next to x, as bits; x = what they leave of it, exactly.

    Returns whether they leave anything.
    """
    wide()
    some = np.uint32(0)
    for k in range(len(x)):
        far = x[k] * np.float32(2.0**16 + 1.0)  # Veltkamp's split: float32 has 16 bits more
        # Where that overflows the other bits are cut off.
        cut = np.uint32(np.float32(x[k]).view(np.uint32) & _UPPER).view(np.float32)
        near = np.float32(far - (far - x[k]) if abs(x[k]) < HUGE else cut)
        rest = np.float32(x[k] - near)
        x[k] = rest
        some |= rest.view(np.uint32) << np.uint32(1)  # a zero may have a sign
        high[p, k] = near.view(np.uint32) >> np.uint32(16)
    return bool(some != 0)


@njit(nogil=True, cache=True)
def _copy(words: NDArray[Any], p: int, first: int, numbers: NDArray[Any], place: int) -> bool:
    """Copy a chunk of a part; returns whether it is not all 0."""
    some = np.uint64(0)
    for k in range(WORDS):
        word = words[p, np.uint64(first + k)]
        numbers[np.uint64(place + k)] = word
        some |= word
    return bool(some != 0)


@njit(nogil=True, cache=True)
def _pack(
    rows: NDArray[Any], tiles: NDArray[Any], most: NDArray[Any], scale: NDArray[Any], right: bool
) -> bool:
    n, d = rows.shape
    chunks, parts = tiles.shape[1], tiles.shape[2]
    x = np.zeros(CHUNK * chunks, np.float32)
    high = np.zeros((parts, CHUNK * chunks), np.uint16)
    words, numbers = high.view(np.uint64), tiles.reshape(-1).view(np.uint64)
    most[:] = 1
    fits = True
    for i in range(PANEL * len(tiles)):
        panel, r = i // PANEL, i % PANEL
        if i < n:
            scale[i] = _read(rows, i, x)
        used, left = 0, True
        while left and used < parts:
            left = _split(x, high, used)
            used += 1
        fits &= not left
        for p in range(used, parts):
            high[p] = 0
        for c in range(chunks):
            place = ((panel * chunks + c) * parts * PANEL + r) * WORDS
            for p in range(parts):
                if _copy(words, p, WORDS * c, numbers, place) and p >= most[panel, c]:
                    most[panel, c] = p + 1
                place += PANEL * WORDS
    if right:
        _transpose(tiles.reshape(-1, 16, CHUNK))
    return fits


@njit(nogil=True, cache=True)
def _transpose(tiles: NDArray[Any]) -> None:
    """Every tile turned, pairs of columns staying together."""
    pairs = tiles.view(np.uint32)
    for k in range(len(pairs)):
        tile = pairs[k]
        for i in range(16):
            for j in range(i):
                tile[i, j], tile[j, i] = tile[j, i], tile[i, j]


def _assembly(text: str, count: int) -> Any:
    """A function of ``count`` addresses or numbers that runs these instructions."""
    words = ir.IntType(64)
    clobbered = ["~{memory}", "~{dirflag}", "~{fpsr}", "~{flags}"]

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = ir.FunctionType(ir.VoidType(), [words] * count)
        constraints = ",".join(["r"] * count + clobbered)
        builder.asm(function, text, constraints, arguments, side_effect=True)
        return context.get_dummy_value()

    return types.void(*[types.int64] * count), emit


@instruction
def configure(typing: Any, address: Any) -> Any:
    """Set the shapes of all tiles from the 64 bytes at this address."""
    return _assembly("ldtilecfg ($0)", 1)


@instruction
def release(typing: Any) -> Any:
    """Give the unit back: its state need not be saved at the next switch of threads."""
    return _assembly("tilerelease", 0)


@instruction
def clear_sums(typing: Any) -> Any:
    """Zero the four tiles that products are added to."""
    return _assembly("\n".join(f"tilezero %tmm{k}" for k in range(4)), 0)


@instruction
def load_left(typing: Any, address: Any, stride: Any) -> Any:
    """Load two tiles, one after the other, for the left side of products."""
    return _assembly(_pair(4, 5), 2)


@instruction
def load_right(typing: Any, address: Any, stride: Any) -> Any:
    """The same for the right side."""
    return _assembly(_pair(6, 7), 2)


def _pair(first: int, second: int) -> str:
    loads = (f"tileloadd ($0,$1,1), %tmm{first}", f"tileloadd 1024($0,$1,1), %tmm{second}")
    return "\n".join(loads)


@instruction
def step(typing: Any) -> Any:
    """Add the four products of two tiles on the left and two on the right to four sums."""
    pairs = ((6, 4), (7, 4), (6, 5), (7, 5))
    lines = (f"tdpbf16ps %tmm{b}, %tmm{a}, %tmm{k}" for k, (b, a) in enumerate(pairs))
    return _assembly("\n".join(lines), 0)


@instruction
def store_sums(typing: Any, upper: Any, lower: Any, stride: Any) -> Any:
    """The four sums as PANEL rows, the lower half of which begins at ``lower``."""
    return _assembly("\n".join(f"tilestored %tmm{k}, {at}" for k, at in enumerate(_SUMS)), 3)


@instruction
def load_sums(typing: Any, upper: Any, lower: Any, stride: Any) -> Any:
    """The four sums from where `store_sums` put them."""
    return _assembly("\n".join(f"tileloadd {at}, %tmm{k}" for k, at in enumerate(_SUMS)), 3)


_SUMS = ("($0,$2,1)", "64($0,$2,1)", "($1,$2,1)", "64($1,$2,1)")

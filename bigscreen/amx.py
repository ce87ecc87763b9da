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
import platform
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from llvmlite import binding

from bigscreen.amx_instructions import clear, configure, release, step, store
from bigscreen.entries import entry
from bigscreen.rows import aligned, njit

PANEL = 32
"""Rows that go through the unit at once: two of its tiles."""
CHUNK = 32
"""Columns of a tile."""
PARTS = 3
LEVELS = 255.0
"""Rows that are multiples of 1/255 (8-bit pixels scaled to [0, 1]) are taken as integers."""
TILE = 16 * CHUNK
WORDS = CHUNK // 4


@cache
def available() -> bool:
    """Whether this process may use the unit; asks the system for it (Linux, x86-64)."""
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

    tiles: np.ndarray
    most: np.ndarray
    scale: np.ndarray


def shape(n_rows: int, d: int, parts: int = PARTS) -> tuple[int, ...]:
    """Of the tiles of that many rows."""
    return -(-n_rows // PANEL), -(-d // CHUNK), parts, 2, 16, CHUNK


def packed(tiles: np.ndarray, n_rows: int) -> Packed:
    """Room for that many rows in these tiles, not filled; they begin where a cache line does."""
    return Packed(tiles, np.empty(tiles.shape[:2], np.uint8), np.empty(n_rows, np.float32))


def rows(of: Packed, first: int, count: int) -> Packed:
    """Some of the rows of a left side, the first of them a multiple of PANEL."""
    here = slice(first // PANEL, -(-(first + count) // PANEL))
    return Packed(of.tiles[here], of.most[here], of.scale[first : first + count])


def pack(rows: np.ndarray, into: Packed, first: int, right: bool) -> bool:
    """Put rows where a product reads them; returns whether they have no more parts than it has.

    Parameters
    ----------
    rows : float32 (n, d)
    into : Packed
        Rows ``first`` to ``first + n`` are set, ``first`` a multiple of PANEL.
    right : bool
        For the right side.
    """
    panel, n = first // PANEL, len(rows)
    here = slice(panel, panel + -(-n // PANEL))
    scale = into.scale[first : first + n]
    return bool(_pack(rows, into.tiles[here], into.most[here], scale, right))


def multiply(
    terms: Any,
    left: Packed,
    right: Packed,
    column: int,
    halves: tuple[np.ndarray, np.ndarray],
    out: np.ndarray,
    first: int,
) -> None:
    """Kernel entries between the rows of the left and some of the right.

    Parameters
    ----------
    terms : a kernel's constants (see `entries`)
    left, right : Packed
    column : int
        The first row of the right, a multiple of PANEL.
    halves : float32 (len left,), (rows of the right,)
        Half squared norms: what `entries.entry` wants.
    out : float32, C-contiguous, a row for every row of the left
        Overwritten from column ``first`` on.
    """
    _multiply(_LAYOUT, terms, left, right, column // PANEL, *halves, out, first)


def _layout() -> np.ndarray:
    """What the unit is configured with: eight tiles of 16 rows of 64 bytes."""
    layout = aligned((64,), np.uint8)
    layout[:] = 0
    layout[0] = 1
    layout[16:32:2] = 64
    layout[48:56] = 16
    return layout


_LAYOUT = _layout()


@njit(nogil=True, cache=True, fastmath={"contract"})
def _multiply(layout, terms, left, right, panel, half_a, half_b, out, first):  # type: ignore[no-untyped-def]
    n, m = len(half_a), len(half_b)
    chunks, parts, right_parts = left.tiles.shape[1], left.tiles.shape[2], right.tiles.shape[2]
    stride, right_stride = 4 * TILE * parts, 4 * TILE * right_parts
    room = np.empty(PANEL * PANEL + 16, np.float32)
    begin = -room.ctypes.data % 64 // 4
    scratch = room[begin : begin + PANEL * PANEL].reshape((PANEL, PANEL))
    a, b, sums = left.tiles.ctypes.data, right.tiles.ctypes.data, scratch.ctypes.data
    configure(layout.ctypes.data)
    for j in range(-(-m // PANEL)):
        width = min(PANEL, m - PANEL * j)
        scale, half = right.scale[PANEL * (panel + j) :], half_b[PANEL * j :]
        for i in range(-(-n // PANEL)):
            clear()
            x, y = a + i * chunks * stride, b + (panel + j) * chunks * right_stride
            for c in range(chunks):
                u, v = left.most[i, c], right.most[panel + j, c]
                # Small products first: what is added last is rounded last.
                if u > 2:
                    step(x + 8 * TILE, y, 64)
                if v > 2:
                    step(x, y + 8 * TILE, 64)
                if u > 1 and v > 1:
                    step(x + 4 * TILE, y + 4 * TILE, 64)
                if u > 1:
                    step(x + 4 * TILE, y, 64)
                if v > 1:
                    step(x, y + 4 * TILE, 64)
                step(x, y, 64)
                x, y = x + stride, y + right_stride
            store(sums, 4 * PANEL)
            for r in range(min(PANEL, n - PANEL * i)):
                at = PANEL * i + r
                row, s, h = out[at, first + PANEL * j :], left.scale[at], half_a[at]
                for k in range(width):
                    row[k] = entry(terms, scratch[r, k] * (s * scale[k]), h, half[k])
    release()


@njit(nogil=True, cache=True, fastmath={"reassoc", "nsz"})
def _norm(row):  # type: ignore[no-untyped-def]
    total = 0.0
    for k in range(len(row)):
        total += np.float64(row[k]) * np.float64(row[k])
    return np.sqrt(total)


@njit(nogil=True, cache=True, fastmath={"reassoc", "nsz"})
def _off_levels(row):  # type: ignore[no-untyped-def]
    """Squared distance from the multiples of 1 / LEVELS; infinite beyond those of 8 bits."""
    off, beyond = 0.0, 0
    for k in range(len(row)):
        x = np.float64(row[k])
        level = np.rint(x * LEVELS)
        off += (x - level * (1.0 / LEVELS)) ** 2
        beyond += abs(level) > 256.0
    return np.inf if beyond else off


@njit(nogil=True, cache=True)
def _read(row, out):  # type: ignore[no-untyped-def]
    """out = the row, or the integers it stands for; returns what to multiply them with.

    It stands for integers if as much is changed by that as a rounding of the row may change.
    """
    few = np.uint32(0)
    for k in range(len(row)):
        x = np.float32(row[k])
        few |= x.view(np.uint32)
        out[k] = x
    if few & np.uint32(0xFFFF) == 0:
        return np.float32(1.0)
    most, off = (2.0**-24 * _norm(row)) ** 2, 0.0
    for k in range(0, len(row), CHUNK):
        off += _off_levels(row[k : k + CHUNK])
        if not off <= most:
            return np.float32(1.0)
    for k in range(len(row)):
        out[k] = np.rint(np.float64(row[k]) * LEVELS)
    return np.float32(1.0 / LEVELS)


@njit(nogil=True, cache=True)
def _split(x, high):  # type: ignore[no-untyped-def]
    """high = the bfloat16 numbers next to x, as bits; x = what they leave of it, exactly."""
    for k in range(len(x)):
        far = x[k] * np.float32(2.0**16 + 1.0)  # Veltkamp's split: float32 has 16 bits more
        near = np.float32(far - (far - x[k]))
        x[k] -= near
        high[k] = near.view(np.uint32) >> np.uint32(16)


@njit(nogil=True, cache=True)
def _pack(rows, tiles, most, scale, right):  # type: ignore[no-untyped-def]
    n, d = rows.shape
    chunks, parts = tiles.shape[1], tiles.shape[2]
    x = np.zeros(CHUNK * chunks, np.float32)
    high = np.zeros((parts, CHUNK * chunks), np.uint16)
    most[:] = 1
    left = np.uint32(0)
    words, numbers = high.view(np.uint64), tiles.reshape(-1).view(np.uint64)
    for i in range(PANEL * len(tiles)):
        panel = i // PANEL
        if i < n:
            scale[i] = _read(rows[i], x[:d])
        else:
            x[:] = 0
        for p in range(parts):
            _split(x, high[p])
        for k in range(len(x)):
            left |= np.float32(x[k]).view(np.uint32) << np.uint32(1)  # a zero may have a sign
        for p in range(parts):
            for c in range(chunks):
                place = (((panel * chunks + c) * parts + p) * PANEL + i % PANEL) * WORDS
                some = np.uint64(0)
                for k in range(WORDS):
                    word = words[p, WORDS * c + k]
                    numbers[np.uint64(place + k)] = word
                    some |= word
                if some and p >= most[panel, c]:
                    most[panel, c] = p + 1
    if right:
        _transpose(tiles.reshape(-1, 16, CHUNK))
    return left == 0


@njit(nogil=True, cache=True)
def _transpose(tiles):  # type: ignore[no-untyped-def]
    """Every tile turned, pairs of columns staying together."""
    pairs = tiles.view(np.uint32)
    for k in range(len(pairs)):
        tile = pairs[k]
        for i in range(16):
            for j in range(i):
                tile[i, j], tile[j, i] = tile[j, i], tile[i, j]

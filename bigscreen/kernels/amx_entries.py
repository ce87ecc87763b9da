"""Products of packed rows on the matrix unit, and what becomes of them (see `amx`).

A pair of panels is multiplied chunk by chunk, all products of their parts together. Then the sums,
while they are in the first-level cache, become kernel entries, which are written down or multiplied
with vectors at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.kernels.amx import (
    CHUNK,
    PANEL,
    Packed,
    clear_sums,
    configure,
    load_left,
    load_right,
    load_sums,
    release,
    step,
    store_sums,
    wide,
)
from bigscreen.kernels.entries import entry
from bigscreen.numerics.rows import CACHE_LINE, FloatArray, aligned, njit

TILE_NUMBERS = 16 * CHUNK
"""Numbers of one of the unit's tiles."""

NARROW, PANELS, MANY_PANELS = 3, 4, 16
"""Panels of the left side at once: of narrow rows few, which stay in the first-level cache."""

DEEP = 48
"""Tiles of a panel (chunks times parts) that go through at once: more do not stay in the
second-level cache, and wait as sums for what is left of them."""

STRIP, PITCH = 512, 528
"""Rows of the right side at once, whose sums stay in the first-level cache; and the distance of two
rows of sums, which are not to fall on the same places of that cache."""

STRIPS = 2
"""As many of them where sums wait."""


class Sides(NamedTuple):
    """What is multiplied: packed rows, and half their squared norms (which `entry` wants), float32.

    left, half_a: len left; right, half_b: len right.
    """

    left: Packed
    right: Packed
    half_a: NDArray[np.float32]
    half_b: NDArray[np.float32]


class Part(NamedTuple):
    """A panel on the left and a strip on the right: scales of their rows, half squared norms."""

    scale_a: NDArray[np.float32]
    half_a: NDArray[np.float32]
    scale_b: NDArray[np.float32]
    half_b: NDArray[np.float32]


def multiply(terms: NamedTuple, sides: Sides, VT: FloatArray | None, out: NDArray[Any]) -> None:
    """Kernel entries between two sides, or their products with vectors.

    Parameters
    ----------
    terms : a kernel's constants (see `entries`)
    sides : Sides
    VT : None or float64 (k, len right)
    out : C-contiguous
        Without VT float32 (len left, len right), overwritten; with it float64 (len left, k), and
        ``K VT'`` is added, summed in float64.
    """
    _run(_LAYOUT, terms, sides, VT, out)


def _layout() -> NDArray[np.uint8]:
    """What the unit is configured with: eight tiles of 16 rows of 64 bytes."""
    layout: NDArray[np.uint8] = aligned((64,), np.uint8)
    layout[:] = 0
    layout[0] = 1
    layout[16:32:2] = 64
    layout[48:56] = 16
    return layout


_LAYOUT = _layout()


@njit(nogil=True, cache=True)
def _room(n: int) -> NDArray[np.float32]:
    """Space for n strips of sums, beginning where a cache line does."""
    size = n * PANEL * PITCH
    room = np.empty(size + CACHE_LINE // 4, np.float32)
    first = -room.ctypes.data % CACHE_LINE // 4
    return room[first : first + size].reshape((n, PANEL, PITCH))


@njit(nogil=True, cache=True)
def _run(
    layout: NDArray[np.uint8],
    terms: NamedTuple,
    sides: Sides,
    VT: FloatArray | None,
    out: NDArray[Any],
) -> None:
    """Entries into ``out``, or added to it their products with VT if that is not None."""
    configure(layout.ctypes.data)
    left, right, half_a, half_b = sides
    chunks, parts = left.tiles.shape[1], max(left.tiles.shape[2], right.tiles.shape[2])
    deep = max(1, -(-chunks * parts // DEEP))
    panels, strips = -(-len(half_a) // PANEL), -(-len(half_b) // STRIP)
    height = PANELS if chunks * parts <= NARROW else MANY_PANELS
    width = max(1, strips) if deep == 1 else STRIPS
    sums = _room(1 if deep == 1 else height * width)
    for top in range(0, panels, height):
        for first in range(0, strips, width):
            for k in range(deep):
                start, stop = chunks * k // deep, chunks * (k + 1) // deep
                for j in range(first, min(first + width, strips)):
                    for i in range(top, min(top + height, panels)):
                        strip = sums[0 if deep == 1 else (j - first) * height + i - top]
                        _add(sides, i, j, start, stop, strip)
                        if k == deep - 1:
                            _finish(terms, sides, i, j, strip, VT, out)
    release()


@njit(nogil=True, cache=True)
def _add(sides: Sides, i: int, j: int, start: int, stop: int, strip: NDArray[np.float32]) -> None:
    """strip += products of a panel's chunks with those of up to STRIP rows; from chunk 0 on, =."""
    panel = j * (STRIP // PANEL)
    for place in range(0, min(STRIP, len(sides.half_b) - STRIP * j), PANEL):
        upper = strip.ctypes.data + 4 * place
        _add_panel(sides.left, i, sides.right, panel, start, stop, upper)
        panel += 1


@njit(nogil=True, cache=True)
def _add_panel(
    left: Packed, i: int, right: Packed, j: int, start: int, stop: int, upper: int
) -> None:
    stride = 4 * TILE_NUMBERS * left.tiles.shape[2]
    right_stride = 4 * TILE_NUMBERS * right.tiles.shape[2]
    x = left.tiles.ctypes.data + (i * left.tiles.shape[1] + start) * stride
    y = right.tiles.ctypes.data + (j * left.tiles.shape[1] + start) * right_stride
    lower = upper + 4 * PITCH * 16
    if start:
        load_sums(upper, lower, 4 * PITCH)
    else:
        clear_sums()
    for c in range(start, stop):
        u, v = left.most[i, c], right.most[j, c]
        # So that most tiles that are loaded serve twice.
        load_right(y, 64)
        if u > 2:
            load_left(x + 8 * TILE_NUMBERS, 64)
            step()
        if u > 1:
            load_left(x + 4 * TILE_NUMBERS, 64)
            step()
        if v > 1:
            load_right(y + 4 * TILE_NUMBERS, 64)
            if u > 1:
                step()
        load_left(x, 64)
        if v > 1:
            step()
            if v > 2:
                load_right(y + 8 * TILE_NUMBERS, 64)
                step()
            load_right(y, 64)
        step()
        x, y = x + stride, y + right_stride
    store_sums(upper, lower, 4 * PITCH)


@njit(nogil=True, cache=True)
def _finish(
    terms: NamedTuple,
    sides: Sides,
    i: int,
    j: int,
    strip: NDArray[np.float32],
    VT: FloatArray | None,
    out: NDArray[Any],
) -> None:
    left, right, half_a, half_b = sides
    a, b = PANEL * i, STRIP * j
    low, end = min(a + PANEL, len(half_a)), min(b + STRIP, len(half_b))
    part = Part(left.scale[a:low], half_a[a:low], right.scale[b:end], half_b[b:end])
    if VT is None:
        _write(terms, strip, part, out, a, b)
    else:
        _entries(terms, strip, part)
        _dots(strip, VT, b, end, out, a, low)


@njit(nogil=True, cache=True, fastmath={"contract"})
def _write(
    terms: NamedTuple, strip: NDArray[np.float32], part: Part, out: NDArray[Any], a: int, b: int
) -> None:
    """Kernel entries from products, from ``out[a, b]`` on."""
    wide()
    s, h, scale, half = part
    for r in range(len(h)):
        row, to, si, hi = strip[r], out[a + r, b : b + len(half)], s[r], h[r]
        for k in range(len(half)):
            to[k] = entry(terms, row[k] * (si * scale[k]), hi, half[k])


@njit(nogil=True, cache=True, fastmath={"contract"})
def _entries(terms: NamedTuple, strip: NDArray[np.float32], part: Part) -> None:
    """The same in place (one loop for both would have to expect that ``to`` is ``row``)."""
    wide()
    s, h, scale, half = part
    for r in range(len(h)):
        row, si, hi = strip[r], s[r], h[r]
        for k in range(len(half)):
            row[k] = entry(terms, row[k] * (si * scale[k]), hi, half[k])


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})
def _dots(
    strip: NDArray[np.float32],
    VT: FloatArray,
    first: int,
    end: int,
    out: FloatArray,
    a: int,
    low: int,
) -> None:
    """``out[a:low] += strip VT[:, first:end]'``."""
    wide()
    for c in range(len(VT)):
        v = VT[c, first:end]
        for i in range(a, low):
            row, total = strip[i - a], 0.0
            for k in range(len(v)):
                total += np.float64(row[k]) * v[k]
            out[i, c] += total

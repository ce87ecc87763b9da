"""Products of packed rows on the matrix unit, and what becomes of them (see `amx`).

A pair of panels is multiplied chunk by chunk, all products of their parts together. Then the sums,
while they are in the first-level cache, become kernel entries, which are written down or multiplied
with vectors at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

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
from bigscreen.numerics.rows import CACHE_LINE, aligned, njit

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


def multiply(
    terms: Any,
    left: Packed,
    right: Packed,
    half_a: np.ndarray,
    half_b: np.ndarray,
    out: np.ndarray,
) -> None:
    """Kernel entries between two sides.

    Parameters
    ----------
    terms : a kernel's constants (see `entries`)
    left, right : Packed
    half_a, half_b : float32 (len left,), (len right,)
        Half squared norms: what `entries.entry` wants.
    out : float32 (len left, len right), C-contiguous
        Overwritten.
    """
    _run(_LAYOUT, terms, left, right, half_a, half_b, None, out)


def dots(
    terms: Any,
    left: Packed,
    right: Packed,
    half_a: np.ndarray,
    half_b: np.ndarray,
    VT: np.ndarray,
    out: np.ndarray,
) -> None:
    """``out += K VT'`` of these entries: float64 (len left, k), VT (k, len right), float64 sums."""
    _run(_LAYOUT, terms, left, right, half_a, half_b, VT, out)


def _layout() -> np.ndarray:
    """What the unit is configured with: eight tiles of 16 rows of 64 bytes."""
    layout = aligned((64,), np.uint8)
    layout[:] = 0
    layout[0] = 1
    layout[16:32:2] = 64
    layout[48:56] = 16
    return layout


_LAYOUT = _layout()


@njit(nogil=True, cache=True)
def _room(n):  # type: ignore[no-untyped-def]
    """Room for n strips of sums, beginning where a cache line does."""
    size = n * PANEL * PITCH
    room = np.empty(size + CACHE_LINE // 4, np.float32)
    first = -room.ctypes.data % CACHE_LINE // 4
    return room[first : first + size].reshape((n, PANEL, PITCH))


@njit(nogil=True, cache=True)
def _run(layout, terms, left, right, half_a, half_b, VT, out):  # type: ignore[no-untyped-def]
    """Entries into ``out``, or added to it their products with VT if that is not None."""
    configure(layout.ctypes.data)
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
                        _add(left, i, right, j, start, stop, len(half_b), strip)
                        if k == deep - 1:
                            _finish(terms, left, i, right, j, half_a, half_b, strip, VT, out)
    release()


@njit(nogil=True, cache=True)
def _add(left, i, right, j, start, stop, n, strip):  # type: ignore[no-untyped-def]
    """strip += products of a panel's chunks with those of up to STRIP rows; from chunk 0 on, =."""
    panel = j * (STRIP // PANEL)
    for place in range(0, min(STRIP, n - STRIP * j), PANEL):
        _add_panel(left, i, right, panel, start, stop, strip.ctypes.data + 4 * place)
        panel += 1


@njit(nogil=True, cache=True)
def _add_panel(left, i, right, j, start, stop, upper):  # type: ignore[no-untyped-def]
    stride, right_stride = (
        4 * TILE_NUMBERS * left.tiles.shape[2],
        4 * TILE_NUMBERS * right.tiles.shape[2],
    )
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
def _finish(terms, left, i, right, j, half_a, half_b, strip, VT, out):  # type: ignore[no-untyped-def]
    a, b = PANEL * i, STRIP * j
    low, end = min(a + PANEL, len(half_a)), min(b + STRIP, len(half_b))
    s, h, scale, half = left.scale[a:low], half_a[a:low], right.scale[b:end], half_b[b:end]
    if VT is None:
        _write(terms, strip, s, h, scale, half, out, a, b)
    else:
        _entries(terms, strip, s, h, scale, half)
        _dots(strip, VT, b, end, out, a, low)


@njit(nogil=True, cache=True, fastmath={"contract"})
def _write(terms, strip, s, h, scale, half, out, a, b):  # type: ignore[no-untyped-def]
    """Kernel entries from products, from ``out[a, b]`` on."""
    wide()
    for r in range(len(h)):
        row, to, si, hi = strip[r], out[a + r, b : b + len(half)], s[r], h[r]
        for k in range(len(half)):
            to[k] = entry(terms, row[k] * (si * scale[k]), hi, half[k])


@njit(nogil=True, cache=True, fastmath={"contract"})
def _entries(terms, strip, s, h, scale, half):  # type: ignore[no-untyped-def]
    """The same in place (one loop for both would have to expect that ``to`` is ``row``)."""
    wide()
    for r in range(len(h)):
        row, si, hi = strip[r], s[r], h[r]
        for k in range(len(half)):
            row[k] = entry(terms, row[k] * (si * scale[k]), hi, half[k])


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})
def _dots(strip, VT, first, end, out, a, low):  # type: ignore[no-untyped-def]
    """``out[a:low] += strip VT[:, first:end]'``."""
    wide()
    for c in range(len(VT)):
        v = VT[c, first:end]
        for i in range(a, low):
            row, total = strip[i - a], 0.0
            for k in range(len(v)):
                total += np.float64(row[k]) * v[k]
            out[i, c] += total

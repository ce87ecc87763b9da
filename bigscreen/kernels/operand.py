"""Rows prepared for kernel evaluations: what products and distances with them want to have."""

import math
import threading
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Union

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy import sparse

from bigscreen.errors import InputError
from bigscreen.kernels import amx, vnni
from bigscreen.numerics.rows import (
    FloatArray,
    RowArrays,
    aligned,
    as_rows,
    njit,
    row_load,
    row_sqnorm,
    sqnorms,
)

PIECE_ENTRIES = 1 << 18  # rows made dense at once, to be packed

MEASURED = "position", "origin", "grid"
"""What says how products with rows are computed: the same for parts of them, wherever they are."""

# ns an entry, one thread, AVX-512: a column of a dense product; a nonzero two rows share.
DENSE_COST = 0.02
SHARED_COST = 1.0


class _Scratch(threading.local):
    """Buffers of one thread by name, kept between calls: fresh pages cost 1 ns an entry."""

    def __init__(self) -> None:
        self.buffers: dict[str, NDArray[Any]] = {}

    def __call__(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        buffer = self.buffers.get(name)
        if buffer is None or buffer.nbytes < size:
            buffer = self.buffers[name] = aligned((size,), np.uint8)
        return buffer[:size].view(dtype).reshape(shape)


scratch = _Scratch()


def float_rows(X: Any) -> Any:
    """X as float64 where it is that, else as float32; C-contiguous or CSR, not copied if it is."""
    dtype = np.float64 if getattr(X, "dtype", None) == np.float64 else np.float32
    if sparse.issparse(X):
        return sparse.csr_array(X, dtype=dtype)
    X = np.ascontiguousarray(X, dtype=dtype)
    if X.ndim != 2:
        raise InputError(f"rows must form a 2-D array, not {X.ndim}-D: use reshape(1, -1) for one.")
    return X


class Operand:
    """Rows prepared for being one side of many kernel evaluations.

    Parameters
    ----------
    X : ndarray (rows, d) or scipy CSR array
        float64, or taken as float32; not copied if it is that already. Of float64 rows float64
        entries are those of the very numbers; float32 entries are of them less the origin, rounded.
    ids : int64 ndarray (rows,) or None
        The rows' numbers in the training data, where they are known.

    Attributes
    ----------
    X : ndarray or csr_array, float32 or float64
    sqnorms : float64 (rows,), squared Euclidean norms

    Notes
    -----
    What a kernel needs beyond X on the RIGHT side is made at first use and kept: a copy for the
    matrix unit, one as bytes where columns are such, or a centred one (RBF, when the mean carries a
    quarter of the squared norm or more), a transposed copy (Laplacian), and for CSR the frequent
    columns as a dense array and an index of the others; of float64 rows one rounded to float32.
    """

    def __init__(self, X: Any, ids: NDArray[np.int64] | None = None) -> None:
        self.X = float_rows(X)
        self.ids = ids
        self.sqnorms = sqnorms(as_rows(self.X))
        self._packed: dict[str, amx.Packed] = {}
        self._panels: dict[str, vnni.Panels] = {}
        self._parts: dict[bytes, Operand] = {}

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def __getstate__(self) -> dict[str, Any]:
        """Without what can be made again, but for where products are measured from."""
        names = ("X", "ids", "sqnorms", *MEASURED)
        known = {name: vars(self)[name] for name in names if name in vars(self)}
        return {**known, "_packed": {}, "_panels": {}, "_parts": {}}

    def part(self, places: NDArray[np.int64]) -> "Operand":
        """Rows at these places (int64), with their ids."""
        return Operand(self.X[places], None if self.ids is None else self.ids[places])

    def measured_as(self, other: "Operand") -> None:
        """Measure products as with those rows, all of these among them: entries are the same."""
        for name in MEASURED:
            if name != "grid" or vnni.available():
                setattr(self, name, getattr(other, name))

    def shared_part(self, places: NDArray[np.int64]) -> "Operand":
        """The same, made once and kept with these rows: for what every shard asks for."""
        key = places.tobytes()
        if key not in self._parts:
            self._parts[key] = self.part(places)
        return self._parts[key]

    @cached_property
    def position(self) -> NDArray[np.int32]:
        """int32 (d,): place of a frequent column in `dense`, -1 for a rare one.

        A column that a share p of these rows has, and presumably of those on the left, costs
        DENSE_COST in a dense product and p^2 SHARED_COST in the index.
        """
        d = self.X.shape[1]
        if not sparse.issparse(self.X):
            return np.arange(d, dtype=np.int32)
        share = np.bincount(self.X.indices, minlength=d) / max(1, len(self))
        frequent = share**2 * SHARED_COST > DENSE_COST
        return np.where(frequent, np.cumsum(frequent) - 1, -1).astype(np.int32)

    @cached_property
    def dense(self) -> NDArray[Any]:
        """The frequent columns: (rows, frequent) of X's type, X itself if that is dense."""
        if not sparse.issparse(self.X):
            return np.asarray(self.X)
        return np.ascontiguousarray(self.X[:, self.position >= 0].toarray())

    def transposed(self, dtype: DTypeLike) -> NDArray[Any]:
        """Columns of `dense`, moved, as rows, for entries of this type."""
        return self._wide_columns if dtype == self.X.dtype == np.float64 else self._columns

    @cached_property
    def _columns(self) -> NDArray[Any]:
        return np.ascontiguousarray(self.rounded("manhattan").T)

    @cached_property
    def _wide_columns(self) -> NDArray[Any]:
        return np.ascontiguousarray((self.dense - self.origin).T)

    @cached_property
    def rare(self) -> Any:
        """X without its frequent columns (same shape), None if nothing is left."""
        if self.dense.shape[1] == self.X.shape[1]:
            return None
        rest = self.X.copy()
        rest.data = np.where(self.position[rest.indices] < 0, rest.data, np.float32(0))
        rest.eliminate_zeros()
        return rest

    @cached_property
    def index(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """The inverted index: for every rare column the rows that have it."""
        columns = self.rare.tocsc()
        # Unsigned: no check for indices from the end in the loop that uses them.
        return columns.data, columns.indices.astype(np.uint32), columns.indptr.astype(np.uint64)

    @cached_property
    def rare_l1(self) -> FloatArray:
        return np.asarray(abs(self.rare.astype(np.float64)).sum(axis=1))

    @cached_property
    def origin(self) -> NDArray[Any]:
        """Where distances are measured from: (frequent,), the mean of `dense` or zeros.

        Half a squared distance is computed as a difference of norms and products; with the mean
        taken off first, both are no larger than the spread of the data.
        """
        mean = self.dense.mean(axis=0, dtype=np.float64) if len(self) else np.zeros(1)
        most = 0.25 * float(self.sqnorms.sum())
        # What is multiplied as integers stays that.
        if float(mean @ mean) * len(self) > most and vnni.available() and self.grid is not None:
            mean[self.grid.small] = 0.0
        worth = float(mean @ mean) * len(self) > most
        steps = (1.0, amx.LEVELS) if worth and amx.available() else ()
        if not worth or any(_on_grid(self.dense, k) for k in steps):
            return np.zeros(self.dense.shape[1], self.X.dtype)
        return mean.astype(self.X.dtype)

    @cached_property
    def grid(self) -> vnni.Grid | None:
        """Which columns stand for 8-bit integers, and how; None if most do not."""
        return vnni.grid_of(self.dense)

    def in_panels(self, pairing: str) -> vnni.Panels:
        """`dense`, for "distance" moved to the origin, for the right side of products of bytes."""
        if pairing not in self._panels:
            assert self.grid is not None
            origin = self.moved(pairing)
            self._panels[pairing] = vnni.packed(self.dense, self.grid, origin, vnni.RIGHT)
        return self._panels[pairing]

    @cached_property
    def single(self) -> NDArray[Any]:
        """`dense` as float32."""
        return _single(self.dense)

    @cached_property
    def centred(self) -> NDArray[Any]:
        """`dense` minus the origin, as float32."""
        return _single(self.dense, self.origin) if self.origin.any() else self.single

    def rounded(self, pairing: str) -> NDArray[Any]:
        """`dense`, moved as this kind of values wants it, as float32."""
        return self.centred if self.moved(pairing).any() else self.single

    @cached_property
    def halves(self) -> FloatArray:
        """Half the squared norms of whole rows, moved to the origin: float64 (rows,)."""
        if not self.origin.any():
            return 0.5 * self.sqnorms
        half = np.empty(len(self))
        for _ in self._pieces(np.float64, self.origin, half):
            pass
        return half

    def packed(self, pairing: str) -> amx.Packed:
        """`dense`, for "distance" moved to the origin, for the matrix unit."""
        if pairing not in self._packed:
            origin = self.moved(pairing)
            fits, parts = False, 0
            # Found at once, on the first rows of data that are all of one kind. (What is not a
            # number has no end of parts.)
            while not fits and parts < amx.PARTS:
                parts += 1
                tiles = aligned(amx.shape(len(self), len(origin), parts), np.uint16)
                into = amx.packed(tiles, len(self))
                fits = all(
                    amx.pack(rows, into, first, True)
                    for first, rows in self._pieces(np.float32, origin)
                )
            self._packed[pairing] = into
        return self._packed[pairing]

    @cached_property
    def left(self) -> amx.Packed:
        """X for the left side of the matrix unit's products (dense rows, where they are)."""
        tiles = aligned(amx.shape(*self.X.shape), np.uint16)
        into = amx.packed(tiles, len(self))
        for first, rows in self._pieces(np.float32, self.moved("product")):
            amx.pack(rows, into, first, False)
        return into

    def moved(self, pairing: str) -> NDArray[Any]:
        """What to take off rows before values between them are computed: (frequent,)."""
        # Differences need it of rows that are still to be rounded.
        rounds = pairing in ("manhattan", "apart") and self.X.dtype == np.float64
        if pairing == "distance" or rounds:
            return self.origin
        return np.zeros(self.dense.shape[1], self.X.dtype)

    def _pieces(
        self, dtype: DTypeLike, origin: NDArray[Any], halves: FloatArray | None = None
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """Dense columns of some rows after the other, moved, and the number of the first."""
        as_it_is = self.dense is self.X and self.X.dtype == dtype
        if as_it_is and halves is None and not origin.any():
            yield 0, self.X
            return
        X, h = as_rows(self.X), len(origin)
        halves = np.empty(len(self)) if halves is None else halves
        step = max(amx.PANEL, PIECE_ENTRIES // max(1, h) // amx.PANEL * amx.PANEL)
        for first in range(0, len(self), step):
            rows = scratch("piece", (min(step, len(self) - first), h), dtype)
            load(X, first, self.position, origin, rows, halves[first:])
            yield first, rows

    def columns(self, pairing: str, c: int, w: int, dtype: DTypeLike) -> NDArray[Any]:
        """Rows [c, c + w) for a dense product by BLAS."""
        if dtype == np.float32:
            return self.rounded(pairing)[c : c + w]
        # From the raw rows (the centred copy is rounded), one block at a time, not kept.
        origin = self.moved(pairing)
        rows = scratch("columns", (w, len(origin)), dtype)
        load(as_rows(self.X), c, self.position, origin, rows, np.empty(w))
        return rows


AnyRows = Union[Operand, NDArray[Any], sparse.csr_array]  # noqa: UP007 (of an untyped class)
"""Rows on the left of a kernel: prepared, or as they are."""


@njit(nogil=True, cache=True, fastmath={"contract"})
def load(
    X: RowArrays,
    start: int,
    position: NDArray[np.int32],
    origin: NDArray[Any],
    out: NDArray[Any],
    half: FloatArray,
) -> None:
    """out = dense columns of X[start:] - origin, half = ||whole row, so moved||^2 / 2."""
    for i in range(len(out)):
        rest = row_load(X, start + i, position, origin, out[i])
        half[i] = 0.5 * (row_sqnorm(out, i) + rest)


def _single(rows: NDArray[Any], origin: NDArray[Any] | None = None) -> NDArray[Any]:
    """Rows, less the origin, as float32; what is too large for that is infinite."""
    if origin is None and rows.dtype == np.float32:
        return rows
    out = np.empty(rows.shape, np.float32)
    with np.errstate(over="ignore"):
        if origin is None:
            out[:] = rows
        else:
            np.subtract(rows, origin, out=out, casting="same_kind")
    return out


@njit(nogil=True, cache=True, fastmath={"reassoc", "nsz"})
def _on_grid(rows: NDArray[Any], steps: float) -> bool:
    """Whether all values are multiples of 1 / steps, as float32 has them."""
    for i in range(len(rows)):
        row, off = rows[i], 0
        for k in range(len(row)):
            x = np.float64(row[k]) * steps
            off += not abs(x - np.rint(x)) <= 2.0**-23 * abs(x)
        if off:
            return False
    return True

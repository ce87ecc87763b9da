"""Rows prepared for kernel evaluations: float32 copies, transposed columns, an inverted index."""

import math
import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any, Union, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy import sparse

from bigscreen.errors import InputError
from bigscreen.kernels import vnni
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

MEASURED = "position", "origin", "grid"
"""Attributes of an Operand that choose how its products are computed. A part of its rows, on any
machine, keeps them, so that entries have the same bits."""


class _Scratch(threading.local):
    """Named buffers, one set per thread, kept between calls: new memory costs 1 ns per entry."""

    def __init__(self) -> None:
        """Start this thread with no buffers."""
        self.buffers: dict[str, NDArray[Any]] = {}

    def __call__(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return this thread's buffer of this name as an array of this shape and type.

        Its content is arbitrary, and is overwritten by the next call with the name.
        """
        size = math.prod(shape) * np.dtype(dtype).itemsize
        buffer = self.buffers.get(name)
        if buffer is None or buffer.nbytes < size:
            buffer = self.buffers[name] = aligned((size,), np.uint8)
        return buffer[:size].view(dtype).reshape(shape)


scratch = _Scratch()
"""The buffers of the process: ``scratch(name, shape, dtype)`` returns this thread's array."""


def float_rows(X: Any) -> Any:
    """Convert X to a C-contiguous or CSR array: float64 stays float64, other types become float32.

    X is not copied if it is such an array already.
    """
    dtype = np.float64 if getattr(X, "dtype", None) == np.float64 else np.float32
    if sparse.issparse(X):
        return sparse.csr_array(X, dtype=dtype)
    X = np.ascontiguousarray(X, dtype=dtype)
    if X.ndim != 2:
        raise InputError(f"rows must form a 2-D array, not {X.ndim}-D: use reshape(1, -1) for one.")
    return X


class Operand:
    """Rows prepared to be one side of many kernel evaluations.

    Parameters
    ----------
    X : ndarray (rows, d) or scipy CSR array
        float64, or converted to float32; not copied if it has the right type. float64 entries of
        float64 rows are exact to float64; for float32 entries the rows less the origin are rounded.
    ids : int64 ndarray (rows,) or None
        The rows' numbers in the training data, if known.

    Attributes
    ----------
    X : ndarray or csr_array, float32 or float64
    sqnorms : float64 (rows,), squared Euclidean norms

    Notes
    -----
    If the rows are the RIGHT side, products need copies, which are made at first use and kept:
    columns as bytes (see `vnni`), rows rounded to float32 and centred (RBF, if the mean has at
    least a quarter of the squared norm), a transposed copy (Laplacian, Matern,
    chi-squared), and for CSR rows the frequent columns as a dense array and an inverted index of
    the others.
    """

    def __init__(self, X: Any, ids: NDArray[np.int64] | None = None) -> None:
        """Convert the rows to floats, and compute their squared norms.

        ``X``: dense or CSR rows; ``ids``: their numbers in the training data, None: unknown.
        """
        self.X = float_rows(X)
        self.ids = ids
        self.sqnorms = sqnorms(as_rows(self.X))
        self._copies: dict[tuple[str, Any], Any] = {}

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what can be recomputed, but for the `MEASURED` attributes."""
        names = ("X", "ids", "sqnorms", *MEASURED)
        return {name: vars(self)[name] for name in names if name in vars(self)} | {"_copies": {}}

    def part(self, places: NDArray[np.int64]) -> "Operand":
        """Return an Operand of the rows at these places (int64), with their ids."""
        return Operand(self.X[places], None if self.ids is None else self.ids[places])

    def copy_measures(self, other: "Operand") -> None:
        """Take over the `MEASURED` attributes of an operand that contains these rows: origin, grid.

        So entries have the same bits, whichever of the two operands computes them.
        """
        for name in MEASURED:
            if name != "grid" or vnni.is_available():
                setattr(self, name, getattr(other, name))

    def once(self, key: tuple[str, Any], make: Callable[[], Any]) -> Any:
        """Return the derived copy of the rows with this key, calling ``make`` only at first use."""
        if key not in self._copies:
            self._copies[key] = make()
        return self._copies[key]

    @cached_property
    def position(self) -> NDArray[np.int32]:
        """The place of each frequent column in `dense`, -1 for a rare column: int32 (d,).

        A column is frequent if more than 14 % of the rows have a nonzero there; all columns of
        dense rows are.

        A column costs 0.02 ns per entry in a dense product. If it is nonzero in a fraction p of
        the rows on either side, it costs p^2 ns in the index (one thread, AVX-512). A frequent
        column is cheaper in the dense product.
        """
        d = self.X.shape[1]
        if not sparse.issparse(self.X):
            return np.arange(d, dtype=np.int32)
        share = np.bincount(self.X.indices, minlength=d) / max(1, len(self))
        frequent = share**2 > 0.02
        return np.where(frequent, np.cumsum(frequent) - 1, -1).astype(np.int32)

    @cached_property
    def dense(self) -> NDArray[Any]:
        """The frequent columns (see `position`): (rows, frequent), X's type; X itself if dense."""
        if not sparse.issparse(self.X):
            return np.asarray(self.X)
        return np.ascontiguousarray(self.X[:, self.position >= 0].toarray())

    @cached_property
    def rare(self) -> Any:
        """X with its frequent columns set to 0 (CSR, X's shape); None if no column is rare."""
        if self.dense.shape[1] == self.X.shape[1]:
            return None
        rest = self.X.copy()
        rest.data = np.where(self.position[rest.indices] < 0, rest.data, np.float32(0))
        rest.eliminate_zeros()
        return rest

    @cached_property
    def index(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """The nonzeros of each rare column, as an inverted index (values, rows, column starts).

        Nonzeros of column j are at places [starts[j], starts[j + 1]) of values and rows.
        """
        columns = self.rare.tocsc()
        # Unsigned: no check for indices from the end in the loop that uses them.
        return columns.data, columns.indices.astype(np.uint32), columns.indptr.astype(np.uint64)

    @cached_property
    def rare_l1(self) -> FloatArray:
        """L1 norms of the rows over their rare columns: float64 (rows,)."""
        return np.asarray(abs(self.rare.astype(np.float64)).sum(axis=1))

    @cached_property
    def rare_sqnorms(self) -> FloatArray:
        """Squared norms of the rows over their rare columns: float64 (rows,)."""
        return sqnorms(as_rows(self.rare))

    @cached_property
    def origin(self) -> NDArray[Any]:
        """The point that distances are measured from: the mean of `dense`, or zeros (frequent,).

        A squared distance is computed as a difference of norms and products. With the mean
        subtracted first, neither is larger than the spread of the data, so less is rounded off.
        """
        mean = self.dense.mean(axis=0, dtype=np.float64) if len(self) else np.zeros(1)
        least = 0.25 * float(self.sqnorms.sum())
        # Columns of bytes are not shifted: they are multiplied as integers.
        if float(mean @ mean) * len(self) > least and vnni.is_available() and self.grid is not None:
            mean[self.grid.small] = 0.0
        if not float(mean @ mean) * len(self) > least:
            return np.zeros(self.dense.shape[1], self.X.dtype)
        return mean.astype(self.X.dtype)

    @cached_property
    def grid(self) -> vnni.Grid | None:
        """The columns of `dense` that represent 8-bit integers, and the scale; None if few do."""
        return vnni.find_grid(self.dense)

    @cached_property
    def halves(self) -> FloatArray:
        """Half the squared norms of the rows less the origin: float64 (rows,)."""
        if not self.origin.any():
            return 0.5 * self.sqnorms
        X, d, half = as_rows(self.X), len(self.origin), np.empty(len(self))
        step = max(1, (1 << 18) // max(1, d))
        for first in range(0, len(half), step):
            rows = scratch("piece", (min(step, len(half) - first), d), np.float64)
            load_rows(X, first, self.position, self.origin, rows, half[first:])
        return half

    def shift_for(self, pairing: str) -> NDArray[Any]:
        """Return what to subtract from rows before their products or distances: (frequent,).

        ``pairing``: the value of a pair of rows, see `entries.tiles`. Zeros: no shift.
        """
        # Differences of columns do not need a shift, unless float64 rows have yet to be rounded.
        rounds = pairing in ("manhattan", "apart") and self.X.dtype == np.float64
        if pairing == "distance" or rounds:
            return self.origin
        return np.zeros(self.dense.shape[1], self.X.dtype)

    def as_float32(self, pairing: str) -> NDArray[np.float32]:
        """Return `dense` less the shift of this pairing as float32; overflow gives inf.

        Its shape is (rows, frequent columns); it is made once. ``pairing``: the value of a pair of
        rows, see `entries.tiles`.
        """
        origin = self.shift_for(pairing)

        def make() -> NDArray[np.float32]:
            """Make the rounded copy; `dense` itself if it is float32 and not shifted."""
            with np.errstate(over="ignore"):
                if not origin.any():
                    return self.dense.astype(np.float32, copy=False)
                out = np.empty(self.dense.shape, np.float32)
                np.subtract(self.dense, origin, out=out, casting="same_kind")
                return out

        return cast("NDArray[np.float32]", self.once(("rounded", origin.any()), make))

    def transposed(self, dtype: DTypeLike, pairing: str) -> NDArray[Any]:
        """Return `dense` less the shift of this pairing, transposed: (frequent, rows).

        It is for entries of the type ``dtype``: float64 only for float64 entries of float64 rows,
        else float32. ``pairing``: the value of a pair of rows, see `entries.tiles`.
        """
        wide, origin = dtype == self.X.dtype == np.float64, self.shift_for(pairing)

        def make() -> NDArray[Any]:
            """Make the transposed copy."""
            rows = self.dense - origin if wide else self.as_float32(pairing)
            return np.ascontiguousarray(rows.T)

        return cast("NDArray[Any]", self.once(("transposed", (wide, origin.any())), make))

    def in_panels(self, pairing: str) -> vnni.Panels:
        """Return `dense` less the shift of this pairing, packed for products of bytes."""

        def make() -> vnni.Panels:
            """Pack the rows as the right side of products of bytes."""
            assert self.grid is not None
            return vnni.pack_rows(self.dense, self.grid, self.shift_for(pairing), vnni.RIGHT)

        return cast("vnni.Panels", self.once(("panels", pairing), make))

    def columns(self, pairing: str, c: int, w: int, dtype: DTypeLike) -> NDArray[Any]:
        """Return rows [c, c + w) of X, columns of the kernel matrix, as a dense array for BLAS.

        It has the frequent features: rare ones of sparse rows are left out. ``pairing`` says how a
        kernel combines two rows ("product" or "distance"); what `entries.tiles` shifts rows by for
        it is subtracted. float64 rows are in this thread's buffer, which the next call
        overwrites.
        """
        if dtype == np.float32:
            return self.as_float32(pairing)[c : c + w]
        # From the original rows, since the float32 copy has lost digits; not kept.
        origin = self.shift_for(pairing)
        rows = scratch("columns", (w, len(origin)), dtype)
        load_rows(as_rows(self.X), c, self.position, origin, rows, np.empty(w))
        return rows


AnyRows = Union[Operand, NDArray[Any], sparse.csr_array]  # noqa: UP007 (of an untyped class)
"""Rows on the left of a kernel: an Operand or an array."""


@njit(nogil=True, cache=True, fastmath={"contract"})
def load_rows(
    X: RowArrays,
    start: int,
    position: NDArray[np.int32],
    origin: NDArray[Any],
    out: NDArray[Any],
    half: FloatArray,
) -> None:
    """Write the frequent columns of the rows from ``start`` on, less the origin, to `out`.

    ``out`` (rows, frequent) says how many rows. ``position``: the place of each column in a row of
    ``out``, negative for rare columns. ``half`` (rows,) is set to half the squared norm of each
    shifted row, rare columns included.
    """
    for i in range(len(out)):
        rest = row_load(X, start + i, position, origin, out[i])
        half[i] = 0.5 * (row_sqnorm(out, i) + rest)

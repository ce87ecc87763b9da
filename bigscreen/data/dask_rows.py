"""Rows in Dask collections: recognise them, and make methods of rows in memory lazy for them.

An array of zarr counts as a Dask array of its chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Protocol, TypeVar, cast

from numpy.typing import DTypeLike

from bigscreen.data.other_arrays import answer_like, on_host
from bigscreen.data.source_rows import name_text
from bigscreen.data.zarr_stores import is_zarr_array
from bigscreen.errors import InputError

Method = TypeVar("Method", bound=Callable[..., Any])


def is_chunked(X: Any) -> bool:
    """Whether X is a Dask array, recognised by its attributes; its blocks are read one by one."""
    return hasattr(X, "dask") and isinstance(getattr(X, "numblocks", None), tuple)


def is_dask_frame(X: Any) -> bool:
    """Whether X is a Dask data frame, recognised by its attributes."""
    # (A Delayed object says that it has any attribute.)
    return isinstance(getattr(X, "npartitions", None), int) and hasattr(X, "to_dask_array")


def is_lazy(X: Any) -> bool:
    """Whether X is a Dask array or data frame, or an array of zarr: rows to be read by blocks."""
    return is_chunked(X) or is_dask_frame(X) or is_zarr_array(X)


def check_lazy(X: Any) -> None:
    """Raise InputError if X is no Dask array or data frame, and no array of zarr."""
    if not is_lazy(X):
        raise InputError(
            f"X must be a Dask array or data frame, not {type(X).__name__}: make one with "
            "dask.array.from_array, or call the machine's own method for rows in memory"
        )


def dask_rows(
    X: Any, names: Sequence[str] | None, width: int | None, other: str = "the machine was fitted on"
) -> Any:
    """Return the rows of a Dask collection or array of zarr as a Dask array (n, d), lazily.

    Parameters
    ----------
    X : Dask array or data frame, or array of zarr (`is_lazy`)
        The sizes of its blocks may be unknown.
    names : sequence of str or None
        Names of a frame's columns, which are selected in this order. None: all columns.
    width : int or None
        The number of columns that the array must have; None: any.
    other : str
        What has this number of columns, for the message, with its verb.

    Raises
    ------
    InputError
        If X has not two dimensions, lacks a column or has another number of columns.
    """
    if X.ndim != 2:
        raise InputError(
            f"X must have two dimensions, rows and columns, not {X.ndim}: use X.reshape(-1, 1) or "
            "X.to_frame() for rows of one column"
        )
    if is_dask_frame(X):
        if names is not None:
            known = {name_text(name): name for name in X.columns}
            missing = [name for name in names if name not in known]
            if missing:
                raise InputError(
                    f"X has no column {missing[0]!r}, which {other}; it has "
                    f"{', '.join(list(known)[:8])}"
                )
            X = X[[known[name] for name in names]]
        X = X.to_dask_array()
    if is_zarr_array(X):
        from bigscreen.fleet.graphs import row_blocks

        X = row_blocks(X)
    if width is not None and X.shape[1] != width:
        raise InputError(f"X has {X.shape[1]} columns and {other} {width}; give X the same columns")
    return X


@dataclass(frozen=True)
class _Call:
    """A call of a method with a block of rows and further arguments, picklable by its name."""

    method: str
    args: tuple[Any, ...]
    given: dict[str, Any]

    def __call__(self, machine: Any, block: Any) -> Any:
        """Return the machine's answer for the rows of one block."""
        return getattr(machine, self.method)(block, *self.args, **self.given)


class Blockwise(Protocol):
    """What can answer for the blocks of a Dask collection: a model or a fitted estimator.

    Attributes
    ----------
    _answers_in_kind : bool
        Whether rows in an array of another library than NumPy are answered with such an array.
    """

    @property
    def _answers_in_kind(self) -> bool: ...

    def _dask_rows(self, X: Any, **given: Any) -> Any:
        """Return X as a Dask array (n, d) with the machine's columns, by `dask_rows`.

        ``given``: the keyword arguments of the method that is called.
        """

    def _for_blocks(self) -> Any:
        """Return a copy with only what answers for rows need, to be sent to workers."""


def lazy_for_dask(
    result: Callable[[Any], tuple[DTypeLike, int | None]],
) -> Callable[[Method], Method]:
    """Decorate a method of rows X so that Dask rows give a lazy Dask array, a task for each block.

    Rows in an array of another library are answered with an array of this library, if the machine
    answers in kind (`answer_like`).

    Parameters
    ----------
    result : callable
        Called with the machine (see `Blockwise`); returns the type of the numbers of the method's
        answer for rows in memory, and the number of its columns, None for an answer (rows,).

    Returns
    -------
    callable
        The decorator. A task calls the method itself with the block's rows in memory.
    """

    def decorate(method: Method) -> Method:
        """Return the method, which is lazy for Dask rows."""

        @wraps(method)
        def answer(self: Blockwise, X: Any, *args: Any, **given: Any) -> Any:
            """Call the method at once, or later for each block of Dask rows."""
            if not is_lazy(X):
                found = method(self, on_host(X), *args, **given)
                return answer_like(found, X) if self._answers_in_kind else found
            from bigscreen.fleet.graphs import map_rows

            rows = self._dask_rows(X, **given)
            dtype, columns = result(self)
            call = _Call(method.__name__, args, given)
            return map_rows(method.__name__, call, self._for_blocks(), rows, columns, dtype)

        return cast(Method, answer)

    return decorate

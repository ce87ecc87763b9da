"""The ledger of a certified fit: what is proved of every row, whatever the optimum is exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.numerics.rows import FloatArray

OUT, BOUND, OPEN = STATUS = ("out", "bound", "open")
"""What is proved of a row: alpha* is 0, it is the end of its box that is not 0, or neither."""

LEDGER_ARRAYS = ("ledger_margins", "ledger_radius", "ledger_sizes", "ledger_steps")
"""The arrays of a file; the last is of rows that are not simply 0, 1, 2, ..."""

Margins = NDArray[np.float16]

FARTHEST = float(np.finfo(np.float16).max)


class Ledger:
    """What a certificate proves of the rows of one problem.

    The optimal w is within ``radius`` of the certified one. A row whose score stays on its side of
    its loss's kinks for every w so near has its alpha* decided: it is *out* (alpha* = 0: the
    optimum without it is the same) or at its *bound* (alpha* is the end of its box that is not 0:
    its loss is linear there). All others are *open*.

    Parameters
    ----------
    margins : float16 (rows,), or a function that returns them
        How many radii w may be off before the row could cross its next kink, rounded towards 0; of
        a row on the side where alpha is not 0, with a minus sign. Beyond 1 the row is decided.
    radius : float
        Of the ball around w that holds w*, in units of ``||w||``.
    rows : int64 (rows,) or None
        Their numbers in the source, ascending; None: 0, 1, 2, ...
    """

    def __init__(
        self,
        margins: Margins | Callable[[], Margins],
        radius: float,
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        self._margins, self.radius, self.rows = margins, radius, rows

    @property
    def margins(self) -> Margins:
        """See above; computed when they are first asked for."""
        if callable(self._margins):
            self._margins = self._margins()
        return self._margins

    def __repr__(self) -> str:
        counts = self.counts
        return f"Ledger({counts[OUT]} out, {counts[BOUND]} at their bound, {counts[OPEN]} open)"

    def __len__(self) -> int:
        return len(self.margins)

    @property
    def status(self) -> NDArray[np.str_]:
        """What is proved of every row (rows,): one of STATUS."""
        decided = np.abs(self.margins) > 1
        return np.select([decided & (self.margins > 0), decided], [OUT, BOUND], OPEN)

    @property
    def counts(self) -> dict[str, int]:
        """Rows of every status."""
        decided, positive = np.abs(self.margins) > 1, self.margins > 0
        out = int(np.count_nonzero(decided & positive))
        bound = int(np.count_nonzero(decided)) - out
        return {OUT: out, BOUND: bound, OPEN: len(self) - out - bound}

    def numbers(self) -> NDArray[np.int64]:
        """The rows' numbers in the source (rows,)."""
        return np.arange(len(self)) if self.rows is None else self.rows

    def numbered(self, numbers: NDArray[np.int64]) -> Ledger:
        """The same in the order of other numbers (rows,), all different, of the same rows."""
        size = int(numbers.max(initial=-1)) + 1
        if callable(self._margins):
            order = np.argsort(numbers)
            rows = None if len(numbers) == size else numbers[order]
            return Ledger(partial(_taken, self._margins, order), self.radius, rows)
        # Rows of a store are a permutation of most of the source: no need to sort.
        margins, there = np.empty(size, np.float16), np.zeros(size, np.bool_)
        margins[numbers], there[numbers] = self.margins, True
        if len(numbers) == size:
            return Ledger(margins, self.radius)
        rows = np.flatnonzero(there)
        return Ledger(margins[rows], self.radius, rows)

    def among(self, keep: NDArray[np.bool_]) -> Ledger:
        """That of some of the rows."""
        rows = None if self.rows is None else self.rows[keep]
        return Ledger(self.margins[keep], self.radius, rows)

    def listed(self, status: str | None = None, top: int | None = None) -> NDArray[np.int64]:
        """Places of the rows of one status, or of all, in their order.

        ``top``: only so many, those that are decided most firmly or, of open rows, that are nearest
        to a kink; these come first.
        """
        margins = np.abs(self.margins.astype(np.float64))
        places = np.arange(len(self))
        if status is not None:
            places = np.flatnonzero(self.status == status)
        if top is None:
            return places
        order = margins[places] if status == OPEN else -margins[places]
        return places[np.argsort(order, kind="stable")[:top]]


def rounded(ratio: FloatArray, used: NDArray[np.bool_]) -> Margins:
    """Margins of rows that are certain as long as w is less than ``ratio`` (rows,) radii off.

    ``used``: whether alpha is not 0 on the row's side.
    """
    ratio = np.clip(ratio, 0.0, FARTHEST)
    margins: Margins = ratio.astype(np.float16)
    high = margins > ratio
    margins[high] = np.nextafter(margins[high], np.float16(0))
    margins[used] *= -1
    return margins


def _taken(margins: Callable[[], Margins], places: NDArray[np.int64]) -> Margins:
    found: Margins = margins()[places]
    return found


def to_arrays(ledgers: Sequence[Ledger]) -> dict[str, NDArray[Any]]:
    """The ledgers of a model's problems as the arrays of a file."""
    arrays: dict[str, NDArray[Any]] = {
        "ledger_margins": np.concatenate([ledger.margins for ledger in ledgers]),
        "ledger_radius": np.array([ledger.radius for ledger in ledgers]),
        "ledger_sizes": np.array([len(ledger) for ledger in ledgers], np.int64),
    }
    if any(ledger.rows is not None for ledger in ledgers):
        steps = np.concatenate([np.diff(ledger.numbers(), prepend=0) for ledger in ledgers])
        arrays["ledger_steps"] = steps.astype(np.min_scalar_type(int(steps.max(initial=0))))
    return arrays


def from_arrays(arrays: dict[str, NDArray[Any]]) -> list[Ledger]:
    """The ledgers that `to_arrays` made.

    Raises
    ------
    ValueError
        If the arrays do not fit each other.
    """
    margins, sizes = arrays["ledger_margins"], arrays["ledger_sizes"]
    radius, steps = arrays["ledger_radius"], arrays.get("ledger_steps")
    whole = margins.dtype == np.float16 and np.isfinite(margins).all() and len(radius) == len(sizes)
    whole = whole and (sizes >= 0).all() and margins.shape == (int(sizes.sum()),)
    if not whole or (steps is not None and steps.shape != margins.shape):
        raise ValueError("the ledger's arrays do not fit each other")
    cuts = np.cumsum(sizes)[:-1]
    own: list[Any] = [None] * len(sizes)
    if steps is not None:
        own = [np.cumsum(part, dtype=np.int64) for part in np.split(steps, cuts)]
    parts = zip(np.split(margins, cuts), radius.tolist(), own, strict=True)
    return [Ledger(part, size, numbers) for part, size, numbers in parts]


def described(ledgers: Sequence[Ledger], labels: Sequence[Any]) -> dict[str, Any]:
    """Rows of every status, of each score and of all together; JSON-able."""
    scores = [
        {"label": label, "rows": len(ledger), **ledger.counts, "radius": ledger.radius}
        for label, ledger in zip(labels, ledgers, strict=True)
    ]
    return {
        **{name: sum(part[name] for part in scores) for name in ("rows", *STATUS)},
        "scores": scores,
    }

"""The ledger of a certified fit: what is proved of every row, whatever the optimum is exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.numerics.rows import FloatArray

OUT, BOUND, OPEN = STATUS = ("out", "bound", "open")
"""What is proved of a row: alpha* is 0, it is the end of its box that is not 0, or neither."""

DUAL_ARRAYS = tuple(f"ledger_dual_{part}" for part in ("coef", "numbers", "sizes", "rows", "alpha"))
"""The arrays of dual points in a file."""

LEDGER_ARRAYS = (
    *("ledger_margins", "ledger_radius", "ledger_sizes", "ledger_steps"),
    *DUAL_ARRAYS,
)
"""The arrays of a file; ``steps`` are of rows that are not simply 0, 1, 2, ..."""

Margins = NDArray[np.float16]

FARTHEST = float(np.finfo(np.float16).max)


@dataclass(frozen=True, eq=False)
class DualPoint:
    """The alpha behind a certificate's D, as far as the ledger does not say it (C-SVC).

    A row whose margin has a minus sign has ``alpha = hi``, any other 0, but for those listed.

    Parameters
    ----------
    coef : float64 (m,)
        Coefficients of the columns: a row's score under ``w(alpha)`` is ``c . coef + offset``.
    offset : float
    apart : float
        ``||w - w(alpha)||``, the constant's coefficients included.
    places : int64 (k,)
        Ledger places of rows whose alpha is neither, ascending.
    alpha : float64 (k,)
        Theirs.
    """

    coef: FloatArray
    offset: float
    apart: float
    places: NDArray[np.int64]
    alpha: FloatArray

    def at(self, places: NDArray[np.int64]) -> DualPoint:
        """The same for other places of the rows: -1 for one that has left (places of before,)."""
        there = places[self.places]
        order = np.argsort(there, kind="stable")
        order = order[there[order] >= 0]
        return replace(self, places=there[order], alpha=self.alpha[order])


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
    dual : DualPoint or None
        Of a C-SVC on features without a coupling; the alpha of an exact machine is its own
        coefficients.
    """

    def __init__(
        self,
        margins: Margins | Callable[[], Margins],
        radius: float,
        rows: NDArray[np.int64] | None = None,
        dual: DualPoint | None = None,
    ) -> None:
        self._margins, self.radius, self.rows, self.dual = margins, radius, rows, dual

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

    def places(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the rows of these source numbers are (k,); -1 of one that is not there."""
        known = self.numbers()
        # (To look many up among the sorted numbers takes as long as passes over all rows.)
        at = np.full(max(int(known.max(initial=-1)), int(numbers.max(initial=-1))) + 1, -1)
        at[known] = np.arange(len(known))
        return at[numbers]

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
        rows = None if len(numbers) == size else np.flatnonzero(there)
        found = Ledger(margins if rows is None else margins[rows], self.radius, rows)
        if self.dual is not None:
            found.dual = self.dual.at(found.places(numbers))
        return found

    def folded(self, sides: int) -> Ledger:
        """The ledger of rows each of which has several variables: the row's alpha is their sum.

        Variable ``k`` of ``rows`` belongs to row ``k``, ``rows + k`` to the same row, and so on; at
        most one of a row's variables is not 0 at the optimum. A row is out if all its variables
        are, it is at its bound if one variable is and all others are out, and it is no more certain
        than the least certain of them.
        """
        if sides == 1:
            return self
        margins = partial(_folded, self, sides)
        return Ledger(margins if callable(self._margins) else margins(), self.radius)

    def among(self, keep: NDArray[np.bool_]) -> Ledger:
        """That of some of the rows."""
        rows = None if self.rows is None else self.rows[keep]
        dual = self.dual
        if dual is not None:
            dual = dual.at(np.where(keep, np.cumsum(keep) - 1, -1))
        return Ledger(self.margins[keep], self.radius, rows, dual)

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


def _folded(variables: Ledger, sides: int) -> Margins:
    """Margins of rows (rows,) from those of their variables (sides * rows,)."""
    each = variables.margins.reshape(sides, -1)
    used = np.count_nonzero(np.signbit(each), axis=0)
    least: Margins = np.min(np.abs(each), axis=0)
    # Of two variables that are both not 0 the sum is neither 0 nor an end.
    least[used > 1] = 0
    return np.where(used == 1, -least, least)


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
    duals = [ledger.dual for ledger in ledgers if ledger.dual is not None]
    if len(duals) < len(ledgers):
        return arrays
    own = [
        np.stack([dual.coef for dual in duals]),
        np.array([[dual.offset, dual.apart] for dual in duals]),
        np.array([len(dual.places) for dual in duals], np.int64),
        np.concatenate([dual.places for dual in duals]),
        np.concatenate([dual.alpha for dual in duals]),
    ]
    return arrays | dict(zip(DUAL_ARRAYS, own, strict=True))


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
    duals = _duals(arrays, sizes)
    parts = zip(np.split(margins, cuts), radius.tolist(), own, duals, strict=True)
    return [Ledger(*part) for part in parts]


def _duals(arrays: dict[str, NDArray[Any]], rows: NDArray[np.int64]) -> Sequence[DualPoint | None]:
    """The dual points of ledgers of so many rows, None where a file has none."""
    if DUAL_ARRAYS[0] not in arrays:
        return [None] * len(rows)
    coef, numbers, sizes, places, alpha = (arrays[name] for name in DUAL_ARRAYS)
    whole: Any = len(coef) == len(sizes) == len(rows) and numbers.shape == (len(rows), 2)
    whole = whole and coef.ndim == 2 and (sizes >= 0).all() and places.dtype == np.int64
    whole = whole and places.shape == alpha.shape == (int(sizes.sum()),)
    if not whole or not all(np.isfinite(part).all() for part in (coef, numbers, alpha)):
        raise ValueError("the ledger's dual points do not fit each other")
    cuts, found = np.cumsum(sizes)[:-1], []
    listed = zip(np.split(places, cuts), np.split(alpha, cuts), rows.tolist(), strict=True)
    for k, (own, values, most) in enumerate(listed):
        if len(own) and (own[0] < 0 or own[-1] >= most or (np.diff(own) <= 0).any()):
            raise ValueError("a dual point names rows that there are not")
        found.append(DualPoint(coef[k], float(numbers[k, 0]), float(numbers[k, 1]), own, values))
    return found


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

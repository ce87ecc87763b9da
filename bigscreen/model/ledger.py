"""The ledger of a certified fit: for every row, what is proved of its optimal dual variable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.numerics.rows import FloatArray

OUT, BOUND, OPEN = STATUS = ("out", "bound", "open")
"""Proved status of a row: "out" (alpha* = 0), "bound" (alpha* at its nonzero bound), "open"."""

DUAL_ARRAYS = tuple(f"ledger_dual_{part}" for part in ("coef", "numbers", "sizes", "rows", "alpha"))
"""Names of a file's arrays that hold the dual points of all ledgers.

coef (ledgers, m), numbers (ledgers, 2: offset and apart), sizes (listed rows per ledger), and the
listed rows' positions and alpha, concatenated.
"""

LEDGER_ARRAYS = (
    *("ledger_margins", "ledger_radius", "ledger_sizes", "ledger_steps"),
    *DUAL_ARRAYS,
)
"""Names of a file's ledger arrays.

``ledger_steps`` holds the differences of row numbers; it is absent if rows are 0, 1, 2, ..."""

Margins = NDArray[np.float16]
"""Margins of a ledger's rows, float16 (rows,): beyond +-1 it is proved which side of the loss's
hinge point the row is on at the optimum (see `Ledger`)."""

MAX_MARGIN = float(np.finfo(np.float16).max)
"""Larger margins are stored as this one, the largest float16."""


@dataclass(frozen=True, eq=False)
class DualPoint:
    """The dual point (all dual variables alpha) of a C-SVC certificate, for its `Ledger`.

    A row whose ledger margin has a minus sign has ``alpha = hi``, its upper bound, and every other
    row has ``alpha = 0``, except the rows listed in ``places``.

    Parameters
    ----------
    coef : float64 (m,)
        Coefficients of w(alpha): a row with features c has the score ``c . coef + offset``.
    offset : float
        Offset of w(alpha).
    apart : float
        ``||w - w(alpha)||``, including the coefficients of the constant feature; w is the certified
        primal point.
    places : int64 (k,)
        Ledger positions of the rows whose alpha is listed, ascending.
    alpha : float64 (k,)
        Values of alpha of the listed rows.
    """

    coef: FloatArray
    offset: float
    apart: float
    places: NDArray[np.int64]
    alpha: FloatArray

    def at(self, places: NDArray[np.int64]) -> DualPoint:
        """Return the dual point after row k has moved to ``places[k]``; -1 if it was removed."""
        there = places[self.places]
        order = np.argsort(there, kind="stable")
        order = order[there[order] >= 0]
        return replace(self, places=there[order], alpha=self.alpha[order])


class Ledger:
    """Statuses that a certificate proves for the rows of one problem.

    The optimal w* lies within ``radius`` of the certified w. If a row's score stays on its side of
    the loss's hinge points for every w in this ball, its alpha* is decided: the row is *out*
    (alpha* = 0: the optimum without the row is the same) or at its *bound* (alpha* is at its
    nonzero bound, where the loss is linear). All other rows are *open*.

    Parameters
    ----------
    margins : float16 (rows,), or a function that returns them
        Distance from w, in radii, within which the row cannot cross its next hinge point, rounded
        towards 0; negative on the side where alpha is not 0. Beyond +-1 the row is decided.
    radius : float
        Radius of the ball around w that contains w*, in units of ``||w||``.
    rows : int64 (rows,) or None
        Numbers of the rows in the source, ascending; None: 0, 1, 2, ...
    dual : DualPoint or None
        The certificate's dual point, for a C-SVC on features without a coupling (an equality
        constraint); None for an exact machine, whose coefficients are its alpha.
    """

    def __init__(
        self,
        margins: Margins | Callable[[], Margins],
        radius: float,
        rows: NDArray[np.int64] | None = None,
        dual: DualPoint | None = None,
    ) -> None:
        """Keep the fields; margins given as a function are computed at their first use."""
        self._margins, self.radius, self.rows, self.dual = margins, radius, rows, dual

    @property
    def margins(self) -> Margins:
        """Margins of the rows, float16 (rows,), computed at the first access."""
        if callable(self._margins):
            self._margins = self._margins()
        return self._margins

    def __repr__(self) -> str:
        """Return the number of rows with each status, for display."""
        counts = self.counts
        return f"Ledger({counts[OUT]} out, {counts[BOUND]} at their bound, {counts[OPEN]} open)"

    def __len__(self) -> int:
        return len(self.margins)

    @property
    def status(self) -> NDArray[np.str_]:
        """Proved status of every row (rows,), one of `STATUS`."""
        decided = np.abs(self.margins) > 1
        return np.select([decided & (self.margins > 0), decided], [OUT, BOUND], OPEN)

    @property
    def counts(self) -> dict[str, int]:
        """Number of rows with each status."""
        decided, positive = np.abs(self.margins) > 1, self.margins > 0
        out = int(np.count_nonzero(decided & positive))
        bound = int(np.count_nonzero(decided)) - out
        return {OUT: out, BOUND: bound, OPEN: len(self) - out - bound}

    def numbers(self) -> NDArray[np.int64]:
        """Return the rows' numbers in the source (rows,)."""
        return np.arange(len(self)) if self.rows is None else self.rows

    def places(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ledger positions of source row numbers (k,); -1 if a row is not in it."""
        known = self.numbers()
        # A table is faster than binary searches if many rows are looked up.
        at = np.full(max(int(known.max(initial=-1)), int(numbers.max(initial=-1))) + 1, -1)
        at[known] = np.arange(len(known))
        return at[numbers]

    def renumber(self, numbers: NDArray[np.int64]) -> Ledger:
        """Return the ledger with its rows renumbered: row k gets ``numbers[k]``, all distinct."""
        size = int(numbers.max(initial=-1)) + 1
        if callable(self._margins):
            order = np.argsort(numbers)
            rows = None if len(numbers) == size else numbers[order]
            return Ledger(partial(_take_margins, self._margins, order), self.radius, rows)
        # Rows of a store are a permutation of most source rows: scatter them instead of sorting.
        margins, there = np.empty(size, np.float16), np.zeros(size, np.bool_)
        margins[numbers], there[numbers] = self.margins, True
        rows = None if len(numbers) == size else np.flatnonzero(there)
        found = Ledger(margins if rows is None else margins[rows], self.radius, rows)
        if self.dual is not None:
            found.dual = self.dual.at(found.places(numbers))
        return found

    def fold_sides(self, sides: int) -> Ledger:
        """Merge a ledger of dual variables into a ledger of rows with ``sides`` variables each.

        Variables ``k``, ``rows + k``, ... belong to row ``k``, whose alpha is their sum; at the
        optimum at most one of them is not 0. A row is out if all its variables are out, and at its
        bound if one is at its bound and all others are out. Its margin is the smallest of its
        variables' margins.
        """
        if sides == 1:
            return self
        margins = partial(_fold_margins, self, sides)
        return Ledger(margins if callable(self._margins) else margins(), self.radius)

    def among(self, keep: NDArray[np.bool_]) -> Ledger:
        """Return the ledger of the rows marked in ``keep``, bool (rows,)."""
        rows = None if self.rows is None else self.rows[keep]
        dual = self.dual
        if dual is not None:
            dual = dual.at(np.where(keep, np.cumsum(keep) - 1, -1))
        return Ledger(self.margins[keep], self.radius, rows, dual)

    def list_rows(self, status: str | None = None, top: int | None = None) -> NDArray[np.int64]:
        """Return the ledger positions of rows with one status, or of all rows, ascending.

        ``top``: return only this many rows, those with the largest margins (open rows: the smallest
        margins), sorted by margin.
        """
        margins = np.abs(self.margins.astype(np.float64))
        places = np.arange(len(self))
        if status is not None:
            places = np.flatnonzero(self.status == status)
        if top is None:
            return places
        order = margins[places] if status == OPEN else -margins[places]
        return places[np.argsort(order, kind="stable")[:top]]


def round_margins(ratio: FloatArray, used: NDArray[np.bool_]) -> Margins:
    """Encode each row's distance to its hinge point, in radii, as a signed float16 margin.

    ``ratio``, (rows,), is rounded towards 0. ``used`` marks the rows on the side where alpha is not
    0; their margins are negative.
    """
    ratio = np.clip(ratio, 0.0, MAX_MARGIN)
    margins: Margins = ratio.astype(np.float16)
    high = margins > ratio
    margins[high] = np.nextafter(margins[high], np.float16(0))
    margins[used] *= -1
    return margins


def _take_margins(margins: Callable[[], Margins], places: NDArray[np.int64]) -> Margins:
    """Compute margins and return those at ``places``; a `partial` of it defers the computation."""
    found: Margins = margins()[places]
    return found


def _fold_margins(variables: Ledger, sides: int) -> Margins:
    """Compute margins of rows, (rows,), from the ledger of their dual variables (sides * rows).

    Each row has ``sides`` dual variables, of which at most one is not 0 at the optimum. A row's
    margin is the smallest of theirs, negative if one variable is on the side where it is not 0.
    """
    each = variables.margins.reshape(sides, -1)
    used = np.count_nonzero(np.signbit(each), axis=0)
    least: Margins = np.min(np.abs(each), axis=0)
    # If two variables are both on the nonzero side, nothing is known of their sum.
    least[used > 1] = 0
    return np.where(used == 1, -least, least)


def to_arrays(ledgers: Sequence[Ledger]) -> dict[str, NDArray[Any]]:
    """Convert a model's ledgers, one per score function, to the arrays of a file, by name.

    Dual points are left out unless every ledger has one.
    """
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
    """Restore ledgers from the arrays that `to_arrays` made, one per score function.

    Raises
    ------
    ValueError
        If the arrays are inconsistent.
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
    """Restore a dual point for each ledger, None for each if the file has none.

    ``rows``, (ledgers,), is the number of rows of each ledger. ValueError if the arrays are
    inconsistent.
    """
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


def suggest_tol(ledgers: Sequence[Ledger], gap: float) -> float | None:
    """Suggest a tolerance at which a fit would decide many rows that are open.

    The radius that holds the optimum shrinks as the root of the gap, so that at ``gap margin**2``
    a row is decided unless it is at its hinge point.

    Parameters
    ----------
    ledgers : sequence of Ledger
    gap : float
        The proved relative gap.

    Returns
    -------
    float or None
        A power of ten at which half of the open rows would be decided; None if less than half of
        the rows are open, or if their margins tell nothing.
    """
    margins = np.abs(np.concatenate([ledger.margins for ledger in ledgers])).astype(np.float64)
    still_open = margins[margins <= 1]
    if 2 * len(still_open) < len(margins) or gap <= 0:
        return None
    wanted = gap * float(np.median(still_open)) ** 2
    return None if wanted < MIN_SUGGESTED_TOL else 10.0 ** np.floor(np.log10(wanted))


MIN_SUGGESTED_TOL = 1e-9
"""Suggest no tolerance below this: float32 features can hardly prove it."""


def summarise_ledgers(ledgers: Sequence[Ledger], labels: Sequence[Any]) -> dict[str, Any]:
    """Summarise ledgers: number of rows with each status, per score and in total; JSON-able.

    ``labels`` has a name for each ledger's score function.
    """
    scores = [
        {"label": label, "rows": len(ledger), **ledger.counts, "radius": ledger.radius}
        for label, ledger in zip(labels, ledgers, strict=True)
    ]
    return {
        **{name: sum(part[name] for part in scores) for name in ("rows", *STATUS)},
        "scores": scores,
    }

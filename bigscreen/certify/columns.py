"""The sums of a closing pass over columns: each row's contributions to P, D and ``w(alpha)``.

Rows come tile by tile: their columns, their scores, the alpha read off the scores, and the vector
``sum s alpha [c, border]``. In float32, rows near their hinge point are summed from float64 columns
instead, and sampled rows are compared in both precisions (`certify.sample`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, NamedTuple, Protocol, Self, cast

import numpy as np
from numpy.typing import NDArray

from bigscreen.certify.ledger import is_off_side, round_to_float32
from bigscreen.certify.offset import Breakpoints
from bigscreen.certify.sample import SAMPLE, ComparedRows, Sample, compare_rows, stride
from bigscreen.data.layout import stack_rows
from bigscreen.features.design import ROWS_PER_TILE, Design, row_ranges
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.base import KernelTile
from bigscreen.numerics.rows import FloatArray, as_rows, njit, row_dot
from bigscreen.problems.dual import Dual, Mu, sensitivity
from bigscreen.problems.point import Point, SumLayout, Terms, add_in_blocks
from bigscreen.problems.recipes import CSvc, Problem


@dataclass(frozen=True)
class ColumnTuning:
    """When a closing pass uses float64 columns, and how many rows it sums at once.

    A closing pass sums P, D and their gap over all rows, from float32 columns (features, or kernel
    entries with the landmarks) unless a field says otherwise.

    Parameters
    ----------
    max_rounding_share : float
        Repeat the closing pass (the final pass over all rows) with float64 columns if rounding can
        account for more than this fraction of the gap, unless half of that rounding comes from
        float64 sums alone.
    sample_factor : float
        Take the largest error of any row's float32 score to be this multiple of the largest error
        among the sampled rows.
    near_gap : float
        If the solver's relative gap is at most this, the closing pass (the final pass over all
        rows) uses float64 columns for the rows close to their hinge point; with a wider gap it uses
        float32 columns for all rows.
    support_float64_gap : float
        If the relative gap is below this, use float64 columns for all rows with a nonzero alpha.
        (Float64 for all rows takes .4 of the time, but proves gaps of 3e-10 where this proves
        4e-11.)
    side_share : float
        Treat a row's alpha as at a bound if it is off by at most this fraction of the distance
        between its bounds (a mean of equal alphas is off by rounding).
    block_rows : int
        Sum blocks of this many rows separately, then add the sums: rounding grows with the size of
        a block, not with the number of rows.
    compared_rows : int
        Compare float32 and float64 scores of at least this many sampled rows at once, so that a
        large factor of the landmarks is read once for all of them.
    max_breakpoints : int
        P is a piecewise linear function of the constraint's multiplier, with a breakpoint where a
        row is at its hinge point. Each shard (range of rows) returns at most this many breakpoints
        below and as many above the present multiplier; only the total weight of the others is kept.
    sample_rows : int
        Compare the float32 and float64 columns of about this many sampled rows; their differences
        bound the rounding of all rows.
    """

    max_rounding_share: float = 0.5
    sample_factor: float = 4.0
    near_gap: float = 1e-4
    support_float64_gap: float = 1e-7
    side_share: float = 1e-12
    block_rows: int = 32
    compared_rows: int = 256
    max_breakpoints: int = 256
    sample_rows: int = SAMPLE.rows


TUNING = ColumnTuning()


class FieldwiseSum:
    """Base class of dataclasses whose instances are added field by field."""

    def __add__(self, other: Self) -> Self:
        """Return an instance whose fields are the sums of both instances' fields."""
        names = (each.name for each in fields(cast("Any", self)))
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass
class Sums(FieldwiseSum):
    """Sums over rows of a closing pass; sums of shards are added in shard order.

    ``loss``: the sum of losses; an error e of every score moves it by at most
    ``steep e + bend e^2 / 2``. ``sample``: rows compared in float32 and float64. ``rows``,
    ``support``: the number of rows, and of rows whose alpha is not 0. ``left``: how far the gap
    moves per unit of error in the scores of rows without float64 columns. For each part of a
    mixture: ``sizes``, its ``sum |alpha|``; ``values``, the sums of its `Terms`; ``vectors``
    (parts, terms, m + extras), its ``sum s alpha [c, border]``. By shard: ``breakpoints`` of P near
    the multiplier of each group; ``scores`` of all rows, in float32 at the end; ``alpha``, at the
    end (places, values) of rows that a ledger lists.
    """

    sizes: FloatArray
    values: FloatArray
    vectors: FloatArray
    loss: float = 0.0
    steep: float = 0.0
    bend: float = 0.0
    rows: float = 0.0
    support: float = 0.0
    left: float = 0.0
    sample: Sample = field(default_factory=Sample.empty)
    breakpoints: list[list[Breakpoints]] = field(default_factory=list)
    scores: list[NDArray[Any]] = field(default_factory=list)
    alpha: list[Any] = field(default_factory=list)


class Columns(Protocol):
    """The columns of a tile's rows, in the host's memory or on a device."""

    def scores(self, coef: FloatArray, constant: float) -> FloatArray:
        """Compute the scores ``columns . coef + constant``: float64 (rows,)."""

    def add(
        self,
        border: FloatArray,
        coef: FloatArray,
        term: NDArray[np.integer],
        block: int,
        vector: FloatArray,
    ) -> None:
        """Add ``coef_i [c_i, border_i]`` of every row i to ``vector[term_i]``, in blocks."""

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the columns of some of the rows."""


@dataclass(frozen=True)
class HostColumns:
    """Columns in the host's memory, dense or CSR (see `Columns`)."""

    rows: Any

    def scores(self, coef: FloatArray, constant: float) -> FloatArray:
        """Compute the scores of the rows by a compiled loop."""
        out = np.empty(len(self.rows[2]) - 1 if isinstance(self.rows, tuple) else len(self.rows))
        column_scores(self.rows, coef, constant, out)
        return out

    def add(
        self,
        border: FloatArray,
        coef: FloatArray,
        term: NDArray[np.integer],
        block: int,
        vector: FloatArray,
    ) -> None:
        """Add the rows in short blocks, see `add_in_blocks`."""
        add_in_blocks(self.rows, border, coef, term, block, vector)

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the columns of some of the rows."""
        found: NDArray[Any] = self.rows[rows]
        return found


@dataclass(frozen=True)
class TileColumns:
    """Columns that stay on a device, which sums in an order of its own (see `Columns`)."""

    tile: KernelTile

    def scores(self, coef: FloatArray, constant: float) -> FloatArray:
        """Compute the scores of the rows on the device."""
        return self.tile.dots(coef[:, None])[:, 0] + constant

    def add(
        self,
        border: FloatArray,
        coef: FloatArray,
        term: NDArray[np.integer],
        block: int,
        vector: FloatArray,
    ) -> None:
        """Add the rows on the device, and their borders on the host."""
        coefs = np.zeros((len(coef), len(vector)))
        coefs[np.arange(len(coef)), term] = coef
        if coefs.any():
            vector += np.concatenate([self.tile.sums(coefs, block), coefs.T @ border], axis=1)

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the columns of some of the rows, on the host."""
        return self.tile.take(rows)


class Tile(NamedTuple):
    """A tile of a shard's rows: a few rows whose columns are in memory at once.

    ``rows``: the rows' positions in the shard; ``columns``: the columns that are summed; ``read``:
    the columns from whose scores alpha follows, None if alpha is given. ``exact`` computes float64
    columns of chosen rows of the tile; None: no comparison with float64 columns is needed.
    """

    rows: slice
    columns: Columns
    read: Columns | None
    exact: Callable[[NDArray[np.int64]], FloatArray] | None


@dataclass(frozen=True)
class ColumnPass:
    """Function that workers call for each shard: its sums for the certificate of a point.

    ``solved`` has the columns that give alpha, ``summed`` the columns that are summed, with entries
    of ``dtype``, on a device if its kernel is placed there; ``source`` is the kernel design behind
    stored features. The kernels of ``solved`` and ``source`` compute on the host. ``coef`` and
    ``exact_coef`` are the point's coefficients for the summed columns and for the kernel design's.
    ``frame``: the layout of the sums; ``mu``: the multiplier at which P is summed.
    Rows within ``margin`` of their hinge point get float64 columns (0: none); with
    ``support_in_float64`` all rows with a nonzero alpha get them, too. ``keep``: keep the scores
    that a ledger is made of.
    """

    solved: Design
    summed: Design
    source: Design | None
    dtype: type
    problem: Problem
    frame: SumLayout
    point: Point
    coef: FloatArray
    exact_coef: FloatArray
    mu: Mu
    keep: bool = False
    margin: float = 0.0
    support_in_float64: bool = False
    tuning: ColumnTuning = TUNING

    def total(self, fleet: Fleet) -> Sums:
        """Run the pass over all shards on a fleet (threads or workers); return the total sums."""
        data, point = self.summed.data, self.point
        given: NDArray[Any] | None = point.sides
        if point.alpha is not None:
            n = data.n_rows
            dual = self.problem.dual(data.y(0, n), data.weights(0, n))
            given = dual.feasible(point.alpha)
        shards = (data.shard(s) for s in range(data.n_shards))
        items = ((s, None if given is None else given[a:b]) for s, (a, b) in enumerate(shards))
        total = self.zero_sums
        for found in fleet.each(self, items):
            total = total + found
        return total

    def __call__(self, item: tuple[int, NDArray[Any] | None]) -> Sums:
        """Return the sums of one shard's rows.

        ``item``: the shard's number, and the alpha of its rows, their sides, or None: alpha is read
        off the scores.
        """
        return SeveralPasses((self,))((item,))[0]

    @property
    def alike(self) -> Any:
        """A key that is equal for passes over the same columns: they can be joined (`together`)."""
        source = None if self.source is None else self.source.column_key
        return self.solved.column_key, self.summed.column_key, source, self.dtype

    @staticmethod
    def together(passes: Iterable[ColumnPass]) -> SeveralPasses:
        """Join several points' passes over the same columns into one pass that reads them once.

        Each item of the joint pass is a tuple of the points' items: shard number, and alpha or
        sides.
        """
        return SeveralPasses(tuple(passes))

    @property
    def exact_design(self) -> Design | None:
        """The design of exact float64 columns for comparison; None if these are summed already."""
        return None if self.dtype is np.float64 else self.source or self.solved

    @property
    def weights(self) -> list[float]:
        """The weights of the dual points whose weighted mean (mixture) is alpha; [1] if it is one.

        Each dual point is a `Reading`: an alpha that is read off the scores of some w.
        """
        return [reading.weight for reading in self.point.readings] or [1.0]

    @property
    def keeps_alpha(self) -> bool:
        """Whether alpha is kept for a ledger (what is proved of each row).

        Only that of a C-SVC without an unpenalised offset is.
        """
        return self.keep and type(self.problem) is CSvc and not self.frame.groups

    @property
    def block(self) -> int:
        """How many rows are summed as one block."""
        # (For sparse rows small blocks would cost more than the rows have entries.)
        sparse = self.summed.kernel is None and self.summed.data.is_sparse
        return ROWS_PER_TILE if sparse else self.tuning.block_rows

    @property
    def constant(self) -> float:
        """The part of every score that comes from a penalised offset."""
        return self.point.intercept if self.frame.constant else 0.0

    @property
    def zero_sums(self) -> Sums:
        """The sums over no rows, to which shards' sums are added."""
        frame, parts = self.frame, len(self.weights)
        return Sums(
            sizes=np.zeros(parts),
            values=np.zeros((parts, frame.terms * (1 + frame.curved))),
            vectors=np.zeros((parts, frame.terms, self.summed.width + frame.extras)),
        )

    def new_sums(self, rows: int) -> Sums:
        """Return the sums of a shard of ``rows`` rows before any row is added."""
        sums = self.zero_sums
        sums.scores = [np.empty(rows if self.frame.groups or self.keep else 0)]
        sums.alpha = [np.empty(rows if self.keeps_alpha else 0)]
        return sums

    def add(
        self, sums: Sums, dual: Dual, tile: Tile, given: NDArray[Any] | None, out: FloatArray
    ) -> NDArray[np.int64]:
        """Add a tile's rows to ``sums``; return the rows that got float64 columns.

        ``dual``: the dual of the tile's rows. ``given``: their alpha or their sides, or None.
        ``out`` receives the alpha that was used.
        """
        scores = tile.columns.scores(self.coef, self.constant)
        parts = self._parts(dual, given, tile.read, scores if tile.read is tile.columns else None)
        out[:] = 0.0  # a point without readings has alpha = 0
        weight = np.array(self.weights)
        for each, share in zip(parts, weight / weight.sum(), strict=False):
            out += share * each
        near, instead = np.empty(0, np.int64), np.empty((0, 0))
        if tile.exact is not None and self.margin:
            moves = sensitivity(dual, out, dual.gradient(scores, self.mu), self.margin)
            doubtful = moves > self.tuning.side_share * dual.reach
            near = np.flatnonzero(doubtful | (out != 0) if self.support_in_float64 else doubtful)
            instead = tile.exact(near)
            scores[near] = HostColumns(instead).scores(self.coef, self.constant)
            moves[near] = 0.0
            sums.left += moves.sum()
        self._add_losses(sums, dual, scores, near)
        self._add_alpha(sums, dual, tile.columns, (near, instead), parts)
        if len(sums.scores[0]):
            sums.scores[0][tile.rows] = scores
        if self.keeps_alpha:
            sums.alpha[0][tile.rows] = out
        return near

    def finish(self, sums: Sums, dual: Dual, start: int) -> Sums:
        """Complete a shard's sums with breakpoints, kept scores and the ledger's alpha.

        ``start`` is the number of the shard's first row.
        """
        (scores,), (alpha,) = sums.scores, sums.alpha
        if self.frame.has_breakpoints:
            most = self.tuning.max_breakpoints
            sums.breakpoints = [Breakpoints.near(dual, scores, np.atleast_1d(self.mu), most)]
        kept = round_to_float32(scores) if self.keep else np.empty(0, np.float32)
        sums.scores, sums.alpha = [kept], []
        if self.keeps_alpha:
            places = np.flatnonzero(is_off_side(dual, kept, alpha))
            sums.alpha = [(places + start, alpha[places])]
        return sums

    def _parts(
        self,
        dual: Dual,
        given: NDArray[Any] | None,
        read: Columns | None,
        known: FloatArray | None,
    ) -> list[FloatArray]:
        """The alpha (rows,) of each part of the mixture that is the point's dual point.

        ``given``: alpha (float64, the only part), decisions that override what is read off (int8),
        or None. ``read``: columns that give alpha; ``known``: the scores of w from them, or None.
        """
        if given is not None and given.dtype == np.float64:
            return [given]
        assert read is not None
        parts = list(self._readings(dual, read, known))
        return parts if given is None else [dual.with_decisions(given, each) for each in parts]

    def _readings(
        self, dual: Dual, columns: Columns, known: FloatArray | None
    ) -> Iterator[FloatArray]:
        """Compute the alpha (rows,) of each reading, the dual points whose mixture is alpha.

        ``columns``: those from whose scores alpha is read off; ``known``: scores of the point's own
        w, which a reading at this w uses again; or None.
        """
        for reading in self.point.readings:
            scores = known
            here = reading.intercept == self.constant and np.array_equal(reading.coef, self.coef)
            if scores is None or not here:
                scores = columns.scores(reading.coef, reading.intercept)
            yield reading.alpha(dual, scores)

    def _add_losses(
        self, sums: Sums, dual: Dual, scores: FloatArray, near: NDArray[np.int64]
    ) -> None:
        """Add the rows' losses to ``sums.loss``, and how errors of scores move them.

        ``scores`` (rows,); ``near``: indices of the rows with float64 columns.
        """
        losses = dual.losses(scores, self.mu)
        sums.loss += losses.sum()
        if dual.curve is None:
            # (Rows near their hinge point are in ``near``: any other loss of 0 is certainly 0.)
            moving = losses > 0 if self.margin else np.ones(len(dual), np.bool_)
            moving[near] = True
            sums.steep += dual.reach[moving].sum()
        else:
            sums.steep += np.abs(dual.best(dual.gradient(scores, self.mu))).sum()
            sums.bend += dual.reach.sum()
        sums.rows += len(dual)

    def _add_alpha(
        self,
        sums: Sums,
        dual: Dual,
        columns: Columns,
        exact: tuple[NDArray[np.int64], FloatArray],
        parts: Iterable[FloatArray],
    ) -> None:
        """Add ``sum s alpha [c, border]`` of each part of the mixture that alpha is.

        ``parts``: the alpha (rows,) of each part; ``columns``: the rows' columns c; ``exact``: the
        indices of rows with float64 columns, and these columns.
        """
        near, instead = exact
        used, border = np.zeros(len(dual), np.bool_), self.frame.border(dual)
        for k, alpha in enumerate(parts):
            sums.sizes[k] += np.abs(alpha).sum()
            terms = Terms(self.frame, dual, alpha)
            sums.values[k] += terms.sums
            vector, some = np.zeros(sums.vectors[k].shape), border[near]
            for coef, term in terms.parts:
                add_in_blocks(instead, some, coef[near], term[near], self.block, vector)
                coef[near] = 0.0
                columns.add(border, coef, term, self.block, vector)
            sums.vectors[k] += vector
            used |= alpha != 0
        sums.support += np.count_nonzero(used)


@dataclass(frozen=True)
class SeveralPasses:
    """The passes of several points over the same columns, computed once for all of them."""

    passes: tuple[ColumnPass, ...]

    def __call__(self, items: tuple[tuple[int, NDArray[Any] | None], ...]) -> list[Sums]:
        """Return the sums of one shard for each point (pass), in the order of the points.

        ``items``: for each point the shard's number and its alpha, its sides, or None (read off).
        """
        first = self.passes[0]
        data = first.summed.data
        start, stop = data.shard(items[0][0])
        duals, n = self._duals(start, stop), stop - start
        sums = [each.new_sums(n) for each in self.passes]
        alpha, exact = np.empty((len(items), n)), np.zeros((len(items), n), np.bool_)
        waiting: list[_SampledRows] = []
        for a, b in row_ranges(n, data.chunk_rows):
            X = data.X(start + a, start + b)
            picked = self._pick_sample(X, start, a, b)
            given_alpha = all(g is not None and g.dtype == np.float64 for _, g in items)
            for tile in self._tiles(X, start, a, b, picked, reads=not given_alpha):
                rows = tile.rows
                for k, (each, (_, given)) in enumerate(zip(self.passes, items, strict=True)):
                    own = None if given is None else given[rows]
                    near = each.add(sums[k], duals[k][rows], tile, own, alpha[k, rows])
                    exact[k, rows.start + near] = True
            if picked is None:
                continue
            waiting.append(picked)
            if sum(len(part.places) for part in waiting) >= first.tuning.compared_rows or b == n:
                self._add_to_samples(waiting, duals, (alpha, exact), sums)
                waiting = []
        ended = zip(self.passes, sums, duals, strict=True)
        return [each.finish(found, dual, start) for each, found, dual in ended]

    def _duals(self, start: int, stop: int) -> list[Dual]:
        """The dual of rows ``start`` to ``stop`` in each pass; each data set is read once."""
        stores = {id(data): data for data in (each.summed.data for each in self.passes)}
        read = {key: (own.y(start, stop), own.weights(start, stop)) for key, own in stores.items()}
        return [each.problem.dual(*read[id(each.summed.data)]) for each in self.passes]

    def _tiles(
        self, X: Any, start: int, a: int, b: int, picked: _SampledRows | None, reads: bool
    ) -> Iterator[Tile]:
        """The tiles of a chunk X: rows a to b of the shard whose first row is ``start``.

        ``picked``: the chunk's rows that are compared in both precisions, which remember their
        summed columns here; None: no rows are compared. ``reads``: whether any alpha is read off
        scores.
        """
        first = self.passes[0]
        solved, summed, true = first.solved, first.summed, first.exact_design
        # Alpha is read off the columns that the solver used. Any alpha in the box gives a valid
        # bound, but with a small h tiny differences of the columns give a quite different alpha.
        same = summed is solved and first.dtype is np.float32
        other = X if summed.data is solved.data else solved.data.X(start + a, start + b)
        for c, d in row_ranges(b - a, tile_rows(summed)):
            columns = _columns(summed, X[c:d], first.dtype, "certified")
            read = columns if same else None
            if reads and not same:
                read = _columns(solved, other[c:d], np.float32, "read")
            exact = None
            if picked is not None and true is not None:
                picked.remember(columns, a + c, a + d)
                exact = partial(_float64, true, summed, picked.chunk[c:d])
            yield Tile(slice(a + c, a + d), columns, read, exact)

    def _pick_sample(self, X: Any, start: int, a: int, b: int) -> _SampledRows | None:
        """Pick the rows of a chunk whose columns are compared with float64 columns.

        X: the chunk, rows a to b of the shard whose first row is ``start``. Returns None without a
        kernel: float32 features are then the user's own numbers, without error.

        A float32 product can round an entry differently at another place among the rows, so the
        comparison needs the columns that were summed themselves.
        """
        true, summed = self.passes[0].exact_design, self.passes[0].summed
        if true is None or true.kernel is None:
            return None
        data, begin, stop = true.data, start + a, start + b
        chunk = X if data is summed.data else data.X(begin, stop)
        step = stride(data.n_rows, self.passes[0].tuning.sample_rows)
        drawn = np.arange(-begin % step, stop - begin, step)
        # (Errors grow with the length of a row, so the longest row is compared, too.)
        some = np.append(drawn, int(np.argmax(data.sqnorms(begin, stop))))
        counted = np.arange(len(some)) < len(drawn)
        dtype = summed.data.layout.dtype if summed.kernel is None else np.float32
        columns = np.empty((len(some), summed.width), dtype)
        return _SampledRows(a + some, counted, chunk, chunk[some], columns)

    def _add_to_samples(
        self,
        rows: list[_SampledRows],
        duals: list[Dual],
        read: tuple[FloatArray, NDArray[np.bool_]],
        sums: list[Sums],
    ) -> None:
        """Compare picked rows in both precisions, and add them to every point's sample in ``sums``.

        ``duals``: of the shard's rows, for each pass; ``read``: alpha of each pass, float64
        (passes, n), and whether float64 columns of the row were summed, bool (passes, n).
        """
        true, (alpha, exact) = self.passes[0].exact_design, read
        assert true is not None
        own = stack_rows(true.data.is_sparse, [part.own for part in rows])
        columns = np.concatenate([part.columns for part in rows])
        places = np.concatenate([part.places for part in rows])
        drawn = np.concatenate([part.drawn for part in rows])
        picked = ComparedRows.at(true, self.passes[0].summed, own, columns, drawn)
        for k, each in enumerate(self.passes):
            w = each.point.w, each.exact_coef, each.constant
            of_rows = duals[k][places], alpha[k, places], w, each.mu, exact[k, places]
            sums[k].sample = sums[k].sample + compare_rows(picked, *of_rows)


class _SampledRows(NamedTuple):
    """Rows of a chunk whose columns are compared in float32 and float64.

    ``places``: the positions of the rows in the shard; ``drawn``: whether each is in the random
    sample; ``chunk``: all rows of the chunk in the kernel design; ``own``: the compared rows;
    ``columns``: the columns that were summed for them.
    """

    places: NDArray[np.int64]
    drawn: NDArray[np.bool_]
    chunk: Any
    own: Any
    columns: NDArray[Any]

    def remember(self, columns: Columns, start: int, stop: int) -> None:
        """Keep the summed columns of compared rows among the shard's rows ``start`` to ``stop``."""
        here = (self.places >= start) & (self.places < stop)
        if here.any():
            self.columns[here] = columns.take(self.places[here] - start)


def tile_rows(design: Design) -> int:
    """Return the largest number of rows whose columns are computed at once."""
    most = None if design.kernel is None else design.kernel.tile_rows(design.width)
    return most or design.rows_per_tile(ROWS_PER_TILE)


def _columns(design: Design, X: Any, dtype: type, passing: str) -> Columns:
    """The columns of rows X: kernel columns, or X itself without a kernel.

    They are valid until the next call with the same buffer name ``passing``.
    """
    if design.kernel is None:
        return HostColumns(as_rows(X))
    tile = design.kernel.tile(X, design.side, dtype)
    if tile is not None:
        return TileColumns(tile)
    return HostColumns(as_rows(design.columns(X, dtype, passing)))


def _float64(true: Design, used: Design, rows: Any, some: NDArray[np.int64]) -> FloatArray:
    """Float64 columns of the chosen ``rows[some]``, computed by the kernel design ``true``.

    They are kernel columns, or features if the design ``used`` has stored features.
    """
    if not len(some):
        return np.empty((0, used.width))
    columns = true.columns(rows[some], np.float64)
    return columns if used.kernel is not None else true.features_of(columns)


@njit(cache=True, nogil=True)
def column_scores(columns: Any, coef: FloatArray, intercept: float, out: FloatArray) -> None:
    """Compute the scores ``columns . coef + intercept`` of rows into ``out`` (rows,)."""
    for i in range(len(out)):
        out[i] = row_dot(columns, i, coef) + intercept

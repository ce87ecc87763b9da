"""Features or kernel entries shared by the candidates with equal landmarks and equal gamma."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.memory import MemoryDataset
from bigscreen.data.rows import Rows
from bigscreen.features import nystrom
from bigscreen.features.design import Design
from bigscreen.features.landmarks import GivenLandmarks
from bigscreen.files.sealed import Arrays
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.moved import move_rows
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import Linear
from bigscreen.numerics.rows import FloatArray
from bigscreen.options.train import TrainOptions
from bigscreen.path.explicit import ColumnsStage
from bigscreen.path.gram import GramStage
from bigscreen.path.kernel import KernelStage
from bigscreen.path.prepare import exact_stage
from bigscreen.path.stage import Stage
from bigscreen.path.walk import PathSettings, Step, Walk
from bigscreen.problems.dual import Dual
from bigscreen.problems.point import is_solved, read_off
from bigscreen.problems.recipes import with_mass_of
from bigscreen.train.kernel import choose_kernel
from bigscreen.train.problems import Binary
from bigscreen.tune.options import SearchTuning


class Group:
    """The candidates of a search with one number of landmarks and one gamma, and what they share.

    Parameters
    ----------
    data : Rows
        All rows.
    options : TrainOptions
        The options of any candidate of the group.
    fleet : Fleet
    tuning : SearchTuning
    """

    def __init__(
        self, data: Rows, options: TrainOptions, fleet: Fleet, tuning: SearchTuning
    ) -> None:
        """Choose the kernel; landmarks and their factor are computed when they are first needed.

        ``near``: the rows, shifted if the kernel allows; ``own``: the kernel on the shifted rows.
        """
        self.data, self.options, self.tuning = data, options, tuning
        self.kernel = choose_kernel(data, options, fleet)
        # (Rows are shifted so that float32 holds what the kernel sees of them.)
        self.near, self.own = move_rows(data, self.kernel, False)

    @cached_property
    def side(self) -> Operand:
        """The landmarks: the same rows that the final fit will use."""
        options = self.options
        if options.components is not None:
            return Operand(options.components.as_rows_of(self.near))
        given = options.landmarks, options.sampling, options.seed
        return nystrom.choose_landmarks(self.near, self.own, *given)[0]

    @cached_property
    def landmarks(self) -> GivenLandmarks:
        """The landmarks as rows of the data, which are not shifted."""
        options = self.options
        given_rows: GivenLandmarks | None = options.components
        if given_rows is not None:
            return given_rows
        given = options.landmarks, options.sampling, options.seed
        _, ids = nystrom.choose_landmarks(self.near, self.own, *given)
        return GivenLandmarks(self.data.rows(ids))

    @cached_property
    def factor(self) -> nystrom.Factor:
        """The factor ``T`` of the landmarks' kernel matrix, with its largest directions last."""
        cutoff = self.options.tuning.truncation
        return nystrom.factor_by_eigenvectors(
            self.own, self.side, nystrom.FLOAT64_CUTOFF if cutoff is None else cutoff
        )

    def prepare(
        self,
        rows: NDArray[np.int64] | None,
        fleet: Fleet,
        room: float,
        threads: int,
        quick: bool = False,
    ) -> PreparedRows:
        """Prepare ``rows`` (numbers; None: all rows) for this group's machines.

        Parameters
        ----------
        rows : int64 (rows,) or None
        fleet : Fleet
            Where features are computed.
        room : float
            Bytes of memory for features, and for kernel entries of an exact stage.
        threads : int
            The number of paths that may be solved at the same time.
        quick : bool
            Use float32 kernel entries; see `GramStage`.
        """
        options = self.options
        constant, start_band = options.offset == "constant", self.tuning.start_band

        def exact(design: Design) -> tuple[Callable[[], Stage], bool, bool]:
            """Return how to make a stage on the design's kernel matrix or columns.

            Returns the function that makes one, whether walks may run in parallel, and whether the
            stages use float32 entries (the first three fields of `PreparedRows`).
            """
            first, _ = exact_stage(design, constant, room, options, fleet, _silent, quick)
            if isinstance(first, GramStage):
                # Each walk may copy the part of the matrix that it fits, or sort it by groups.
                copies = 0 if quick and options.problem != "nu-svc" else threads
                return first.for_thread, first.gram.K.nbytes * (1 + copies) <= room, quick
            # One stage keeps the kernel columns for all walks, and forgets each walk's points.
            assert isinstance(first, KernelStage)
            return first.reset, False, False

        if options.exact:
            return PreparedRows(
                *exact(Design(self._part(rows), self.own)), None, constant, start_band
            )
        # On a part of the rows, scores are rough anyway: drop directions that float32 cannot hold.
        made_of = self.factor if rows is None else _drop_tiny_directions(self.factor)
        design = made_of.of(Design(self._part(rows), self.own), self.side)
        data = nystrom.store_features(design, fleet, None).data
        X = data.X(0, data.n_rows)
        n, width = X.shape
        if not options.coupled and n > self.tuning.max_product_rows_per_feature * width:
            make = ColumnsStage(X, constant, quick=True).for_thread
            return PreparedRows(make, True, False, X, constant, start_band)
        features = MemoryDataset(X, np.zeros(n, np.int64), self._labels)
        return PreparedRows(*exact(Design(features, Linear())), X, constant, start_band)

    def _part(self, rows: NDArray[np.int64] | None) -> Rows:
        """Return the (shifted) rows with these numbers, in memory; None: all rows, as they are."""
        data, n = self.near, self.data.n_rows
        if rows is None:
            return data
        weights = data.weights(0, n)[rows] if data.has_weights else None
        return MemoryDataset(data.rows(rows), data.y(0, n)[rows], self._labels, weights)

    @property
    def _labels(self) -> Any:
        """The labels; None if rows have targets."""
        return None if self.data.regression else self.data.labels


@dataclass(frozen=True)
class PreparedRows:
    """Prepared rows on which the paths of a group are solved.

    Parameters
    ----------
    stage : callable
        Returns a path's solver (stage) for one walk (solve of the grid).
    parallel : bool
        Whether walks may run in parallel.
    quick : bool
        Whether stages use float32 entries, which may be too inaccurate (`is_too_rough`).
    X : float32 (n, r) or None
        Features; None for the exact kernel.
    constant : bool
        Whether a 1 is appended to every phi.
    start_band : float
        A start's alpha is between its bounds for rows within this distance of the hinge point, as
        a part of the mean distance.
    """

    stage: Callable[[], Stage]
    parallel: bool
    quick: bool
    X: Any
    constant: bool
    start_band: float


class Part(NamedTuple):
    """A fold's rows among the rows of a rung (a round of the search, on a part of all rows).

    ``y`` and ``weights`` have an entry for each row of the rung; held-out rows have the weight 0.
    ``held`` has the positions of the held-out rows, and ``held_weights`` their weights in the
    score.
    """

    y: NDArray[Any]
    weights: FloatArray
    held: NDArray[np.int64]
    held_weights: FloatArray


def solve_path(
    prepared: PreparedRows,
    binaries: list[Binary],
    part: Part,
    values: list[float],
    settings: PathSettings,
    before: Arrays | None,
) -> tuple[list[list[Step]], Arrays]:
    """Solve a fold's path over some values, the smallest first.

    Parameters
    ----------
    before : dict of arrays or None
        The arrays returned for the same fold on fewer rows, from which the path starts.

    Returns
    -------
    steps : list of list of Step
        For every value, the solved points of its machines.
    arrays : dict
        ``values``, ``coef`` (values, machines, r) and ``intercept`` (values, machines) of machines
        over features, from which a path on more rows starts. Empty for an exact kernel.
    """
    stage = prepared.stage()
    grid = np.array(values)
    walks = []
    for k, one in enumerate(binaries):
        problem = with_mass_of(one.problem, part.y, part.weights)
        start = None if before is None else partial(_start, prepared, before, k)
        walks.append(Walk(stage, problem, part.y, part.weights, grid, settings, start))
    steps: list[list[Step]] = []
    coefs, intercepts = [], []
    for k in range(len(values)):
        steps.append([walk.step(k) for walk in walks])
        if prepared.X is not None:
            made = [_scoring(prepared.X, stage, step) for step in steps[-1]]
            coefs.append([coef for coef, _ in made])
            intercepts.append([offset for _, offset in made])
    if prepared.X is None:
        return steps, {}
    return steps, {"values": grid, "coef": np.array(coefs), "intercept": np.array(intercepts)}


def is_too_rough(
    prepared: PreparedRows, steps: list[list[Step]], tol: float, tuning: SearchTuning
) -> bool:
    """Whether a walk over float32 kernel entries must be repeated with float64 entries.

    It must if a point missed its relative gap, or if scores of probed rows, computed again in
    float64, differ too much.

    Parameters
    ----------
    prepared : PreparedRows
    steps : list of list of Step
        The walk's solved points: for every value, one for each machine.
    tol : float
        The relative gap that was requested.
    tuning : SearchTuning
    """
    stage = prepared.stage()
    assert isinstance(stage, GramStage)
    for step in (step for point in steps for step in point):
        values = step.solved.scores.values
        rows = np.linspace(0, len(values) - 1, min(tuning.probed_rows, len(values))).astype(
            np.int64
        )
        off = stage.gram.scores(step.dual.sign * step.solved.alpha, rows) - values[rows]
        allowed = tuning.max_probe_error * np.mean(abs(values))
        if not is_solved(step.record, tol) or np.max(np.abs(off)) > allowed:
            return True
    return False


def _scoring(X: Any, stage: Stage, step: Step) -> tuple[FloatArray, float]:
    """Return the coefficients of the features X, float64 (r,), and the offset of a solved machine.

    ``step``: a solved point of the solver ``stage``.
    """
    made = stage.machine(step.dual, step.solved)
    coef = np.asarray(made["coef"])
    if "support" in made:
        coef = np.asarray(coef @ X[made["support"]], dtype=np.float64)
    return coef, float(made["constant"] + step.offset)


def _start(
    prepared: PreparedRows, before: Arrays, machine: int, dual: Dual, value: float
) -> tuple[FloatArray, FloatArray | None] | None:
    """Make the start of a path's first value, from the nearest value of a path on fewer rows.

    ``before``: the arrays that `solve_path` returned for fewer rows; ``machine``: the number of the
    binary problem. Returns alpha (n,) and the w that it was read off; None if no start can be made.
    """
    X = prepared.X
    if not before or X is None or dual.group is not None or not np.any(dual.lin):
        return None
    k = int(np.argmin(np.abs(np.log(before["values"] / value))))
    coef, offset = before["coef"][k][machine], before["intercept"][k][machine]
    # (Directions that were dropped on fewer rows come first.)
    w = np.concatenate([np.zeros(X.shape[1] - len(coef)), coef])
    # (A float64 w would make numpy copy the features to float64.)
    G = dual.lin - dual.sign * (X @ w.astype(np.float32) + offset)
    width = prepared.start_band * float(np.mean(np.abs(G[dual.hi > dual.lo])))
    point = np.append(w, offset) if prepared.constant else w
    return read_off(dual, G, max(width, 1e-12)), point


def _drop_tiny_directions(factor: nystrom.Factor) -> nystrom.Factor:
    """Return the landmarks' factor ``T`` without directions too small for float32 columns."""
    T = factor.matrix
    lengths = np.einsum("ij,ij->j", T, T)  # inverses of the eigenvalues
    keep = nystrom.FLOAT32_CUTOFF * lengths < lengths.min()
    return nystrom.Factor(
        np.ascontiguousarray(T[:, keep]), max(factor.cutoff, nystrom.FLOAT32_CUTOFF)
    )


def _silent(done: int, total: int) -> None:
    """Report no progress: the place of a function that is called with (rows done, all rows)."""

"""The stage that suits a path: explicit features, the whole kernel matrix, or columns of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bigscreen.data.rows import Rows
from bigscreen.errors import InputError, in_units
from bigscreen.features import nystrom
from bigscreen.features.design import Design
from bigscreen.fit.monitor import Report
from bigscreen.fleet.memory import allowed_memory
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.base import Kernel
from bigscreen.kernels.moved import move_rows
from bigscreen.kernels.standard import Linear
from bigscreen.numerics.rows import FloatArray
from bigscreen.options.train import TrainOptions
from bigscreen.path.explicit import ColumnsStage
from bigscreen.path.feature_errors import FeatureErrors
from bigscreen.path.gram import GramStage
from bigscreen.path.gram_matrix import Progress, bytes_needed
from bigscreen.path.kernel import KernelStage
from bigscreen.path.stage import PathPoint, Stage
from bigscreen.path.walk import Published
from bigscreen.plan.exact import useful_cache_bytes
from bigscreen.plan.memory import process_bytes
from bigscreen.plan.tuning import PLAN
from bigscreen.problems.dual import Dual
from bigscreen.solvers.block.solver import Block
from bigscreen.train.kernel import choose_kernel

PATH_ROW_BYTES = 400
"""State of a row in memory: two points of a path, their scores, intervals and temporaries."""

KERNEL_SHARE = 0.5
"""Part of the memory left that kernel columns may take where the whole matrix does not fit."""

WALK_ROW_BYTES = 100
"""What a walk keeps of a row between its points."""

LEAST_FLOAT32 = 1e-5
"""Relative gap that a matrix of float32 entries can prove, with room."""


@dataclass(frozen=True)
class PathSizes:
    """Sizes from which a path is solved in another way.

    Parameters
    ----------
    matrix_rows : int
        Rows up to which one walk is over the whole kernel matrix. Of more rows the columns of those
        that move take less time, and a tenth of the memory. Folds share the matrix: that number
        goes with the fourth root of theirs (measured with none, 3 and 10, on rows of 22 to 784
        columns).
    side_by_side : int
        Numbers of rows in memory from which the walks go on side by side, and from which stored
        features are float32 unless the gap asked for is too small for them.
    """

    matrix_rows: int = 10_000
    side_by_side: int = 1 << 22


SIZES = PathSizes()


@dataclass(frozen=True)
class PreparedPath:
    """A stage, and how its machines become those of models.

    Parameters
    ----------
    stage : Stage
    name : str
        What records call the solver.
    kernel : Kernel
        Of the models.
    data : Rows
    source : Design or None
        The kernel design whose stored features the stage has; None: it has the rows themselves.
    features : ndarray or csr_array (n, r), or None
        What a machine's support rows are summed from where the models are to have coefficients of
        columns; None: they keep support rows.
    factor : nystrom.Factor or None
        Of the landmarks.
    ids : int64 (m,) or None
        Rows that are landmarks.
    apart : bool
        Whether every walk has a stage of its own, ``stage.beside()``, so that they can go on side
        by side.
    errors : FeatureErrors or None
        What stored features have put into P and D.
    """

    stage: Stage
    name: str
    kernel: Kernel
    data: Rows
    source: Design | None
    features: Any
    factor: nystrom.Factor | None = None
    ids: Any = None
    apart: bool = False
    errors: FeatureErrors | None = None

    @property
    def published(self) -> Published | None:
        """What adds to a point's roundings those of stored features; None: there are none."""
        return None if self.errors is None else self._published

    def _published(self, stage: Stage, dual: Dual, solved: PathPoint) -> PathPoint:
        assert self.errors is not None
        machine = stage.machine(dual, solved)
        return self.errors.added(dual, solved, self._features(machine), machine["constant"])

    def for_walk(self) -> Stage:
        """The stage of one walk."""
        if self.apart:
            assert isinstance(self.stage, ColumnsStage)
            return self.stage.beside()
        return self.stage

    @property
    def definite(self) -> bool:
        """Whether gaps mean anything: features are written down, whatever the kernel."""
        return self.source is not None or self.kernel.psd

    @property
    def landmarks(self) -> Any:
        """The landmark rows of a Nystrom machine, else None."""
        return None if self.source is None else self.data.rows(self.ids)

    def coef(self, machine: dict[str, Any]) -> FloatArray:
        """Coefficients of the models' columns, (m,) or (d,)."""
        coef = self._features(machine)
        # Stored features are phi = T' k(x, Z): the model goes back to coefficients of k(x, Z).
        return coef if self.source is None else self.source.coef(coef)

    def _features(self, machine: dict[str, Any]) -> FloatArray:
        """The w (r,) of a machine over the stage's rows or features."""
        coef = np.asarray(machine["coef"])
        if "support" in machine:
            coef = np.asarray(coef @ self.features[machine["support"]], dtype=np.float64)
        return coef


def room_for(data: Rows, options: TrainOptions, fleet: Fleet, walks: int = 1) -> float:
    """Bytes that are left of the memory allowed for rows, features or kernel columns.

    ``walks``: how many go on side by side, each with its own state of the rows.
    """
    taken = process_bytes(fleet.workers, hasattr(fleet, "address"))
    return allowed_memory(options.memory) - taken - walks * data.n_rows * PATH_ROW_BYTES


def beyond_memory(data: Rows, options: TrainOptions, fleet: Fleet) -> bool:
    """Whether a path's features, or its rows, are more than a stage may hold in memory."""
    if options.exact or callable(options.kernel):
        return False
    row_bytes = 4.0 * min(options.landmarks, data.n_rows)
    if options.kernel == "linear":
        row_bytes = data.row_bytes
    return data.n_rows * row_bytes > room_for(data, options, fleet)


def make_stage(
    data: Rows,
    options: TrainOptions,
    fleet: Fleet,
    report: Report,
    walks: int = 1,
    sizes: PathSizes | None = None,
) -> PreparedPath:
    """Prepare the rows once, for all points and folds: so many ``walks``.

    Rows or features are not `beyond_memory`.

    Raises
    ------
    InputError
        If it cannot fit into the memory allowed, with the arithmetic.
    """
    room, sizes = room_for(data, options, fleet), sizes or SIZES
    if callable(options.kernel):
        raise InputError(
            "a path takes kernels that have a name; compute the entries of your own, and give "
            "them as a precomputed kernel"
        )
    kernel = choose_kernel(data, options, fleet)
    constant = options.offset == "constant"

    def progress(phase: str, done: int, total: int) -> None:
        report({"event": "progress", "phase": phase, "done": done, "total": total})

    matrix = partial(progress, "kernel matrix")
    # (Where w* may be 0, as a nu's, steps over columns come to no end that a matrix has.)
    nu = options.problem in ("nu-svc", "one-class")
    most = np.inf if nu else sizes.matrix_rows * walks**0.25
    exact = partial(
        exact_stage, constant=constant, room=room, options=options, fleet=fleet, progress=matrix,
        matrix_rows=most,
    )  # fmt: skip
    # Where float32 holds what the kernel sees of the rows; models have them where they are.
    near, own = move_rows(data, kernel, False)
    if options.exact:
        stage, name = exact(Design(near, own))
        return PreparedPath(stage, name, kernel, data, None, None)
    source = factor = ids = errors = None
    if options.kernel == "linear":
        X = data.X(0, data.n_rows)
    else:
        report({"event": "phase", "phase": "landmarks"})
        count = min(options.landmarks, data.n_rows)
        side, ids = nystrom.choose_landmarks(near, own, count, options.sampling, options.seed)
        asked = options.tuning.truncation
        cutoff = nystrom.FLOAT64_CUTOFF if asked is None else asked
        factor = nystrom.factor_by_eigenvectors(own, side, cutoff)
        source = factor.of(Design(near, own), side)
        report({"event": "phase", "phase": "features"})
        size = data.n_rows * source.rank
        # (Few numbers take no time in either; closer gaps are not proved of float32 ones.)
        wide = size < sizes.side_by_side or options.tol < LEAST_FLOAT32
        dtype = np.float64 if wide and 8 * size <= KERNEL_SHARE * room else np.float32
        stored = nystrom.store_features(source, fleet, None, partial(progress, "features"), dtype)
        errors, features = FeatureErrors(source, stored), stored.data
        X = features.X(0, data.n_rows)
    if not options.coupled:
        # Of few numbers a walk is over before threads have met.
        kept = 4.0 * X.size + walks * data.n_rows * WALK_ROW_BYTES
        apart = X.size >= sizes.side_by_side and kept <= room
        columns = ColumnsStage(X, constant, quick=apart)
        return PreparedPath(columns, "columns", kernel, data, source, X, factor, ids, apart, errors)
    rows = data if source is None else features
    stage, name = exact(Design(rows, Linear()))
    return PreparedPath(stage, name, kernel, data, source, X, factor, ids, errors=errors)


def exact_stage(
    design: Design,
    constant: bool,
    room: float,
    options: TrainOptions,
    fleet: Fleet,
    progress: Progress,
    quick: bool = False,
    matrix_rows: float = np.inf,
) -> tuple[Stage, str]:
    """The whole matrix where it fits; else its columns, as many as there is room for.

    ``quick`` as `GramStage` takes it. Of more than ``matrix_rows`` columns in any case, and no more
    of them than are worth keeping.
    """
    n, dtype = design.data.n_rows, np.float32 if options.tol >= LEAST_FLOAT32 else np.float64
    if n <= matrix_rows and bytes_needed(n, dtype) <= room:
        return GramStage(design, constant, int(room), progress, quick), "gram"
    assert design.kernel is not None
    share, fewest = int(KERNEL_SHARE * room), 4 * n * min(PLAN.min_columns, n)
    if n > matrix_rows:
        share = max(useful_cache_bytes(design.data, design.kernel.name, share), min(share, fewest))
    given = options.cache or share
    if fewest > given:
        raise InputError(
            f"the fewest kernel columns take {in_units(fewest)} and of the memory allowed "
            f"{in_units(max(given, 0))} are left for them; use landmarks, or allow more memory"
        )
    columns = Block(cache=min(given, 4 * n * n), seed=options.seed)
    return KernelStage(design, fleet, constant, columns), "block"

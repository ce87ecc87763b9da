"""Choice of a path's stage (prepared rows with a solver): features, kernel matrix or columns."""

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
from bigscreen.kernels.operand import Operand
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


@dataclass(frozen=True)
class PathTuning:
    """Tuned values by which a path's stage (prepared rows with a solver for all points) is chosen.

    Parameters
    ----------
    matrix_rows : int
        Solve a path on the whole kernel matrix of at most this many rows, times the fourth root of
        the number of folds, which share the matrix (of any number for nu-SVC and one-class
        machines). With more rows, compute only the kernel columns of rows whose alpha changes,
        which then takes less time and a tenth of the memory. (Measured with no, 3 and 10 folds, on
        rows of 22 to 784 columns.)
    side_by_side : int
        If the matrix of rows or features has at least this many entries, solve different folds in
        parallel, and store float32 features unless the requested gap is too small for them. With
        fewer entries, solve one fold after another, and store float64 features.
    row_bytes : int
        Memory in bytes, for each row, that the path of one fold needs while it is solved: two
        points of a path, their scores, intervals and temporaries.
    idle_row_bytes : int
        Memory in bytes, for each row, that the path of one fold needs between the solves of two
        points.
    kernel_fraction : float
        Cached kernel columns, or float64 features, may take at most this fraction of the free
        memory; otherwise fewer columns are cached, and features are float32.
    min_float32_tol : float
        Use float32 kernel entries and features only if the requested relative gap is at least this:
        with a smaller one, rounding may leave the gap unproved.
    max_score_fraction : float
        In a path over features that do not fit in memory, scores of held-out rows may take at most
        this fraction of the allowed memory; with more scores, several passes compute them.
    """

    matrix_rows: int = 10_000
    side_by_side: int = 1 << 22
    row_bytes: int = 400
    idle_row_bytes: int = 100
    kernel_fraction: float = 0.5
    min_float32_tol: float = 1e-5
    max_score_fraction: float = 0.1


PATH = PathTuning()
"""The tuned values that are used unless a caller passes others."""


@dataclass(frozen=True)
class PreparedPath:
    """A path's stage (prepared rows with a solver), and what turns its machines into models.

    Parameters
    ----------
    stage : Stage
    name : str
        Name of the solver in records: "gram", "block" or "columns".
    kernel : Kernel
        The models' kernel.
    data : Rows
    source : Design or None
        The kernel design whose stored features the stage solves on; None: it solves on the rows.
    features : ndarray or csr_array (n, r), or None
        Rows or features from which a machine's w is summed, if models have coefficients of
        columns; None: models keep support rows.
    factor : nystrom.Factor or None
        The factor T of the landmarks' kernel matrix, with which phi = T' k(x, landmarks).
    landmarks : ndarray or csr_array (m, d), or None
        The landmarks of a Nystrom machine, as rows of ``data``.
    side_by_side : bool
        Whether walks run in parallel, each on its own stage ``stage.for_thread()``.
    errors : FeatureErrors or None
        Measures the errors of stored features in P and D.
    """

    stage: Stage
    name: str
    kernel: Kernel
    data: Rows
    source: Design | None
    features: Any
    factor: nystrom.Factor | None = None
    landmarks: Any = None
    side_by_side: bool = False
    errors: FeatureErrors | None = None

    @property
    def published(self) -> Published | None:
        """The function that adds the errors of stored features to a point's bounds, or None."""
        return None if self.errors is None else self._published

    def _published(self, stage: Stage, dual: Dual, solved: PathPoint) -> PathPoint:
        """Return the point with the errors of stored features added to its rounding bounds.

        ``solved`` is a point of ``stage``, certified for ``dual`` on the stored features.
        """
        assert self.errors is not None
        machine = stage.machine(dual, solved)
        return self.errors.added(dual, solved, self._features(machine), machine["constant"])

    def for_walk(self) -> Stage:
        """Return the solver for one walk (solve of the grid): a new one if walks are parallel."""
        if self.side_by_side:
            assert isinstance(self.stage, ColumnsStage)
            return self.stage.for_thread()
        return self.stage

    @property
    def definite(self) -> bool:
        """Whether duality gaps hold: the kernel is positive semidefinite, or has features."""
        return self.source is not None or self.kernel.psd

    def coef(self, machine: dict[str, Any]) -> FloatArray:
        """Compute the coefficients of the model's columns, float64 (m,) or (d,).

        ``machine``: what `Stage.machine` returned for a solved point.
        """
        coef = self._features(machine)
        # Stored features are phi = T' k(x, Z); models have coefficients of k(x, Z).
        return coef if self.source is None else self.source.coef(coef)

    def _features(self, machine: dict[str, Any]) -> FloatArray:
        """Compute w, float64 (r,), over the stage's rows or features.

        ``machine``: what `Stage.machine` returned for a solved point.
        """
        coef = np.asarray(machine["coef"])
        if "support" in machine:
            coef = np.asarray(coef @ self.features[machine["support"]], dtype=np.float64)
        return coef


def free_bytes(
    data: Rows, options: TrainOptions, fleet: Fleet, walks: int = 1, tuning: PathTuning = PATH
) -> float:
    """Compute the bytes of the allowed memory that are free for rows, features or kernel columns.

    The process itself and the state of the walks (solves of the grid, one for each fold and one for
    all rows) are subtracted. ``walks``: how many run in parallel, each with its own state.
    """
    taken = process_bytes(fleet.workers, hasattr(fleet, "address"))
    return allowed_memory(options.memory) - taken - walks * data.n_rows * tuning.row_bytes


def beyond_memory(data: Rows, options: TrainOptions, fleet: Fleet) -> bool:
    """Whether a path's features (rows, if it is linear) do not fit into the allowed memory.

    False for exact kernels and for kernels that are functions: they have no features.
    """
    if options.exact or callable(options.kernel):
        return False
    row_bytes = 4.0 * min(options.landmarks, data.n_rows)
    if options.kernel == "linear":
        row_bytes = data.row_bytes
    return data.n_rows * row_bytes > free_bytes(data, options, fleet)


def make_stage(
    data: Rows,
    options: TrainOptions,
    fleet: Fleet,
    report: Report,
    walks: int = 1,
    tuning: PathTuning = PATH,
) -> PreparedPath:
    """Prepare a path's rows and solver, once for all its walks (solves of the grid).

    ``walks``: their number, one for each fold and one over all rows.

    Rows and features must fit in memory (`beyond_memory` is false).

    Raises
    ------
    InputError
        If the kernel matrix or its columns cannot fit into the allowed memory; the message has the
        numbers of bytes.
    """
    room = free_bytes(data, options, fleet, tuning=tuning)
    if callable(options.kernel):
        raise InputError(
            "a path takes kernels that have a name; compute the entries of your own, and give "
            "them as a precomputed kernel"
        )
    kernel = choose_kernel(data, options, fleet)
    constant = options.offset == "constant"

    def progress(phase: str, done: int, total: int) -> None:
        """Report that ``done`` of ``total`` rows of the phase named ``phase`` are computed."""
        report({"event": "progress", "phase": phase, "done": done, "total": total})

    matrix = partial(progress, "kernel matrix")
    # (With nu, w* may be 0: the block solver does not end there, but the matrix's stage does.)
    nu = options.problem in ("nu-svc", "one-class")
    most = np.inf if nu else tuning.matrix_rows * walks**0.25
    exact = partial(
        exact_stage, constant=constant, room=room, options=options, fleet=fleet, progress=matrix,
        matrix_rows=most, tuning=tuning,
    )  # fmt: skip
    # Rows are shifted so that float32 holds what the kernel sees of them; models' rows are not.
    near, own = move_rows(data, kernel, False)
    if options.exact:
        stage, name = exact(Design(near, own))
        return PreparedPath(stage, name, kernel, data, None, None)
    source = factor = landmarks = errors = None
    if options.kernel == "linear":
        X = data.X(0, data.n_rows)
    else:
        report({"event": "phase", "phase": "landmarks"})
        if options.components is None:
            how = min(options.landmarks, data.n_rows), options.sampling, options.seed
            side, ids = nystrom.choose_landmarks(near, own, *how)
            landmarks = data.rows(ids)
        else:
            side = Operand(options.components.as_rows_of(near))
            landmarks = options.components.as_rows_of(data)
        asked = options.tuning.truncation
        cutoff = nystrom.FLOAT64_CUTOFF if asked is None else asked
        factor = nystrom.factor_by_eigenvectors(own, side, cutoff)
        source = factor.of(Design(near, own), side)
        report({"event": "phase", "phase": "features"})
        size = data.n_rows * source.rank
        # (Few numbers take little time in float64; float32 does not prove small gaps.)
        wide = size < tuning.side_by_side or options.tol < tuning.min_float32_tol
        dtype = np.float64 if wide and 8 * size <= tuning.kernel_fraction * room else np.float32
        stored = nystrom.store_features(source, fleet, None, partial(progress, "features"), dtype)
        errors, features = FeatureErrors(source, stored), stored.data
        X = features.X(0, data.n_rows)
    if not options.coupled:
        # (Short walks are over before threads have started.)
        kept = 4.0 * X.size + walks * data.n_rows * tuning.idle_row_bytes
        parallel = X.size >= tuning.side_by_side and kept <= room
        columns = ColumnsStage(X, constant, quick=parallel)
        of = kernel, data, source, X, factor, landmarks, parallel, errors
        return PreparedPath(columns, "columns", *of)
    rows = data if source is None else features
    stage, name = exact(Design(rows, Linear()))
    return PreparedPath(stage, name, kernel, data, source, X, factor, landmarks, errors=errors)


def exact_stage(  # noqa: PLR0913
    design: Design,
    constant: bool,
    room: float,
    options: TrainOptions,
    fleet: Fleet,
    progress: Progress,
    quick: bool = False,
    matrix_rows: float = np.inf,
    tuning: PathTuning = PATH,
) -> tuple[Stage, str]:
    """Make a path's solver for an exact kernel: on its matrix if that fits, else cached columns.

    Parameters
    ----------
    design : Design
    constant, progress, quick
        See `GramStage`; ``constant`` is used for both kinds of stage.
    room : float
        Bytes of memory for the matrix or the cached columns.
    options : TrainOptions
    fleet : Fleet
    matrix_rows : float
        Do not use the whole matrix of more rows.
    tuning : PathTuning

    Returns
    -------
    stage : Stage
    name : {"gram", "block"}

    Raises
    ------
    InputError
        If the memory has no room for even the smallest number of kernel columns (see the body).
    """
    n, narrow = design.data.n_rows, options.tol >= tuning.min_float32_tol
    dtype = np.float32 if narrow else np.float64
    if n <= matrix_rows and bytes_needed(n, dtype) <= room:
        return GramStage(design, constant, int(room), progress, quick), "gram"
    assert design.kernel is not None
    share, fewest = int(tuning.kernel_fraction * room), 4 * n * min(PLAN.min_columns, n)
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

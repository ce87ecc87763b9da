"""Tuned values of the smoothed Newton: they change how long a solve takes, never what it proves.

Chosen on a9a, ijcnn1, covtype and made-up rows of SUSY's shape (`pipelines.bench.nystrom_race`,
`pipelines.bench.susy_million`). "Wide" means more than 2,048 landmarks.
"""

from __future__ import annotations

from dataclasses import dataclass

FLOAT32_TOL = 1e-6
"""Relative gap below which local steps need float64 features: float32 rounding outweighs it."""


@dataclass(frozen=True)
class NewtonTuning:
    """Tuned values of `Newton`.

    "Local steps" are Newton steps over gathered rows alone: rows near their hinge point, whose
    features the coordinator holds. While rows are "held" a step reads only the rows near their
    hinge point: every other row counts on the side that it was last seen on.

    Parameters
    ----------
    step_lengths, local_step_lengths : tuple of float
        Step lengths that a line search compares: along a Newton step, and along the sum of local
        steps or back to the last full pass.
    shortest_step : float
        End a line search at steps shorter than this.
    max_smoothing_target, smoothing_target_fraction : float
        Lower h for this fraction of the current relative gap, never for more than the maximum nor
        for less than the requested gap.
    enough_gap_fraction : float
        Keep h if the gap without its gradient part is at most this fraction of the target.
    cg_promise_fraction : float
        With steps by conjugate gradients, lower h once a step promises at most this fraction of
        what smoothing costs. The step then moves scores of band rows by less than a third of h.
    min_columns : int
        Take no local steps and hold no rows below this many columns: the algebra of a full pass
        costs less than what they save.
    moment_rows_per_column : float
        A full pass sums the second moment of at most this many band rows for each column; the next
        pass takes other rows.
    min_columns_cg, cg_rows_per_column : int, float
        Solve for a step by conjugate gradients (CG) from this many columns on, if the band has more
        rows than this for each column. Otherwise the second moment of the whole band costs less.
    hessian_rows_per_column, hessian_rows_per_column_wide : float
        Hessian-vector products use at most this many band rows for each column; larger bands are
        subsampled. Wide: caching more columns costs more memory than it saves steps.
    max_rounding_curvature : float
        Keep columns in 16 bits if rounding them curves P by at most this in every direction. (The
        penalty curves P by 1.)
    max_cg, cg_residual, cg_exact_residual, cg_min_gain : int, float, float, float
        Take at most this many products in a step. End it once the preconditioned gradient is at
        most ``cg_residual`` of its first norm, and either its square is at most
        ``cg_exact_residual`` of the first or the last product gained at most ``cg_min_gain`` of the
        decrease so far.
    sample_rows_per_column, sample_rows_per_column_wide : float
        Make the preconditioner of this many sampled band rows for each column. (With s rows for
        each column, every product reduces the error by about the root of s.)
    joint_fraction_wide, separate_rows_wide : float, int
        Factor this fraction of the features together; precondition each other feature by its own
        curvature over about this many rows. (Of 10,000 features, factoring all saves 10 of 20
        products, some 2 s, and takes 29 s instead of 3.)
    max_cg_before_resample, max_cg_before_resample_wide : int
        Redraw the preconditioner's row sample if the last step needed more products than this.
    max_local_entries : int
        Gather at most this many features of rows (float32).
    max_local_fraction : float
        Gather at most this fraction of the rows; beyond it a full pass is as cheap.
    gather_distances : tuple of float
        Gather rows within the largest of these distances from their hinge point, in units of h,
        that has room.
    first_growth : float
        Gather rows only if this many times as many would still fit: more come later.
    min_local_step : float
        Discard a local step that the line search shortens below this; step over all rows.
    max_h_fall : float
        Lower h by at most this factor between two full passes while many rows cross.
    few_crossed : float
        Rows that crossed their hinge point are few if they are at most this fraction of the
        gathered rows.
    max_local_steps, max_local_cg : int
        Local Newton steps between two full passes, and CG products of each, at most.
    max_local_passes, max_held_passes : int
        Full passes before rows are gathered anew, and held steps before all rows are scored, at
        most.
    max_crossings : float
        Abandon local steps if more than this multiple of the room for rows could cross.
    hold_moves, hold_moves_wide : float
        Hold rows farther from the band than this multiple of what steps have moved scores by since
        the row was scored. (Rows of unusual features move by ten times as much as others.)
    hold_distance : float
        During local steps hold rows farther than this multiple of the gathered rows' distance.
    max_near_fraction : float
        Hold no rows if more than this fraction of all rows is near: a full pass costs hardly more.
    held_tol, held_gap : float
        From this relative gap on score all rows before the closing pass, and leave held steps at
        this fraction of the requested gap.
    held_aim, last_held_aim : float
        Fraction of the requested gap that steps go down to while rows are held: before all rows are
        scored, and if the closing pass scores them.
    subsample_rows_per_column, min_subsample_rows : float
        The coarsest subsample has at least this many rows for each column, and this many in all.
    subsample_growth : int
        Each subsample has this many times as many rows as the one before.
    subsample_tol : float
        Leave a subsample at an h that suits this relative gap, or the requested one if wider.
    subsample_error_part, subsample_gain_part : float
        Leave a subsample if a step promises less than this fraction of its statistical error; wide:
        if the last step gained less than that.
    max_subsample_passes : int
        Leave a subsample after this many passes.
    column_rows, sample_tile_rows : int
        Rows whose columns a shard, and whose features the preconditioner, computes at once.
    rounding_sample_rows, rounding_sample_stride : int
        Score about this many rows with float64 columns too, at most one row in ``stride`` of them:
        they show how far float32 columns move a score.
    min_float32_columns, max_float32_trace : int, float
        Second moments are products of float32 features from this many columns on (raw features can
        be nearly the same number in all rows), and up to this trace: beyond it rounding could
        outweigh the penalty.
    """

    step_lengths: tuple[float, ...] = (
        *(0.0, 1.0, 1.4, 0.75, 0.55, 0.4, 0.28, 0.18, 0.1, 0.05, 0.02, 0.005),
    )
    local_step_lengths: tuple[float, ...] = (
        *(0.0, 1.0, 0.85, 0.7, 0.55, 0.4, 0.28, 0.18, 0.1, 0.05, 0.02, 0.005),
    )
    shortest_step: float = 1e-6
    max_smoothing_target: float = 1e-6
    smoothing_target_fraction: float = 0.1
    enough_gap_fraction: float = 0.7
    cg_promise_fraction: float = 0.3
    min_columns: int = 64
    moment_rows_per_column: float = 16.0
    min_columns_cg: int = 256
    cg_rows_per_column: float = 4.0
    hessian_rows_per_column: float = 64.0
    hessian_rows_per_column_wide: float = 9.0
    max_rounding_curvature: float = 0.5
    max_cg: int = 20
    cg_residual: float = 0.1
    cg_exact_residual: float = 1e-3
    cg_min_gain: float = 0.1
    sample_rows_per_column: float = 5.0
    sample_rows_per_column_wide: float = 1.2
    joint_fraction_wide: float = 0.3
    separate_rows_wide: int = 256
    max_cg_before_resample: int = 8
    max_cg_before_resample_wide: int = 16
    max_local_entries: int = 16_000_000
    max_local_fraction: float = 0.4
    gather_distances: tuple[float, ...] = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
    first_growth: float = 1.5
    min_local_step: float = 0.1
    max_h_fall: float = 2.0
    few_crossed: float = 0.02
    max_local_steps: int = 60
    max_local_cg: int = 12
    max_local_passes: int = 8
    max_held_passes: int = 16
    max_crossings: float = 20
    hold_moves: float = 7.0
    hold_moves_wide: float = 11.0
    hold_distance: float = 4.0
    max_near_fraction: float = 0.7
    held_tol: float = 1e-4
    held_gap: float = 0.5
    held_aim: float = 0.7
    last_held_aim: float = 0.93
    subsample_rows_per_column: float = 16.0
    min_subsample_rows: float = 4000.0
    subsample_growth: int = 8
    subsample_tol: float = 1e-3
    subsample_error_part: float = 0.1
    subsample_gain_part: float = 0.1
    max_subsample_passes: int = 15
    column_rows: int = 2048
    sample_tile_rows: int = 2048
    rounding_sample_rows: int = 1024
    rounding_sample_stride: int = 16
    min_float32_columns: int = 256
    max_float32_trace: float = 2.0**22

    def hessian_rows(self, wide: bool) -> float:
        """Return the most band rows for each column that Hessian-vector products use."""
        return self.hessian_rows_per_column_wide if wide else self.hessian_rows_per_column

    def sample_rows(self, wide: bool) -> float:
        """Return the sampled band rows for each column that the preconditioner is made of."""
        return self.sample_rows_per_column_wide if wide else self.sample_rows_per_column

    def cg_before_resample(self, wide: bool) -> int:
        """Return the products of a step beyond which the preconditioner's sample is redrawn."""
        return self.max_cg_before_resample_wide if wide else self.max_cg_before_resample

    def moves_to_hold(self, wide: bool) -> float:
        """Return how many score moves a held row is away from the band, at least."""
        return self.hold_moves_wide if wide else self.hold_moves


@dataclass(frozen=True)
class NearbyTuning:
    """Tuned values of `near.Nearby`, the steps over rows near their hinge point from an optimum.

    Parameters
    ----------
    min_part, part_per_root_gap, part_per_root_gap_far : float
        Fraction of all rows to begin with: at least ``min_part``, plus this times the root of the
        relative gap, for a close gap and for one beyond ``far_gap``. (If 1 % of the rows of a9a,
        ijcnn1 and SUSY's shape leave or enter at C = 1, this holds about all rows that cross their
        hinge point.)
    max_first_part, max_first_part_many : float
        At most this fraction of the rows at first, if w has few and many coordinates.
    rows_per_coordinate : int
        Rows for each coordinate of w that may be near at first, and within h of their hinge point.
        (5 took w of a9a so far that three times as many other rows crossed.)
    min_rows_per_coordinate : int
        Begin with at least this many rows for each coordinate if float32 cannot prove the gap.
    max_part : float
        Fit all rows instead if more than this fraction of them is near.
    added_per_crossed : float
        Add this many of the nearest rows for each row that has crossed.
    aim : float
        Fraction of the requested gap that may be left among the rows nearby.
    far_gap, loose_factor : float
        Relative gap of a start from which rows are sure to cross, and the factor by which the
        requested gap is loosened until it is known which rows.
    late_gap, max_late_checks : float, int
        After this many checks of points closer than this relative gap steps over all rows are
        left. (From .01 on, or after fewer, some fits of a9a took twice as long.)
    max_float64_entries : int
        Compute at most this many float64 features for a closer gap.
    max_passes, max_restarts : int
        Full passes, and restarts of the steps between two of them.
    smoothing_part : float
        Fraction of the gap at the start that smoothing may cost there.
    feature_rows : int
        Rows whose features are computed at once.
    """

    min_part: float = 0.03
    part_per_root_gap: float = 0.35
    part_per_root_gap_far: float = 0.7
    max_first_part: float = 0.12
    max_first_part_many: float = 0.2
    rows_per_coordinate: int = 8
    min_rows_per_coordinate: int = 4
    max_part: float = 0.4
    added_per_crossed: float = 1.0
    aim: float = 0.5
    far_gap: float = 0.04
    loose_factor: float = 300.0
    late_gap: float = 1e-3
    max_late_checks: int = 8
    max_float64_entries: int = 2**25
    max_passes: int = 8
    max_restarts: int = 4
    smoothing_part: float = 0.03
    feature_rows: int = 2048


NEWTON, NEARBY = NewtonTuning(), NearbyTuning()

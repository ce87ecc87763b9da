"""Tuned values of the smoothed Newton: they change how long a solve takes, never what it proves.

Chosen on a9a, ijcnn1, covtype and made-up rows of SUSY's shape (`pipelines.bench.nystrom_race`,
`pipelines.bench.susy_million`). "Wide" means more than 2,048 landmarks.
"""

from __future__ import annotations

from dataclasses import dataclass

FLOAT32_TOL = 1e-6
"""Relative gap below which steps over float32 features of the active rows lead astray."""


@dataclass(frozen=True)
class NewtonTuning:
    """Tuned values of `Newton`.

    "Local steps" are Newton steps over the active rows alone, those near their hinge point, whose
    features the coordinator holds. While rows are "held" a step leaves out the rows that are far
    from their hinge point: they count on the side that they were last seen on.

    Parameters
    ----------
    min_columns : int
        Take no local steps and hold no rows below this many columns: the algebra of a full pass
        costs less than what they save.
    hessian_rows_per_column, hessian_rows_per_column_wide : float
        Hessian-vector products use at most this many band rows for each column; larger bands are
        subsampled. Wide: caching more columns costs more memory than it saves steps.
    max_cg_before_resample, max_cg_before_resample_wide : int
        Redraw the preconditioner's row sample if the last step needed more products than this.
    wide_band_rows_per_column : float
        Solve for a step by conjugate gradients if the band has more rows than this for each column.
    min_columns_refined : int
        Solve for a step by conjugate gradients from this many columns on: of fewer the second
        moment of the whole band costs less.
    shortest_step : float
        End a line search at steps shorter than this.
    max_local_entries : int
        Hold at most this many features of active rows (float32).
    max_local_fraction : float
        Gather at most this fraction of the rows; beyond it a full pass is as cheap.
    first_growth : float
        Gather rows only if this many times as many would still fit: more come later.
    min_local_step : float
        Discard a local step that the line search shortens below this; step over all rows.
    max_h_fall : float
        Lower h by at most this factor between two full passes while many rows cross.
    few_crossed : float
        Rows that crossed their hinge point are few if they are less than this part of the active.
    max_local_passes, max_held_passes : int
        Full passes before active rows are picked anew, and held steps before all rows are scored.
    max_crossings : float
        Abandon local steps if more than this multiple of the room for rows could cross.
    hold_moves, hold_moves_wide : float
        Hold rows farther from the band than this multiple of what steps have moved scores by since
        the row was scored. (Rows in thin places move by ten times as much as others.)
    hold_distance : float
        During local steps hold rows farther than this multiple of the active rows' distance.
    max_near_fraction : float
        Hold no rows if more than this part of all rows is near: a full pass costs hardly more.
    held_tol, held_gap : float
        From this relative gap on score all rows before the closing pass, and leave held steps at
        this part of the requested gap.
    held_aim, last_held_aim : float
        Part of the requested gap that steps go down to while rows are held: before all rows are
        scored, and if the closing pass scores them.
    subsample_tol : float
        Leave a subsample at an h that suits this relative gap, or the requested one if wider.
    subsample_growth : int
        Each subsample has this many times as many rows as the one before.
    subsample_error_part, subsample_gain_part : float
        Leave a subsample if a step promises less than this part of its statistical error; wide:
        if the last step gained less than that.
    """

    min_columns: int = 64
    hessian_rows_per_column: float = 64.0
    hessian_rows_per_column_wide: float = 9.0
    max_cg_before_resample: int = 8
    max_cg_before_resample_wide: int = 16
    wide_band_rows_per_column: float = 4.0
    min_columns_refined: int = 256
    shortest_step: float = 1e-6
    max_local_entries: int = 16_000_000
    max_local_fraction: float = 0.4
    first_growth: float = 1.5
    min_local_step: float = 0.1
    max_h_fall: float = 2.0
    few_crossed: float = 0.02
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
    subsample_tol: float = 1e-3
    subsample_growth: int = 8
    subsample_error_part: float = 0.1
    subsample_gain_part: float = 0.1

    def hessian_rows(self, wide: bool) -> float:
        """Band rows for each column that Hessian-vector products use, at most."""
        return self.hessian_rows_per_column_wide if wide else self.hessian_rows_per_column

    def max_cg(self, wide: bool) -> int:
        """Products of a step beyond which the preconditioner's sample is redrawn."""
        return self.max_cg_before_resample_wide if wide else self.max_cg_before_resample

    def hold(self, wide: bool) -> float:
        """How many times the moves of scores a held row is away from the band, at least."""
        return self.hold_moves_wide if wide else self.hold_moves


@dataclass(frozen=True)
class NearbyTuning:
    """Tuned values of `near.Nearby`, the steps over rows near their hinge point from an optimum.

    Parameters
    ----------
    min_part, part_per_root_gap, part_per_root_gap_far : float
        Part of all rows to begin with: at least this, and this times the root of the relative gap,
        of a close gap and of one beyond ``far_gap``. (If 1 % of the rows of a9a, ijcnn1 and SUSY's
        shape leave or enter at C = 1, this holds about all rows that cross their hinge point.)
    max_first_part, max_first_part_many : float
        At most this part of the rows at first, if w has few and many coordinates.
    rows_per_coordinate : int
        Rows for each coordinate of w that may be near at first, and within h of their hinge point.
        (5 took w of a9a so far that three times as many other rows crossed.)
    min_rows_per_coordinate : int
        Begin with at least this many rows for each coordinate if float32 cannot tell the gap.
    max_part : float
        Fit all rows instead if more than this part of them is near.
    added_per_crossed : float
        Add this many of the nearest rows for each row that has crossed.
    aim : float
        Part of the requested gap that may be left among the rows nearby.
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
        Part of the gap at the start that smoothing may cost there.
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


NEWTON, NEARBY = NewtonTuning(), NearbyTuning()

"""Tuned values of the smoothed Newton: they change how long a solve takes, never what it proves.

Chosen on a9a, ijcnn1, covtype and made-up rows of SUSY's shape (`pipelines.bench.nystrom_race`,
`pipelines.bench.susy_million`). "Wide" means more than 2,048 landmarks.
"""

from __future__ import annotations

from dataclasses import dataclass

FLOAT32_TOL = 1e-6
"""Relative gap below which steps over gathered rows need float64 features: the rounding of float32
features outweighs smaller gaps."""


@dataclass(frozen=True)
class NewtonTuning:
    """Tuned values of `Newton`.

    "Band": the smoothing band, the rows within h of their hinge point, where h is the half-width of
    the smoothed loss. "Columns": features of a row. "Full pass": a pass that scores all rows.
    "Local steps": Newton steps over gathered rows alone, rows near their hinge point whose features
    the coordinator holds in memory. "Held steps": steps that read only the rows near their hinge
    point; each other row is held, that is, it counts on the side of its hinge point where it was
    last seen. A row "crosses" if a step takes it to the other side.

    Parameters
    ----------
    step_lengths : tuple of float
        Step lengths that the line search along a Newton step compares in one pass.
    local_step_lengths : tuple of float
        Step lengths that a line search compares along the sum of local steps, or on the way back to
        the last full pass.
    shortest_step : float
        End a line search once the best step length is shorter than this.
    max_smoothing_target : float
        Choose h so that smoothing costs at most this relative gap, however large the gap is now.
    smoothing_target_fraction : float
        Choose h so that smoothing costs at most this fraction of the present relative gap, but
        never less than the requested gap.
    enough_gap_fraction : float
        Keep h if the gap, without the part that the gradient causes, is at most this fraction of
        what smoothing may cost.
    cg_promise_fraction : float
        With steps by conjugate gradients (CG): lower h once the next step promises to lower P by at
        most this fraction of what smoothing costs. The step then moves the scores of band rows by
        less than a third of h.
    min_columns : int
        With fewer columns, take no local and no held steps: they save less than their algebra
        costs.
    moment_rows_per_column : float
        A full pass sums the second moment over at most this many band rows for each column; the
        next pass takes other rows.
    min_columns_cg : int
        With fewer columns, never solve for a step by CG; factor the second moment instead.
    cg_rows_per_column : float
        Solve for a step by CG if the band has more rows than this for each column; for fewer rows
        the second moment of the whole band costs less.
    hessian_rows_per_column : float
        A Hessian-vector product uses at most this many band rows for each column; a larger band is
        subsampled.
    hessian_rows_per_column_wide : float
        Band rows for each column in a product with more than 2,048 landmarks, where keeping more
        rows' columns costs more memory than it saves steps.
    max_rounding_curvature : float
        Keep columns in 16 bits for CG if their rounding adds at most this to the curvature of P in
        any direction (the penalty's curvature is 1); else in float32.
    max_cg : int
        Take at most this many products with the Hessian in a step.
    cg_residual : float
        End CG only once the preconditioned gradient has at most this fraction of its first norm.
    cg_exact_residual : float
        End CG, ``cg_residual`` being reached, once the square of that norm is at most this fraction
        of the first square.
    cg_min_gain : float
        End CG, ``cg_residual`` being reached, once a product adds at most this fraction of the
        decrease of P so far.
    sample_rows_per_column : float
        Make the preconditioner of a sample of this many band rows for each column. (With s of them,
        every product reduces the error by about the root of s.)
    sample_rows_per_column_wide : float
        Sampled band rows for each column with more than 2,048 landmarks.
    joint_fraction_wide : float
        With more than 2,048 landmarks, factor only this fraction of the features together in the
        preconditioner. (Of 10,000 features, factoring all saves 10 of 20 products, some 2 s, and
        takes 29 s instead of 3.)
    separate_rows_wide : int
        Precondition each feature that is not factored by its own curvature over about this many
        rows.
    max_cg_before_resample : int
        Draw the preconditioner's rows anew if the last step needed more products than this.
    max_cg_before_resample_wide : int
        The number of products with more than 2,048 landmarks.
    max_local_entries : int
        Gather at most this many features for local steps, rows times columns, in float32.
    max_local_fraction : float
        Gather at most this fraction of all rows; for more, a full pass is as cheap.
    gather_distances : tuple of float
        Distances from the hinge point, in units of h, within which rows may be gathered; the
        largest whose rows fit is used.
    first_growth : float
        A distance fits only if this many times its rows would: rows that cross are added later.
    min_local_step : float
        Discard local steps, and step over all rows, if the line search over all rows shortens them
        below this length.
    max_h_fall : float
        Lower h by at most this factor between two full passes, as long as many rows cross.
    few_crossed : float
        After a full pass h may fall further if at most this fraction of as many rows as are
        gathered have crossed.
    max_local_steps : int
        Take at most this many local Newton steps between two full passes.
    max_local_cg : int
        Take at most this many CG products in a local step.
    max_local_passes : int
        Add rows that have crossed, after a full pass each, at most this often; then gather anew.
    max_held_passes : int
        Take at most this many held steps; then score all rows.
    max_crossings : float
        Give local steps up if the rows that could cross are more than this multiple of the rows
        that may be gathered.
    hold_moves : float
        Hold a row only if it is farther from the band than this multiple of the distance by which
        steps have moved scores (root mean square) since the row was last scored. (Rows of unusual
        features move by ten times as much as others.)
    hold_moves_wide : float
        The multiple with more than 2,048 landmarks.
    hold_distance : float
        In the passes of local steps, hold rows farther from their hinge point than this multiple of
        the distance within which rows are gathered.
    max_near_fraction : float
        Hold no rows if more than this fraction of them would have to be read: a full pass costs
        hardly more.
    held_tol : float
        If the requested relative gap is at most this, score all rows after held steps; for a wider
        one the final pass over all rows is the check, and saves a pass.
    held_gap : float
        End held steps that a full pass follows at this fraction of the requested relative gap.
    held_aim : float
        While rows are held, local steps go on to this fraction of the requested gap: what held rows
        add shows only once all rows are scored.
    last_held_aim : float
        End held steps that the final pass follows at this fraction of the requested gap.
    subsample_rows_per_column : float
        The coarsest subsample has at least this many rows for each column.
    min_subsample_rows : float
        A subsample has at least this many rows in all.
    subsample_growth : int
        Each subsample has this many times as many rows as the one before.
    subsample_tol : float
        Leave a subsample at an h that suits this relative gap, or the requested gap if that is
        wider.
    subsample_error_part : float
        Leave a subsample once a step promises less than this fraction of the subsample's
        statistical error, which is about columns / rows, relative to P.
    subsample_gain_part : float
        With more than 2,048 landmarks, also leave it once a step has gained less than this fraction
        of that error.
    max_subsample_passes : int
        Leave a subsample after this many passes over it.
    column_rows : int
        A shard that recomputes features computes those of this many rows at once.
    sample_tile_rows : int
        The preconditioner computes the features of this many sampled rows at once.
    rounding_sample_rows : int
        Score about this many rows with float64 columns, too, to learn how far the rounding of
        float32 columns moves a score.
    rounding_sample_stride : int
        Score at most one row in this many of them so.
    min_float32_columns : int
        With fewer columns, sum second moments of float64 features: raw features can be nearly the
        same number in all rows. With this many or more, of float32 features.
    max_float32_trace : float
        Sum second moments of float32 features only up to this trace: beyond it their rounding could
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
    """Tuned values of `near.Nearby`, which steps over the rows nearest to their hinge point alone.

    It starts near the optimum, for example of a machine with another C. "Nearby": the rows that it
    steps over. A row "crosses" if it comes to the other side of its hinge point, which a pass over
    all rows shows.

    Parameters
    ----------
    min_part : float
        Begin with at least this fraction of all rows nearby.
    part_per_root_gap : float
        Add this fraction of all rows times the root of the start's relative gap, if that gap is at
        most ``far_gap``. (If 1 % of the rows of a9a, ijcnn1 and SUSY's shape leave or enter at
        C = 1, this holds about all rows that cross.)
    part_per_root_gap_far : float
        Add this fraction of all rows times that root for a start with a wider gap.
    max_first_part : float
        Begin with at most this fraction of all rows if w has few coordinates (see
        ``rows_per_coordinate``).
    max_first_part_many : float
        Begin with at most this fraction however many coordinates w has.
    rows_per_coordinate : int
        Begin with at most this many rows for each coordinate of w, within the two fractions above;
        and choose h so that at most this many are in the smoothing band. (With 5, the steps moved w
        of a9a so far that three times as many other rows crossed.)
    min_rows_per_coordinate : int
        Begin with at least this many rows for each coordinate of w if float32 cannot prove the gap.
    max_part : float
        Solve over all rows instead if more than this fraction of them would be nearby.
    added_per_crossed : float
        After a pass, add this many of the next nearest rows for each row that has crossed.
    aim : float
        Step until the gap over the rows nearby is this fraction of the requested one.
    far_gap : float
        A start whose relative gap is wider is far: other rows are sure to cross, so the first steps
        aim at ``loose_factor`` times the gap.
    loose_factor : float
        The factor by which the first steps from a far start loosen the gap that they aim at.
    late_gap : float
        A check of a solve over all rows is late if its relative gap is at most this.
    max_late_checks : int
        After more late checks than this, steps over rows nearby take over from a solve over all
        rows. (After fewer, or with ``late_gap`` from .01 on, some fits of a9a took twice as long.)
    max_float64_entries : int
        For a gap below float32's precision, keep at most this many float64 features of rows nearby.
    max_passes : int
        Give up after this many passes over all rows.
    max_restarts : int
        Between two passes, start the steps again at most this often.
    smoothing_part : float
        Choose h so that smoothing costs at most this fraction of the start's gap.
    feature_rows : int
        Compute the features of this many rows at once.
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

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
        End a line search once the longest step length still compared is shorter than this; until
        then, if no step lowers P, compare shorter steps.
    max_smoothing_target : float
        Choose h, the half-width of the smoothed loss, so that smoothing widens the relative gap by
        at most this, or by the requested gap if that is larger.
    smoothing_target_fraction : float
        Choose h, the half-width of the smoothed loss, so that smoothing widens the relative gap by
        at most this fraction of its present value, or by the requested gap if that is larger.
    enough_gap_fraction : float
        Do not lower h, the half-width of the smoothed loss, if the gap less the part that a nonzero
        gradient causes is at most this fraction of the gap that smoothing may cause.
    cg_promise_fraction : float
        With steps by conjugate gradients: lower h, the half-width of the smoothed loss, once the
        next step promises to lower P by at most this fraction of the gap that smoothing causes. The
        step then moves the scores of rows in the band by less than a third of h.
    min_columns : int
        With fewer columns (features of a row) than this, each step reads all rows: steps over
        gathered rows save less than their algebra costs.
    moment_rows_per_column : float
        A pass over all rows sums second moments over at most this many rows of the smoothing band
        for each column (feature of a row); the next pass takes other rows.
    min_columns_cg : int
        With fewer columns (features of a row) than this, never solve for a step by conjugate
        gradients; factor the second moment instead.
    cg_rows_per_column : float
        Solve for a step by conjugate gradients if the smoothing band has more rows than this for
        each column (feature of a row); with fewer rows, summing the whole band's second moment
        costs less.
    hessian_rows_per_column : float
        A Hessian-vector product uses at most this many rows of the smoothing band for each column
        (feature of a row); a larger band is subsampled.
    hessian_rows_per_column_wide : float
        With more than 2,048 landmarks, a Hessian-vector product uses at most this many rows of the
        smoothing band for each column: keeping the columns of more rows costs more memory than it
        saves steps.
    max_rounding_curvature : float
        Keep columns in 16 bits for CG if their rounding adds at most this to the curvature of P in
        any direction (the penalty's curvature is 1); else in float32.
    max_cg : int
        Take at most this many Hessian-vector products, one for each iteration of conjugate
        gradients, in a Newton step; then use the direction found so far.
    cg_residual : float
        End CG only once the preconditioned gradient has at most this fraction of its first norm.
    cg_exact_residual : float
        End CG, ``cg_residual`` being reached, once the square of that norm is at most this fraction
        of the first square.
    cg_min_gain : float
        End CG, ``cg_residual`` being reached, once a product adds at most this fraction of the
        decrease of P so far.
    sample_rows_per_column : float
        Make the preconditioner from this many sampled rows of the smoothing band for each column
        (feature of a row). (With s of them, every product reduces the error by about the root of
        s.)
    sample_rows_per_column_wide : float
        With more than 2,048 landmarks, make the preconditioner from this many sampled rows of the
        smoothing band for each column.
    joint_fraction_wide : float
        With more than 2,048 landmarks, factor only this fraction of the features together in the
        preconditioner. (Of 10,000 features, factoring all saves 10 of 20 products, some 2 s, and
        takes 29 s instead of 3.)
    separate_rows_wide : int
        With more than 2,048 landmarks, precondition each feature that is not factored by its own
        curvature, estimated from about this many rows.
    max_cg_before_resample : int
        Draw the rows of which the preconditioner is made anew if the last step took more
        Hessian-vector products than this.
    max_cg_before_resample_wide : int
        With more than 2,048 landmarks, draw the preconditioner's rows anew if the last step took
        more Hessian-vector products than this.
    max_local_entries : int
        Gather at most this many float32 features (rows times columns) in the coordinator, for
        Newton steps over gathered rows alone; with more, steps read all rows.
    max_local_fraction : float
        Gather at most this fraction of all rows for Newton steps over gathered rows alone; beyond
        it a pass over all rows is as cheap.
    gather_distances : tuple of float
        Distances from the hinge point, in units of h (half-width of the smoothing band), within
        which rows may be gathered; the largest is used whose rows fit the limits.
    first_growth : float
        At first, gather the rows within a distance of their hinge point only if the limits have
        room for this multiple of them: rows that cross their hinge point are added later.
    min_local_step : float
        If the line search over all rows shortens the sum of the steps over gathered rows below this
        length, discard it, and step over all rows from then on.
    max_h_fall : float
        Steps over gathered rows, before the first pass over all rows has checked them, divide h
        (half-width of the smoothing band) by at most this.
    few_crossed : float
        If at most this many rows for each gathered row have crossed their hinge point since the
        last pass over all rows, h (half-width of the smoothing band) may fall without limit until
        the next pass; if more, it may not fall.
    max_local_steps : int
        Take at most this many Newton steps over gathered rows between two passes over all rows.
    max_local_cg : int
        Take at most this many products of conjugate gradients in a Newton step over gathered rows.
    max_local_passes : int
        Check steps over gathered rows by at most this many passes, each of which adds rows that
        have crossed their hinge point; then choose the gathered rows anew.
    max_held_steps : int
        Score all rows after at most this many steps that leave out held rows (rows far from their
        hinge point, assumed to stay on their side of it).
    max_crossings : float
        Give up steps over gathered rows, before their first check, if the rows that may cross their
        hinge point are more than this multiple of the rows that may be gathered.
    hold_moves : float
        Leave a row out of a step's passes only if it is farther from the smoothing band than this
        multiple of the distance (root mean square over rows) by which steps have moved scores since
        the row was last scored. (Rows of unusual features move ten times as far as others.)
    hold_moves_wide : float
        With more than 2,048 landmarks, leave a row out of a step's passes only if it is farther
        from the smoothing band than this multiple of the distance by which scores have moved.
    hold_distance : float
        A pass that checks steps over gathered rows leaves out rows farther from their hinge point
        than this multiple of the distance within which rows were gathered.
    max_near_fraction : float
        Score all rows in a step if more than this fraction of the rows is too close to the hinge
        point to be left out: a pass over all rows costs hardly more.
    held_tol : float
        If the requested relative gap is at most this, score all rows after steps that left some
        out; for a wider requested gap only the final pass over all rows checks them, which saves a
        pass.
    held_gap : float
        If the requested relative gap is at most ``held_tol``, end steps that leave rows out once
        the estimated gap is this fraction of the requested one.
    held_aim : float
        If the passes that check steps over gathered rows leave out rows far from the hinge point,
        let these steps go on to this fraction of the requested gap: what the rows left out add to
        the gap shows only once all rows are scored.
    last_held_aim : float
        If the requested relative gap is above ``held_tol``, end steps that leave rows out once the
        estimated gap is this fraction of the requested one; then the final pass over all rows
        follows.
    subsample_rows_per_column : float
        Start on a subsample only if it has at least this many rows for each column (feature of a
        row).
    min_subsample_rows : float
        Start on a subsample only if it has at least this many rows in all.
    subsample_growth : int
        Each subsample has this many times as many rows as the one before it; the last one is all
        rows.
    subsample_tol : float
        Leave a subsample for the next larger one at the h (half-width of the smoothing band) that
        suits this relative gap, or the requested gap if that is wider.
    subsample_error_part : float
        Leave a subsample for the next larger one once a step promises to lower P by less than this
        fraction of the subsample's statistical error, which is about P times columns / (rows of the
        subsample).
    subsample_gain_part : float
        With more than 2,048 landmarks, leave a subsample for the next larger one once a step has
        lowered P by less than this fraction of the subsample's statistical error, about columns /
        rows relative to P.
    max_subsample_passes : int
        Leave a subsample for the next larger one after this many passes over its rows.
    column_rows : int
        A worker that does not store features computes those of at most this many rows at a time,
        which bounds its memory.
    sample_tile_rows : int
        Compute the features of this many of the preconditioner's sampled rows at a time, which
        bounds the memory.
    rounding_sample_rows : int
        Score about this many evenly spread rows with float64 columns in addition to float32 ones,
        to measure how far the rounding of float32 columns moves a score.
    rounding_sample_stride : int
        Score at most one row in this many with float64 columns to measure float32 rounding, even if
        that gives fewer rows than ``rounding_sample_rows``.
    min_float32_columns : int
        With fewer columns (features of a row) than this, sum second moments of float64 features, as
        raw features can be nearly constant; with this many or more, of float32 features.
    max_float32_trace : float
        Sum second moments of float32 features only if the trace of their sum is at most this;
        beyond it use float64 features, as rounding could outweigh the penalty.
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
    max_held_steps: int = 16
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
        Begin with at least this fraction of all rows, the rows nearest to their hinge point.
    part_per_root_gap : float
        If the start's relative gap is at most ``far_gap``, begin with ``min_part`` plus this times
        the root of the gap, as a fraction of all rows. (If 1 % of the rows of a9a, ijcnn1 and
        SUSY's shape leave or enter at C = 1, about all rows that cross their hinge point are among
        them.)
    part_per_root_gap_far : float
        If the start's relative gap is above ``far_gap``, begin with ``min_part`` plus this times
        the root of the gap, as a fraction of all rows.
    max_first_part : float
        The most rows to begin with, ``rows_per_coordinate`` for each coordinate of w, is raised to
        this fraction of all rows if it is less.
    max_first_part_many : float
        The most rows to begin with, ``rows_per_coordinate`` for each coordinate of w, is lowered to
        this fraction of all rows if it is more.
    rows_per_coordinate : int
        Maximum of two numbers of rows, for each coordinate of w: of the rows to begin with, and of
        the rows in the smoothing band, for which h is chosen. (With 5, steps moved w of a9a too
        far: three times as many other rows crossed their hinge point.)
    min_rows_per_coordinate : int
        If float32 features cannot prove the requested gap, begin with at least this many rows for
        each coordinate of w, but never with more than ``max_part`` of all rows.
    max_part : float
        Maximum fraction of all rows to step over; if more would be needed, solve over all rows
        instead.
    added_per_crossed : float
        After a pass over all rows, add the rows that have crossed their hinge point and, for each
        of these, this many of the next nearest rows.
    aim : float
        Step until the gap over the nearby rows (the rows that steps read) is at most this fraction
        of the requested gap over all rows.
    far_gap : float
        Treat a start whose relative gap is above this as far from the optimum: other rows will
        cross their hinge point, so the first steps aim at ``loose_factor`` times the usual gap.
    loose_factor : float
        From a start whose relative gap is above ``far_gap``, steps before the first pass over all
        rows aim at this multiple of the gap that later steps aim at.
    late_gap : float
        In a solve over all rows, count a check of the gap as late if the relative gap is at most
        this (see ``max_late_checks``).
    max_late_checks : int
        After more checks than this at a relative gap of at most ``late_gap``, replace a solve over
        all rows by steps over the rows nearest to their hinge point. (After fewer, or with
        ``late_gap`` from .01 on, some fits of a9a took twice as long.)
    max_float64_entries : int
        If the requested gap is below float32's precision, take steps on the nearby rows alone only
        if their features have at most this many numbers (rows times features), kept as float64.
    max_passes : int
        Give up after this many passes over all rows without reaching the requested gap.
    max_restarts : int
        Between two passes over all rows, minimise over the nearby rows at most this often, each
        time to a quarter of the gap of the time before.
    smoothing_part : float
        Choose h, the half-width of the smoothed loss, so that smoothing causes at most this
        fraction of the present gap P - D.
    feature_rows : int
        Compute the features of this many rows at a time, which bounds the memory.
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

"""The compiled loops of coordinate descent: an epoch, scores of rows, sums of rows."""

from bigscreen.rows import njit, row_axpy, row_dot


@njit(nogil=True, cache=True)
def epoch(
    X, sqnorms, sign, lin, lo, hi, tube, alpha, w, order, constant, threshold, active, curve=None
):
    """One exact step on every row of `order`, of the dual that `dual` describes, uncoupled.

    Hsieh et al. 2008, algorithm 1, for any box, sign and tube: with the reduced gradient
    ``G_i = p_i - q_i alpha_i - s_i <w, phi_i>`` and ``k_i = ||phi_i||^2 + q_i``,
    ``alpha_i <- clip(soft(alpha_i + G_i / k_i, e_i / k_i), lo_i, hi_i)`` and ``w`` follows; soft
    takes e_i / k_i off its argument's size, as far as 0. A fresh random `order` for every epoch is
    the caller's.

    Parameters
    ----------
    X : ndarray (n, d) or CSR triple (`rows.as_rows`), float32
    sqnorms : float64 (n,), ||phi_i||^2, with the constant's 1 if there is one
    sign, lin, lo, hi, tube : float64 (n,), the s, p, box and e of the dual
    alpha : float64 (n,), within the box; updated
    w : float64 (d,) or (d + 1,), sum_i s_i alpha_i phi_i; updated
    order : int64, rows to visit
    constant : bool or float
        phi is the row with this appended, unless it is 0; the last component of w belongs to it.
    threshold : float
        A row that its gradient holds at a bound, or at the tube's 0, by more than this becomes
        inactive.
    active : bool (n,)
        Rows worth a visit; updated.
    curve : float64 (n,) or None
        The q of the dual; None: all 0.

    Returns
    -------
    visited : int
    violation : float
        Largest |projected gradient| met (before the step of its row), 0 for no rows.
    """
    violation = 0.0
    last = len(w) - 1
    for i in order:
        score = row_dot(X, i, w)
        if constant:
            score += constant * w[last]
        old, width, square = alpha[i], tube[i], sqnorms[i]
        gradient = lin[i] - sign[i] * score
        if curve is not None:
            square += curve[i]
            gradient -= curve[i] * old
        # The slope of the objective on the side of 0 that the row is on, or is drawn to.
        if old > 0.0 or (old == 0.0 and gradient > width):
            slope = gradient - width
        elif old < 0.0 or gradient < -width:
            slope = gradient + width
        else:
            active[i] = width - abs(gradient) <= threshold
            continue
        if slope > 0.0:
            if old >= hi[i]:
                active[i] = slope <= threshold
                continue
            # A row of zeros has a linear objective: its optimum is at the bound, or at the tube.
            new = hi[i] if square <= 0.0 else min(hi[i], old + slope / square)
        else:
            if old <= lo[i] or slope == 0.0:
                active[i] = -slope <= threshold
                continue
            new = lo[i] if square <= 0.0 else max(lo[i], old + slope / square)
        if width > 0.0 and old * new < 0.0:
            # Past 0 the slope is another, by twice the tube.
            other = gradient - width if old < 0.0 else gradient + width
            if slope * other <= 0.0:
                new = 0.0
            elif square > 0.0:
                new = old + other / square
                new = max(0.0, min(hi[i], new)) if old < 0.0 else min(0.0, max(lo[i], new))
        violation = max(violation, abs(slope))
        alpha[i] = new
        step = sign[i] * (new - old)
        row_axpy(X, i, step, w)
        if constant:
            w[last] += constant * step
    return len(order), violation


@njit(nogil=True, cache=True)
def row_scores(X, w, rows, constant, out):
    """Scores of some rows, ``<w, phi_i>`` in float64."""
    for k in range(len(rows)):
        out[k] = row_dot(X, rows[k], w)
        if constant:
            out[k] += constant * w[-1]


@njit(nogil=True, cache=True)
def row_add(X, rows, coef, constant, w):
    """``w += sum coef_i phi_i`` over some rows."""
    for i in rows:
        row_axpy(X, i, coef[i], w)
        if constant:
            w[-1] += constant * coef[i]

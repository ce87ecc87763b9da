"""What a tolerance asks for: rounding counts, and a closer one never ends worse."""

import itertools
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import bigscreen
from bigscreen.fit.monitor import Limits, Monitor
from bigscreen.problems.point import Certificate, Point, proves, sufficient_gap

STATS = {
    **dict.fromkeys(("rows_alive", "rows_visited", "fixed_hi", "fixed_lo"), 0),
    "stalled": False,
}


def point(gap):
    return Point(np.empty(0), np.empty(0), 0.0, 1.0, 1.0 - gap, True)


def monitor(rounding, tol=1e-3, **closed):
    def certify(p):
        gap = closed.get("gap", p.gap)
        return Certificate(1.0, 1.0 - gap, gap, gap, rounding, "float32", 3, 3)

    return Monitor(certify=certify, limits=Limits(tol), rule=None, report=lambda event: None)


def test_a_gap_within_tol_but_with_too_much_rounding_is_not_proved():
    assert proves(5e-4, 4e-4, 1.0, 1e-3, 1) and not proves(5e-4, 6e-4, 1.0, 1e-3, 1)
    assert proves(5e-4, 4e-4, -1.0, 1e-3, 1) and not proves(np.nan, 0.0, 1.0, 1e-3, 1)
    # P = 0: exact without support vectors, else its terms may have cancelled out.
    assert proves(0.0, 1e-16, 0.0, 1e-3, 0) and not proves(0.0, 1e-16, 0.0, 1e-3, 2)
    assert sufficient_gap(4e-4, 1.0, 1e-3) == pytest.approx(6e-4)
    assert sufficient_gap(2e-3, 1.0, 1e-3) == 1e-3  # no gap would prove it


def test_a_solve_goes_on_until_gap_and_rounding_prove_tol():
    check = monitor(6e-4)
    assert check(point(8e-4), STATS, None) is not None
    assert check(point(3e-4), STATS, None) is None
    assert check.ended == "proved" and check.closings.certificate.proves(1e-3)


def test_a_solve_ends_as_rounded_if_no_gap_can_prove_tol():
    """Rounding beyond tol: the fit ends where the gap is small enough, but nothing is proved."""
    check = monitor(2e-3)
    assert check(point(8e-4), STATS, None) is None
    assert check.ended == "rounded" and not check.closings.certificate.proves(1e-3)


def test_a_certificate_with_nan_is_not_kept():
    check = monitor(0.0, gap=np.nan)
    assert check(point(8e-4), STATS, None) is not None
    check.certify = monitor(0.0).certify
    assert check(point(1e-5), STATS, None) is None
    assert check.ended == "proved" and check.closings.certificate.gap == pytest.approx(1e-5)


def test_a_warning_says_that_rounding_is_why():
    """A box so large that all of P drowns in it."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    y = (X[:, 0] + np.sin(50 * X[:, 1]) > 0).astype(int)
    with pytest.warns(ConvergenceWarning, match="rounding"):
        machine = bigscreen.LinearSVC(loss="hinge", C=1e3, tol=1e-15, max_iter=200).fit(X, y)
    (proof,) = machine.certificate_
    assert not proves(
        proof["gap"], proof["rounding_bound"], proof["primal"], 1e-15, proof["support"]
    )


@pytest.mark.parametrize(("seed", "C", "noise"), [(1, 1.0, 0.5), (1, 30.0, 2.0), (7, 30.0, 2.0)])
def test_a_smaller_tol_never_ends_with_a_larger_gap(seed, C, noise):
    """Smoothing ran ahead of the gap: 5e-5 and 300 passes at 1e-12 where 1e-8 had 3e-8."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(2000, 5)).astype(np.float32)
    y = (X[:, 0] + noise * rng.normal(size=2000) > 0).astype(int)
    gaps = []
    for tol in (1e-6, 1e-8, 1e-10, 1e-12, 1e-14):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            machine = bigscreen.LinearSVC(
                loss="hinge", C=C, tol=tol, solver="newton", max_iter=300
            ).fit(X, y)
        gaps.append(machine.relative_gap_)
        assert machine.n_iter_ < 100
    for wider, closer in itertools.pairwise(gaps):
        assert closer <= max(wider, 1e-12)
    assert gaps[3] <= 1e-12

"""The closing pass's sample knows what was summed, whatever BLAS makes of a row's place."""

from dataclasses import fields

import contracts
import numpy as np
import pytest

from bigscreen.certify.explicit import close_explicit
from bigscreen.features.design import Design
from bigscreen.fleet.inline import Inline
from bigscreen.problems.point import Point, Reading


@pytest.mark.parametrize("intercept", contracts.INTERCEPTS)
def test_rounding_by_the_number_of_rows_is_bounded(intercept):
    """As OpenBLAS rounds for Haswell and Zen, only more: other blocks of rows, other last bits."""

    class Rounded(Design):
        def columns(self, X, dtype=np.float32, passing=""):
            found = super().columns(X, dtype, passing)
            if self.kernel is not None and dtype is np.float32 and X.shape[0] % 2 == 0:
                found *= np.float32(1 + 2.0**-18)
            return found

    world = contracts.world(contracts.rows(5, 60), "rbf", 1.0, intercept)
    rng = np.random.default_rng(0)
    w, offset = rng.normal(size=world.design.rank), 0.0 if intercept == "none" else 0.7
    coef = world.design.coef(w)
    point = Point(coef, w, offset, 0.0, 0.0, paired=False, readings=(Reading(coef, offset, 1.0),))
    with Inline(1) as fleet:
        parts = {own.name: getattr(world.design, own.name) for own in fields(Design)}
        found = close_explicit(Rounded(**parts), world.problem, point, fleet)
        contracts.certificate_is_true(world, point, found)

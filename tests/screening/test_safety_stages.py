"""The rules of a path, fed by the package's own solvers: what these say of themselves is true.

``test_safety_path`` hands the rules alphas of its own making; here the scores, their slack, the gap
and the norms are those of the stages that a path is walked on.
"""

import time

import numpy as np
import pytest
import safety_cases
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safety_cases import INTERCEPTS, RECIPES, Case, Spec, Tally

from bigscreen.data.memory import MemoryDataset
from bigscreen.features.design import Design
from bigscreen.path.explicit import ColumnsStage
from bigscreen.path.gram import GramStage
from bigscreen.path.stage import PointTask
from bigscreen.problems.dual import FREE
from bigscreen.screening.regions import Past


class StageCase(Case):
    """A case whose points are a stage's own, each solved to a relative gap."""

    def __init__(self, spec, tols):
        super().__init__(spec)
        data = MemoryDataset(self.side.X, np.zeros(spec.n, np.int32), [0, 1], None)
        design = Design(data, None if spec.kernel == "linear" else self.kernel)
        constant = bool(self.constant)
        columns = spec.kernel == "linear" and self.dual(self.start).coupling is None
        if columns and spec.seed % 2:
            self.stage = ColumnsStage(self.side.X, constant)
        else:
            # Room for float64 entries, or only for float32 ones.
            size = 8 if spec.single else 16
            self.stage = GramStage(design, constant, size * spec.n**2)
        self.norms, self.products = self.stage.norms, self.stage.products
        second = self._at(-1.0 if self.nus else 1.7)
        self.points = [
            self._solved(at, tol) for at, tol in zip((second, self.start), tols, strict=True)
        ]

    def _solved(self, value, tol):
        dual = self.dual(value)
        start = dual.feasible(np.zeros(len(dual)))
        # Where w* = 0 there is no relative gap to be reached.
        deadline = time.monotonic() + 0.3
        free = np.full(len(dual), FREE)
        return value, dual, self.stage.solve(PointTask(dual, start, free, tol, deadline))

    @property
    def pasts(self):
        return [
            Past(value, dual, own.alpha, own.scores, own.w_sq, own.gap + own.rounding)
            for value, dual, own in self.points
        ]


@pytest.mark.slow
@given(
    st.builds(
        Spec,
        seed=st.integers(0, 10**6),
        recipe=st.sampled_from(RECIPES),
        intercept=st.sampled_from(INTERCEPTS),
        kernel=st.sampled_from(["linear", "rbf"]),
        sparse_rows=st.booleans(),
        single=st.booleans(),
        weights=st.sampled_from(["none", "some", "zeros"]),
        n=st.integers(10, 40),
        d=st.integers(1, 6),
        value=st.floats(-2, 1.5),
        step=st.floats(1e-3, 0.3),
        down=st.booleans(),
    ),
    st.tuples(st.floats(-8, 0), st.floats(-8, 0)),
)
# Ten float64 entries, each rounded to float32 once, whose errors happen to go one way.
@example(
    Spec(11492, "lad", "constant", "linear", False, True, "none", 32, 1, 0.0, 0.25, False),
    (0.0, 0.0),
)
@settings(max_examples=120, deadline=None)
def test_points_of_the_stages_keep_their_bounds(spec, digits):
    case, tally = StageCase(spec, [10.0**one for one in digits]), Tally()
    for point in case.pasts:
        exact = case.K @ (point.dual.sign * point.alpha)
        room = 1e-13 * (1 + np.abs(case.K) @ np.abs(point.alpha))
        assert np.all(np.abs(exact - point.scores.values) <= point.scores.slack + room)
        gap = safety_cases.reference.linear_maximum(case.oracle(point.dual), point.alpha, exact)
        size = np.abs(point.dual.lin) @ np.abs(point.dual.hi) + np.abs(point.alpha) @ np.abs(exact)
        assert gap <= point.gap + 1e-12 * size
    assert np.all(case.norms >= np.sqrt(np.maximum(np.diag(case.K), 0)) * (1 - 1e-12))
    safety_cases.try_rules(case, safety_cases.safe_rules(case), tally)
    assert not tally.guilty, tally.guilty


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_rules_decide_some_rows(recipe):
    tally = Tally()
    for seed in range(4):
        value = 1.0 if recipe in ("nu_svc", "one_class") else -0.5
        spec = Spec(seed, recipe, INTERCEPTS[seed % 3], "rbf" if seed > 1 else "linear",
                    step=0.003, n=40, value=value)  # fmt: skip
        case = StageCase(spec, (1e-7, 1e-7))
        safety_cases.try_rules(case, safety_cases.safe_rules(case), tally)
    assert not tally.guilty and tally.decided["all"] > 40

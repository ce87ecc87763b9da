"""Scores of support rows from half of the entries between them: the same as from all."""

from dataclasses import replace

import numpy as np
import pytest
from block_world import quiet
from contracts import rows

from bigscreen.certify.exact import ExactTuning, close_exact
from bigscreen.certify.scores import Crossed, Noise, ScoreProgram, TileTuning
from bigscreen.features.design import Design
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.given import Custom
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import make_kernel
from bigscreen.problems.point import Point
from bigscreen.problems.recipes import CSvc

GRID = {"shard_rows": 64, "chunk_rows": 32}


@pytest.fixture(scope="module", autouse=True)
def fleet():
    with Inline(2) as threads, quiet():
        yield threads


def program(kernel="rbf", sparse_rows=False, n=150, dtype=np.float64):
    data, rng = rows(4, n, sparse_rows=sparse_rows, **GRID), np.random.default_rng(0)
    ids = np.sort(rng.permutation(n)[: n - 30])
    coef = rng.normal(size=len(ids))
    made, support = make_kernel(kernel, 0.2, 2, 1.0), Operand(data.rows(ids), ids)
    return ScoreProgram(data, made, support, coef, Noise(coef**2, 5.0, 50.0), dtype)


@pytest.mark.parametrize("wanted", [1, 16, 47, 120])
@pytest.mark.parametrize("sparse_rows", [False, True])
@pytest.mark.parametrize("kernel", ["rbf", "polynomial", "laplacian", "linear"])
def test_scores_and_bands(kernel, sparse_rows, wanted):
    one = program(kernel, sparse_rows)
    places = np.sort(np.random.default_rng(wanted).permutation(120)[:wanted])
    crossed = Crossed(one, places, 16)
    scores, band = crossed.total([crossed(task) for task in crossed.tasks])
    parts = [one(part) for part in np.split(one.support.ids[places], wanted) if len(part)]
    want = [np.concatenate(each) for each in zip(*parts, strict=True)]
    np.testing.assert_allclose(scores, want[0], rtol=0, atol=1e-11 * np.abs(want[0]).max())
    np.testing.assert_allclose(band, want[1], rtol=1e-6)


def test_entries_between_rows_wanted_are_computed_once():
    one, counted = program(), []

    class Counting(type(one.kernel)):
        def block(self, A, B, out=None, dtype=np.float32):
            counted.append(len(A) * len(B))
            return super().block(A, B, out, dtype)

    crossed = Crossed(replace(one, kernel=Counting(0.2)), np.arange(96), 16)
    crossed.total([crossed(task) for task in crossed.tasks])
    # Six parts: their squares and the half between them, and the 24 other rows' columns.
    assert sum(counted) == 16 * 16 * (6 + 15) + 96 * 24


@pytest.mark.parametrize("certify", ["float32", "float64"])
@pytest.mark.parametrize("intercept", ["none", "constant", "true"])
def test_the_certificate_is_the_same(intercept, certify, fleet, monkeypatch):
    data, rng = rows(2, 200, **GRID), np.random.default_rng(0)
    problem, design = CSvc(30.0, 1, (), intercept), Design(data, make_kernel("rbf", 0.3))
    dual = problem.dual(data.y(0, 200), data.weights(0, 200))
    alpha = dual.feasible(dual.hi * np.clip(rng.normal(0.3, 0.4, 200), 0, 1))
    point = Point(np.empty(0), np.empty(0), np.nan, np.nan, np.nan, True, alpha=alpha)
    tuning = ExactTuning(mended_share=1e-9)
    plain = close_exact(design, problem, point, fleet, certify, tuning=tuning)
    tuning = replace(tuning, tiles=TileTuning(part_rows=16, crossed_rows=20))
    seen, call = [], Crossed.__call__
    monkeypatch.setattr(Crossed, "__call__", lambda s, task: seen.append(task) or call(s, task))
    found = close_exact(design, problem, point, fleet, certify, tuning=tuning)
    assert len(seen) > 2
    for name in ("primal", "dual", "gap"):
        assert getattr(found, name) == pytest.approx(getattr(plain, name), rel=1e-11)
    assert found.rounding_bound == pytest.approx(plain.rounding_bound, rel=1e-4)
    with Inline(3) as other:
        assert close_exact(design, problem, point, other, certify, tuning=tuning) == found


def test_a_kernel_that_may_not_be_symmetric_is_computed_whole():
    one = program()
    usual = TileTuning()
    assert Crossed.worth(one, 10**6, usual) and not Crossed.worth(one, 10, usual)
    custom = Custom(lambda A, B: A @ B.T)
    assert not Crossed.worth(replace(one, kernel=custom), 10**6, usual)

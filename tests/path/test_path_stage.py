"""The choice of the stage for an exact kernel: the whole matrix for few rows, else columns."""

import numpy as np
import pytest

from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.standard import make_kernel
from bigscreen.options.train import TrainOptions
from bigscreen.path.gram import GramStage
from bigscreen.path.kernel import KernelStage
from bigscreen.path.options import PathOptions
from bigscreen.path.prepare import PATH, PathTuning, exact_stage
from bigscreen.path.run import train_path
from bigscreen.plan.tuning import PLAN

GIB = 2.0**30


def path(X, y, values, tuning, folds=None, **fit):
    options = TrainOptions(exact=True, intercept="true", **fit)
    data = MemoryDataset(X.astype(np.float32), y.astype(np.int32), [0, 1])
    with Inline(1) as fleet:
        return train_path(data, PathOptions(options, values, folds, None), fleet, tuning=tuning)


def stage(n, room=GIB, matrix_rows=0, kernel="rbf", **options):
    """Make the stage of n rows; return it and its name."""
    X = np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32)
    data = MemoryDataset(X, np.arange(n, dtype=np.int32) % 2, [0, 1])
    design = Design(data, make_kernel(kernel, 0.1))
    with Inline(1) as fleet:
        made = TrainOptions(exact=True, **options)
        return exact_stage(design, False, room, made, fleet, lambda *_: None, False, matrix_rows)


def test_rows_and_memory_choose_the_stage():
    assert stage(200, matrix_rows=200)[1] == "gram" and stage(201, matrix_rows=200)[1] == "block"
    assert isinstance(stage(201, matrix_rows=np.inf)[0], GramStage)
    assert isinstance(stage(200, 4.0 * 200 * 100, 200)[0], KernelStage)  # it does not fit


def test_columns_that_are_quickly_computed_again_are_not_all_kept():
    n = 10_001
    for room, how, size in (
        (8 * GIB, {}, PLAN.cheap_cache_bytes),
        (GIB / 8, {}, int(PATH.kernel_fraction * GIB / 8)),
        (8 * GIB, {"kernel": "laplacian"}, 4 * n * n),
        (8 * GIB, {"cache": 300 << 20}, 300 << 20),
    ):
        made, _ = stage(n, room, **how)
        assert made._solve.options.cache == size


def test_memory_for_too_few_columns_is_refused():
    n = 100
    enough = 4 * n * PLAN.min_columns / PATH.kernel_fraction
    assert stage(n, enough)[1] == "block"
    with pytest.raises(InputError, match="fewest kernel columns"):
        stage(n, enough - 2)


def test_both_ways_have_the_same_optima():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    y = (X[:, 0] + X[:, 1] ** 2 + rng.normal(size=300) > 1).astype(int)
    found = [
        path(X, y, [0.1, 1.0, 10.0], PathTuning(matrix_rows=rows), gamma=0.3, tol=1e-6)
        for rows in (300, 299)
    ]
    assert [one.record["provenance"]["solver"] for one in found] == ["gram", "block"]
    for one, other in zip(found[0].points, found[1].points, strict=True):
        gap = one["gap"] + other["gap"] + one["rounding"] + other["rounding"]
        assert abs(one["dual"] - other["dual"]) <= gap


@pytest.mark.parametrize(
    ("problem", "folds", "name"),
    [("c-svc", None, "block"), ("c-svc", 4, "gram"), ("nu-svc", None, "gram")],
)
def test_what_else_chooses_the_matrix(problem, folds, name):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(140, 3))
    y = (X[:, 0] + rng.normal(size=140) > 0).astype(int)
    tuning = PathTuning(matrix_rows=100)  # 149 with five walks
    found = path(X, y, [0.1, 0.4], tuning, folds, problem=problem)
    assert found.record["provenance"]["solver"] == name

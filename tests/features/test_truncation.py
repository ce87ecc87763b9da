"""Directions of the landmarks that are dropped: as few as numbers can carry, and said."""

import json
from pathlib import Path

import numpy as np
import pytest
from cli_world import World, bigscreen, succeed, world

from bigscreen import SVC, NystroemSVC, Tuning, svm_path
from bigscreen.errors import InputError
from bigscreen.features import nystrom
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import Rbf
from bigscreen.model.model import Model

__all__ = ["world"]  # a fixture

HOW = {"gamma": 0.3, "C": 100.0, "n_components": 120, "fit_intercept": False}


def rows(n=900):
    """Few columns of different widths: eigenvalues fall off fast."""
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(n, 4)) * [1, 0.5, 0.3, 0.1]).astype(np.float32)
    return X, ((X**2).sum(axis=1) + 0.1 * rng.normal(size=n) > 1.2).astype(int)


def test_stored_features_keep_all_directions_that_float64_resolves():
    X, y = rows()
    full = NystroemSVC(tuning=Tuning(features="stored"), tol=1e-6, **HOW).fit(X, y)
    less = NystroemSVC(tuning=Tuning(features="stored", truncation=1e-6), tol=1e-6, **HOW).fit(X, y)
    (more,), (few,) = full.certificate_, less.certificate_
    assert few["rank"] < 100 < more["rank"] and more["cutoff"] < 1e-11 and few["cutoff"] == 1e-6
    # The optimum over more directions is lower, by far more than either gap.
    assert more["primal"] < few["primal"] * (1 - 1e-4)
    # The published coefficients are those of the machine that was certified: large as they are,
    # its own scores have the loss, in float64, that P was summed from.
    side = Operand(full.components_)
    factor = nystrom.factor_matrix(Rbf(0.3), side, more["cutoff"])
    phi = Rbf(0.3).block(X, side, dtype=np.float64) @ factor
    w = np.linalg.lstsq(factor, full.model_.coef[0], rcond=None)[0]
    sign = 2.0 * y - 1
    scores = full.decision_function(X)
    np.testing.assert_allclose(scores, phi @ w, atol=1e-5)
    primal = 0.5 * w @ w + HOW["C"] * np.maximum(0, 1 - sign * scores).sum()
    assert primal == pytest.approx(more["primal"], rel=1e-6)
    known = full.model_.provenance["nystrom"]
    assert known["rank"] == more["rank"] and known["entries"] == "float64"
    assert less.model_.provenance["nystrom"]["entries"] == "float32"


def test_directions_of_the_factor_are_orthonormal_down_to_the_cutoff():
    X, _ = rows()
    side = Operand(X[:120])
    full = nystrom.factor_by_eigenvectors(Rbf(0.3), side, nystrom.FLOAT64_CUTOFF)
    T = full.matrix
    K = Rbf(0.3).block(side, side, dtype=np.float64)
    np.testing.assert_allclose(T.T @ K @ T, np.eye(T.shape[1]), atol=1e-2)
    assert full.entries is np.float64
    assert nystrom.factor_by_eigenvectors(Rbf(0.3), side).entries is np.float32


@pytest.mark.parametrize("gamma", [0.05, 0.3, 3.0, 100.0])
@pytest.mark.parametrize("columns", [4, 18])
def test_directions_beside_a_ridge_are_carried_as_those_of_eigenvectors(columns, gamma):
    """T is triangular there, and its columns tell of no eigenvalue."""
    side = Operand(np.random.default_rng(0).normal(size=(300, columns)).astype(np.float32))
    beside = nystrom.factor_by_cholesky(Rbf(gamma), side, nystrom.FLOAT64_CUTOFF)
    K = Rbf(gamma).block(side, side, dtype=np.float64) + beside.ridge * np.eye(300)
    values = np.linalg.eigvalsh(K)
    ratio = values[0] / values[-1]
    if not 0.03 < ratio / nystrom.FLOAT32_CUTOFF < 30:
        assert beside.entries is (np.float64 if ratio < nystrom.FLOAT32_CUTOFF else np.float32)
    # What float32 columns carry by themselves is not made of float64 ones.
    assert (
        nystrom.factor_by_cholesky(Rbf(gamma), side, nystrom.FLOAT32_CUTOFF).entries is np.float32
    )


@pytest.mark.parametrize("gamma", [0.01, 0.3, 3.0, 100.0])
def test_repeated_landmarks_beside_a_ridge_are_carried_by_float32(gamma):
    """The smallest eigenvalue is the ridge there: rounding must not choose the type."""
    X = np.random.default_rng(0).normal(size=(300, 18)).astype(np.float32)
    X[150:] = X[:150]
    side = Operand(X)
    assert (
        nystrom.factor_by_cholesky(Rbf(gamma), side, nystrom.FLOAT32_CUTOFF).entries is np.float32
    )
    assert (
        nystrom.factor_by_cholesky(Rbf(gamma), side, nystrom.FLOAT64_CUTOFF).entries is np.float64
    )


def test_a_truncation_too_small_for_recomputed_features_is_refused():
    X, y = rows()
    machine = NystroemSVC(tuning=Tuning(features="recomputed"), **HOW).fit(X, y)
    (record,) = machine.certificate_
    assert record["cutoff"] == nystrom.FLOAT32_CUTOFF and record["rank"] < 100
    with pytest.raises(InputError, match="1e-06 at least, not `tuning.truncation=1e-09`"):
        NystroemSVC(tuning=Tuning(features="recomputed", truncation=1e-9), **HOW).fit(X, y)
    for value in (0.0, 1.0, -1.0, np.nan):
        with pytest.raises(InputError, match="tuning.truncation must lie strictly between 0 and 1"):
            Tuning(truncation=value)
    with pytest.raises(InputError, match="tuning.truncation is for landmarks"):
        SVC(tuning=Tuning(truncation=1e-9)).fit(X, y)


def test_paths_keep_all_directions_that_float64_resolves():
    X, y = rows(400)
    path = svm_path(X, y, [1.0, 100.0], kernel="rbf", gamma=0.3, n_components=120)
    known = path.record["provenance"]["nystrom"]
    assert path.missed is None and known["rank"] > 100 and known["landmarks"] == 120
    assert path.model(1).provenance["nystrom"] == known


def test_the_command_line(world: World, tmp_path: Path) -> None:
    model, record = tmp_path / "m.bsm", tmp_path / "m.json"
    how = ["--landmarks", "60", "--gamma", ".05", "--threads", "1", "--truncation", "1e-4"]
    shown = succeed("fit", world.store, model, *how, "--verbose", "--json", record)
    known = json.loads(record.read_text())["nystrom"]
    assert known["cutoff"] == 1e-4 and known["rank"] < 60
    told = f"{known['rank']} of 60 directions, none below 0.0001 of the largest"
    assert told in shown and told in succeed("info", model)
    assert Model.load(model).provenance["nystrom"] == known
    refused = bigscreen("fit", world.store, tmp_path / "n.bsm", "--exact", "--truncation", "1e-4")
    assert refused.exit_code == 2 and "--truncation has no meaning with --exact" in refused.output

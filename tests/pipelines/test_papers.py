"""The experiments of the papers, on a few rows of their data."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import DATA
from scipy.stats import wilcoxon
from scripts import record, script

from bigscreen.problems.dual import Dual
from bigscreen.problems.recipes import NuSvc
from pipelines.yang_srbo.qp_solvers import dcdm, interior_point
from pipelines.yang_srbo.wilcoxon import exact

with_data = pytest.mark.skipif(
    not (DATA / "nusvm").is_dir(), reason="the real data sets are not beside this checkout"
)


def shares(values: Any) -> bool:
    return bool(np.all((np.asarray(values) >= 0) & (np.asarray(values) <= 1)))


@pytest.mark.slow
@with_data
@pytest.mark.parametrize(
    ("name", "args", "sets"),
    [
        ("yang_srbo.supervised", "--only Sonar Abalone --rows 80 --step .1 --powers 1", 3),
        ("yang_srbo.one_class", "--only Sonar Pima --rows 150 --step .05 --powers 1", 4),
        ("yang_srbo.mnist", "--digits 0 --rows 60 --step .1 --powers 3", 2),
    ],
)
def test_screening_changes_no_objective(name: str, args: str, sets: int, tmp_path: Path) -> None:
    found = record(tmp_path, name, args)["sets"]
    assert len(found) == sets
    for one in found:
        # Both are within the gap of the optimum.
        assert one["objectives_apart"] <= 2e-4
        for way in ("nu-SVM", "nu-SVM, warm", "SRBO", "SRBO + cut"):
            assert one[way]["largest_gap"] <= 1e-4
            assert shares([one[way]["screened"], one[way]["score"]])
        assert one["nu-SVM"]["screened"] == 0
    # The tighter region lies in SRBO's; somewhere it decides something.
    assert sum(one["SRBO + cut"]["screened"] for one in found) > 0.01


@with_data
def test_one_class_learns_from_positive_rows(tmp_path: Path) -> None:
    args = "--only BreastCancer569 --rows 300 --step .1 --powers 8"
    linear, rbf = record(tmp_path, "yang_srbo.one_class", args)["sets"]
    assert rbf["trained"] < rbf["rows"]
    assert min(rbf["SRBO"]["score"], rbf["KDE"]["score"]) > 0.8
    assert linear["KDE"]["score"] == rbf["KDE"]["score"]


@pytest.mark.slow
@with_data
def test_toys_are_separated(tmp_path: Path) -> None:
    found = record(tmp_path, "yang_srbo.toys", "--rows 60 --step .1 --powers 0 1")
    assert [figure["file"] for figure in found["figures"]] == [
        "yang_srbo.toys-figure-4.png",
        "yang_srbo.toys-figure-7.png",
    ]
    sets = {(one["name"], one["kernel"], one["one_class"]): one for one in found["sets"]}
    assert len(sets) == 18
    assert sets["normal 5", "linear", False]["score"] == 1.0
    assert sets["circle", "RBF", False]["score"] > 0.9
    assert all(one["largest_gap"] <= 1e-4 for one in sets.values())
    assert shares([(one["screened"], one["cut"]) for one in sets.values()])


@pytest.mark.slow
@with_data
def test_no_active_row_is_left_out(tmp_path: Path) -> None:
    args = "--only Pima Abalone --rows 80 --step .02"
    found = record(tmp_path, "yang_srbo.remaining", args)["sets"]
    assert len(found) == 4
    for one in found:
        assert not any(one["active_lost"])
        assert shares(one["left"]) and shares(one["cut"])
        assert one["left"][0] == 1.0
    assert min(min(one["cut"]) for one in found) < 0.9


@pytest.mark.slow
@with_data
def test_solvers_agree(tmp_path: Path) -> None:
    args = "--only Adult Abalone --rows 100 --step .01"
    for one in record(tmp_path, "yang_srbo.solvers", args)["sets"]:
        optimum = one["runs"]["QP"]["objective"]
        for run in one["runs"].values():
            assert run["objective"] == pytest.approx(optimum, rel=3e-4)
            assert run["missing"] < 1e-7
        assert one["printed"]["ratio"] > 1 - 3e-4


@pytest.mark.slow
@with_data
def test_ratios_grow_with_finer_steps(tmp_path: Path) -> None:
    args = "--only Abalone --rows 60 --finest .01 --step .05"
    found = record(tmp_path, "yang_srbo.ratio", args)
    assert found["steps"] == [0.1, 0.05, 0.02, 0.01]
    for one in found["sets"]:
        for ratios in one["ratios"].values():
            assert shares(ratios) and ratios[-1] >= ratios[0]
        for plain, cut in zip(*one["ratios"].values(), strict=True):
            assert cut >= plain - 1e-9
    low, high = found["dimensions"][0], found["dimensions"][-2]
    assert low["d"] == 2 and high["d"] == 1000
    assert low["ratios"]["cut"][0] > high["ratios"]["cut"][0]


@pytest.mark.slow
@with_data
def test_any_delta_is_safe(tmp_path: Path) -> None:
    args = "--only Abalone --rows 60 --step .05"
    for one in record(tmp_path, "yang_srbo.delta", args)["sets"]:
        assert one["objectives_apart"] <= 2e-4
        assert len(one["runs"]) == 6
        for run in one["runs"].values():
            assert shares(run["left"]) and run["largest_gap"] <= 1e-4 and run["rules"] > 0


def overlapping(rows: int, seed: int) -> tuple[np.ndarray, Dual]:
    """Make Q of a nu-SVM of two overlapping classes, and its dual."""
    draw = np.random.default_rng(seed)
    y = np.where(np.arange(rows) % 2 == 0, 1.0, -1.0)
    X = draw.standard_normal((rows, 4)) + 0.7 * y[:, None]
    squares = np.sum(X**2, axis=1)
    K = np.exp(-(squares[:, None] + squares - 2 * X @ X.T) / 8) + 1.0
    dual = NuSvc(0.4, 1, float(rows), (), "constant").dual((y > 0).astype(int), np.ones(rows))
    return K * y * y[:, None], dual


@pytest.mark.parametrize("seed", range(5))
def test_interior_point_finds_the_optimum(seed: int) -> None:
    Q, dual = overlapping(40, seed)
    alpha, iterations = interior_point(Q, np.zeros(40), np.array(dual.hi), 0.4)
    gap, value = proved(Q, dual, alpha)
    assert iterations < 40 and 0 <= gap < 1e-5 * value


def test_printed_dcdm_stalls_above_the_optimum() -> None:
    Q, dual = overlapping(40, 0)
    best, _ = interior_point(Q, np.zeros(40), np.array(dual.hi), 0.4)
    alpha, sweeps = dcdm(Q, 1 / 40, 0.4, 1e-8, 1000)
    assert np.sum(alpha) >= 0.4 - 1e-9 and shares(40 * alpha)
    assert sweeps < 1000 and alpha @ Q @ alpha > 1.5 * (best @ Q @ best)


def proved(Q: np.ndarray, dual: Dual, alpha: np.ndarray) -> tuple[float, float]:
    alpha = dual.feasible(alpha)
    scores = dual.sign * (Q @ alpha)
    gap = dual.frank_wolfe_gap(alpha, scores, dual.multiplier(scores))
    return gap, 0.5 * float(alpha @ Q @ alpha)


@pytest.mark.parametrize("n", [4, 9, 13])
def test_rank_sums_as_scipy_has_them(n: int) -> None:
    differences = np.arange(1.0, n + 1)
    differences[[0, 2]] *= -1
    one, two = exact(n, 4)
    greater = wilcoxon(differences, alternative="greater", method="exact")
    assert one == pytest.approx(greater.pvalue)
    assert two == pytest.approx(wilcoxon(differences, method="exact").pvalue)


@pytest.mark.slow
def test_one_page_for_all(tmp_path: Path) -> None:
    """A failed experiment is on the page, and the command ends with 1."""
    only = ("wang2014.toys", "yang_srbo.mnist", "yang_srbo.wilcoxon")
    args = ("--quick", "--out", tmp_path, "--only", *only)
    done = script("papers.report", *args, BIGSCREEN_DATA=tmp_path / "nowhere")
    assert done.returncode == 1 and "yang_srbo.mnist failed" in done.stderr
    page = (tmp_path / "papers.html").read_text()
    assert "Failed: yang_srbo.mnist" in page and "there is no data folder" in page
    assert "Table 1: 100 values of C" in page and "(59.15)" in page
    assert page.count("data:image/png;base64,") == 1
    assert "yang_srbo.supervised.json is not there" in page
    runs = json.loads((tmp_path / "papers.json").read_text())["runs"]
    assert {name: run["code"] for name, run in runs.items()} == dict(
        zip(only, (0, 1, 0), strict=True)
    )

"""The output for paths: the bar, the table, the plots."""

from __future__ import annotations

import io

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from bigscreen.errors import InputError
from bigscreen.estimators.path import svm_path
from bigscreen.report import path as report_path

GRID = np.geomspace(0.02, 5.0, 25)


@pytest.fixture(scope="module")
def path():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y = X[:, 0] + 0.5 * rng.normal(size=200) > 0
    return svm_path(X, y, GRID, rules=("dvi", "essnsv", "gap"), folds=3)


def axes():
    return Figure().add_subplot()


def test_stacked_areas_are_the_rows_that_were_found(path):
    ax = axes()
    report_path.rejection(ax, path)
    tops = [area.get_paths()[0].vertices for area in ax.collections]
    for k, part in enumerate(path.points):
        found = sum(part["screened"].get("all", {}).values()) / part["rows"]
        highest = max(v[np.isclose(v[:, 0], GRID[k]), 1].max() for v in tops)
        assert highest == pytest.approx(found)
    assert ax.get_xscale() == "log" and ax.get_ylim() == (0, 1)


def test_a_line_for_every_rule_and_for_all(path):
    ax = axes()
    report_path.rules_compared(ax, path)
    labels = [line.get_label() for line in ax.lines]
    assert labels == ["DVI", "ESSNSV", "gap ball", "all"]
    lines = {line.get_label(): line.get_ydata() for line in ax.lines}
    for name in labels:
        assert np.all(lines["all"] >= lines[name] - 1e-12)
    assert np.allclose(lines["all"] * 200, [200 - part["left"] for part in path.points])
    report_path.rules_compared(axes(), {"one": path, "other": path})


def test_remaining_rows_and_validation(path):
    ax = axes()
    report_path.remaining(ax, path)
    assert ax.lines[0].get_ydata().tolist() == [part["left"] for part in path.points]
    ax = axes()
    report_path.validation(ax, path)
    assert np.allclose(ax.lines[0].get_ydata(), path.scores.mean(axis=0))
    assert ax.lines[1].get_xdata() == [GRID[path.best]]


def test_plots_as_files(path, tmp_path):
    written = report_path.save_plots(path, tmp_path, ("png", "svg"))
    assert {file.name for file in written} == {
        f"{name}.{ending}"
        for name in ("rejection", "rules", "remaining", "validation")
        for ending in ("png", "svg")
    }
    assert all(file.stat().st_size > 1000 for file in written)
    X = np.random.default_rng(0).normal(size=(40, 2))
    plain = svm_path(X, X[:, 0] > 0, [0.1, 1.0], rules=())
    assert [f.stem for f in report_path.save_plots(plain, tmp_path)] == ["remaining"]
    with pytest.raises(InputError, match="needs folds"):
        report_path.validation(axes(), plain)


def test_the_table_is_thinned_but_has_the_best(path, capsys):
    report_path.path_table(path)
    text = capsys.readouterr().out
    assert f"{path.values[path.best]:.4g}" in text and "accuracy" in text
    assert len([line for line in text.splitlines() if "e-0" in line]) <= 21
    facts = report_path.totals(path)
    assert "25 values of C" in facts["points"] and "over 3 folds" in facts["best"]


def test_the_bar_says_where_it_is():
    event = {"event": "point", "parameter": "nu", "fold": 1, "done": 3, "total": 9, "value": 0.25,
             "relative_gap": 1e-4, "rows": 100, "left": 25}  # fmt: skip
    for terminal in (False, True):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
        with report_path.PathBar(console) as show:
            show({"event": "phase", "phase": "features"})
            show(event)
        text = console.file.getvalue()
        assert "fold 2" in text and "nu 0.25" in text and "75.0% screened" in text

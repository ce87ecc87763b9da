"""The Snacks paper's experiments on a few rows, and the index of all papers' tables and figures."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import DATA
from scripts import record, script

from bigscreen.report import report
from pipelines.papers import common as papers
from pipelines.papers import index
from pipelines.papers.report import EXPERIMENTS, written
from pipelines.tanji2023 import columns, cost, published, sets, tables

PAPERS = DATA.parent / "papers"

with_data = pytest.mark.skipif(
    not (DATA / "a9a").is_dir(), reason="the real data sets are not beside this checkout"
)


def task(rows: int = 400, lam: float = 1e-3) -> sets.Task:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 3)).astype(np.float32)
    noise = 0.3 * rng.normal(size=rows)
    return sets.Task(
        "a9a", X, np.where(X[:, 0] + X[:, 1] ** 2 + noise > 1, 1.0, -1.0), 0.5, lam, 40
    )


# -- the baselines ---------------------------------------------------------------------------------
def test_pegasos_and_snacks_come_near_the_optimum() -> None:
    """Both end above the proved bound, Pegasos near it; printed Snacks solves another problem."""
    one = columns.split(task(), 40, 0, 5, 0)
    best = columns.certified("newton", 1e-5)(one, 0)
    assert best["gap"] <= 1e-5 and 0 <= best["objective"] - best["bound"] <= 1e-5
    lam = one.task.lam
    *_, slow = published.pegasos(one.phi, one.y, lam, 200_000, 0)
    assert best["bound"] <= one.objective(slow) <= 1.02 * best["objective"]
    gentle = published.Defaults(step=0.5, radius=10.0, steps=200_000)
    *_, last = published.snacks(one.phi, one.y, lam, 0, defaults=gentle)
    assert best["bound"] < one.objective(last) < 1.1 * best["objective"]
    # Eq. (8) steps along half the gradient of the term: the problem of half the lambda.
    other = columns.split(task(lam=lam / 2), 40, 0, 5, 0)
    twice = columns.certified("newton", 1e-5)(other, 0)
    assert other.objective(last) - twice["bound"] < 0.005 * twice["objective"]
    *_, doubled = published.snacks(one.phi, one.y, lam, 0, defaults=gentle, literal=True)
    assert one.objective(doubled) > 2 * one.objective(last)


def test_baselines_are_repeatable_and_stop_where_they_may() -> None:
    one = columns.split(task(), 20, 0, 5, 0)
    few = published.Defaults(steps=500)
    ends = [list(published.snacks(one.phi, one.y, 1e-3, 3, defaults=few)) for _ in range(2)]
    assert len(ends[0]) == 10
    np.testing.assert_array_equal(ends[0], ends[1])
    points = iter([np.zeros(one.phi.shape[1])] * 5)
    columns.stopped(one, points, one.objective(np.zeros(one.phi.shape[1])))
    assert len(list(points)) == 4, "the first is within the accuracy"


def test_columns_solve_one_problem() -> None:
    one = columns.split(task(), 30, 1, 5, 0)
    assert len(one.y) == 320 and len(one.test_y) == 80
    assert not set(one.inside) & set(one.outside)
    found = tables.solved(one, 0, 20.0)
    bound = max(run.get("bound", 0.0) for run in found.values())
    for name, run in found.items():
        assert 0 <= run["train"] <= 1 and 0 <= run["test"] <= 1 and 0 <= run["f1"] <= 1
        if name != "exact (ThunderSVM)":
            assert run["above"] == run["objective"] - bound >= -1e-12
    assert found["LIBLINEAR"]["above"] < 0.05 * bound
    assert found["Newton, certified"]["gap"] <= 1e-3
    assert found["Snacks ours"]["above"] < 0.02 * bound
    assert found["Pegasos ours"]["above"] >= -1e-12


# -- the experiments -------------------------------------------------------------------------------
@pytest.mark.slow
@with_data
def test_tables_of_a_few_rows(tmp_path: Path) -> None:
    args = "--only a9a mnist-bin SUSY rcv1 --rows 400 --landmarks 30 --epochs 2"
    found = record(tmp_path, "tanji2023.tables", args)
    titles = [table["title"] for table in found["tables"]]
    assert titles[0].startswith("Table II") and "Table III: a9a" in titles[1]
    # What is made up says so, in its table, in the notes and in the index.
    for name, table in (("rcv1", "VI"), ("SUSY", "VII")):
        assert any(f"Table {table}: {name} (STAND-IN)" in title for title in titles)
        assert found["verdicts"][f"table {table}"][0] == "substitute data"
        assert any(note.startswith(f"{name}: ") and "STAND-IN" in note for note in found["notes"])
    assert found["verdicts"]["table II"][0] == "differs"
    assert "fewer rows" in found["verdicts"]["table III"][-1]
    assert found["not_reproduced"] == [], "a trial does not say what is reproduced"
    notes = " ".join(found["notes"])
    for wrong in ("eq. (8)", "line 3", "line 6", "table II prints", "table VI prints"):
        assert wrong in notes


@pytest.mark.slow
@with_data
def test_the_protocol_of_the_paper(tmp_path: Path) -> None:
    """Its parts run on a few rows: the search, raising m, folds and runs; the record names them."""
    args = (
        "--only a9a --rows 150 --landmarks 20 --epochs 1 --search 2 --raise-landmarks "
        "--folds 2 --runs 2"
    )
    found = record(tmp_path, "tanji2023.tables", args)
    (one,) = found["sets"]
    assert one["lambda"] in (1e-9, 10.0) and one["landmarks"] <= 20
    assert any("2 of 5 folds, 2 run(s)" in n and "2 x 2 grid" in n for n in found["notes"])


@pytest.mark.slow
@with_data
def test_the_protocol_says_what_it_costs(tmp_path: Path) -> None:
    args = ["--paper", "--cost", "--only", "a9a", "--rows", "200", "--runs", "2"]
    said = script("tanji2023.tables", "--out", tmp_path, *args, OPENBLAS_NUM_THREADS=1).stdout
    assert "hours of this machine" in said and "a9a 200 rows, m = 800: 10 x " in said
    assert not list(tmp_path.iterdir())


def test_a_cost_grows_with_rows_and_landmarks() -> None:
    def solve(one: columns.Split) -> dict[str, dict[str, float]]:
        return {"any": {"seconds": 1.0}, "exact (ThunderSVM)": {"seconds": 1.0, "certify": 1.0}}

    probe = cost.Probe(100, 10), lambda *all: None
    # Features cost nothing; rows times 4 and landmarks times 2, and pairs of rows times 16.
    both = cost.cost(task(400), 20, 400, solve, *probe)
    assert both.seconds == pytest.approx(8 + 32, rel=0.01)
    assert cost.cost(task(400), 20, 300, solve, *probe).seconds == pytest.approx(8, rel=0.01)
    assert both.bytes > 400 * 20 * 12
    free = 200 * cost.FEATURE_BYTES * 20 / cost.MEMORY_SHARE
    drawn = cost.that_fits(task(400), 20, free, 100)
    assert len(drawn.y) in (199, 200)
    assert "200 of 400 rows" in drawn.about.replace("199", "200")


@pytest.mark.slow
@with_data
def test_figures_of_a_few_rows(tmp_path: Path) -> None:
    args = "--rows 400 --landmarks 30 --points 2"
    found = record(tmp_path, "tanji2023.figures", args)
    assert [figure["title"] for figure in found["figures"]] == ["figure 1", "figure 2"]
    curve = found["figure 1"]
    assert curve["steps"][-1] == 4 * curve["rows"] and len(curve["Snacks"]) == 10
    drawn, accuracies = zip(*curve["Snacks ours"], strict=True)
    assert list(drawn) == sorted(drawn) and drawn[-1] >= 4 * curve["rows"]
    assert all(0.5 < accuracy <= 1 for accuracy in accuracies)
    assert set(found["verdicts"]) == {"figure 1", "figure 2"}
    assert all(word in ("agrees", "differs") for word, *_ in found["verdicts"].values())


@pytest.mark.slow
@with_data
def test_landmarks_of_a_few_rows(tmp_path: Path) -> None:
    args = "--only a9a SUSY --rows 600 --landmarks 20 60 --seeds 2"
    found = record(tmp_path, "tanji2023.landmarks", args)
    for one in found["sets"]:
        assert len(one["runs"]) == 8
        dimensions = list(one["dimension"].values())
        assert dimensions == sorted(dimensions) and dimensions[-1] <= 480 * 1.1
        by_way = {(run["sampling"], run["landmarks"]): run for run in one["runs"]}
        for way in ("uniform", "rpcholesky", "leverage", "kmeans"):
            few, more = by_way[way, 20], by_way[way, 60]
            assert 0 < more["trace"] < few["trace"] < 1 and more["gap"] <= 1e-3
    assert any("STAND-IN" in note for note in found["notes"])


def test_differences_from_print_are_said() -> None:
    def one(error: float, standin: bool = False) -> dict[str, Any]:
        runs = {"LIBLINEAR": {"test": error, "f1": 0.5}, "Newton, certified": {"test": 0.9}}
        return {"name": "a9a", "standin": standin, "columns": runs}

    assert tables.missed([one(0.16)]) == []
    (said,) = tables.missed([one(0.20)])
    assert "LIBLINEAR +4.2" in said
    assert tables.missed([one(0.20, standin=True)]) == []
    assert tables.verdicts([one(0.16)], False)["table III"] == ["agrees"]
    assert tables.verdicts([one(0.20)], False)["table III"][0] == "differs"
    for name, word in (("LIBLINEAR", "differs: error"), ("Newton, certified", "")):
        assert papers.judge([tables.claim(one(0.20), name)]) == word
    # Accuracies that are printed as errors.
    assert tables.PAPER["rcv1"]["LIBLINEAR"][1] == pytest.approx(100 - 91.1)


# -- the index -------------------------------------------------------------------------------------
NUMBERED = {
    "Wang et al. 2014": ("wang-2014-dvi-svm-lad.txt", 6),
    "Yang et al.: SRBO": ("yang-srbo-nu-svm.txt", 20),
    "Zimmert et al. 2015": ("zimmert-2015-safe-screening-svm.txt", 2),
    "Tanji et al. 2023: Snacks": ("tanji-2023-snacks.txt", 9),
    "Schmidt-Thieme: learning SVMs (slides)": ("schmidt-thieme-learning-svms-slides.txt", 0),
}


@pytest.mark.skipif(not PAPERS.is_dir(), reason="the papers are not beside this checkout")
def test_the_index_has_every_numbered_table_and_figure() -> None:
    assert set(index.DOCUMENTS) == set(NUMBERED)
    for document, (file, count) in NUMBERED.items():
        names = [item.name for item in index.DOCUMENTS[document]]
        assert len(names) == len(set(names)) == count
        text = (PAPERS / file).read_text(errors="replace").lower()
        for name in map(str.lower, names):
            assert f"\n{name}:" in text or f"\n{name}." in text, (document, name)
    known = {one.name for one in EXPERIMENTS}
    for items in index.DOCUMENTS.values():
        assert {item.experiment for item in items} <= known | {""}


def test_verdicts_follow_from_records() -> None:
    item, done = index.Item("table 1", "wang2014.toys"), {"code": 0}
    assert index.verdict(item, {}, None).word == "not run"
    assert index.verdict(item, {}, {"code": 1}).why == "its experiment failed"
    assert index.verdict(item, {}, {"code": 0, "trial": True}).word == "not run"
    for words, word in (
        (["", "agrees", papers.FEWER], "agrees"),
        (["differs: speedup", "agrees", ""], "differs"),
        ([papers.FEWER, ""], "not run"),
    ):
        tables_ = [{"of": ["table 1"], "rows": [["a", cell] for cell in words]}]
        tables_.append({"of": [], "rows": [["a", "differs: not a verdict"]]})
        found = index.verdict(item, {"tables": tables_}, done)
        assert found.word == word
    assert index.verdict(item, {"tables": [{"of": ["table 2"], "rows": []}]}, done).word != "agrees"
    own = {"verdicts": {"table 1": ["substitute data", "made up"]}}
    assert index.verdict(item, own, done) == ("substitute data", "made up")
    assert index.verdict(item, own, {"code": 0, "trial": True}).word == "not run"
    assert index.verdict(index.Item("figure 1", "", "a drawing"), {}, None) == (
        "not reproducible",
        "a drawing",
    )
    claims = index.Item("figure 2", "wang2014.svm", claims={"wine": 0.8})
    for share, word in ((0.85, "agrees"), (0.6, "differs")):
        sets_ = [{"name": "wine", "rejection": {"DVI": [[share / 2, share / 2]] * 3}}]
        assert index.verdict(claims, {"sets": sets_}, done).word == word


def test_the_page_has_the_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BIGSCREEN_DATA", str(tmp_path / "nowhere"))
    said = {"figure 1": ["agrees", "a <reason>"]}
    report.write_json(tmp_path / "tanji2023.figures.json", {"question": "Q?", "verdicts": said})
    page = written(tmp_path, {"tanji2023.figures": {"code": 0, "command": "c", "seconds": 1.0}})
    row = (
        '<td><a href="#tanji2023.figures">figure 1</a></td><td>agrees</td><td>a &lt;reason&gt;</td>'
    )
    assert row in page and 'id="tanji2023.figures"' in page
    assert page.count("<td>not reproducible</td>") == 7
    assert "no table or figure has a number" in page

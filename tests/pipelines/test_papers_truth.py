"""The pages of the papers are true: counts, columns, grids, and what is not reproduced."""

import argparse
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import DATA, ROOT

from bigscreen.path.explicit import ColumnsStage
from bigscreen.path.walk import PathSettings
from bigscreen.problems.recipes import CSvc
from bigscreen.report import report
from pipelines.papers import common, data_sets
from pipelines.papers.report import written
from pipelines.wang2014 import common as wang
from pipelines.yang_srbo import common as yang
from pipelines.yang_srbo import mnist, one_class, solvers, supervised
from pipelines.zimmert2015 import screening

PIPELINES = ROOT / "pipelines"
PAPER = DATA.parent / "papers" / "yang-srbo-nu-svm.txt"


def toy(rows: int = 60) -> Any:
    return data_sets.toy(0.75, rows)


# -- wang ------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def walked() -> dict[str, Any]:
    rows = toy()
    rules = list(wang.RULES)
    return wang.experiment(rows, CSvc(1.0, 1), (rows.y > 0).astype(np.int32), rules)


def test_what_screening_brings_beyond_warm_starts_has_a_column(walked: dict[str, Any]) -> None:
    table = wang.times("title", [walked], {})
    place = table["heads"].index(common.BEYOND)
    ways = walked["ways"]
    for row, (way, run) in zip(table["rows"], ways.items(), strict=True):
        ruled = way in wang.RULES
        assert run["beyond_warm"] == pytest.approx(ways["warm"]["total"] / run["total"])
        assert row[place] == (f"{run['beyond_warm']:.2f}" if ruled else "")


def test_ssnsv_and_essnsv_rest_on_close_ends(walked: dict[str, Any]) -> None:
    """The smaller the points' gaps, the more these rules identify; the tables show both."""
    for rule in ("SSNSV", "ESSNSV"):
        loose, close = (wang.rejection(walked, rule, gaps) for gaps in ("rejection", "closer"))
        assert 0 <= loose <= close <= 1
    table = wang.times("title", [walked], {})
    assert table["heads"].index("with all gaps 1e-09") == table["heads"].index("rejected") + 1
    assert any("limited by the gaps" in note for note in wang.notes([walked]))


def test_ends_are_solved_closer_than_the_rest() -> None:
    rows = toy()
    y, manner = (
        (rows.y > 0).astype(np.int32),
        PathSettings(1e-3, (wang.RULES["SSNSV"],), False, True),
    )
    stage = ColumnsStage(rows.X.astype(np.float32))
    run = common.walked(stage, CSvc(1.0, 1), y, wang.VALUES[::10], manner, 1e-9)
    gaps = [point["relative_gap"] for point in run["points"]]
    assert max(gaps[0], gaps[-1]) <= 1e-9 < 1e-7 < max(gaps) <= 1e-3


# -- yang ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("table", "sets"), [("IV", 13), ("V", 26), ("VI", 26), ("VIII", 5)])
def test_tables_count_the_sets_that_are_there(
    table: str, sets: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BIGSCREEN_DATA", str(tmp_path))
    assert data_sets.there(table) == f"table {table}: 0 of the paper's {sets} data sets are here"
    for name in ("Abalone", "Sonar", "Adult"):
        file = tmp_path / data_sets.FILES[name]
        file.parent.mkdir()
        file.touch()
    found = {"IV": ["Abalone"], "VIII": ["Adult"]}.get(table, ["Sonar", "Abalone"])
    said = f"{len(found)} of the paper's {sets} data sets are here: {', '.join(found)}"
    assert data_sets.there(table).endswith(said)


@pytest.mark.skipif(not PAPER.exists(), reason="the paper is not beside this checkout")
def test_tables_are_the_papers() -> None:
    """Every name of a table stands between its caption and the caption before, row by row."""
    text = PAPER.read_text(errors="replace")
    captions = {table: text.index(f"\nTABLE {table}: Compar") for table in ("IV", "V", "VI", "VII")}
    captions["VIII"] = text.index("\nTABLE VIII: Accuracy")
    for table, names in data_sets.TABLES.items():
        rows = text[: captions[table]].rpartition("[b]")[2]
        places = [rows.index(f" {name} ") for name in names]
        assert places == sorted(places)
        # As many rows as there are names: each begins where a number ends.
        numbers = rows[: rows.find("Win/Draw")] if "Win/Draw" in rows else rows
        starts = re.findall(r"(?<=[\d-]) (?=[A-Za-z])", numbers)
        assert len(starts) + 1 == len(names)


def test_sets_that_are_quickly_walked_have_the_papers_grid() -> None:
    nothing = argparse.Namespace(rows=None, step=None, powers=None)
    assert yang.grid(nothing, yang.PAPERS) == yang.PAPERS and yang.PAPERS.papers
    assert set(supervised.GRIDS) <= set(supervised.PAPER)
    for name in ("Abalone", "Winequality"):
        assert supervised.GRIDS[name, "linear"] == yang.PAPERS
    assert one_class.GRIDS["linear"] == yang.PAPERS
    few = argparse.Namespace(rows=50, step=0.1, powers=[1])
    said = yang.grid(few, yang.PAPERS)
    assert said == yang.Grid(50, 0.1, (1,)) and not said.papers
    assert said.described("RBF") == "step 0.1, 1 sigma" and said.described("linear") == "step 0.1"
    assert yang.PAPERS.described("linear") == yang.PAPERS.described("RBF") == "the paper's"
    assert yang.FEWER.papers and yang.FEWER.described("RBF") == "step 0.001, 3 sigmas"
    # .01 to 1 - 1/l in steps of .001.
    assert len(yang.nus(1000)) == 989


def test_cold_solves_of_some_values_are_compared_with_all() -> None:
    rows = toy(40)
    ways = ["nu-SVM", "nu-SVM, warm", "SRBO", "SRBO + cut"]
    values = yang.nus(len(rows.y), 0.1)
    one = yang.compared(rows, rows, [1.0], values, ways, stride=3)
    assert one["objectives_apart"] <= 2e-4
    assert one["nu-SVM"]["score"] == one["nu-SVM, warm"]["score"]
    warm, screened = one["nu-SVM, warm"]["seconds"], one["SRBO"]["seconds"]
    assert one["beyond_warm"] == pytest.approx(warm / screened)


def test_every_table_of_speedups_shows_them_beyond_warm_starts() -> None:
    for module in (mnist, one_class, supervised, solvers):
        assert common.BEYOND in module.HEADS
    assert "pairs, warm" in solvers.WAYS


# -- what is not reproduced ------------------------------------------------------------------------
def test_ratios_that_fall_short_are_said() -> None:
    printed = {("A", "linear"): (1.0, 73.5, 8.8), ("B", "RBF"): (1.0, 2.6, 0.6)}
    one = {"set": "A", "kernel": "linear", "grid": "the paper's", "speedup": 9.0}
    one["SRBO"] = {"screened": 0.33}
    (said,) = yang.missed([one, {**one, "set": "B", "kernel": "RBF"}], printed)
    assert said.endswith("A linear 33 (73.5)")
    assert yang.missed([{**one, "grid": "step 0.1"}], printed) == []
    slow = yang.missed([{**one, "speedup": 2.0}], printed)
    assert len(slow) == 2 and slow[1].endswith("A linear 2 (8.8)")


def test_a_verdict_stands_next_to_each_printed_number() -> None:
    printed = (90.0, 1.0, 90.0, 1.0, 73.5, 8.8)
    one = {"set": "A", "kernel": "linear", "grid": "the paper's", "speedup": 9.0}
    one["SRBO"] = {"screened": 0.72}
    accuracies = {"nu-SVM": 91.0, "SRBO": 88.5}
    assert yang.verdict(one, printed, accuracies) == "agrees"
    assert yang.verdict(one, printed, {**accuracies, "nu-SVM": float("nan")}) == "agrees"
    assert yang.verdict(one, (None,) * 6, accuracies) == ""
    slow = {**one, "speedup": 7.0}
    assert yang.verdict(slow, printed, {**accuracies, "SRBO": 87.0}) == (
        "differs: SRBO accuracy, speedup"
    )
    assert yang.verdict({**slow, "grid": "step 0.1"}, printed, accuracies) == common.FEWER
    assert common.alike(0, 0) and not common.alike(1, 0) and not common.alike(4.9e6, 1.8e6)


def test_a_script_says_where_its_figures_go(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figure, _ = common.canvas(1, 1)
    common.keep(tmp_path / "out", "a", {}, {"figure-1": figure})
    said = capsys.readouterr().out.split()
    assert said == [
        "record",
        str(tmp_path / "out/a.json"),
        "figure",
        str(tmp_path / "out/a-figure-1.png"),
    ]
    assert all(Path(file).exists() for file in said[1::2])
    common.keep(None, "a", {}, {})
    assert "--out FOLDER" in capsys.readouterr().out


def test_savings_that_are_not_there_are_said() -> None:
    def runs(safe: float) -> dict[str, Any]:
        entries = dict.fromkeys(screening.RULES, 4.9e6) | {"f = .1": safe}
        return {rule: {"kernel_entries": value} for rule, value in entries.items()}

    (said,) = screening.missed("Table 1", runs(4.8e6))
    assert "f = .1 1.8e+06" in said and "f = .1 4.8e+06, " in said
    assert screening.missed("Table 1", runs(1.8e6)) == []


def test_speedups_that_fall_short_are_said() -> None:
    found = {"name": "toy 1.5", "ways": {"DVI": {"speedup": 3.6}}}
    (said,) = wang.missed([found], {"toy 1.5": {"DVI": 59.15}})
    assert said.endswith("toy 1.5 DVI 3.6 (59.1)") or said.endswith("toy 1.5 DVI 3.6 (59.15)")
    assert wang.missed([found], {"toy 1.5": {"DVI": 4.0}}) == []


def test_the_page_begins_with_what_is_not_reproduced(tmp_path: Path) -> None:
    record = {"question": "Q?", "not_reproduced": ["a ratio of <73>"], "notes": ["a note"]}
    report.write_json(tmp_path / "zimmert2015.screening.json", record)
    runs = {"zimmert2015.screening": {"code": 0, "command": "c", "seconds": 1.0}}
    page = written(tmp_path, runs)
    first, second = (m.start() for m in re.finditer("a ratio of &lt;73&gt;", page))
    assert page.index("<h2>Not reproduced</h2>") < first < page.index("<h3") < second
    assert page.index("NOT reproduced: ") < page.index("a note")
    runs["zimmert2015.screening"]["trial"] = True
    trial = written(tmp_path, runs)
    assert "A trial" in trial and "A trial" not in page


def test_nothing_claims_all_of_the_papers() -> None:
    texts = [
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *PIPELINES.rglob("*.md"),
        *PIPELINES.rglob("*.py"),
    ]
    for text in texts:
        words = " ".join(text.read_text().lower().split())
        assert not re.search(r"(every|all( the)?) experiments? (of|in) the papers", words), text


def test_the_pages_count_what_the_tables_do() -> None:
    pages = [ROOT / "docs" / name for name in ("research.md", "paths.md")]
    words = " ".join(" ".join(page.read_text() for page in pages).split())
    for table, there in (("IV", 2), ("V", 5), ("VI", 5), ("VII", 5), ("VIII", 1)):
        names = data_sets.TABLES[table]
        assert sum(name in data_sets.FILES for name in names) == there
        assert f"{there} of {len(names)}" in words
    assert "decides no row" in words

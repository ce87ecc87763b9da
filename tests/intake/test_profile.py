"""What ingest says of a table: kinds, missing values, ranges, skew, copies, rare labels."""

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from ingest_cases import take_small_steps
from scipy import sparse, stats

from bigscreen.cli.commands import group
from bigscreen.data.dataset import Dataset
from bigscreen.intake.ingest import ingest
from bigscreen.intake.profile import TUNING, CopyCounter


def mixed(path, n=900, seed=0):
    """A table with something to be said of every column; returns its numbers."""
    rng = np.random.default_rng(seed)
    amount, flat = np.round(rng.lognormal(0, 2, n), 3), np.full(n, 7)
    with_holes = np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n))
    lines = ["id,amount,flat,holes,town,when,label"]
    for i in range(n):
        town = ["Rome", "rome ", "Oslo", ""][int(rng.integers(4))]
        hole = "" if np.isnan(with_holes[i]) else repr(float(with_holes[i]))
        day = f"2021-{1 + i % 12:02d}-{1 + i % 28:02d}"
        label = "yes" if i % 20 == 0 else "no"
        lines.append(f'{i + 5},{amount[i]},{flat[i]},{hole},"{town}",{day},{label}')
    path.write_text("\n".join([*lines, *lines[1:91]]) + "\n")
    first = slice(0, 90)
    columns = (np.arange(n) + 5, amount, flat, with_holes)
    return [np.concatenate([column, column[first]]) for column in columns]


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_a_profile_says_what_scipy_says(tmp_path, monkeypatch, layout):
    take_small_steps(monkeypatch)
    numbers = mixed(tmp_path / "a.csv")
    how = {"impute": "median", "layout": layout}
    made = ingest(tmp_path / "a.csv", tmp_path / "s", **how)
    found = Dataset.open(tmp_path / "s").profile
    assert found == made.store.profile and found["rows"] == 990
    assert found["copies_exact"] and found["copies"] == pytest.approx(90 / 990)
    columns = {column["name"]: column for column in found["columns"]}
    for name, values in zip(("id", "amount", "flat", "holes"), numbers, strict=True):
        column, own = columns[name], values[~np.isnan(values)]
        assert column["missing"] == np.count_nonzero(np.isnan(values))
        for key, judge in {"low": own.min(), "high": own.max(), "mean": own.mean()}.items():
            assert column[key] == pytest.approx(judge, rel=1e-6)
        assert column["deviation"] == pytest.approx(own.std(), rel=1e-5, abs=1e-9)
        wanted = 0 if name == "flat" else stats.skew(own)
        assert column["skew"] == pytest.approx(wanted, rel=1e-3, abs=1e-4)
    town = columns["town"]
    assert town["kinds"] == 4 and town["missing"] > 100
    assert "differ in case or blanks alone" in " ".join(town["remarks"])
    assert "one value only" in columns["flat"]["remarks"][0]
    assert "most values lie at one end" in columns["amount"]["remarks"][0]
    assert columns["when"]["kind"] == "date" and columns["when"]["low"] > 18_000


def test_a_column_that_numbers_rows_is_pointed_out(tmp_path):
    X = np.column_stack([np.arange(300), np.arange(300) / 7, np.arange(300) % 9])
    remarks = [
        column["remarks"]
        for column in ingest((X, X[:, 2] > 4), tmp_path / "s").store.profile["columns"]
    ]
    assert "a different whole number in every row" in remarks[0][0] and not remarks[1] + remarks[2]


def test_marks_of_missing_values_and_labels_written_twice_are_pointed_out(tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"{v if v > 10 else -999},{v},{['Yes', 'yes ', 'No'][v % 3]}" for v in range(200)]
    (tmp_path / "a.csv").write_text("\n".join(["score,fine,label", *rng.permutation(rows)]) + "\n")
    made = ingest(tmp_path / "a.csv", tmp_path / "s")
    score, fine = (column["remarks"] for column in made.store.profile["columns"])
    assert score == ["-999 lies far from all other values: is it a mark of missing ones?"]
    assert not any("mark of missing" in remark for remark in fine)
    assert any(
        "'Yes' and 'yes' differ in case" in note.replace("'yes' and 'Yes'", "'Yes' and 'yes'")
        for note in made.notes
    )


def test_a_held_out_store_has_its_own_and_a_stopped_ingest_the_same(tmp_path, monkeypatch):
    take_small_steps(monkeypatch)
    mixed(tmp_path / "a.csv")
    how = {"impute": "mean", "scale": "standard", "holdout": 0.2}
    whole = ingest(tmp_path / "a.csv", tmp_path / "w", **how)
    assert whole.holdout.profile["rows"] == 198 and whole.store.profile["rows"] == 792
    calls = iter(range(10_000))

    def stop(event):
        if event["phase"] == "write" and next(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(tmp_path / "a.csv", tmp_path / "s", progress=stop, **how)
    made = ingest(tmp_path / "a.csv", tmp_path / "s", **how)
    assert made.store.profile == whole.store.profile
    assert made.holdout.profile == whole.holdout.profile


def test_the_command_line_prints_it_and_info_again(tmp_path):
    mixed(tmp_path / "a.csv")
    args = ["ingest", str(tmp_path / "a.csv"), str(tmp_path / "s"), "--impute", "median"]
    runner = CliRunner()
    first = runner.invoke(group, args)
    assert first.exit_code == 0, first.output
    again = runner.invoke(group, ["info", str(tmp_path / "s")])
    for text in (first.output, again.output):
        assert "9.09 % of the rows" in text and "rarest label" in text and "5.1 %" in text
        assert "2021-01-01 to 2021-12-28" in text and "'Rome' and 'rome' differ" in text


def test_sparse_and_wide_tables_have_no_profile(tmp_path):
    X = sparse.random_array((30, 20), density=0.2, format="csr", rng=np.random.default_rng(0))
    assert ingest((X, np.arange(30) % 2), tmp_path / "s").store.profile is None
    wide = np.ones((30, 1001), np.float32)
    assert ingest((wide, np.arange(30) % 2), tmp_path / "t").store.profile is None


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), rows=st.integers(1, 400), kinds=st.integers(1, 300))
def test_copies_are_counted_in_any_order(seed, rows, kinds):
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(kinds, 3)).astype(np.float32), rng.integers(0, 2, kinds)
    X[rng.random(X.shape) < 0.2] = np.nan
    X[:, 2] = np.arange(kinds)
    chosen = rng.integers(0, kinds, rows)
    wanted = 1 - len(np.unique(chosen)) / rows
    shares = []
    for most in (TUNING.max_hashes, 60, 60):
        copies = CopyCounter(max_hashes=most)
        for part in np.array_split(rng.permutation(chosen), 4):
            copies.add(X[part], y[part])
        shares.append(copies.fraction)
        assert copies.is_exact == (most > 60 or len(np.unique(chosen)) <= 60)
    assert shares[0] == pytest.approx(wanted) and shares[1] == shares[2]
    assert abs(shares[1] - wanted) <= 0.4


def test_the_report_page_shows_the_table_of_a_store(tmp_path):
    mixed(tmp_path / "a.csv")
    runner = CliRunner()
    for args in (
        ["ingest", "a.csv", "s", "--impute", "median", "--scale", "standard"],
        ["fit", "s", "m.bsm", "--kernel", "linear", "--tol", "0.05"],
        ["report", "m.bsm", "s", "m.html"],
    ):
        paths = [str(tmp_path / a) if a in ("a.csv", "s", "m.bsm", "m.html") else a for a in args]
        done = runner.invoke(group, paths)
        assert done.exit_code == 0, done.output
    page = (tmp_path / "m.html").read_text()
    assert "The table behind s" in page and "copies of other rows" in page and "holes" in page


@pytest.mark.parametrize(("scale", "said"), [("none", True), ("standard", False)])
def test_columns_of_different_scales_are_named_unless_they_are_scaled(tmp_path, scale, said):
    rng = np.random.default_rng(0)
    income, rate = rng.normal(5e4, 2e4, 300), rng.random(300)
    lines = [f"{a},{b},7,{int(b > 0.5)}" for a, b in zip(income, rate, strict=True)]
    (tmp_path / "a.csv").write_text("\n".join(["income,rate,flat,label", *lines]) + "\n")
    made = ingest(tmp_path / "a.csv", tmp_path / "s", scale=scale)
    found = [note for note in made.notes if "differ in scale" in note]
    assert bool(found) == said
    assert all("'income'" in note and "'rate'" in note and "flat" not in note for note in found)
    # Options are named as they are typed: here and on the command line.
    assert all("(`scale='standard'`)" in note for note in found)
    typed = ["ingest", str(tmp_path / "a.csv"), str(tmp_path / "t"), "--scale", scale]
    assert ("(--scale standard)" in CliRunner().invoke(group, typed).output) == said
    shown = CliRunner().invoke(group, ["fit", str(tmp_path / "s"), str(tmp_path / "m"), "--exact"])
    assert shown.exit_code == 0 and ("differ in scale" in shown.output) == said
    linear = ["fit", str(tmp_path / "s"), str(tmp_path / "l"), "--kernel", "linear"]
    assert "differ in scale" not in CliRunner().invoke(group, linear).output


def test_auto_scales_numbers_of_dense_tables_and_leaves_zeros_and_ones(tmp_path):
    rng = np.random.default_rng(0)
    income, flag = rng.normal(5e4, 2e4, 300), rng.integers(0, 2, 300)
    share, kind = rng.random(300), np.array(["a", "b"])[rng.integers(0, 2, 300)]
    columns = {"income": income, "flag": flag, "share": share, "kind": kind}
    runner = CliRunner()

    def made(names: list[str], *more: str, out: str = "s") -> tuple[str, Dataset]:
        rows = zip(*(columns[name] for name in names), flag, strict=True)
        lines = [",".join([*names, "label"]), *(",".join(map(str, row)) for row in rows)]
        (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
        args = ["ingest", str(tmp_path / "a.csv"), str(tmp_path / out), "--overwrite", *more]
        done = runner.invoke(group, args)
        assert done.exit_code == 0, done.output
        return done.output, Dataset.open(tmp_path / out)

    text, store = made([*columns])
    assert "scaled to mean 0" in text and "differ in scale" not in text
    assert "standard (chosen by auto)" in runner.invoke(group, ["info", str(store.path)]).output
    X = store.X(0, 300)
    assert np.allclose(X[:, [0, 2]].mean(axis=0), 0, atol=1e-6)
    assert np.allclose(X[:, [0, 2]].std(axis=0), 1)
    assert set(X[:, 1]) == {0, 1} and set(X[:, 3]) == {0, 1}
    # What has nothing else to scale is as it was, and so are rows that are like others.
    for names, how in ((["flag", "kind"], []), (["income"], ["--layout", "sparse"])):
        text, other = made(names, *how, out="t")
        assert other.preparation.scaling == "none" and "scaled to mean" not in text
    _, like = made([*columns], "--like", str(store.path), out="u")
    assert like.preparation.features_fingerprint == store.preparation.features_fingerprint
    # Without columns of 0 and 1 it is the store of --scale standard, bit for bit.
    auto, standard = (
        made(["income", "share"], *how, out=out)[1]
        for how, out in (([], "v"), (["--scale", "standard"], "w"))
    )
    assert np.array_equal(auto.X(0, 300), standard.X(0, 300))
    assert auto.preparation.to_dict() == standard.preparation.to_dict()
    (tmp_path / "a.svm").write_text("\n".join(f"{k % 2} 1:{k} 2:1e6" for k in range(50)) + "\n")
    done = runner.invoke(group, ["ingest", str(tmp_path / "a.svm"), str(tmp_path / "x")])
    assert done.exit_code == 0 and Dataset.open(tmp_path / "x").preparation.scaling == "none"


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_a_fit_names_svmlight_columns_of_different_scales(tmp_path, layout):
    rng = np.random.default_rng(0)
    entries = zip(rng.random(200), rng.normal(0, 1e4, 200), strict=True)
    lines = [f"{k % 2} 1:{a:.3f} 3:{b:.1f}" for k, (a, b) in enumerate(entries)]
    (tmp_path / "a.svm").write_text("\n".join(lines) + "\n")
    ingest(tmp_path / "a.svm", tmp_path / "s", layout=layout)
    for kernel, said in (("rbf", True), ("linear", False)):
        args = ["fit", str(tmp_path / "s"), str(tmp_path / kernel), "--kernel", kernel]
        shown = CliRunner().invoke(group, args)
        found = "'column 3' are about" in shown.output and "of 'column 1'" in shown.output
        assert shown.exit_code == 0 and found == said

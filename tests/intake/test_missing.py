"""Missing values: what stands for them is learnt once, and holds for every later row."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import StandardScaler

import bigscreen
from bigscreen.data.missing import MISSING_CATEGORY
from bigscreen.errors import InputError

WAYS = {"mean": "mean", "median": "median", "most-frequent": "most_frequent", "zero": "constant"}


def holes(n=600, d=4, seed=0):
    """Rows with a twentieth of the numbers missing, and their labels."""
    rng = np.random.default_rng(seed)
    X = np.round(rng.normal(size=(n, d)) * [1, 5, 100, 1], 1)
    y = (X[:, 0] + X[:, 1] / 5 > 0).astype(int)
    X[rng.random(X.shape) < 0.05] = np.nan
    X[:, 3] = np.where(X[:, 3] > 0, 1.0, X[:, 3])  # one value that is common
    return X, y


def in_source_order(data):
    ids = data.row_ids(0, data.n_rows)
    order = np.argsort(ids)
    return ids[order], data.X(0, data.n_rows)[order]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("scale", ["none", "standard"])
def test_numbers_are_those_of_scikit_learn_learnt_without_the_holdout(tmp_path, how, scale):
    X, y = holes()
    made = bigscreen.ingest((X, y), tmp_path / "s", impute=how, scale=scale, holdout=0.25)
    judge = SimpleImputer(strategy=WAYS[how], fill_value=0.0)
    kept, found = in_source_order(made.store)
    expected = judge.fit_transform(X[kept])
    held, others = in_source_order(made.holdout)
    beside = judge.transform(X[held])
    if scale == "standard":
        scaler = StandardScaler().fit(expected)
        expected, beside = scaler.transform(expected), scaler.transform(beside)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    np.testing.assert_allclose(others, beside, atol=2e-5)
    names = [note for note in made.notes if "missing value" in note]
    assert len(names) == 4 and str(np.count_nonzero(np.isnan(X[kept, 0]))) in names[0]


def written(X, texts, y, folder):
    """Write one table in every format that has missing values."""
    names = ["a", "b", "c", "d", "kind"]
    rows = [
        ["" if np.isnan(v) else repr(float(v)) for v in row] + [text, str(label)]
        for row, text, label in zip(X, texts, y, strict=True)
    ]
    lines = [",".join(row) for row in rows]
    (folder / "t.csv").write_text("\n".join([",".join([*names, "label"]), *lines]) + "\n")
    head = ["@relation t", *(f"@attribute {name} numeric" for name in names[:4])]
    head += ["@attribute kind {red,blue}", "@attribute label {0,1}", "@data"]
    marks = [",".join(part or "?" for part in row) for row in rows]
    (folder / "t.arff").write_text("\n".join([*head, *marks]) + "\n")
    files = [folder / "t.csv", folder / "t.arff"]
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        return files
    columns = {n: pa.array(X[:, j], from_pandas=True) for j, n in enumerate(names[:4])}
    columns |= {"kind": pa.array([t or None for t in texts]), "label": pa.array(y)}
    pq.write_table(pa.table(columns), folder / "t.parquet")
    return [*files, folder / "t.parquet"]


def test_every_format_gives_the_same_rows(tmp_path):
    X, y = holes(200)
    texts = np.random.default_rng(1).choice(["red", "blue", ""], 200)
    stores = []
    for source in written(X, texts, y, tmp_path):
        with pytest.raises(InputError, match=r"missing|empty|finite"):
            bigscreen.ingest(source, tmp_path / "x", label="label")
        stores.append(
            bigscreen.ingest(source, tmp_path / source.suffix[1:], label="label", impute="median")
        )
    assert len(stores) >= 2
    for made in stores:
        assert made.store.preparation.categories == {4: [MISSING_CATEGORY, "blue", "red"]}
        _, rows = in_source_order(made.store)
        kinds = np.array([MISSING_CATEGORY, "blue", "red"])[rows[:, 4:].argmax(axis=1)]
        np.testing.assert_array_equal(np.where(kinds == MISSING_CATEGORY, "", kinds), texts)
        np.testing.assert_array_equal(rows, in_source_order(stores[0].store)[1])


def test_later_rows_are_filled_alike_from_a_store_and_from_python(tmp_path):
    X, y = holes()
    made = bigscreen.ingest((X, y), tmp_path / "s", impute="mean", scale="standard")
    model = bigscreen.NystroemSVC(n_components=50, gamma=0.3).fit(made.store).model_
    model.save(tmp_path / "m")
    model = bigscreen.Model.load(tmp_path / "m")
    new, labels = holes(100, seed=5)
    like = bigscreen.ingest((new, labels), tmp_path / "new", like=tmp_path / "m").store
    np.testing.assert_allclose(model.scores(new), model.scores(like), atol=1e-5)
    filled = np.where(np.isnan(new), model.preparation.fill, new)
    np.testing.assert_array_equal(model.scores(new), model.scores(filled))
    assert np.mean(model.predict(new) == labels) > 0.8
    # A model that has learnt of nothing missing refuses it, as ever.
    whole = bigscreen.ingest((filled, labels), tmp_path / "whole", scale="standard").store
    bare = bigscreen.LinearSVC().fit(whole).model_
    with pytest.raises(InputError, match="finite"):
        bare.predict(new)
    with pytest.raises(InputError, match="finite"):
        bigscreen.ingest((new, labels), tmp_path / "bare", like=bare)


def test_a_store_that_is_stopped_goes_on_with_what_it_has_learnt(tmp_path):
    X, y = holes(5000)
    np.savez(tmp_path / "t.npz", X=X, y=y)

    def stop(event):
        if event["phase"] == "write":
            raise KeyboardInterrupt

    how = {"impute": "median", "scale": "standard"}
    with pytest.raises(KeyboardInterrupt):
        bigscreen.ingest(tmp_path / "t.npz", tmp_path / "s", progress=stop, **how)
    made = bigscreen.ingest(tmp_path / "t.npz", tmp_path / "s", **how)
    whole = bigscreen.ingest(tmp_path / "t.npz", tmp_path / "whole", **how)
    assert made.store.fingerprint == whole.store.fingerprint
    assert made.notes == whole.notes
    mean = bigscreen.ingest(tmp_path / "t.npz", tmp_path / "mean", impute="mean").store
    assert mean.fingerprint != whole.store.fingerprint


def test_a_column_of_which_nothing_is_known_has_0(tmp_path):
    X, y = holes(50)
    X[:, 1] = np.nan
    for how in WAYS:
        store = bigscreen.ingest((X, y), tmp_path / how, impute=how).store
        assert np.all(in_source_order(store)[1][:, 1] == 0)


def test_what_cannot_be_is_said(tmp_path):
    X, y = holes(50)
    with pytest.raises(InputError, match="no way 'magic' to impute"):
        bigscreen.ingest((X, y), tmp_path / "s", impute="magic")
    with pytest.raises(InputError, match="sparse rows leave out is 0"):
        bigscreen.ingest((sparse.csr_array(np.nan_to_num(X)), y), tmp_path / "s", impute="mean")
    made = bigscreen.ingest((X, y), tmp_path / "s", impute="mean").store
    with pytest.raises(InputError, match="leave out impute"):
        bigscreen.ingest((X, y), tmp_path / "t", like=made, impute="mean")
    with pytest.raises(InputError, match="finite"):
        bigscreen.ingest((np.where(X > 1, np.inf, X), y), tmp_path / "u", impute="mean")
    assert not (tmp_path / "t").exists() and not (tmp_path / "u").exists()

"""Stores of several targets: what every kind of source makes of them, and what is refused."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from bigscreen import Dataset, InputError, MemoryDataset, ingest
from bigscreen.data.dataset import SCHEMA

RNG = np.random.default_rng(5)
X = RNG.normal(size=(90, 3)).round(3)
Y = RNG.normal(size=(90, 2)).round(3)
TABLE = pd.DataFrame({"far": Y[:, 1], "p": X[:, 0], "q": X[:, 1], "near": Y[:, 0], "r": X[:, 2]})
LABEL = {"label": ["near", "far"], "regression": True}


def in_order(data):
    """Return the features and targets of a store in the order of its source."""
    order = np.argsort(data.row_ids(0, data.n_rows))
    rows = data.X(0, data.n_rows)
    rows = rows.toarray() if data.is_sparse else rows
    return rows[order], data.y(0, data.n_rows)[order]


def write_arff(path, rows):
    head = "".join(f"@attribute {name} numeric\n" for name in rows.columns)
    path.write_text(f"@relation t\n{head}@data\n{rows.to_csv(index=False, header=False)}")


WRITERS = {
    "t.csv": lambda path: TABLE.to_csv(path, index=False),
    "t.tsv.gz": lambda path: TABLE.to_csv(path, index=False, sep="\t"),
    "t.parquet": lambda path: TABLE.to_parquet(path),
    "t.feather": lambda path: TABLE.to_feather(path),
    "t.arff": lambda path: write_arff(path, TABLE),
}


@pytest.mark.parametrize("name", WRITERS)
def test_tables_of_every_format_have_named_targets(tmp_path, name):
    WRITERS[name](tmp_path / name)
    made = ingest(tmp_path / name, tmp_path / "s.store", holdout=20, **LABEL)
    for data, rows in ((made.store, 70), (made.holdout, 20)):
        assert data.n_targets == 2 and data.y(0, rows).shape == (rows, 2)
        assert data.target_names == ["near", "far"] == data.preparation.targets
        assert data.preparation.names == ["p", "q", "r"] and data.n_unlabelled == 0
        np.testing.assert_array_equal(data.y(0, rows), Y[data.row_ids(0, rows)])
        np.testing.assert_array_equal(data.X(0, rows), X[data.row_ids(0, rows)].astype("f4"))
        data.verify()
    known = made.store.targets
    own = made.store.y(0, 70)
    assert known["rows"] == 70 and [part["low"] for part in known["each"]] == own.min(0).tolist()
    assert made.store.manifest["schema"] == SCHEMA == 4
    assert "target near" in made.store._repr_html_()


def test_arrays_and_frames_next_to_targets_agree_with_tables(tmp_path):
    named = ingest(TABLE, tmp_path / "frame.store", **LABEL).store
    np.testing.assert_array_equal(in_order(named)[1], Y)
    apart = ingest((TABLE[["p", "q", "r"]], pd.DataFrame(Y, columns=["near", "far"])),
                   tmp_path / "apart.store", regression=True).store  # fmt: skip
    assert apart.fingerprint == named.fingerprint
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "Y.npy", Y)
    np.save(tmp_path / "all.npy", TABLE.to_numpy())
    np.savez(tmp_path / "both.npz", X=X, y=Y)
    with pytest.importorskip("h5py").File(tmp_path / "both.h5", "w") as file:
        file["X"], file["y"] = X, Y
    da = pytest.importorskip("dask.array")
    sources = {
        "arrays": ((X, Y), {}),
        "sparse": ((sparse.csr_array(X), Y), {"layout": "dense"}),
        "dask": ((da.from_array(X, chunks=(40, 3)), da.from_array(Y, chunks=(25, 1))), {}),
        "dask and array": ((da.from_array(X, chunks=(40, 3)), Y), {}),
        "blocks": ([(X[:50], Y[:50]), (X[50:], Y[50:])], {}),
        "npy": (tmp_path / "X.npy", {"labels_file": tmp_path / "Y.npy"}),
        "npz": (tmp_path / "both.npz", {}),
        "hdf5": (tmp_path / "both.h5", {}),
    }
    stores = {}
    for name, (source, more) in sources.items():
        data = ingest(source, tmp_path / f"{name}.store", regression=True, **more).store
        stores[name] = data.fingerprint
        np.testing.assert_array_equal(in_order(data)[1], Y)
        assert data.target_names == ["target 0", "target 1"]
    del stores["sparse"]  # (its preparation counts the columns otherwise)
    assert len({*stores.values()}) == 1
    data = ingest(tmp_path / "all.npy", tmp_path / "n.store", label=[3, 0], regression=True).store
    np.testing.assert_array_equal(in_order(data)[1], Y)
    assert data.target_names == ["column 3", "column 0"]
    memory = MemoryDataset(X, Y, None)
    assert memory.n_targets == 2 and memory.targets["each"][1]["low"] == Y[:, 1].min()


def test_one_target_in_a_list_is_one_target(tmp_path):
    one = ingest(TABLE, tmp_path / "a.store", label="near", drop=["far"], regression=True).store
    same = ingest(TABLE, tmp_path / "b.store", label=["near"], drop=["far"], regression=True).store
    assert one.fingerprint == same.fingerprint and one.n_targets == 1 and not one.target_names
    # (Fingerprints of stores of one target are those of older versions.)
    assert "n_targets" not in json.dumps(one.manifest) and one.y(0, 90).shape == (90,)
    assert "targets" not in one.manifest["preparation"]


def test_rows_like_a_store_find_its_targets(tmp_path):
    like = ingest(TABLE, tmp_path / "s.store", **LABEL).store
    files = {
        "again": (TABLE[["near", "r", "q", "far", "p"]], Y),
        "without": (TABLE[["p", "q", "r"]], np.full((90, 2), np.nan)),
        "far alone": (TABLE.drop(columns="near"), np.stack([np.full(90, np.nan), Y[:, 1]], 1)),
        "gaps": (TABLE.assign(near=TABLE.near.where(TABLE.near > 0)),
                 np.stack([np.where(Y[:, 0] > 0, Y[:, 0], np.nan), Y[:, 1]], 1)),
    }  # fmt: skip
    for name, (rows, wanted) in files.items():
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
        for source in (rows, tmp_path / f"{name}.csv"):
            made = ingest(source, tmp_path / "o.store", like=like, overwrite=True)
            found = in_order(made.store)
            np.testing.assert_array_equal(found[1], wanted)
            np.testing.assert_array_equal(found[0], in_order(like)[0])
            lack = int(np.isnan(wanted).any(axis=1).sum())
            assert made.store.n_unlabelled == lack and made.store.target_names == ["near", "far"]
            assert any("lack at least one target" in note for note in made.notes) == bool(lack)
            assert made.store.is_unlabelled == (name == "without")
    renamed = TABLE.rename(columns={"near": "n", "far": "f"})
    made = ingest(renamed, tmp_path / "r.store", like=like, label=["n", "f"]).store
    np.testing.assert_array_equal(in_order(made)[1], Y)
    one = ingest(TABLE, tmp_path / "1.store", label="near", regression=True).store
    with pytest.raises(InputError, match=r"names 2 targets \(n, f\).* has 1: name as many"):
        ingest(renamed, tmp_path / "x.store", like=one, label=["n", "f"])


def test_files_without_names_are_read_by_position(tmp_path):
    bare = tmp_path / "bare.csv"
    TABLE.to_csv(bare, index=False, header=False)
    like = ingest(bare, tmp_path / "s.store", label=[3, 0], regression=True, header=False).store
    assert like.preparation.targets == [3, 0]
    again = ingest(bare, tmp_path / "again.store", like=like).store
    np.testing.assert_array_equal(in_order(again)[1], Y)
    TABLE[["p", "q", "r"]].to_csv(tmp_path / "x.csv", index=False, header=False)
    assert ingest(tmp_path / "x.csv", tmp_path / "x.store", like=like).store.is_unlabelled
    named = ingest(TABLE, tmp_path / "named.store", **LABEL).store
    with pytest.raises(InputError, match="no header, and which of its columns hold the targets"):
        ingest(bare, tmp_path / "y.store", like=named)


def test_missing_targets_follow_the_rules_of_one(tmp_path):
    gaps = TABLE.astype(object)
    gaps.loc[7, "far"] = ""
    gaps.loc[9, "near"] = "-9"
    gaps.to_csv(tmp_path / "g.csv", index=False)
    with pytest.raises(InputError, match=r"line 9, far: the row has no target \(nan\)"):
        ingest(tmp_path / "g.csv", tmp_path / "a.store", **LABEL)
    made = ingest(
        tmp_path / "g.csv", tmp_path / "b.store", drop_missing=True, missing=[-9], **LABEL
    )
    assert made.dropped == 2 and made.store.n_rows == 88
    assert {*range(90)} - {*made.store.row_ids(0, 88).tolist()} == {7, 9}


WRONG = {
    "labels": ({"label": ["near", "far"]}, r"names 2 columns \(near, far\), and a row has one"),
    "twice": ({**LABEL, "label": ["near", "near"]}, "names the column 'near' twice"),
    "absent": ({**LABEL, "label": ["near", "much"]}, "has no column 'much'"),
    "dropped": ({**LABEL, "drop": ["far"]}, "label's column cannot be"),
    "a text": ({"label": ["near", "word"], "regression": True}, "word: the target 'x' is not a"),
    "unlabelled": ({**LABEL, "regression": False, "unlabelled": True}, "a row has one label"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_labels_are_refused_in_a_sentence(tmp_path, name):
    how, said = WRONG[name]
    with pytest.raises(InputError, match=said):
        ingest(TABLE.assign(word="x"), tmp_path / "s.store", **how)
    assert not (tmp_path / "s.store").exists()


def test_arrays_of_other_shapes_are_refused_in_a_sentence(tmp_path):
    with pytest.raises(InputError, match=r"labels of shape \(90, 2\).*ask for regression"):
        ingest((X, Y), tmp_path / "a.store")
    with pytest.raises(InputError, match=r"row 50: 1 target\(s\) where every row has 2"):
        ingest([(X[:50], Y[:50]), (X[50:], Y[50:, 0])], tmp_path / "b.store", regression=True)
    with pytest.raises(InputError, match="row 50: 2 targets where every row has one"):
        ingest([(X[:50], Y[:50, 0]), (X[50:], Y[50:])], tmp_path / "c.store", regression=True)
    bad = Y.copy()
    bad[3, 1] = np.inf
    with pytest.raises(InputError, match=r"row 3, target 1: the target inf"):
        ingest((X, bad), tmp_path / "d.store", regression=True)


def test_a_killed_ingest_goes_on_with_its_targets(tmp_path):
    path = tmp_path / "t.csv"
    TABLE.to_csv(path, index=False)
    seen = []

    def stop(event):
        seen.append(event["phase"])
        if event["phase"] == "write":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(path, tmp_path / "s.store", progress=stop, **LABEL)
    again = []
    made = ingest(path, tmp_path / "s.store", progress=lambda e: again.append(e["phase"]), **LABEL)
    whole = ingest(path, tmp_path / "w.store", **LABEL)
    assert "read" in seen and "read" not in again
    assert made.store.fingerprint == whole.store.fingerprint
    assert Dataset.open(tmp_path / "s.store").target_names == ["near", "far"]

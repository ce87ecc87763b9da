"""An incomplete dataset is refused; the message names what is missing or damaged."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from store_tables import begin, fill, store, table

from bigscreen.cli.info import describe_store, store_facts
from bigscreen.data.dataset import Dataset
from bigscreen.data.layout import chunk_digest
from bigscreen.errors import InputError
from bigscreen.fleet.inline import Inline
from bigscreen.options.train import TrainOptions
from bigscreen.train.run import train


def edit_manifest(path, **changes):
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | changes))


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGE = {
    "missing chunk": (lambda p: (p / "X/c/3/0").unlink(), ["X/c/3/0", "missing", "restore"]),
    "short chunk": (lambda p: os.truncate(p / "y/c/2", 7), ["y/c/2", "damaged", "restore"]),
    "missing array": (lambda p: shutil.rmtree(p / "sqnorm"), ["sqnorm", "missing"]),
    "newer schema": (lambda p: edit_manifest(p, schema=5), ["schema 5", "update bigscreen"]),
    "truncated manifest": (
        lambda p: os.truncate(p / "manifest.json", 300),
        ["manifest.json", "damaged"],
    ),
    "other fingerprint": (
        lambda p: edit_manifest(p, fingerprint="0" * 64),
        ["manifest.json", "damaged"],
    ),
    "manifest of another program": (
        lambda p: (p / "manifest.json").write_text('{"name": "app"}'),
        ["manifest.json", "does not describe"],
    ),
    "no manifest": (lambda p: (p / "manifest.json").unlink(), ["not a bigscreen dataset"]),
    "no folder": (lambda p: shutil.rmtree(p), ["there is no dataset"]),
    "a file": (
        lambda p: (shutil.rmtree(p), p.write_text("1,2\n")),
        ["not a bigscreen dataset"],
    ),
    "unfinished": (
        lambda p: (p.rename(f"{p}.wip"), (Path(f"{p}.wip") / "manifest.json").unlink()),
        ["unfinished", "set.wip", "run the same command again", "delete"],
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_open_names_what_is_missing_or_damaged(tmp_path, kind):
    path = tmp_path / "set"
    store(path, table())
    damage, words = DAMAGE[kind]
    damage(path)
    with pytest.raises(InputError) as caught:
        Dataset.open(path)
    for word in ["set", *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_any_flipped_byte_is_found(tmp_path, sparse, compress):
    data = table(300, sparse=sparse)
    dataset = store(tmp_path / "set", data, compress=compress)
    files = [f for f in dataset.path.rglob("c/**/*") if f.is_file()]
    assert len(files) == 5 * (7 if sparse else 5)
    for file in files:
        good = file.read_bytes()
        flip(file)
        with pytest.raises(InputError, match="damaged") as caught:
            Dataset.open(dataset.path).verify()
        assert str(file) in str(caught.value)
        file.write_bytes(good)
    Dataset.open(dataset.path).verify()


def test_a_chunk_lost_after_opening_is_named(tmp_path):
    for compress in (False, True):
        dataset = store(tmp_path / f"set{compress}", table(), compress=compress)
        (dataset.path / "X/c/3/0").unlink()
        assert dataset.X(0, 64).shape == (64, 7)
        with pytest.raises(InputError, match="X/c/3/0 is missing"):
            dataset.X(100, 300)


def test_exchanged_chunks_are_found(tmp_path):
    dataset = store(tmp_path / "set", table())
    one, two = dataset.path / "X/c/1/0", dataset.path / "X/c/2/0"
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    with pytest.raises(InputError, match="X.c.1.0 is whole but not the one"):
        Dataset.open(dataset.path).verify()


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_chunk_in_the_place_of_another_is_found_when_it_is_read(tmp_path, sparse, compress):
    """Files that match their own checksums, but are from another chunk or another store."""
    data = table(300, sparse=sparse)
    dataset = store(tmp_path / "set", data, compress=compress)
    other = store(tmp_path / "other", table(300, sparse=sparse, seed=1), compress=compress)
    readers = {"sqnorm": "sqnorms", "row_id": "row_ids", "weight": "weights", "y": "y"}
    for file in sorted(f for f in dataset.path.rglob("c/**/*") if f.is_file()):
        name = file.relative_to(dataset.path).parts[0]
        near = [f for f in dataset.path.rglob("c/**/*") if f.is_file() and f != file]
        near = [f for f in near if f.stat().st_size == file.stat().st_size]
        near = [f for f in near if f.relative_to(dataset.path).parts[0] == name]
        good = file.read_bytes()
        for source in [*near[:2], other.path / file.relative_to(dataset.path)]:
            if source.read_bytes() == good:
                continue
            file.write_bytes(source.read_bytes())
            with pytest.raises(InputError, match=r"not the one that was written|damaged") as caught:
                getattr(Dataset.open(dataset.path), readers.get(name, name))(0, 300)
            assert str(file) in str(caught.value)
        file.write_bytes(good)
    Dataset.open(dataset.path).verify()


@pytest.mark.parametrize(
    "change",
    [
        {"max_sqnorm": 1e9},
        {"label_counts": [1, 2, 3]},
        {"compressed": True},
        {"extra": {"index_base": 1}},
        {"schema": 2},
        {"checksum": ""},
    ],
)
def test_an_edited_manifest_is_found(tmp_path, change):
    path = store(tmp_path / "set", table()).path
    edit_manifest(path, **change)
    with pytest.raises(InputError, match=r"manifest.json is damaged"):
        Dataset.open(path)


def test_the_fingerprint_covers_the_summary_of_all_rows(tmp_path):
    dataset = store(tmp_path / "set", table())
    summary = {name: dataset.manifest[name] for name in ("max_sqnorm", "label_counts")}
    digests = [record["digest"] for record in dataset.manifest["chunks"]]
    prints = [
        dataset.layout.fingerprint(digests, dataset.preparation.fingerprint, each)
        for each in (summary, {**summary, "max_sqnorm": 1.0}, {**summary, "label_counts": [0]})
    ]
    assert prints[0] == dataset.fingerprint and len(set(prints)) == 3


def test_a_store_replaced_during_a_read_is_refused(tmp_path):
    """No row of the new store is returned as a row of the old one."""
    path = tmp_path / "set"
    old = store(path, table(seed=1))
    first = old.X(0, 64)
    old.check_unchanged()
    X, _, weight, _ = data = table(seed=2)
    fill(begin(path, X, weight, overwrite=True), *data)
    begin(path, X, weight, overwrite=True).finish()
    for read in (old.check_unchanged, lambda: old.X(64, 128), lambda: old.y(0, 600)):
        with pytest.raises(InputError, match="replaced by another while in use"):
            read()
    assert first.shape == (64, 7)


def test_a_fit_of_a_store_that_is_replaced_makes_no_model(tmp_path):
    path = tmp_path / "set"
    one, two = ((X, np.abs(y), *rest) for X, y, *rest in (table(seed=1), table(seed=2)))
    dataset = store(path, one)

    def replace(event):
        if event["event"] == "pass" and event["pass"] == 2:
            store(path, two, overwrite=True)

    options = TrainOptions(kernel="linear", tol=1e-6)
    with Inline(1) as fleet, pytest.raises(InputError, match="replaced by another"):
        train(dataset, options, fleet, replace)
    assert Dataset.open(path).fingerprint != dataset.fingerprint


def unbound(path):
    """Turn a store into one of an older version, without checksums in its manifest."""
    dataset = Dataset.open(path)
    chunks = []
    for k, record in enumerate(dataset.manifest["chunks"]):
        a, b = dataset.chunk(k)
        parts = (dataset.X(a, b), dataset.y(a, b), dataset.weights(a, b), dataset.row_ids(a, b))
        chunks.append({"digest": chunk_digest(*parts), "nnz": record["nnz"]})
    digests = [record["digest"] for record in chunks]
    prepared = dataset.preparation.fingerprint
    manifest = {k: v for k, v in dataset.manifest.items() if k != "checksum"}
    known = {"fingerprint": dataset.layout.fingerprint(digests, prepared, None)}
    manifest |= {"schema": 1, "chunks": chunks, **known}
    (path / "manifest.json").write_text(json.dumps(manifest))


def test_older_stores_open_and_report_that_they_have_no_checksums(tmp_path):
    new = store(tmp_path / "set", table())
    assert new.has_checksums and describe_store(new)["bound"]
    X = new.X(0, 600)
    unbound(new.path)
    old = Dataset.open(new.path)
    old.verify()
    assert np.array_equal(old.X(0, 600), X) and old.fingerprint != new.fingerprint
    record = describe_store(old)
    assert not record["bound"] and "ingest it again" in store_facts(record)["exchanged files"]

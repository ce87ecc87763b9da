"""A dataset that is not whole is refused, by the name of what is missing or damaged."""

import json
import os
import shutil
from pathlib import Path

import pytest
from store_tables import store, table

from bigscreen.errors import InputError
from bigscreen.store import Dataset


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
    "newer schema": (lambda p: edit_manifest(p, schema=3), ["schema 3", "update bigscreen"]),
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
def test_open_says_what_is_wrong(tmp_path, kind):
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


def test_chunk_lost_after_opening(tmp_path):
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
    with pytest.raises(InputError, match="rows 64 to 127"):
        Dataset.open(dataset.path).verify()

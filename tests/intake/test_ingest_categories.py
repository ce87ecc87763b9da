"""Ingest of tables with categories: what is scaled, what is stored sparse, what is refused."""

import os
import shutil

import numpy as np
import pytest
from click.testing import CliRunner
from ingest_cases import in_source_order, take_small_steps

from bigscreen.cli.commands import group
from bigscreen.errors import InputError
from bigscreen.intake.ingest import ingest


def table(path, rows=3000, kinds=(3, 300, 180), seed=0):
    """A CSV of two amounts, a flag and columns of texts; returns the numbers and the texts."""
    rng = np.random.default_rng(seed)
    numbers = np.column_stack(
        [rng.normal(1e4, 3, rows), np.round(rng.exponential(2, rows), 3), rng.integers(0, 2, rows)]
    )
    texts = np.column_stack([rng.integers(0, k, rows) for k in kinds])
    for c, k in enumerate(kinds):
        texts[:k, c] = np.arange(k)  # every kind occurs
    lines = ["amount,other,flag," + ",".join(f"t{c}" for c in range(len(kinds))) + ",label"]
    for i in range(rows):
        words = ",".join(f"k{v}" for v in texts[i])
        lines.append(",".join(repr(float(v)) for v in numbers[i]) + f",{words},{'ab'[i % 2]}")
    path.write_text("\n".join(lines) + "\n")
    return numbers, texts


@pytest.mark.parametrize("scale", ["standard", "minmax", "divide:4"])
def test_scaling_leaves_categories_alone(scale, tmp_path):
    numbers, texts = table(tmp_path / "a.csv", rows=400, kinds=(3, 7))
    got, _ = in_source_order(ingest(tmp_path / "a.csv", tmp_path / "a.store", scale=scale).store)
    offset, factor = {
        "standard": (numbers.mean(axis=0), 1 / numbers.std(axis=0)),
        "minmax": (numbers.min(axis=0), 1 / np.ptp(numbers, axis=0)),
        "divide:4": (0.0, 0.25),
    }[scale]
    np.testing.assert_allclose(got[:, :3], (numbers - offset) * factor, rtol=1e-3, atol=1e-3)
    hot = [texts[:, c : c + 1] == [sorted(range(k), key=str)] for c, k in enumerate((3, 7))]
    np.testing.assert_array_equal(got[:, 3:], np.concatenate(hot, axis=1))


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["none", "standard", "minmax", "divide:4"])
def test_mostly_categories_are_stored_sparse_and_alike(scale, tmp_path, monkeypatch):
    if scale == "standard":
        take_small_steps(monkeypatch)
    table(tmp_path / "a.csv")
    made = {
        layout: ingest(
            tmp_path / "a.csv", tmp_path / f"{layout}.store", scale=scale, layout=layout
        ).store
        for layout in ("auto", "dense", "sparse")
    }
    auto, dense, sparse = made["auto"], made["dense"], made["sparse"]
    assert auto.is_sparse and not dense.is_sparse
    assert auto.fingerprint == sparse.fingerprint
    assert auto.preparation == dense.preparation
    assert auto.nnz <= 6 * auto.n_rows
    np.testing.assert_array_equal(auto.X(0, 3000).toarray(), dense.X(0, 3000))
    planned = auto.manifest["extra"]["bytes_planned"]
    size = auto.layout.dtype().itemsize
    assert planned["dense"] == size * 3000 * auto.n_features
    assert (4 + size) * auto.nnz <= planned["sparse"] < planned["dense"] / 2


def test_later_rows_are_alike_in_both_layouts(tmp_path):
    table(tmp_path / "a.csv")
    table(tmp_path / "b.csv", rows=500, seed=1)
    later = []
    for layout in ("auto", "dense"):
        first = ingest(
            tmp_path / "a.csv", tmp_path / f"{layout}.store", scale="standard", layout=layout
        ).store
        later.append(ingest(tmp_path / "b.csv", tmp_path / f"{layout}-b.store", like=first).store)
    assert later[0].is_sparse and not later[1].is_sparse
    np.testing.assert_array_equal(later[0].X(0, 500).toarray(), later[1].X(0, 500))


def test_a_table_of_texts_alone_has_nothing_to_scale(tmp_path):
    lines = [f"{'abc'[i % 3]},{'uvwxy'[i % 5]},{i % 2}" for i in range(60)]
    (tmp_path / "a.csv").write_text("p,q,label\n" + "\n".join(lines) + "\n")
    store = ingest(tmp_path / "a.csv", tmp_path / "a.store", scale="standard").store
    got, _ = in_source_order(store)
    assert set(np.unique(got)) == {0.0, 1.0} and np.all(got.sum(axis=1) == 2)


def test_info_says_what_either_layout_takes(tmp_path):
    table(tmp_path / "a.csv")
    runner = CliRunner()
    args = ["ingest", str(tmp_path / "a.csv"), str(tmp_path / "a.store"), "--scale", "standard"]
    told = [runner.invoke(group, args).output]
    told.append(runner.invoke(group, ["info", str(tmp_path / "a.store")]).output)
    assert all("sparse, 164 KiB planned (dense: 5.56 MiB)" in text for text in told), told


def ids(path, rows, kinds, header="id,x,label\n"):
    lines = [f"n{i % kinds},{i / 7:.3f},{i % 2}" for i in range(rows)]
    path.write_text(header + "\n".join(lines) + "\n")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "kinds", "said"),
    [
        (3000, 3000, "column 'id' has more than 1000 kinds.*drop.*max_kinds"),
        (20_000, 1001, "column 'id' has more than 1000 kinds"),
        (600, 61, "column 'id' has 61 kinds in 600 rows, more than one for ten"),
        (600, 60, None),
        (40, 8, None),
        (60, 50, None),
    ],
)
def test_a_column_that_names_rows_is_refused(rows, kinds, said, tmp_path):
    source = ids(tmp_path / "a.csv", rows, kinds)
    if said is None:
        assert ingest(source, tmp_path / "a.store").store.n_features == kinds + 1
        return
    with pytest.raises(InputError, match=said):
        ingest(source, tmp_path / "a.store")
    assert os.listdir(tmp_path) == ["a.csv"]
    assert ingest(source, tmp_path / "a.store", drop=["id"]).store.n_features == 1
    allowed = ingest(source, tmp_path / "b.store", max_kinds=kinds).store
    assert allowed.n_features == kinds + 1
    later = ids(tmp_path / "later.csv", 70, 70)  # what is like a store has its kinds already
    assert ingest(later, tmp_path / "c.store", like=allowed).store.n_features == kinds + 1


def test_a_column_without_a_name_is_named_by_its_position(tmp_path):
    source = ids(tmp_path / "a.csv", 3000, 3000, header="")
    with pytest.raises(InputError, match="column 0 .from 0. has more"):
        ingest(source, tmp_path / "a.store", header=False)
    assert ingest(source, tmp_path / "a.store", header=False, drop=[0]).store.n_features == 1


def test_kinds_can_be_allowed_on_the_command_line(tmp_path):
    source = ids(tmp_path / "a.csv", 3000, 3000)
    args = ["ingest", str(source), str(tmp_path / "a.store")]
    refused = CliRunner().invoke(group, args)
    assert refused.exit_code == 2 and "column 'id'" in refused.output
    assert CliRunner().invoke(group, [*args, "--max-kinds", "3000"]).exit_code == 0


@pytest.mark.slow
def test_memory_and_disk_are_reckoned_before_they_are_taken(tmp_path, monkeypatch):
    wide = tmp_path / "wide.svm"
    wide.write_text("1 1:1 134217728:2\n0 2:1\n" * 5)
    for scale in ("standard", "divide:2"):
        with pytest.raises(InputError, match=r"scaling of 134217728 features.*`drop`.*none"):
            ingest(wide, tmp_path / "a.store", scale=scale, memory=4 << 30)
    with pytest.raises(InputError, match="this ingest needs about 480 MiB.*100 MiB are allowed"):
        ingest(wide, tmp_path / "a.store", memory=100 << 20)
    assert ingest(wide, tmp_path / "a.store", memory=1 << 30).store.n_features == 134217728
    shutil.rmtree(tmp_path / "a.store")
    free = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    with pytest.raises(InputError, match=r"10 dense rows of 134217728 features.*make room"):
        ingest(wide, tmp_path / "a.store", layout="dense", memory=1 << 40)
    with pytest.raises(InputError, match="50000 rows of 20 columns as they are read"):
        ingest(np.ones((50_000, 20), np.float32), tmp_path / "a.store", unlabelled=True)
    assert os.listdir(tmp_path) == ["wide.svm"]

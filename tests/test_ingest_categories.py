"""Ingest of tables with categories: what is scaled, what is stored sparse, what is refused."""

import numpy as np
import pytest
from click.testing import CliRunner
from ingest_cases import in_source_order, take_small_steps

from bigscreen.cli import main
from bigscreen.errors import InputError
from bigscreen.store.ingest import ingest


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
    assert planned["dense"] == 4 * 3000 * auto.n_features
    assert 8 * auto.nnz <= planned["sparse"] < planned["dense"] / 2


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
    told = [runner.invoke(main, args).output]
    told.append(runner.invoke(main, ["info", str(tmp_path / "a.store")]).output)
    assert all("sparse, 164 KiB planned (dense: 5.56 MiB)" in text for text in told), told

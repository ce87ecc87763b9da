"""Sources without a row among others: skipped with a note, as Spark and dask leave them."""

import gzip

import numpy as np
import pytest
from ingest_cases import in_source_order

from bigscreen.errors import InputError
from bigscreen.intake.ingest import ingest

ARFF = "@relation r\n@attribute a numeric\n@attribute label {0,1}\n@data\n"
CASES = {
    "csv": ("a,label\n1,0\n2,1\n", ["", "a,label\n", "\n\n"]),
    "svm": ("0 1:1\n1 1:2\n", ["", "# nothing\n"]),
    "arff": (ARFF + "1,0\n2,1\n", [ARFF]),
}


@pytest.mark.parametrize("suffix", CASES)
def test_empty_files_are_skipped_wherever_they_stand(tmp_path, suffix):
    full, empties = CASES[suffix]
    parts = [*empties, full, *empties, full, *empties]
    paths = [tmp_path / f"part-{k}.{suffix}" for k in range(len(parts))]
    for path, text in zip(paths, parts, strict=True):
        path.write_text(text)
    whole = ingest(
        [path for path, text in zip(paths, parts, strict=True) if text == full], tmp_path / "w"
    )
    made = ingest(paths, tmp_path / "s")
    assert made.store.fingerprint == whole.store.fingerprint and not whole.notes
    assert made.notes == [
        f"{3 * len(empties)} source(s) hold no row and are skipped: "
        + ", ".join([str(p) for p, text in zip(paths, parts, strict=True) if text != full][:5])
        + (", ..." if len(empties) > 1 else "")
        + "."
    ]
    some = ingest(paths, tmp_path / "r", rows="1:3").store
    np.testing.assert_array_equal(in_source_order(some)[0], [[2], [1]])
    with pytest.raises(InputError, match="none of 2 sources holds a row: .*part-0"):
        ingest([paths[0], paths[0]], tmp_path / "x")
    with pytest.raises(InputError, match="part-0"):
        ingest(paths[0], tmp_path / "x")


def test_empty_files_of_other_formats(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    table = pa.table({"a": [1.0, 2.0], "label": [0, 1]})
    pq.write_table(table, tmp_path / "b.parquet")
    pq.write_table(table.slice(0, 0), tmp_path / "a.parquet")
    np.savez(tmp_path / "b.npz", X=[[1.0], [2.0]], y=[0, 1])
    np.savez(tmp_path / "a.npz", X=np.zeros((0, 1)), y=[])
    (tmp_path / "b.csv").write_text("a,label\n1,0\n2,1\n")
    with gzip.open(tmp_path / "a.csv.gz", "w"):
        pass
    for k, pair in enumerate(
        [("a.parquet", "b.parquet"), ("b.npz", "a.npz"), ("a.csv.gz", "b.csv")]
    ):
        made = ingest([tmp_path / name for name in pair], tmp_path / f"{k}")
        assert made.store.n_rows == 2 and "1 source(s) hold no row" in made.notes[0]

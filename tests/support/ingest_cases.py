"""What the tests of ingest share: small sources, small steps, what a store holds."""

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import issparse

from bigscreen.data.dataset import Dataset
from bigscreen.intake.tuning import IngestTuning


def rows_and_labels() -> tuple[np.ndarray, np.ndarray]:
    """5,000 rows whose columns differ in scale and centre, one of them constant; three labels."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((5000, 6)) * [1, 10, 0.1, 1, 1, 1] + [5, 0, 0, 0, 0, 1]
    X[:, 3] = 2.5
    return X.astype(np.float32), rng.integers(0, 3, 5000)


def tune_ingest(monkeypatch: pytest.MonkeyPatch, **values: float) -> None:
    """Have all later ingests use other tuned values than their own."""
    monkeypatch.setattr("bigscreen.intake.ingest.TUNING", IngestTuning(**values))


def take_small_steps(patch: pytest.MonkeyPatch) -> None:
    """Many blocks, buckets, parts and checkpoints out of little data."""
    tune_ingest(
        patch,
        piece_bytes=20_000,
        bucket_bytes=50_000,
        part_bytes=20_000,
        slab_bytes=9_000,
        checkpoint_bytes=100_000,
        unknown_bytes=300_000,
    )


def dense(data: Dataset) -> np.ndarray:
    """All rows as they are stored, as an array."""
    X = data.X(0, data.n_rows)
    return X.toarray() if issparse(X) else X


def in_source_order(data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """All rows and their labels, in the order of the source."""
    order = np.argsort(data.row_ids(0, data.n_rows))
    return dense(data)[order], np.array(data.labels)[data.y(0, data.n_rows)][order]


def csv(path: Path, *lines: str) -> Path:
    """Write lines of text and return the path."""
    path.write_text("\n".join(lines) + "\n")
    return path


def mixed_files(folder: Path) -> list[Path]:
    """Two tables with a categorical column whose categories differ."""
    rng = np.random.default_rng(7)
    files = []
    for k, names in enumerate((["u", "v"], ["v", "w"])):
        lines = [
            f"{rng.random():.6f},{names[i % 2]},{rng.random():.3g},{'ab'[int(rng.random() < 0.4)]}"
            for i in range(6000)
        ]
        files.append(csv(folder / f"{k}.csv", "p,q,r,class", *lines))
    return files


def sparse_file(folder: Path) -> list[Path]:
    """One svmlight file of 6,000 rows."""
    rng = np.random.default_rng(8)
    lines = []
    for i in range(6000):
        columns = np.sort(rng.choice(500, 10, replace=False)) + 1
        entries = [f"{j}:{v:.4g}" for j, v in zip(columns, rng.random(10), strict=True)]
        lines.append(" ".join([str(i % 3), *entries]))
    return [csv(folder / "a.svm", *lines)]

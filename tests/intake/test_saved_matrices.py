"""Sparse matrices that `scipy.sparse.save_npz` has written."""

import numpy as np
import pytest
from ingest_cases import tune_ingest
from scipy import sparse

from bigscreen.errors import InputError
from bigscreen.intake.ingest import ingest


@pytest.mark.parametrize("compressed", [False, True])
def test_matrices_that_scipy_saves(tmp_path, monkeypatch, compressed):
    tune_ingest(monkeypatch, piece_bytes=1 << 12)
    X = sparse.random(700, 40, 0.1, "csr", rng=np.random.default_rng(0))
    sparse.save_npz(tmp_path / "x.npz", X, compressed)
    np.save(tmp_path / "y.npy", np.arange(700) % 2)
    made = ingest(tmp_path / "x.npz", tmp_path / "s", labels_file=tmp_path / "y.npy").store
    wanted = ingest((X, np.arange(700) % 2), tmp_path / "w").store
    assert made.fingerprint == wanted.fingerprint
    some = ingest(tmp_path / "x.npz", tmp_path / "r", label="none", rows="650:", unlabelled=True)
    assert some.store.n_rows == 50 and some.store.labels == []
    with pytest.raises(InputError, match="no labels: give a labels file"):
        ingest(tmp_path / "x.npz", tmp_path / "t")
    sparse.save_npz(tmp_path / "c.npz", X.tocsc())
    with pytest.raises(InputError, match=r"in the format 'csc': save it by rows, .*X\.tocsr"):
        ingest(tmp_path / "c.npz", tmp_path / "t", label="none")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda part: {"indices": part["indices"] + 40},
        lambda part: {"indices": part["indices"][:-1]},
        lambda part: {"data": part["data"][:-1]},
        lambda part: {"indptr": part["indptr"][::-1]},
        lambda part: {"indptr": part["indptr"][:-1]},
        lambda part: {"indptr": part["indptr"] - 1},
        lambda part: {"shape": np.array([50, 40, 2])},
        lambda part: {"shape": np.array([51, 40])},
        lambda part: {"shape": np.array([50, -1])},
        lambda part: {"format": np.array(["csr"] * 9)},
        lambda part: {"format": np.array(b"csr" * 99)},
        lambda part: {"data": np.array([None] * 200)},
        lambda part: {"data": np.full(len(part["data"]), "x")},
    ],
)
def test_spoiled_matrices_are_refused(tmp_path, spoil):
    X = sparse.random(50, 40, 0.1, "csr", rng=np.random.default_rng(0))
    sparse.save_npz(tmp_path / "x.npz", X)
    with np.load(tmp_path / "x.npz") as archive:
        part = dict(archive)
    np.savez(tmp_path / "x.npz", **{**part, **spoil(part)})
    with pytest.raises(InputError, match=r"x\.npz"):
        ingest(tmp_path / "x.npz", tmp_path / "s", label="none", unlabelled=True)
    assert not (tmp_path / "s").exists()

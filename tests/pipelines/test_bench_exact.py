"""The exact machine's race: its gaps agree with the oracle; loaders and tables on tiny data."""

import bz2
import gzip
import importlib.util
import json
import lzma
from pathlib import Path

import numpy as np
import pytest
import reference
from scripts import script
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.svm import SVC

from pipelines.bench.exact import proof, race, tasks

C, GAMMA = 2.0, 0.7


def ring(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)).astype(np.float32)
    noise = 0.3 * rng.normal(size=n)
    return X, np.where((X**2).sum(axis=1) + noise < 2.0, 1, -1).astype(np.int8)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a data folder in the formats of the real one, with few made-up rows."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    (folder / "mnist").mkdir()
    for part, n in (("train", 300), ("t10k", 80)):
        digits = rng.integers(0, 10, n).astype(np.uint8)
        pixels = rng.integers(0, 200, (n, 784)) * (rng.random((n, 784)) < 0.2)
        pixels[np.arange(n), 40 * digits] = 255
        for name, header, values in (
            ("images-idx3", 16, pixels.astype(np.uint8)),
            ("labels-idx1", 8, digits),
        ):
            path = folder / "mnist" / f"{part}-{name}-ubyte.gz"
            path.write_bytes(gzip.compress(bytes(header) + values.tobytes()))
    for name, n, opened in (
        ("a9a/a9a.xz", 200, lzma.open),
        ("a9a/a9a.t.xz", 60, lzma.open),
        ("ijcnn1/ijcnn1.trn.bz2", 200, bz2.open),
        ("ijcnn1/ijcnn1.tst.bz2", 60, bz2.open),
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        X, y = ring(n, seed=n)
        with opened(folder / name, "wt") as lines:
            for row, label in zip(X, y, strict=True):
                values = " ".join(f"{j + 1}:{v:.6f}" for j, v in enumerate(row) if v > 0)
                lines.write(f"{label:+d} {values}\n")
    table = np.column_stack([rng.normal(3, 2, (4_150, 54)), rng.integers(1, 8, 4_150)])
    table[:, 7] = 5.0
    (folder / "covtype").mkdir()
    with lzma.open(folder / "covtype" / "covtype.20k.data.xz", "wt") as lines:
        np.savetxt(lines, table, fmt="%.3f", delimiter=",")
    return folder


@pytest.mark.parametrize("tol", [1e-6, 1.0])
def test_proof_is_the_oracles(tol: float) -> None:
    X, y = ring(120)
    fit = SVC(C=C, gamma=GAMMA, tol=tol).fit(X.astype(np.float64), y)
    alpha = proof.feasible(fit.dual_coef_[0], fit.support_, y, C)
    found = proof.proof(X, y, alpha, C, GAMMA, threads=2)
    values, vectors = np.linalg.eigh(rbf_kernel(X.astype(np.float64), gamma=GAMMA))
    phi = vectors * np.sqrt(np.maximum(values, 0.0))
    q = reference.c_svc(phi, y, np.full(len(y), C), "true")
    w = reference.w_of(q, alpha)
    mu = reference.best_multiplier(q, phi @ w)
    assert found["primal"] == pytest.approx(reference.primal(q, w, mu), rel=1e-9)
    assert found["dual"] == pytest.approx(reference.dual(q, alpha), rel=1e-9)
    assert found["relative_gap"] == pytest.approx(1 - found["dual"] / found["primal"], abs=1e-12)
    assert -1e-12 < found["relative_gap"] < (1e-5 if tol < 1e-3 else 1.0)


def test_feasible_mends_rounding_alone() -> None:
    sign = np.array([1, -1, 1, -1, -1], np.int8)
    exactly = np.array([0.5, 2.0, 1.5, 0.0, 0.0])
    support = np.array([0, 1, 2])
    coef = (exactly * sign)[support]
    np.testing.assert_array_equal(proof.feasible(coef, support, sign, 2.0), exactly)
    off = coef.astype(np.float32) * np.float32(1 + 1e-6)
    mended = proof.feasible(off, support, sign, 2.0)
    np.testing.assert_allclose(mended, exactly, rtol=2e-6)
    assert mended.max() <= 2.0 and abs(mended @ sign) < 1e-15
    # Coefficients of the wrong sign are no dual point at all: nothing is left of them.
    assert not proof.feasible(-coef, support, sign, 2.0).any()


@pytest.mark.slow
def test_tasks_load_their_rows(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIGSCREEN_DATA", str(data))
    columns = {"mnist-3-5": 784, "mnist-7": 784, "a9a": 123, "ijcnn1": 22, "covtype": 54}
    for name, d in {**columns, "a9a-C100": 123}.items():
        X, y, X_test, y_test = tasks.TASKS[name].load()
        assert X.dtype == X_test.dtype == np.float32 and X.shape[1] == X_test.shape[1] == d
        assert (len(X), len(X_test)) == (len(y), len(y_test)) and y.dtype == np.int8
        assert set(y) == set(y_test) == {-1, 1}
        if not name.startswith(("a9a", "ijcnn1")):
            assert X.min() == 0 and X.max() == 1
    assert len(X) > 0
    assert len(tasks.TASKS["covtype"].load()[3]) == 4_000


@pytest.mark.slow
def test_race_of_the_peers(data: Path, tmp_path: Path) -> None:
    intelex = ["intelex64", "intelex32"] if importlib.util.find_spec("sklearnex") else []
    peers = ["sklearn", *intelex]
    args = ("--only", "a9a", "--repeat", 2, "--threads", 1, "--peers", *peers, "--peers-only")
    done = script("bench.exact.race", *args, "--out", tmp_path, BIGSCREEN_DATA=data)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "exact.json").read_text())
    assert record["machine"]["OPENBLAS_CORETYPE"].startswith("unset") and record["threads"] == 1
    found = record["results"]["a9a"]
    assert list(found) == peers and record["summary"]["tasks"] == {}
    for part in found.values():
        assert len(part["runs"]) == 2 and part["range"][0] <= part["seconds"] <= part["range"][1]
        assert -1e-6 < part["relative_gap"] < 1e-3 and 0 < part["n_sv"] <= 200
        assert 0 <= part["error"] < 0.5 and 0 <= part["fit_bytes"] < part["peak_bytes"]
        assert part["runs"][0]["dual"] == pytest.approx(found["sklearn"]["runs"][0]["dual"], 1e-3)
    assert "dense, 2000 MB" in done.stdout and "csr, 2000 MB" in done.stdout


@pytest.mark.slow
def test_race_of_everyone(data: Path, tmp_path: Path) -> None:
    args = ("--only", "ijcnn1", "--repeat", 1, "--peers", "sklearn")
    done = script("bench.exact.race", *args, "--out", tmp_path, BIGSCREEN_DATA=data)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "exact.json").read_text())["results"]["ijcnn1"]
    assert found["bigscreen"]["relative_gap"] <= found["sklearn"]["relative_gap"]
    args = ("--only", "ijcnn1", "--far", "--out", tmp_path)
    done = script("bench.exact.race", *args, BIGSCREEN_DATA=data)
    assert done.returncode == 0, done.stderr
    far = json.loads((tmp_path / "exact-far.json").read_text())["results"]["ijcnn1"]
    assert abs(far["bigscreen"]["dual_apart"]) <= 1e-5 and far["bigscreen"]["agreement"] == 1.0


@pytest.mark.slow
def test_far_compares_duals_with_libsvm(data: Path, tmp_path: Path) -> None:
    args = ("--only", "mnist-7", "--far", "--peers-only", "--out", tmp_path)
    done = script("bench.exact.race", *args, BIGSCREEN_DATA=data)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "exact-far.json").read_text())["results"]["mnist-7"]
    assert found["sklearn"]["relative_gap"] < 1e-5 and found["sklearn"]["agreement"] == 1.0


def test_ratios_are_to_the_fastest_intelex_at_no_larger_gap() -> None:
    def part(seconds: float, gap: float) -> dict[str, float]:
        return {"seconds": seconds, "relative_gap": gap}

    slow, fast = part(4.0, 1e-3), part(2.0, 1.1e-3)
    peers = {"sklearn": part(0.1, 1e-4), "intelex64": slow, "intelex32": fast}
    summary = race.compared(
        {
            "a": {**peers, race.OURS: part(1.0, 1.05e-3)},
            "b": {**peers, race.OURS: part(4.0, 2e-3)},
            "c": peers,
        }
    )
    expected = {"fastest": "intelex32", "ratio": 0.5, "gap_no_larger": True}
    assert summary["tasks"]["a"] == expected
    assert summary["tasks"]["b"] == {**expected, "ratio": 2.0, "gap_no_larger": False}
    assert set(summary["tasks"]) == {"a", "b"}
    assert summary["geometric_mean"] == pytest.approx(1.0)


@pytest.mark.slow
def test_says_what_is_missing(tmp_path: Path) -> None:
    done = script("bench.exact.race", BIGSCREEN_DATA=tmp_path / "nowhere")
    assert done.returncode == 1
    # The race names a peer that is not installed first.
    assert "there is no data folder" in done.stderr or "bigscreen[bench]" in done.stderr
    assert "Traceback" not in done.stderr
    assert "--out" in script("bench.exact.race", "--help", BIGSCREEN_DATA=tmp_path).stdout

"""Gaps and errors of models that the command line fits to real data, compared with their goals.

python -m pipelines.bench.accuracy [--only a9a mnist ijcnn1 kdd news20] [--out FOLDER]
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.svm import LinearSVC

from bigscreen.data.dataset import Dataset
from bigscreen.features import nystrom
from bigscreen.kernels.operand import Operand
from bigscreen.model.model import Model
from pipelines.bench import common

TOL = 1e-3


def fitted(train: Path, test: Path, model: Path, *options: object) -> dict[str, Any]:
    """Fit and evaluate through the command line."""
    fit = common.bigscreen("fit", train, model, "--overwrite", "--tol", TOL, *options)
    known = ("primal", "dual", "gap", "relative_gap", "rounding_bound", "n_iter", "rows")
    known += ("rows_alive", "seconds", "peak_pss_bytes", "solver", "features")
    test_record = common.bigscreen("evaluate", model, test)
    return {
        **{name: fit[name] for name in known},
        **{name: test_record[name] for name in ("error", "f1", "auc", "confusion")},
    }


def gap_check(record: dict[str, Any]) -> tuple[str, str, str, bool]:
    gap = record["relative_gap"]
    return "relative gap", f"{gap:.2e}", f"<= {TOL:g}", gap <= TOL


def error_check(name: str, error: float, most: float) -> tuple[str, str, str, bool]:
    return name, f"{error:.3%}", f"<= {most:.2%}", error <= most


def a9a(work: Path) -> tuple[dict[str, Any], list[tuple[str, str, str, bool]]]:
    train = common.ingested(work / "a9a.store", common.file("a9a/a9a.xz"))
    test = common.ingested(work / "a9a-t.store", common.file("a9a/a9a.t.xz"), "--like", train)
    options = ("--landmarks", 800, "--gamma", 0.01, "--lambda", 1e-5, "--no-intercept")
    record = fitted(train, test, work / "a9a.bsm", *options)
    return record, [gap_check(record), error_check("test error", record["error"], 0.153)]


def mnist(work: Path) -> tuple[dict[str, Any], list[tuple[str, str, str, bool]]]:
    images = [common.file(f"mnist/{part}-images-idx3-ubyte.gz") for part in ("train", "t10k")]
    prepared = ("--scale", "divide:255", "--positive", 7)
    train = common.ingested(work / "mnist7.store", images[0], *prepared)
    test = common.ingested(work / "mnist7-t.store", images[1], "--like", train)
    rows = Dataset.open(train).n_rows
    options = ("--landmarks", 1000, "--gamma", 1 / 72, "--lambda", 1 / (100 * rows))
    runs = [
        fitted(train, test, work / "mnist7.bsm", *options, "--no-intercept", "--seed", seed)
        for seed in range(5)
    ]
    mean = float(np.mean([run["error"] for run in runs]))
    worst = max(runs, key=lambda run: run["relative_gap"])
    checks = [gap_check(worst), error_check("test error, mean of 5 seeds", mean, 0.0075)]
    return {"error": mean, "runs": runs}, checks


def ijcnn1(work: Path) -> tuple[dict[str, Any], list[tuple[str, str, str, bool]]]:
    train = common.ingested(work / "ijcnn1.store", common.file("ijcnn1/ijcnn1.trn.bz2"))
    test = common.ingested(
        work / "ijcnn1-t.store", common.file("ijcnn1/ijcnn1.tst.bz2"), "--like", train
    )
    model = work / "ijcnn1.bsm"
    options = ("--landmarks", 1000, "--gamma", 2, "--C", 32, "--no-intercept")
    record = fitted(train, test, model, *options)
    reference = _liblinear_on_features(Model.load(model), train, test, C=32.0)
    record["reference"] = reference
    error, other = record["error"], reference["error"]
    beside = ("test error beside LIBLINEAR on the same features", f"{error:.3%}", f"{other:.3%}")
    # Two models of the same gap differ by chance on rows near the border.
    return record, [gap_check(record), (*beside, error <= other + 0.001)]


def kdd(work: Path) -> tuple[dict[str, Any], list[tuple[str, str, str, bool]]]:
    source = common.file("kddcup99/kddcup.data_10_percent.gz")
    rows, trained = 494_021, 250_000
    prepared = ("--no-header", "--label", "-1", "--positive", "normal.", "--scale", "minmax")
    train = common.ingested(work / "kdd.store", source, *prepared, "--holdout", rows - trained)
    test, model = work / "kdd-holdout.store", work / "kdd.bsm"
    options = ("--landmarks", 1000, "--gamma", 0.1, "--lambda", 1e-7, "--no-intercept")
    record = fitted(train, test, model, *options)
    record["unseen"] = unseen_error(Model.load(model), Dataset.open(train), Dataset.open(test))
    assert record["rows"] == trained, record["rows"]
    unseen = record["unseen"]
    name = f"error on the {unseen['rows']} test rows that do not stand verbatim in training"
    return record, [
        gap_check(record),
        error_check("test error", record["error"], 0.0015),
        error_check(name, unseen["error"], 0.0015),
    ]


def news20(work: Path) -> tuple[dict[str, Any], list[tuple[str, str, str, bool]]]:
    train = common.ingested(
        work / "news20.store", common.file("news20/news20.bz2"), "--holdout", 0.2
    )
    test = work / "news20-holdout.store"
    record = fitted(train, test, work / "news20.bsm", "--kernel", "linear")
    rows, held = (Dataset.open(part) for part in (train, test))
    # scikit-learn's offset is the same: an appended constant, penalised.
    other = LinearSVC(loss="hinge", C=1.0, tol=1e-3, max_iter=100_000)
    other.fit(rows.X(0, rows.n_rows), rows.y(0, rows.n_rows))
    accuracy = float(other.score(held.X(0, held.n_rows), held.y(0, held.n_rows)))
    record["reference"] = {"accuracy": accuracy, "of": "sklearn LinearSVC(loss='hinge', C=1)"}
    ours = 1 - record["error"]
    beside = ("accuracy beside scikit-learn's LinearSVC", f"{ours:.2%}", f"{accuracy:.2%}")
    return record, [gap_check(record), (*beside, ours >= accuracy - 0.003)]


def unseen_error(model: Model, train: Dataset, test: Dataset) -> dict[str, Any]:
    """Compute the error on test rows whose features do not occur among the training rows."""
    known: set[bytes] = set()
    for k in range(train.n_chunks):
        known.update(_digests(train.X(*train.chunk(k))))
    rows = wrong = 0
    for k in range(test.n_chunks):
        X, y = test.X(*test.chunk(k)), test.y(*test.chunk(k))
        fresh = np.array([digest not in known for digest in _digests(X)])
        rows += int(fresh.sum())
        if fresh.any():
            guess = model.decide(model.scores(X[fresh], prepared=True))
            wrong += int(np.count_nonzero(guess != y[fresh]))
    return {"rows": rows, "error": wrong / max(rows, 1)}


def _digests(X: np.ndarray) -> list[bytes]:
    return [hashlib.blake2b(row.data, digest_size=16).digest() for row in X]


def _liblinear_on_features(model: Model, train: Path, test: Path, C: float) -> dict[str, Any]:
    """Compute the error of LIBLINEAR on the features that the model's landmarks give."""
    side = Operand(model.landmarks)
    factor = nystrom.factor_by_eigenvectors(
        model.kernel, side, model.provenance["nystrom"]["cutoff"]
    )
    parts = []
    for path in (train, test):
        data = Dataset.open(path)
        rows = (data.X(*data.chunk(k)) for k in range(data.n_chunks))
        phi = [model.kernel.block(X, side, dtype=factor.entries) for X in rows]
        parts.append((np.concatenate(phi) @ factor.matrix, data.y(0, data.n_rows)))
    reference = LinearSVC(loss="hinge", C=C, fit_intercept=False, tol=0.1, max_iter=10_000)
    reference.fit(*parts[0])
    phi, y = parts[0]
    w = reference.coef_[0]
    primal = 0.5 * w @ w + C * np.maximum(0, 1 - np.where(y == 1, 1, -1) * (phi @ w)).sum()
    error = float(1 - reference.score(*parts[1]))
    return {"error": error, "primal": float(primal), "of": "LIBLINEAR, tol .1"}


DATA_SETS = {"a9a": a9a, "mnist": mnist, "ijcnn1": ijcnn1, "kdd": kdd, "news20": news20}


def main() -> None:
    given = common.arguments("Gaps and errors on real data.", list(DATA_SETS)).parse_args()
    records: dict[str, Any] = {}
    rows = []
    with common.work_folder(given.work) as work:
        for name in given.only:
            record, checks = DATA_SETS[name](work)
            records[name] = {**record, "checks": checks}
            rows += [
                (name, what, found, asked, common.verdict(met))
                for what, found, asked, met in checks
            ]
            common.show(name, ("data", "what", "found", "asked", ""), rows[-len(checks) :])
    common.show("all", ("data", "what", "found", "asked", ""), rows)
    common.save(given.out, "accuracy", {"results": records})


if __name__ == "__main__":
    main()

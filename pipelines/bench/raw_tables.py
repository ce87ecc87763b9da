"""From raw tables to a model as in the README, compared with scikit-learn pipelines and boosting.

    python -m pipelines.bench.raw_tables [--only kdd99 credit magic computer wine] [--out DIR]

KDD-99 (50,000 rows by chance, its normal connections against the rest; three columns of text),
credit-g (thirteen columns of text; in place of adult, whose source is missing), magic,
computer (a regression), and white wines of quality 7 and more against the others. Ours: ingest with
a hold-out, tune over its default gammas and values of C, a fit of what it found with probabilities,
evaluate. Theirs, on the same rows, from the same texts: a ColumnTransformer, Nystroem with as many
landmarks, LinearSVC, and HalvingGridSearchCV over the very same gammas and values of C (factor 3, 5
folds, as ours); the machine it found again in CalibratedClassifierCV; and HistGradientBoosting. Of
the regression LinearSVR with the same epsilon. Processor seconds include reading the table.
"""

from __future__ import annotations

import csv
import gzip
import lzma
import resource
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.experimental import enable_halving_search_cv  # noqa: F401 (it defines the search)
from sklearn.kernel_approximation import Nystroem
from sklearn.metrics import log_loss, r2_score, roc_auc_score
from sklearn.model_selection import HalvingGridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.svm import LinearSVC, LinearSVR

from bigscreen.data.dataset import Dataset
from bigscreen.fleet.inline import Inline
from bigscreen.model.model import Model
from bigscreen.tune.options import default_gammas
from pipelines.bench import common

LANDMARKS = 500
SETS = ("kdd99", "credit", "magic", "computer", "wine")
POINTS = 0.003
"""Goal: our error exceeds the error of the best linear pipeline by at most this."""

LINES = {"ours": 4, "linear": 12, "calibrated": 13, "boosting": 7}
"""Lines that a user types for each way, without imports and reading."""


def table(name: str) -> list[list[str]]:
    """Read the rows of a table as texts, with the label last."""
    if name == "kdd99":
        with gzip.open(common.file("kddcup99/kddcup.data_10_percent.gz"), "rt") as file:
            rows = list(csv.reader(file))
        some = np.random.default_rng(0).choice(len(rows), min(50_000, len(rows)), replace=False)
        return [
            [*rows[k][:-1], "normal" if rows[k][-1] == "normal." else "attack"]
            for k in np.sort(some)
        ]
    if name == "magic":
        with lzma.open(common.file("magic/magic04.data.xz"), "rt") as file:
            return [row for row in csv.reader(file) if row]
    if name == "wine":
        lines = common.file("winequality/winequality-white.csv").read_text().splitlines()[1:]
        rows = [line.split() for line in lines]
        return [[*row[:-1], "good" if int(row[-1]) >= 7 else "other"] for row in rows]
    if name == "credit":
        text = common.file("small/credit.g.arff").read_text()
    else:
        with lzma.open(common.file("computer/cpu.small.arff.xz"), "rt") as file:
            text = file.read()
    body = text[text.lower().index("@data") :].splitlines()[1:]
    rows = csv.reader((line for line in body if line), quotechar="'", skipinitialspace=True)
    return [[cell.strip() for cell in row] for row in rows]


def written(name: str, folder: Path) -> Path:
    """Write the table as a CSV file with a header."""
    rows = table(name)
    path = folder / f"{name}.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"x{j}" for j in range(len(rows[0]) - 1)), "outcome"])
        writer.writerows(rows)
    return path


def spent() -> float:
    """Measure the processor seconds of this process and of its finished children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def ours(path: Path, folder: Path, regression: bool) -> tuple[dict[str, Any], Model, np.ndarray]:
    """Run our commands; return their result, the model, and the held-out rows."""
    store, held, file = folder / "s", folder / "s-holdout", folder / "m.bsm"
    ingest: tuple[object, ...] = ("--label", "outcome", "--holdout", 0.2, "--scale", "standard")
    kind: tuple[object, ...] = ("--probability",)
    if regression:
        ingest, kind = (*ingest, "--regression"), ("--problem", "svr")
    began, wall = spent(), time.perf_counter()
    common.bigscreen("ingest", path, store, *ingest)
    landmarks = ("--landmarks", min(LANDMARKS, Dataset.open(store).n_rows))
    common.bigscreen("tune", store, folder / "best.bsm", *landmarks)
    best = Model.load(folder / "best.bsm").provenance["search"]["best"]
    kind = (*kind, "--gamma", best["gamma"], "--C", best["C"])
    common.bigscreen("fit", store, file, *kind, *landmarks)
    found = common.bigscreen("evaluate", file, held)
    seconds = {"cpu": spent() - began, "wall": time.perf_counter() - wall}
    data = Dataset.open(held)
    return {**found, **seconds}, Model.load(file), np.sort(data.row_ids(0, data.n_rows))


def columns(rows: list[list[str]]) -> tuple[np.ndarray, list[int], list[int]]:
    """Convert all cells but the last; return them, and which columns are numbers, which texts."""
    X = np.array([row[:-1] for row in rows], object)
    numbers, texts = [], []
    for j in range(X.shape[1]):
        try:
            X[:, j] = X[:, j].astype(np.float64)
            numbers.append(j)
        except ValueError:
            texts.append(j)
    return X, numbers, texts


def peers(path: Path, held: np.ndarray, gammas: list[float], regression: bool) -> dict[str, Any]:
    """Fit scikit-learn's pipelines on the same rows; return their results."""
    with open(path, newline="") as file:
        rows = list(csv.reader(file))[1:]
    X, numbers, texts = columns(rows)
    y = np.array([row[-1] for row in rows])
    y = y.astype(np.float64) if regression else y
    out = np.zeros(len(y), bool)
    out[held] = True
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    prepared = ColumnTransformer([("n", StandardScaler(), numbers), ("t", encoder, texts)])
    landmarks = min(LANDMARKS, int(np.count_nonzero(~out)))
    features = Nystroem(n_components=landmarks, random_state=0)
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    ordinal = ColumnTransformer([("n", "passthrough", numbers), ("t", codes, texts)])
    boosting = HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier
    linear = LinearSVR(epsilon=0.1) if regression else LinearSVC()
    machines = {
        "linear": make_pipeline(prepared, features, linear),
        "boosting": make_pipeline(ordinal, boosting(random_state=0)),
    }
    found: dict[str, Any] = {}
    own = "linearsvr__C" if regression else "linearsvc__C"
    grid = {"nystroem__gamma": list(gammas), own: list(np.logspace(-2, 3, 10))}
    machines["linear"] = HalvingGridSearchCV(
        machines["linear"], grid, factor=3, cv=5, refit=True, random_state=0
    )
    for name in ("linear", "calibrated", "boosting"):
        if name not in machines:
            continue
        machine = machines[name]
        began, wall = spent(), time.perf_counter()
        made = clone(machine)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made.fit(X[~out], y[~out])
            if name == "linear":
                found["chosen"] = {key: float(v) for key, v in made.best_params_.items()}
            if name == "linear" and not regression:
                again = CalibratedClassifierCV(made.best_estimator_, ensemble=False)
                machines["calibrated"] = again
        guess = made.predict(X[out])
        seconds = {"cpu": spent() - began, "wall": time.perf_counter() - wall}
        if regression:
            found[name] = {"r2": float(r2_score(y[out], guess)), **seconds}
            continue
        record: dict[str, Any] = {"error": float(np.mean(guess != y[out])), **seconds}
        if hasattr(made, "predict_proba"):
            p = made.predict_proba(X[out])
            record["log_loss"] = float(log_loss(y[out], p))
            scores = p[:, 1]
        else:
            scores = made.decision_function(X[out])
        record["auc"] = float(roc_auc_score(y[out] == made.classes_[1], scores))
        found[name] = record
    return found


def race(name: str, work: Path) -> dict[str, Any]:
    """Run all ways on one table."""
    folder = work / name
    folder.mkdir(parents=True)
    path, regression = written(name, folder), name == "computer"
    own, model, held = ours(path, folder, regression)
    kernel: Any = model.kernel
    with Inline() as fleet:
        gammas = default_gammas(Dataset.open(folder / "s"), fleet, "rbf")
    found = {"ours": own, **peers(path, held, gammas, regression)}
    found["ours"]["chosen"] = {"gamma": kernel.gamma, "C": model.provenance["parameters"]["C"]}
    return found


def main() -> None:
    """Run, print, and write the record."""
    options = common.arguments(__doc__.splitlines()[0], SETS).parse_args()
    with common.work_folder(options.work) as work:
        record = {name: race(name, work) for name in options.only}
    measures = ("error", "r2", "log_loss", "auc")
    lines = []
    for name, found in record.items():
        for who, part in found.items():
            if who == "chosen":
                continue
            said = [f"{part[key]:.4f}" if part.get(key) is not None else "" for key in measures]
            times = f"{part['cpu']:.1f}", f"{part['wall']:.1f}"
            goal = ""
            if who == "ours" and "error" in part:
                best = min(found[peer]["error"] for peer in ("linear", "calibrated"))
                goal = common.verdict(part["error"] <= best + POINTS)
            elif who == "ours":
                goal = common.verdict(part["r2"] >= found["linear"]["r2"] - POINTS)
            lines.append([name, who, *said, *times, LINES[who], goal])
    heads = (
        "table",
        "machine",
        "error",
        "R2",
        "log loss",
        "AUC",
        "cpu s",
        "wall s",
        "lines",
        "goal",
    )
    common.show("raw tables to models", heads, lines)
    common.save(options.out, "raw_tables", record)


if __name__ == "__main__":
    main()

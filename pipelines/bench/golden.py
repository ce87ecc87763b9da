"""Digests of published results, to check that a change of the code changes no result.

    python -m pipelines.bench.golden > before.txt
    python -m pipelines.bench.golden --against before.txt

One line for each case: a digest of its published results and its name. Results are coefficients,
offsets, support rows or landmarks, certificates (without times, paths and versions), scores and
predictions. Cases cover solvers, problems, kernels, dense and CSR rows, float64 rows far from 0,
threads and two worker processes, and paths. Only public names are used, so that code may move.
Digests differ between machines with different vector units.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

import bigscreen

COMMAND = [sys.executable, "-c", "from bigscreen.cli import main; main()"]
CLOCKS = ("seconds", "time", "memory", "bytes", "created", "version", "path", "load", "products")
PUBLISHED = (
    "coef_", "intercept_", "dual_coef_", "support_", "support_vectors_", "components_", "n_iter_",
    "certificate_",
)  # fmt: skip


def digest(parts: Iterable[Any]) -> str:
    """Compute a short digest of arrays, numbers and records, in their order."""
    found = hashlib.sha256()
    for part in parts:
        if sparse.issparse(part):
            part = part.toarray()
        if isinstance(part, np.ndarray):
            found.update(f"{part.dtype} {part.shape}".encode())
            found.update(np.ascontiguousarray(part).tobytes())
        else:
            found.update(json.dumps(timeless(part), sort_keys=True, default=str).encode())
    return found.hexdigest()[:16]


def timeless(record: Any) -> Any:
    """Drop the entries of a record that differ from run to run, such as times and paths."""
    if isinstance(record, dict):
        kept = {k: v for k, v in record.items() if not any(word in k for word in CLOCKS)}
        if kept.get("intercept") == "penalized":
            kept["intercept"] = "constant"  # (the word of older records)
        return {k: timeless(v) for k, v in kept.items()}
    return [timeless(one) for one in record] if isinstance(record, list | tuple) else record


def rows(n: int = 600, d: int = 7, classes: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Make rows (n, d), labels (n,) and targets (n,)."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(n, d)).astype(np.float32)
    field = X[:, 0] + np.sin(2 * X[:, 1]) + 0.4 * rng.normal(size=n)
    y = np.digitize(field, np.quantile(field, np.arange(1, classes) / classes))
    return X, y, field


def published(machine: Any, X: Any, y: Any, weights: Any = None) -> str:
    """Fit an estimator, and return the digest of what it publishes."""
    machine.fit(X, y, sample_weight=weights)
    parts = [
        getattr(machine, name) for name in PUBLISHED if getattr(machine, name, None) is not None
    ]
    if hasattr(machine, "model_"):
        parts += [machine.model_.coef, machine.model_.intercept]
    score = getattr(machine, "decision_function", machine.predict)
    return digest([*parts, score(X), machine.predict(X)])


def estimators() -> dict[str, Callable[[], str]]:
    """Return the cases of fits from Python by name."""
    X, y, target = rows()
    several = rows(classes=4)[1]
    thin = sparse.csr_array(np.where(np.abs(X) > 0.8, X, 0))
    wide = X.astype(np.float64) * [1, 1, 1, 1, 1, 1, 1e3] + 1e4
    weights = np.random.default_rng(1).uniform(0, 3, len(y))
    b = bigscreen
    cases: dict[str, tuple[Any, ...]] = {
        "SVC rbf": (b.SVC(C=3), X, y),
        "SVC rbf, CSR": (b.SVC(C=3), thin, y),
        "SVC rbf, weights": (b.SVC(C=3), X, y, weights),
        "SVC rbf, rows far from 0": (b.SVC(C=3, tol=1e-6), wide, y),
        "SVC block, gap": (b.SVC(C=3, solver="block", screening="gap", tol=1e-5), X, y),
        "SVC pairs, f-safe": (b.SVC(C=3, solver="pairs", screening="f-safe"), X, y),
        "SVC pairs, joachims": (b.SVC(C=3, solver="pairs", screening="joachims"), X, y),
        "SVC polynomial": (b.SVC(kernel="poly", coef0=1.0), X, y),
        "SVC laplacian": (b.SVC(kernel="laplacian"), X, y),
        "SVC sigmoid": (b.SVC(kernel="sigmoid", coef0=0.1), X, y),
        "SVC linear, rows far from 0": (b.SVC(kernel="linear"), wide, y),
        "SVC 4 classes": (b.SVC(), X, several),
        "SVC divide": (b.SVC(C=3, tuning=b.Tuning(start="divide", parts=3)), X, y),
        "SVC early": (b.SVC(C=3, early=True, tuning=b.Tuning(parts=3)), X, y),
        "SVC of landmarks": (b.SVC(n_components=50, sampling="rpcholesky"), X, y),
        "NuSVC": (b.NuSVC(nu=0.4), X, y),
        "OneClassSVM": (b.OneClassSVM(nu=0.2), X, None),
        "SVR": (b.SVR(epsilon=0.2), X, target),
        "SVR linear, CSR": (b.SVR(kernel="linear"), thin, target),
        "LADRegressor": (b.LADRegressor(), X, target),
        "QuantileRegressor": (b.QuantileRegressor(quantile=0.8), X, target),
        "LinearSVC hinge": (b.LinearSVC(random_state=0), X, y),
        "LinearSVC hinge, CSR, cd": (b.LinearSVC(solver="cd", random_state=0), thin, several),
        "LinearSVC": (b.LinearSVC(random_state=0), thin, several),
        "LinearSVR": (b.LinearSVR(epsilon=0.1, random_state=0), X, target),
        "NystroemSVC": (b.NystroemSVC(n_components=80, random_state=0), X, y),
        "NystroemSVC, rows far from 0": (b.NystroemSVC(n_components=80, random_state=0), wide, y),
        "NystroemSVC stored, cd": (
            b.NystroemSVC(
                n_components=80, random_state=0, solver="cd", tuning=b.Tuning(features="stored")
            ),
            X, several,
        ),
    }  # fmt: skip
    return {name: (lambda case=case: published(*case)) for name, case in cases.items()}


def command(*arguments: str) -> None:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)}: {done.stderr}")


def commands(folder: Path) -> dict[str, Callable[[], str]]:
    """Return the cases of fits and paths from the command line, of one store, by name."""
    X, y, _ = rows(4000)
    np.savez(folder / "rows.npz", X=X, y=y)
    store = str(folder / "rows.store")
    command("ingest", str(folder / "rows.npz"), store, "--scale", "none")

    def model(name: str, *options: str) -> str:
        out, table = folder / f"{name}.bsm", folder / f"{name}.csv"
        command("fit", store, str(out), *options)
        command("predict", str(out), store, str(table))
        loaded = bigscreen.Model.load(out)
        stated = loaded.provenance["certificates"]
        return digest([loaded.coef, loaded.intercept, stated, table.read_text()])

    def path(name: str, *options: str) -> str:
        record = folder / f"{name}.json"
        command("path", store, str(folder / f"{name}.bsp"), "--json", str(record), *options)
        return digest([json.loads(record.read_text())])

    landmarks = ("--landmarks", "150", "--tol", "1e-5")
    grid = ("--C", ".1:10:4", "--folds", "2")
    return {
        "fit": lambda: model("fit", *landmarks),
        "fit, 2 workers": lambda: model("fit-workers", *landmarks, "--workers", "2"),
        "fit --exact": lambda: model("exact", "--exact", "--gamma", ".2"),
        "fit --exact, 2 workers": lambda: model(
            "exact-workers", "--exact", "--gamma", ".2", "--workers", "2"
        ),
        "path": lambda: path("path", "--landmarks", "60", *grid),
        "path --exact": lambda: path("path-exact", "--exact", "--gamma", ".2", "--C", ".1:10:4"),
        "path --kernel linear": lambda: path("path-linear", "--kernel", "linear", *grid),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Digests of what fits publish, one a line.")
    parser.add_argument("--against", type=Path, help="lines of another run, to compare with")
    parser.add_argument("--only", default="", help="cases with this in their name")
    given = parser.parse_args()
    before = {}
    if given.against:
        lines = given.against.read_text().splitlines()
        before = {name: value for value, name in (line.split(" ", 1) for line in lines)}
    differ = 0
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, case in {**estimators(), **commands(Path(folder))}.items():
            if given.only not in name:
                continue
            value = case()
            other = before.get(name, value)
            differ += other != value
            print(value, name, *([f"(was {other})"] if other != value else []), flush=True)
    if given.against:
        print(f"{differ} differ", file=sys.stderr)
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()

"""Test of probabilities and label sets on held-out rows.

    python -m pipelines.bench.probabilities [--only susy-like ijcnn1 a9a mnist] [--out DIR]

Rows are dealt by chance into those that are fitted and those that are held out: 100,000 of ijcnn1
(both files together) and of the stand-in of SUSY's shape, a9a's and mnist's own test rows. Our
machine of 500 landmarks with probability=True is compared with the same machine in scikit-learn's
CalibratedClassifierCV (ensemble=False), whose folds make landmarks and features again, isotonic and
sigmoid: log loss, calibration error, seconds; and what our sets at alpha .1 cover, label by label.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import time
from typing import Any

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_svmlight_file
from sklearn.metrics import log_loss

from bigscreen import NystroemSVC
from bigscreen.data.synthetic import susy_like
from bigscreen.evaluate.reliability import Reliability
from pipelines.bench import common

HELD = 100_000
FITTED = {"susy-like": 50_000, "ijcnn1": 41_691}
HOW: dict[str, dict[str, Any]] = {
    "susy-like": {"gamma": 0.02, "C": 1.0},
    "ijcnn1": {"gamma": 2.0, "C": 10.0},
    "a9a": {"gamma": 0.05, "C": 1.0},
    "mnist": {"gamma": 0.02, "C": 10.0},
}
COVERED = 0.01
"""Goal: coverage is within this of 1 - alpha."""

Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _svmlight(place: str, columns: int) -> tuple[np.ndarray, np.ndarray]:
    opened = lzma.open if place.endswith("xz") else bz2.open
    with opened(common.file(place)) as file:
        X, y = load_svmlight_file(file, n_features=columns)
    return X.toarray().astype(np.float32), (y > 0).astype(int)


def _images(part: str) -> tuple[np.ndarray, np.ndarray]:
    with gzip.open(common.file(f"mnist/{part}-images-idx3-ubyte.gz")) as file:
        X = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 784)
    with gzip.open(common.file(f"mnist/{part}-labels-idx1-ubyte.gz")) as file:
        y = np.frombuffer(file.read(), np.uint8, offset=8)
    return X.astype(np.float32) / 255, y.astype(int)


def rows(name: str) -> Split:
    """Load the rows and labels to fit, and the held-out rows and labels."""
    if name == "a9a":
        return *_svmlight("a9a/a9a.xz", 123), *_svmlight("a9a/a9a.t.xz", 123)
    if name == "mnist":
        X, y = _images("train")
        return X[:20_000], y[:20_000], *_images("t10k")
    if name == "ijcnn1":
        parts = [_svmlight(f"ijcnn1/ijcnn1.{part}.bz2", 22) for part in ("trn", "tst")]
    else:
        parts = list(susy_like(FITTED[name] + HELD))
    X, y = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
    order = np.random.default_rng(0).permutation(len(y))
    fitted, held = order[HELD:], order[:HELD]
    return X[fitted], y[fitted], X[held], y[held]


def judged(p: np.ndarray, sets: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Evaluate a model by `bigscreen evaluate`."""
    found = Reliability(list(range(p.shape[1])))
    found.add(p, sets, y)
    record = found.record()
    assert np.isclose(record["log_loss"], log_loss(y, p))
    return record


def race(name: str) -> dict[str, Any]:
    """Run all ways on one data set."""
    X, y, held, truth = rows(name)
    NystroemSVC(n_components=500, probability=True, **HOW[name]).fit(X[:2000], y[:2000])  # compiles
    found: dict[str, Any] = {"fitted": len(y), "held_out": len(truth), "load": []}
    machine = NystroemSVC(n_components=500, **HOW[name])
    began, spent = time.perf_counter(), time.process_time()
    machine.fit(X, y)
    found["plain"] = {"wall": time.perf_counter() - began, "cpu": time.process_time() - spent}
    machine.set_params(probability=True)
    began, spent = time.perf_counter(), time.process_time()
    machine.fit(X, y)
    times = {"wall": time.perf_counter() - began, "cpu": time.process_time() - spent}
    p, sets = machine.predict_proba(held), machine.predict_set(held)
    error = float(np.mean(machine.predict(held) != truth))
    agree = float(np.mean(np.argmax(p, axis=1) == machine.predict(held)))
    found["ours"] = {**times, **judged(p, sets, truth), "error": error, "agree": agree}
    for method in ("isotonic", "sigmoid"):
        plain = NystroemSVC(n_components=500, **HOW[name])
        peer = CalibratedClassifierCV(plain, method=method, ensemble=False)
        began, spent = time.perf_counter(), time.process_time()
        peer.fit(X, y)
        times = {"wall": time.perf_counter() - began, "cpu": time.process_time() - spent}
        found[method] = {**times, **judged(peer.predict_proba(held), sets, truth)}
    return found


def main() -> None:
    """Run, print, and write the record."""
    options = common.arguments(__doc__.splitlines()[0], tuple(HOW)).parse_args()
    record = {name: race(name) for name in options.only}
    heads = ("data", "held out", "machine", "log loss", "cal. error", "agree", "wall s", "cpu s")
    lines, covered = [], []
    for name, found in record.items():
        for who in ("plain", "ours", "isotonic", "sigmoid"):
            part = found[who]
            said = [f"{part[key]:.4f}" if key in part else "" for key in MEASURES]
            times = f"{part['wall']:.2f}", f"{part['cpu']:.2f}"
            lines.append([name, found["held_out"], who, *said, *times])
        sets = found["ours"]["sets"]
        worst = max(abs(share - 1 + sets["alpha"]) for share in sets["by_label"].values())
        each = ", ".join(f"{share:.4f}" for share in sets["by_label"].values())
        met = common.verdict(abs(sets["coverage"] - 1 + sets["alpha"]) <= COVERED)
        covered.append([name, f"{sets['coverage']:.4f}", each, f"{worst:.4f}", met])
    common.show("probabilities", heads, lines)
    common.show("sets at .1", ("data", "coverage", "by label", "worst label off", "goal"), covered)
    common.save(options.out, "probabilities", record)


MEASURES = ("log_loss", "calibration_error", "agree")

if __name__ == "__main__":
    main()

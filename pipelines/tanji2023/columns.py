"""One split of a data set: its features, and every solver of the tables on these features."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import f1_score
from sklearn.svm import LinearSVC
from threadpoolctl import threadpool_limits

from bigscreen.data.memory import MemoryDataset
from bigscreen.features import nystrom
from bigscreen.features.design import Design
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.standard import Rbf
from bigscreen.options.train import TrainOptions
from bigscreen.train.run import train
from pipelines.tanji2023 import published
from pipelines.tanji2023.sets import Task

ACCURACY = 1e-6
"""Primal accuracy at which Pegasos and Snacks stop, as the paper prints it."""

LIBLINEAR_TOL = 0.1
"""LIBLINEAR's own default for the dual hinge."""

SGD_EPOCHS = 5

STAGES = {"snacks": 6, "pegasos": 8}
"""Most stages of bigscreen's Snacks and Pegasos; a stage draws as many rows as all before it."""


@dataclass(frozen=True)
class Split:
    """The features of a fold's training and test rows, and the seconds that they took."""

    task: Task
    phi: np.ndarray
    y: np.ndarray
    test_phi: np.ndarray
    test_y: np.ndarray
    seconds: float
    inside: np.ndarray
    outside: np.ndarray

    @property
    def C(self) -> float:
        """The C that corresponds to lambda: ``1 / (2 n lam)``."""
        return self.task.C(len(self.y))

    def objective(self, w: np.ndarray) -> float:
        """Compute the objective ``mean hinge + lam ||w||^2`` over the training rows."""
        hinge = np.maximum(0.0, 1.0 - self.y * scores(self.phi, w))
        return float(hinge.mean() + self.task.lam * (w @ w))

    def judged(self, w: np.ndarray, seconds: float) -> dict[str, float]:
        """Compute the columns of the tables for a w."""
        inside, outside = scores(self.phi, w), scores(self.test_phi, w)
        return {
            "seconds": seconds,
            "objective": self.objective(w),
            **errors(inside, self.y, outside, self.test_y),
        }


def scores(phi: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Compute the scores ``phi w`` in float64."""
    parts = np.array_split(phi, 1 + len(phi) // 4096)
    return np.concatenate([part.astype(np.float64) @ w for part in parts])


def errors(inside: np.ndarray, y: np.ndarray, outside: np.ndarray, test_y: np.ndarray) -> Any:
    """Compute the errors on training and test rows, and the test rows' F1 score."""
    guess = np.where(outside > 0, 1.0, -1.0)
    return {
        "train": float(np.mean(np.where(inside > 0, 1.0, -1.0) != y)),
        "test": float(np.mean(guess != test_y)),
        "f1": float(f1_score(test_y > 0, guess > 0)),
    }


def split(task: Task, landmarks: int, fold: int, folds: int, seed: int) -> Split:
    """Compute the Nystrom features of one fold, with uniform landmarks as in the paper."""
    inside, outside = task.fold(fold, folds, seed)
    learn = rows(task, inside)
    kernel = Rbf(task.gamma)
    with Inline() as fleet, threadpool_limits(1, "blas"):
        began = time.perf_counter()
        m = min(landmarks, learn.n_rows)
        side, _ = nystrom.choose_landmarks(learn, kernel, m, "uniform", seed)
        design = nystrom.factor_by_eigenvectors(kernel, side).of(Design(learn, kernel), side)
        phi = nystrom.store_features(design, fleet, None).data.X(0, learn.n_rows)
        seconds = time.perf_counter() - began
        test = Design(rows(task, outside), kernel, side, design.factor)
        test_phi = nystrom.store_features(test, fleet, None).data.X(0, len(outside))
    return Split(task, phi, task.y[inside], test_phi, task.y[outside], seconds, inside, outside)


def rows(task: Task, picked: np.ndarray) -> MemoryDataset:
    """Copy some rows of a set to a data set in memory."""
    return MemoryDataset(task.X[picked], (task.y[picked] > 0).astype(np.int32), [-1, 1])


# -- the columns -----------------------------------------------------------------------------------
def certified(
    solver: str, tol: float = 1e-3, most: int = 1000
) -> Callable[[Split, int], dict[str, float]]:
    """Run one of bigscreen's solvers on the features, with its proved gap."""

    def run(one: Split, seed: int) -> dict[str, float]:
        data = MemoryDataset(one.phi, (one.y > 0).astype(np.int32), [-1, 1])
        options = TrainOptions(
            kernel="linear",
            intercept="none",
            solver=solver,
            C=one.C,
            tol=tol,
            max_iter=most,
            seed=seed,
        )
        with warnings.catch_warnings(), Inline() as fleet:
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = train(data, options, fleet)
        proof, spent = model.provenance["certificates"][0], model.provenance["seconds"]
        w = np.asarray(model.coef, dtype=np.float64).reshape(-1)
        # (In the paper's scale.)
        bound = proof["dual"] / (one.C * len(one.y))
        found = one.judged(w, spent["solve"])
        return {**found, "certify": spent["certify"], "bound": bound, "gap": proof["relative_gap"]}

    return run


def liblinear(one: Split, seed: int) -> dict[str, float]:
    """Run scikit-learn's LinearSVC with the dual hinge solver."""
    machine = LinearSVC(
        loss="hinge", C=one.C, fit_intercept=False, tol=LIBLINEAR_TOL, max_iter=1000,
        random_state=seed,
    )  # fmt: skip
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        machine.fit(one.phi, one.y)
    return one.judged(machine.coef_[0].astype(np.float64), time.perf_counter() - began)


def averaged_sgd(one: Split, seed: int) -> dict[str, float]:
    """Run scikit-learn's averaged SGD with its default step sizes."""
    machine = SGDClassifier(
        alpha=2.0 * one.task.lam, fit_intercept=False, average=True, max_iter=SGD_EPOCHS, tol=None,
        random_state=seed,
    )  # fmt: skip
    began = time.perf_counter()
    machine.fit(one.phi, one.y)
    return one.judged(machine.coef_[0].astype(np.float64), time.perf_counter() - began)


def published_snacks(one: Split, seed: int, bound: float) -> dict[str, float]:
    """Run the paper's algorithm 1 with its published defaults."""
    return stopped(one, published.snacks(one.phi, one.y, one.task.lam, seed), bound)


def pegasos(one: Split, seed: int, bound: float, epochs: float) -> dict[str, float]:
    """Run Pegasos for at most the given number of epochs."""
    steps = int(epochs * len(one.y))
    return stopped(one, published.pegasos(one.phi, one.y, one.task.lam, steps, seed), bound)


def stopped(one: Split, points: Iterator[np.ndarray], bound: float) -> dict[str, float]:
    """Return the first point within the accuracy of the bound, or the last, and its time."""
    seconds = 0.0
    w = np.zeros(one.phi.shape[1])
    while True:
        began = time.perf_counter()
        point = next(points, None)
        seconds += time.perf_counter() - began
        if point is None:
            return one.judged(w, seconds)
        w = point
        if one.objective(w) - bound <= ACCURACY:
            return one.judged(w, seconds)


def exact(one: Split, seed: int) -> dict[str, float]:
    """Fit the exact kernel machine with LIBSVM's offset (its objective is not comparable)."""
    learn = rows(one.task, one.inside)
    options = TrainOptions(
        exact=True, gamma=one.task.gamma, C=one.C, intercept="true", tol=1e-3, seed=seed
    )
    with warnings.catch_warnings(), Inline() as fleet:
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = train(learn, options, fleet)
    inside, outside = (model.scores(one.task.X[part])[:, 0] for part in (one.inside, one.outside))
    proof, spent = model.provenance["certificates"][0], model.provenance["seconds"]
    return {
        "seconds": spent["solve"],
        "certify": spent["certify"],
        "gap": proof["relative_gap"],
        **errors(inside, one.y, outside, one.test_y),
    }


def warm_up() -> None:
    """Compile the timed code on a few rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(64, 4)).astype(np.float32)
    y = np.where(X[:, 0] > 0, 1.0, -1.0)
    few = published.Defaults(steps=20)
    for points in (published.snacks(X, y, 1e-2, 0, defaults=few),
                   published.pegasos(X, y, 1e-2, 20, 0)):  # fmt: skip
        list(points)
    task = Task("few", X, y, 1.0, 1e-2, 8)
    one = split(task, 8, 0, 5, 0)
    for column in (*OURS.values(), exact):
        column(one, 0)


OURS = {
    "Snacks ours": certified("snacks", most=STAGES["snacks"]),
    "Pegasos ours": certified("pegasos", most=STAGES["pegasos"]),
    "Newton, certified": certified("newton"),
}

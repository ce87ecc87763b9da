"""The tasks of the exact machine's race: rows, labels and parameters, equal for all solvers."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.datasets import load_svmlight_file

from pipelines.bench import common

Parts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Task:
    """A data set's training and test part and the parameters of the machine.

    ``load`` returns X, y, X_test, y_test: float32 rows, int8 labels -1 and +1. Rows that are
    mostly zeros are raced as CSR too, and every solver keeps the layout that suits it.
    """

    load: Callable[[], Parts]
    C: float
    gamma: float
    sparse: bool = False

    def prepared(self, folder: Path) -> Path:
        """Write a task's rows once to a file, which every fit's process reads; return the file."""
        path = folder / f"{self.load.__name__}.npz"
        if not path.exists():
            X, y, X_test, y_test = self.load()
            np.savez(path, X=X, y=y, X_test=X_test, y_test=y_test)
        return path


def mnist_3_5() -> Parts:
    X, y, X_test, y_test = _mnist()
    train, test = np.isin(y, (3, 5)), np.isin(y_test, (3, 5))
    return X[train], _sign(y[train] == 3), X_test[test], _sign(y_test[test] == 3)


def mnist_7() -> Parts:
    X, y, X_test, y_test = _mnist()
    return X, _sign(y == 7), X_test, _sign(y_test == 7)


def a9a() -> Parts:
    return *_svmlight("a9a/a9a.xz", 123), *_svmlight("a9a/a9a.t.xz", 123)


def ijcnn1() -> Parts:
    return *_svmlight("ijcnn1/ijcnn1.trn.bz2", 22), *_svmlight("ijcnn1/ijcnn1.tst.bz2", 22)


def covtype() -> Parts:
    """Load covtype: class 2 against the rest, 4,000 rows held out, columns scaled to [0, 1]."""
    with lzma.open(common.file("covtype/covtype.20k.data.xz"), "rt") as lines:
        table = np.loadtxt(lines, delimiter=",")
    order = np.random.default_rng(0).permutation(len(table))
    train, test = order[:-4_000], order[-4_000:]
    X, y = table[:, :-1], _sign(table[:, -1] == 2)
    low, high = X[train].min(axis=0), X[train].max(axis=0)
    X = (X - low) / np.where(high > low, high - low, 1.0)
    return X[train].astype(np.float32), y[train], X[test].astype(np.float32), y[test]


TASKS = {
    "mnist-3-5": Task(mnist_3_5, C=1.0, gamma=1 / 72),
    "mnist-7": Task(mnist_7, C=1.0, gamma=1 / 72),
    "a9a": Task(a9a, C=1.0, gamma=1 / 123, sparse=True),
    "a9a-C100": Task(a9a, C=100.0, gamma=0.5, sparse=True),
    "ijcnn1": Task(ijcnn1, C=32.0, gamma=2.0),
    "covtype": Task(covtype, C=32.0, gamma=32.0),
}


def _sign(positive: np.ndarray) -> np.ndarray:
    return np.where(positive, 1, -1).astype(np.int8)


def _mnist() -> Parts:
    return *_images("train"), *_images("t10k")


def _images(part: str) -> tuple[np.ndarray, np.ndarray]:
    """Read pixels / 255 and digits of MNIST's IDX files, which have headers of 16 and 8 bytes."""
    pixels, digits = (
        np.frombuffer(gzip.decompress(common.file(f"mnist/{part}-{name}").read_bytes()), np.uint8)
        for name in ("images-idx3-ubyte.gz", "labels-idx1-ubyte.gz")
    )
    return pixels[16:].reshape(-1, 784) / np.float32(255), digits[8:]


def _svmlight(name: str, columns: int) -> tuple[np.ndarray, np.ndarray]:
    path = common.file(name)
    with (lzma if path.suffix == ".xz" else bz2).open(path) as lines:
        X, y = load_svmlight_file(lines, n_features=columns, dtype=np.float32)
    return X.toarray(), _sign(y > 0)

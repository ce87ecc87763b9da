"""The data sets of the Snacks paper, and the parameters of its authors' code.

The paper gives the number of landmarks of every set and no other parameter; gamma and lambda are
those of its authors' published code. SUSY and rcv1 are too large to be handed on: without a path to
the real file, made-up rows of their shape stand in, and every table says so.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import lzma
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.datasets import load_svmlight_file

from bigscreen.data.synthetic import Blocks, susy_like
from bigscreen.intake.ingest import ingest
from pipelines.papers.data_sets import path
from pipelines.scale.shapes import rcv1_like


@dataclass(frozen=True)
class Task:
    """A task: rows with labels -1 and 1, and the parameters of the machine fitted to them.

    Attributes
    ----------
    X : float32 ndarray or csr_array (n, d)
    y : float64 (n,)
    gamma, lam : float
        ``exp(-gamma ||x - z||^2)``; the objective is ``mean hinge + lam ||w||^2``.
    landmarks : int
        The number in the paper's table.
    about : str
        How it differs from the paper's set; empty if it is the paper's set.
    """

    name: str
    X: Any
    y: np.ndarray
    gamma: float
    lam: float
    landmarks: int
    about: str = ""

    @property
    def standin(self) -> bool:
        """Whether the rows are made up."""
        return "STAND-IN" in self.about

    @property
    def shown(self) -> str:
        """The set's name in tables."""
        return f"{self.name} (STAND-IN)" if self.standin else self.name

    def C(self, rows: int) -> float:
        """Compute C for n rows: ``1 / (2 n lam)``."""
        return 1.0 / (2.0 * rows * self.lam)

    def first(self, rows: int | None) -> Task:
        """Draw at most the given number of rows at random, with a fixed seed."""
        n = len(self.y)
        if rows is None or rows >= n:
            return self
        pick = np.sort(np.random.default_rng(0).permutation(n)[:rows])
        about = f"{rows:,} of {n:,} rows; {self.about}".rstrip("; ")
        return replace(self, X=self.X[pick], y=self.y[pick], about=about)

    def fold(self, k: int, folds: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Split off one of the folds of a shuffling: training and test rows."""
        order = np.random.default_rng([seed, 0x666F6C64]).permutation(len(self.y))
        held = np.zeros(len(self.y), bool)
        held[order[k::folds]] = True
        return np.flatnonzero(~held), np.flatnonzero(held)


def svmlight(file: Path, d: int) -> tuple[Any, np.ndarray]:
    """Read an svmlight file, packed or not: a csr_array of float32, and labels -1 and 1."""
    opened = {".xz": lzma.open, ".bz2": bz2.open, ".gz": gzip.open}.get(file.suffix, open)
    with opened(file, "rb") as lines:
        X, y = load_svmlight_file(lines, n_features=d, dtype=np.float32)
    return sparse.csr_array(X), np.where(y > 0, 1.0, -1.0)


def a9a(given: argparse.Namespace) -> Task:
    """Load a9a, both files together: the paper's 5e4 rows."""
    parts = [svmlight(path(f"a9a/{name}"), 123) for name in ("a9a.xz", "a9a.t.xz")]
    X = np.concatenate([X.toarray() for X, _ in parts])
    y = np.concatenate([y for _, y in parts])
    return Task("a9a", X, y, 0.01, 1e-5, 800)


def ijcnn1(given: argparse.Namespace) -> Task:
    X, y = svmlight(path("ijcnn1/ijcnn1.trn.bz2"), 22)
    return Task("ijcnn1", X.toarray(), y, 2.0, 1e-8, 5000)


def mnist(given: argparse.Namespace) -> Task:
    """Load mnist, digit 7 against the rest, pixels / 255; for its gamma, see ``about``."""
    pixels, digits = (
        np.frombuffer(gzip.decompress(path(f"mnist/train-{name}").read_bytes()), np.uint8)
        for name in ("images-idx3-ubyte.gz", "labels-idx1-ubyte.gz")
    )
    X = pixels[16:].reshape(-1, 784).astype(np.float32) / np.float32(255)
    return Task("mnist-bin", X, np.where(digits[8:] == 7, 1.0, -1.0), 0.002, 1 / 6e6, 3000)


def susy(given: argparse.Namespace) -> Task:
    if given.susy:
        table = np.loadtxt(given.susy, delimiter=",", dtype=np.float32, max_rows=given.rows)
        X = (table[:, 1:] - table[:, 1:].mean(axis=0)) / table[:, 1:].std(axis=0)
        return Task("SUSY", X, np.where(table[:, 0] > 0, 1.0, -1.0), 0.01, 1e-7, 1000)
    X, y = made(susy_like, given.rows or 5_000_000)
    about = "STAND-IN: made-up rows of SUSY's shape whose smallest possible error is 20 %"
    return Task("SUSY", X, y, 0.01, 1e-7, 1000, about)


def rcv1(given: argparse.Namespace) -> Task:
    if given.rcv1:
        X, y = svmlight(given.rcv1, 47_236)
        return Task("rcv1", X, y, 0.005, 1e-8, 1000)
    X, y = made(rcv1_like, given.rows or 697_641)
    about = "STAND-IN: made-up rows of rcv1's shape, 2 % of whose labels are wrong"
    return Task("rcv1", X, y, 0.005, 1e-8, 1000, about)


def kdd99(given: argparse.Namespace) -> Task:
    """Load KDD-99, not in the paper: many repeated rows; at most the first 100,000."""
    most = min(given.rows or 100_000, 100_000)
    with tempfile.TemporaryDirectory() as folder:
        store = ingest(
            path("kddcup99/kddcup.data_10_percent.gz"),
            Path(folder) / "kdd.store",
            header=False,
            label=-1,
            positive="normal.",
            scale="minmax",
        ).store
        X, y = store.X(0, most), store.y(0, most)
    return Task("kdd99", X, np.where(y > 0, 1.0, -1.0), 0.1, 1e-7, 1000, "not of the paper")


SETS: dict[str, Callable[[argparse.Namespace], Task]] = {
    "a9a": a9a,
    "ijcnn1": ijcnn1,
    "mnist-bin": mnist,
    "rcv1": rcv1,
    "SUSY": susy,
}


def made(standin: Callable[[int, int], Blocks], rows: int) -> tuple[Any, np.ndarray]:
    """Make rows in memory, with labels -1 and 1."""
    parts = list(standin(rows, 0))
    dense = isinstance(parts[0][0], np.ndarray)
    X = np.concatenate([X for X, _ in parts]) if dense else sparse.vstack([X for X, _ in parts])
    y = np.concatenate([y for _, y in parts])
    return X if dense else sparse.csr_array(X), np.where(y > 0, 1.0, -1.0)


def files(parser: argparse.ArgumentParser) -> None:
    """Add the options for the files of the real large sets."""
    for name in ("susy", "rcv1"):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help="the real file [made up]")


def loaded(given: argparse.Namespace, most: int | None = None) -> list[Task]:
    """Load the requested sets, with at most the given number of rows."""
    most = given.rows or most
    given = argparse.Namespace(**{**vars(given), "rows": most})
    makers = {**SETS, "kdd99": kdd99}
    return [makers[name](given).first(most) for name in given.only]


def notes(tasks: list[Task]) -> list[str]:
    """List the sets that are replaced by stand-ins, and those that are left out."""
    return [f"{task.name}: {task.about}" for task in tasks if task.about]

"""The data sets of the papers' experiments, or stand-ins, whose description says so.

Features are float64 (n, d). Wang's sets have standardised columns (mean 0, standard deviation 1;
constant columns 0) unless a set says otherwise: the paper does not say how it scaled. Yang's sets
are as published, like the one real set that its authors publish.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.io import loadmat
from sklearn.datasets import load_svmlight_file


@dataclass(frozen=True)
class Rows:
    """A data set: rows, labels -1 and +1 or targets, and a note on how it differs from the paper's.

    Attributes
    ----------
    X : float64 (n, d)
    y : float64 (n,)
    about : str
        How it differs from the paper's set, or what is assumed; empty if it is the paper's set.
    """

    name: str
    X: np.ndarray
    y: np.ndarray
    about: str = ""

    def first(self, rows: int | None) -> Rows:
        """Draw at most the given number of rows at random, with a fixed seed."""
        if rows is None or rows >= len(self.y):
            return self
        pick = np.sort(np.random.default_rng(0).permutation(len(self.y))[:rows])
        about = f"{rows:,} of {len(self.y):,} rows; {self.about}".rstrip("; ")
        return replace(self, X=self.X[pick], y=self.y[pick], about=about)

    def split(self, test: float, seed: int) -> tuple[Rows, Rows]:
        """Split the rows at random into a training and a test part."""
        order = np.random.default_rng(seed).permutation(len(self.y))
        cut = len(self.y) - round(test * len(self.y))
        parts = np.sort(order[:cut]), np.sort(order[cut:])
        return tuple(replace(self, X=self.X[p], y=self.y[p]) for p in parts)  # type: ignore


def folder() -> Path:
    """Return the folder of the real data sets; end the script with a sentence if there is none."""
    default = Path(__file__).resolve().parents[3] / "shared" / "data"
    found = Path(os.environ.get("BIGSCREEN_DATA", default))
    if not found.is_dir():
        sys.exit(f"error: there is no data folder {found}; set BIGSCREEN_DATA to the one there is")
    return found


def path(name: str) -> Path:
    """Return a file of the data folder; end the script with a sentence if it is missing."""
    found = folder() / name
    if not found.exists():
        sys.exit(f"error: {found} is missing; put it there or leave this data set out with --only")
    return found


# -- wang 2014 -------------------------------------------------------------------------------------
def toy(mu: float, rows: int = 1000, seed: int = 0) -> Rows:
    """Make two normal classes around +-(mu, mu) of standard deviation .75, not standardised."""
    draw = np.random.default_rng(seed)
    X = 0.75 * draw.standard_normal((2 * rows, 2))
    y = np.repeat([1.0, -1.0], rows)
    return Rows(f"toy {mu:g}", X + mu * y[:, None], y, "generated as the paper says")


def ijcnn1() -> Rows:
    """Load ijcnn1's training rows as published (scaled by its authors)."""
    with bz2.open(path("ijcnn1/ijcnn1.trn.bz2")) as lines:
        X, y = load_svmlight_file(lines, n_features=22)
    return Rows("ijcnn1", X.toarray(), y, "columns as published")


def wine() -> Rows:
    """Load wine, red against white; with the quality as a feature it has the paper's 12."""
    tables = [_table(path(f"winequality/winequality-{c}.csv")) for c in ("red", "white")]
    X = np.concatenate(tables)
    y = np.repeat([1.0, -1.0], [len(table) for table in tables])
    about = "red (+) against white, the quality being the paper's unnamed 12th feature: a guess"
    return Rows("wine", _standard(X), y, about)


def covtype_6_7() -> Rows:
    """Load classes 6 and 7 of covtype's first 20,000 rows: 4,320 of the paper's 37,877."""
    table = _table(path("covtype/covtype.20k.data.xz"), ",")
    table = table[np.isin(table[:, -1], (6, 7))]
    y = np.where(table[:, -1] == 6, 1.0, -1.0)
    about = "the 4,320 rows of classes 6 and 7 among the first 20,000, for the paper's 37,877"
    return Rows("covtype 6/7", _standard(table[:, :-1]), y, about)


def magic() -> Rows:
    """Load magic with the class as a number, -1 or +1, for LAD."""
    lines = _text(path("magic/magic04.data.xz"))
    cells = [line.split(",") for line in lines if line]
    X = np.array([row[:-1] for row in cells], dtype=np.float64)
    y = np.where(np.array([row[-1] for row in cells]) == "g", 1.0, -1.0)
    return Rows("magic", _standard(X), y, "the target is the class, -1 or +1")


def computer() -> Rows:
    table = _arff("computer/cpu.small.arff.xz").astype(np.float64)
    return Rows("computer", _standard(table[:, :-1]), table[:, -1], TARGET)


def houses() -> Rows:
    table = _arff("houses/cal.housing.arff.xz").astype(np.float64)
    return Rows("houses", _standard(table[:, :-1]), table[:, -1], TARGET)


TARGET = "columns standardised, the target as it is: the paper does not say, but its rates agree"


# -- yang ------------------------------------------------------------------------------------------
def abalone() -> Rows:
    return _mat(FILES["Abalone"])


def winequality() -> Rows:
    """Load white wines, quality 7 or more against the rest: the paper's 1,060 positive rows."""
    table = _table(path(FILES["Winequality"]))
    y = np.where(table[:, -1] >= 7, 1.0, -1.0)
    return Rows("Winequality", table[:, :-1], y, "positive: quality 7 or more")


def sonar() -> Rows:
    table = _arff(FILES["Sonar"])
    return Rows("Sonar", table[:, :-1].astype(float), _nominal(table[:, -1], "Rock"))


def breast_cancer() -> Rows:
    cells = np.array([line.split(",") for line in _text(path(FILES["BreastCancer569"])) if line])
    X = cells[:, 2:].astype(np.float64)
    return Rows("BreastCancer569", X, _nominal(cells[:, 1], "B"))


def pima() -> Rows:
    table = _arff(FILES["Pima"])
    return Rows("Pima", table[:, :-1].astype(float), _nominal(table[:, -1], "tested_negative"))


def adult() -> Rows:
    """Load a9a: Adult with its columns as 123 zeros and ones, unscaled."""
    with lzma.open(path(FILES["Adult"])) as lines:
        X, y = load_svmlight_file(lines, n_features=123)
    return Rows("Adult", X.toarray(), y, "a9a: 32,561 rows, 123 binary columns")


def mnist_1_against(digit: int) -> tuple[Rows, Rows]:
    """Load digit 1 (+) against another digit: training and test images, pixels / 255."""
    parts = []
    for part in ("train", "t10k"):
        pixels, digits = (
            np.frombuffer(gzip.decompress(path(f"mnist/{part}-{name}").read_bytes()), np.uint8)
            for name in ("images-idx3-ubyte.gz", "labels-idx1-ubyte.gz")
        )
        X, labels = pixels[16:].reshape(-1, 784), digits[8:]
        pick = (labels == 1) | (labels == digit)
        y = np.where(labels[pick] == 1, 1.0, -1.0)
        parts.append(Rows(f"mnist 1/{digit}", X[pick] / 255, y, "pixels / 255"))
    return parts[0], parts[1]


ARTIFICIAL = {
    "normal 1": "SimpleData1",
    "normal 2": "SimpleData2",
    "normal 5": "SimpleData3",
    "circle": "circleData",
    "exclusive": "ExclusiveData",
    "spiral": "SpiralData",
}


def artificial(name: str) -> Rows:
    """Load one of the six toy sets of figure 4, as published."""
    return replace(_mat(f"nusvm/{ARTIFICIAL[name]}.mat"), name=name)


def normals(negative: float, rows: int = 1000, seed: int = 0) -> Rows:
    """Make figure 7's normals: positives around .5, a fifth as many negatives elsewhere."""
    draw = np.random.default_rng(seed)
    y = np.repeat([1.0, -1.0], [rows, rows // 5])
    X = draw.standard_normal((len(y), 2)) + np.where(y > 0, 0.5, negative)[:, None]
    return Rows(f"normals {negative:g}", X, y, "generated as the paper says")


SUPERVISED: dict[str, Callable[[], Rows]] = {
    "Sonar": sonar,
    "BreastCancer569": breast_cancer,
    "Pima": pima,
    "Abalone": abalone,
    "Winequality": winequality,
}

FILES = {
    "Sonar": "small/sonar.arff",
    "BreastCancer569": "small/wdbc.data",
    "Pima": "small/diabetes.arff",
    "Abalone": "nusvm/abalone.mat",
    "Winequality": "winequality/winequality-white.csv",
    "Adult": "a9a/a9a.xz",
}
"""Files of the sets of Yang's tables that these experiments can read."""

LARGER = (
    *("Banknote", "HCV-Egy", "CMC", "Yeast", "Wifi-localization", "CTG", "Abalone"),
    *("Winequality", "ShillBidding", "Musk", "Electrical", "Epiletic", "Nursery"),
)
BENCHMARK = (
    *("Hepatitis", "Fertility", "Planning Relax", "Sonar", "SpectHeart", "Haberman"),
    *("LiverDisorder", "Monks", "BreastCancer569", "BreastCancer683", "Australian", "Pima"),
    *("Biodegration", *LARGER),
)
TABLES = {
    "IV": LARGER,
    "V": BENCHMARK,
    "VI": BENCHMARK,
    "VII": BENCHMARK,
    "VIII": ("Epiletic", "Nursery", "credit card", "Accelerometer", "Adult"),
}
"""The sets of each of Yang's tables, in the paper's order."""


def there(table: str) -> str:
    """Say how many of a table's sets are in the data folder, and which."""
    names = TABLES[table]
    found = [name for name in names if name in FILES and (folder() / FILES[name]).exists()]
    which = f": {', '.join(found)}" if found else ""
    return f"table {table}: {len(found)} of the paper's {len(names)} data sets are here{which}"


# -- reading ---------------------------------------------------------------------------------------
def _standard(X: np.ndarray) -> np.ndarray:
    spread = X.std(axis=0)
    return (X - X.mean(axis=0)) / np.where(spread > 0, spread, 1.0)


def _text(file: Path) -> list[str]:
    data = file.read_bytes()
    return (lzma.decompress(data) if file.suffix == ".xz" else data).decode().splitlines()


def _table(file: Path, delimiter: str | None = None) -> np.ndarray:
    return np.loadtxt(_text(file), delimiter=delimiter)


def _arff(name: str) -> np.ndarray:
    """Read the cells of an ARFF file without missing values, as text."""
    lines = [line.strip() for line in _text(path(name))]
    start = next(i for i, line in enumerate(lines) if line.lower().startswith("@data"))
    rows = [line for line in lines[start + 1 :] if line and not line.startswith("%")]
    return np.array([[cell.strip() for cell in row.split(",")] for row in rows])


def _nominal(column: np.ndarray, positive: str) -> np.ndarray:
    assert positive in column, f"there is no {positive!r} among {np.unique(column)}"
    return np.where(column == positive, 1.0, -1.0)


def _mat(name: str) -> Rows:
    found = loadmat(path(name))
    X = found["X"].astype(np.float64)
    y = np.where(found["Y"].ravel() > 0, 1.0, -1.0)
    return Rows(Path(name).stem.capitalize(), X, y)

"""A fitted model in one file: a zip of ``model.json`` and ``arrays/*.npy``, and no pickle."""

import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from scipy.sparse import csr_array, issparse

from bigscreen.errors import InputError
from bigscreen.kernels import Kernel, Side, kernel_from_dict
from bigscreen.store.files import replacing
from bigscreen.store.prepare import Preparation

FORMAT = "bigscreen model"
SCHEMA = 1
_CSR_PARTS = ("data", "indices", "indptr")


@dataclass(eq=False)
class Model:
    """Scores ``f_c(x) = sum_j coef[c, j] k(x, landmark_j) + intercept[c]``.

    Attributes
    ----------
    kernel : Kernel
    landmarks : (m, d) float32 ndarray, csr_array, or None
        None for a linear model, whose `coef` then multiplies the d features themselves.
    coef : (k, m) or (k, d) float64 ndarray
        One row for a binary problem, otherwise one row per label (one-vs-rest).
    intercept : (k,) float64 ndarray
    labels : list of str, float or int
        In code order. With two labels a score above 0 means ``labels[1]``.
    preparation : Preparation
        How source columns became features; a store must share it to be scored.
    provenance : dict
        Versions, data fingerprint, parameters, certificates, history: JSON-able.
    """

    kernel: Kernel
    landmarks: np.ndarray | csr_array | None
    coef: np.ndarray
    intercept: np.ndarray
    labels: list[Any]
    preparation: Preparation
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.coef = np.ascontiguousarray(self.coef, dtype=np.float64)
        self.intercept = np.ascontiguousarray(self.intercept, dtype=np.float64)
        if self.coef.ndim != 2 or self.intercept.shape != self.coef.shape[:1]:
            raise ValueError(
                f"coef has shape {self.coef.shape} and intercept {self.intercept.shape}, "
                "they must be (k, m) and (k,)"
            )
        if self.landmarks is not None and self.landmarks.shape[0] != self.coef.shape[1]:
            raise ValueError(
                f"coef has {self.coef.shape[1]} columns for {self.landmarks.shape[0]} landmarks"
            )
        scorers = 1 if len(self.labels) == 2 else len(self.labels)
        if len(self.labels) < 2 or self.coef.shape[0] != scorers:
            raise ValueError(f"{self.coef.shape[0]} score functions for {len(self.labels)} labels")

    @property
    def n_features(self) -> int:
        """Width of the rows that the model scores."""
        return int((self.coef if self.landmarks is None else self.landmarks).shape[1])

    @cached_property
    def _side(self) -> Side:
        # Landmark norms and the inverted index of sparse landmarks, once for all blocks.
        return Side(self.landmarks)

    def scores(self, X: np.ndarray | csr_array) -> np.ndarray:
        """Decision values of prepared rows.

        Parameters
        ----------
        X : (rows, d) float32 ndarray or csr_array

        Returns
        -------
        (rows, k) float64 ndarray

        Raises
        ------
        InputError
            If the width of `X` is not `n_features`.
        """
        if X.shape[1] != self.n_features:
            raise InputError(
                f"the rows have {X.shape[1]} features and the model was fitted on "
                f"{self.n_features}; give it data with the same columns"
            )
        if self.landmarks is None:
            values = np.asarray(X @ self.coef.T, dtype=np.float64)
        else:
            values = self.kernel.dots(X, self._side, np.ascontiguousarray(self.coef.T))
        return values + self.intercept

    def decide(self, scores: np.ndarray) -> np.ndarray:
        """Label codes, (rows,) int64, that follow from `scores`, (rows, k)."""
        if scores.shape[1] == 1:
            return (scores[:, 0] > 0).astype(np.int64)
        return np.argmax(scores, axis=1).astype(np.int64)

    def predict(self, X: np.ndarray | csr_array) -> np.ndarray:
        """Label codes of prepared rows, (rows,) int64: positions in `labels`."""
        return self.decide(self.scores(X))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file, which appears whole or not at all."""
        arrays = {"coef": self.coef, "intercept": self.intercept}
        if self.landmarks is None:
            kind = "none"
        elif issparse(self.landmarks):
            kind = "csr"
            arrays |= {f"landmarks_{part}": getattr(self.landmarks, part) for part in _CSR_PARTS}
        else:
            kind = "dense"
            arrays["landmarks"] = np.ascontiguousarray(self.landmarks, dtype=np.float32)
        record = {
            "format": FORMAT,
            "schema": SCHEMA,
            "kernel": self.kernel.to_dict(),
            "landmarks": kind,
            "n_features": self.n_features,
            "labels": self.labels,
            "preparation": self.preparation.to_dict(),
            "provenance": self.provenance,
        }
        text = json.dumps(record, indent=1, default=_plain).encode()
        with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as bundle:
            bundle.writestr(_entry("model.json"), text)
            for name, array in arrays.items():
                with bundle.open(_entry(f"arrays/{name}.npy"), "w", force_zip64=True) as part:
                    np.lib.format.write_array(part, array, allow_pickle=False)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model; the training data is not needed.

        Raises
        ------
        InputError
            If there is no such file, it is not a model, it is damaged, or a newer bigscreen wrote
            it: each its own sentence.
        """
        name = os.fspath(path)
        if not Path(path).exists():
            raise InputError(f"there is no model file {name}; `bigscreen fit` writes one")
        if Path(path).is_dir():
            raise InputError(
                f"{name} is a folder and a model is one file, written by `bigscreen fit`"
            )
        if not zipfile.is_zipfile(path):
            with open(path, "rb") as file:
                cut = file.read(4) == b"PK\x03\x04"
            if cut:
                raise InputError(f"{name} is damaged: its end is missing; copy or fit it again")
            raise InputError(f"{name} is not a bigscreen model, which `bigscreen fit` writes")
        with _damage(name), zipfile.ZipFile(path) as bundle:
            text = bundle.read("model.json") if "model.json" in bundle.namelist() else b"null"
            record = json.loads(text)
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise InputError(f"{name} is a zip file but not a bigscreen model")
        if record.get("schema", 0) > SCHEMA:
            raise InputError(
                f"{name} was written by a newer bigscreen (model schema {record['schema']}, this "
                f"one reads up to {SCHEMA}); upgrade bigscreen"
            )
        with _damage(name), zipfile.ZipFile(path) as bundle:
            return cls(**_fields(record, lambda part: _array(bundle, part)))


@contextmanager
def _damage(name: str) -> Iterator[None]:
    """Say of every way in which a broken file shows that the file is broken."""
    try:
        yield
    except (
        zipfile.BadZipFile,
        zlib.error,
        ValueError,
        LookupError,
        TypeError,
        EOFError,
        AttributeError,
        NotImplementedError,
    ) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{name} is damaged ({reason}); copy or fit it again") from error


def _fields(record: dict[str, Any], array: Callable[[str], np.ndarray]) -> dict[str, Any]:
    """The arguments of `Model` out of the JSON record and the arrays."""
    landmarks: np.ndarray | csr_array | None = None
    if record["landmarks"] == "dense":
        landmarks = array("landmarks")
    elif record["landmarks"] == "csr":
        parts = [array(f"landmarks_{part}") for part in _CSR_PARTS]
        sparse = csr_array(
            (parts[0], parts[1], parts[2]), shape=(len(parts[2]) - 1, int(record["n_features"]))
        )
        # Compiled loops trust these indices: a wrong one would read foreign memory.
        sparse.check_format(full_check=True)
        landmarks = sparse
    model = {
        "kernel": kernel_from_dict(record["kernel"]),
        "landmarks": landmarks,
        "coef": array("coef"),
        "intercept": array("intercept"),
        "labels": record["labels"],
        "preparation": Preparation.from_dict(record["preparation"]),
        "provenance": record["provenance"],
    }
    if not (np.isfinite(model["coef"]).all() and np.isfinite(model["intercept"]).all()):
        raise ValueError("its coefficients are not all finite numbers")
    return model


def _array(bundle: zipfile.ZipFile, name: str) -> np.ndarray:
    with bundle.open(f"arrays/{name}.npy") as part:
        array = np.lib.format.read_array(part, allow_pickle=False)
        # Reading to the end is what makes zipfile compare the checksum.
        if part.read(1):
            raise ValueError(f"arrays/{name}.npy is longer than its header says")
    return array


def _entry(name: str) -> zipfile.ZipInfo:
    # A fixed date: equal models are equal files.
    return zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))


def _plain(value: Any) -> Any:
    """What JSON cannot write by itself and numpy code leaves in records."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{type(value).__name__} cannot be written to a model")

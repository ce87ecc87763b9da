"""A fitted model: what it scores and decides, and how it goes to a file and comes back."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
from scipy.sparse import csr_array

from bigscreen.errors import InputError
from bigscreen.kernels import Compiled, Kernel, Side, kernel_from_dict
from bigscreen.kernels_geometry import geometry
from bigscreen.store import model_votes
from bigscreen.store.layout import sqnorms
from bigscreen.store.model_file import SCHEMA, opened, packed, unpacked, write
from bigscreen.store.model_gate import Gate, row_numbers
from bigscreen.store.moved import Move, move_for
from bigscreen.store.prepare import Preparation

__all__ = ["INLIER", "OUTLIER", "SCHEMA", "Gate", "Model"]

KINDS = ("classifier", "regressor", "one-class")
OUTLIER, INLIER = -1, 1

SEEN = 256
"""Landmarks whose scores say whether float32 entries will do."""

COARSE = 2.0**-16
"""Part of the largest of these scores that rounding may move one by."""

_LABELS = {"regressor": [], "one-class": [OUTLIER, INLIER]}


@dataclass(eq=False)
class Model:
    """Scores ``f_c(x) = sum_j coef[c, j] k(x, landmark_j) + intercept[c]``.

    With a gate the sum is over the landmarks of x's own part p, and the intercept is
    ``intercept[c, p]``.

    Attributes
    ----------
    kernel : Kernel
    landmarks : (m, d) float32 or float64 ndarray, csr_array, or None
        None for a linear model, whose `coef` then multiplies the d features themselves. Those of a
        precomputed kernel may be empty rows, as their numbers in `support` are all it needs.
    coef : (k, m) or (k, d) float64 ndarray
        One row for a binary problem, a regressor or a one-class machine, otherwise one row per
        label, or per pair of labels.
    intercept : (k,) float64 ndarray, (k, parts) with a gate
    labels : list of str, float or int
        In code order. With two labels a score above 0 means ``labels[1]``. Those of a one-class
        machine are -1 and 1: an outlier, and a row like those it was fitted on. A regressor has
        none: its score is the prediction.
    preparation : Preparation
        How source columns became features; a store must share it to be scored.
    provenance : dict
        Versions, data fingerprint, parameters, certificates, history: JSON-able.
    strategy : {"rest", "one"}
        Every label against the rest, or one against one, in the order of `model_votes`.
    support : (m,) int64 ndarray or None
        Numbers of the landmarks' rows in the training data.
    gate : Gate or None
        Chooses the part of a row.
    part : (m,) int64 ndarray or None
        The part that a landmark belongs to; with a gate only.
    kind : {"classifier", "regressor", "one-class"}
    """

    kernel: Kernel
    landmarks: np.ndarray | csr_array | None
    coef: np.ndarray
    intercept: np.ndarray
    labels: list[Any]
    preparation: Preparation
    provenance: dict[str, Any] = field(default_factory=dict)
    strategy: str = "rest"
    support: np.ndarray | None = None
    gate: Gate | None = None
    part: np.ndarray | None = None
    kind: str = "classifier"

    def __post_init__(self) -> None:
        self.coef = np.ascontiguousarray(self.coef, dtype=np.float64)
        self.intercept = np.ascontiguousarray(self.intercept, dtype=np.float64)
        parts = () if self.gate is None else (self.gate.n_parts,)
        if self.coef.ndim != 2 or self.intercept.shape != (len(self.coef), *parts):
            raise ValueError(
                f"coef has shape {self.coef.shape} and intercept {self.intercept.shape}, "
                f"they must be (k, m) and {'(k, parts)' if parts else '(k,)'}"
            )
        if self.landmarks is not None and self.landmarks.shape[0] != self.coef.shape[1]:
            raise ValueError(
                f"coef has {self.coef.shape[1]} columns for {self.landmarks.shape[0]} landmarks"
            )
        if self.strategy not in ("rest", "one"):
            raise ValueError(f"strategy must be rest or one, not {self.strategy!r}")
        self._check_kind()
        self._check_rows()

    def _check_kind(self) -> None:
        """The labels must be those of the kind, with as many score functions as they take."""
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {self.kind!r}")
        labels = len(self.labels)
        if self.labels != _LABELS.get(self.kind, self.labels):
            raise ValueError(f"the labels of a {self.kind} model must be {_LABELS[self.kind]}")
        scorers = labels if self.strategy == "rest" else model_votes.n_pairs(labels)
        if labels == 2 or self.kind == "regressor":
            scorers = 1
        if (self.kind == "classifier" and labels < 2) or len(self.coef) != scorers:
            raise ValueError(f"{len(self.coef)} score functions for {labels} labels")

    def _check_rows(self) -> None:
        """What is said of every landmark must be said of each, and make sense."""
        size = 0 if self.landmarks is None else self.landmarks.shape[0]
        if self.support is not None:
            self.support = row_numbers(self.support, size, "support")
        if (self.gate is None) != (self.part is None):
            raise ValueError("a gate and the parts of the landmarks come together")
        if self.gate is not None:
            if self.gate.landmarks.shape[1] != self.n_features:
                raise ValueError("the gate's landmarks have another number of features")
            self.part = row_numbers(np.asarray(self.part), size, "part")
            if size and self.part.max() >= self.gate.n_parts:
                raise ValueError(f"part names more than the {self.gate.n_parts} parts of the gate")

    @property
    def n_features(self) -> int:
        """Width of the rows that the model scores."""
        return int((self.coef if self.landmarks is None else self.landmarks).shape[1])

    @cached_property
    def _machines(self) -> list[tuple[Side, np.ndarray]]:
        """Landmarks and coefficients (m, k) of every part, of which there is one without a gate.

        Made once for all blocks: with their norms, and an index if the landmarks are sparse.
        """
        if self.part is None:
            own = self.landmarks if self._move is None else self._move(self.landmarks)
            return [(Side(own, self.support), np.ascontiguousarray(self.coef.T))]
        assert self.gate is not None and self.landmarks is not None
        machines = []
        for p in range(self.gate.n_parts):
            own = np.flatnonzero(self.part == p)
            ids = None if self.support is None else self.support[own]
            side = Side(self.landmarks[own], ids)
            machines.append((side, np.ascontiguousarray(self.coef[:, own].T)))
        return machines

    @cached_property
    def _move(self) -> Move | None:
        """Where rows and landmarks go to be multiplied, without a gate."""
        if self.landmarks is None or not self.landmarks.shape[0]:
            return None
        return move_for(self.kernel, self.landmarks, float(sqnorms(self.landmarks).max()), False)

    @cached_property
    def _entries(self) -> type:
        """Type of the kernel's entries: float64 where float32 would be coarse, or their sums are
        (seen on some landmarks), as those of large coefficients can be."""
        longest = max(
            (float(side.sqnorms.max()) for side, _ in self._machines if len(side)), default=0.0
        )
        kernel = self._moved_kernel
        if kernel.precision(longest, self.n_features) is np.float64 or self.gate is not None:
            return kernel.precision(longest, self.n_features)
        side, coef = self._machines[0]
        if not len(side) or not isinstance(kernel, Compiled):
            return np.float32
        some = side.part(np.unique(np.linspace(0, len(side) - 1, SEEN).astype(np.int64)))
        exact = kernel.dots(some, side, coef, np.float64)
        off = np.abs(kernel.dots(some, side, coef, np.float32) - exact)
        scale = np.maximum(np.max(np.abs(exact + self.intercept), axis=0), np.finfo(float).tiny)
        return np.float32 if np.all(off <= COARSE * scale) else np.float64

    @cached_property
    def _moved_kernel(self) -> Kernel:
        return self.kernel if self._move is None else self._move.kernel(self.kernel)

    def scores(self, X: np.ndarray | csr_array) -> np.ndarray:
        """Scores of prepared rows.

        Parameters
        ----------
        X : (rows, d) float32 or float64 ndarray or csr_array

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
            return np.asarray(X @ self.coef.T, dtype=np.float64) + self.intercept
        if self.gate is None:
            side, coef = self._machines[0]
            X = X if self._move is None else self._move(X)
            return self._moved_kernel.dots(X, side, coef, self._entries) + self.intercept
        nearest = self.gate.nearest(geometry(self.kernel), X)
        out = np.empty((X.shape[0], len(self.coef)))
        for p, (side, coef) in enumerate(self._machines):
            rows = np.flatnonzero(nearest == p)
            if len(rows):
                values = self.kernel.dots(X[rows], side, coef, self._entries)
                out[rows] = values + self.intercept[:, p]
        return out

    def decide(self, scores: np.ndarray) -> np.ndarray:
        """Label codes, (rows,) int64, that follow from `scores`, (rows, k).

        Of labels with as many votes, or as high a score, the first is taken. What a regressor
        decides are its predictions, (rows,) float64.
        """
        if self.kind == "regressor":
            return scores[:, 0]
        if scores.shape[1] == 1:
            return (scores[:, 0] > 0).astype(np.int64)
        if self.strategy == "one":
            scores = model_votes.votes(scores, len(self.labels))
        return np.argmax(scores, axis=1).astype(np.int64)

    def decision_values(self, scores: np.ndarray) -> np.ndarray:
        """One value for every label, (rows, labels), of `scores`, (rows, k); (rows, 1) of two.

        One against one: the votes, and scores that tell equal ones apart (`model_votes.values`).
        """
        if self.strategy == "one" and len(self.labels) > 2:
            return model_votes.values(scores, len(self.labels))
        return scores

    def predict(self, X: np.ndarray | csr_array) -> np.ndarray:
        """Label codes, (rows,) int64, or predictions, (rows,) float64, of prepared rows."""
        return self.decide(self.scores(X))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file, which appears whole or not at all.

        Raises
        ------
        InputError
            If its kernel is a function of the user's own.
        """
        if not self.kernel.storable:
            raise InputError(
                "a model with a kernel function of your own cannot be written to a file; "
                "use a kernel that has a name, or precomputed entries"
            )
        arrays = {"coef": self.coef, "intercept": self.intercept}
        kind, gate = "none", None
        if self.landmarks is not None:
            kind, rows = packed("landmarks", self.landmarks)
            arrays |= rows
        if self.support is not None:
            arrays["support"] = self.support
        if self.gate is not None and self.part is not None:
            gate, rows = packed("gate_landmarks", self.gate.landmarks)
            arrays |= {**rows, "part": self.part}
            arrays |= {"gate_coef": self.gate.coef, "gate_offset": self.gate.offset}
            if self.gate.ids is not None:
                arrays["gate_ids"] = self.gate.ids
        record = {
            "kernel": self.kernel.to_dict(),
            "landmarks": kind,
            "n_features": self.n_features,
            "kind": self.kind,
            "strategy": self.strategy,
            "gate": gate,
            "optional": sorted(arrays.keys() & {"support", "gate_ids"}),
            "labels": self.labels,
            "preparation": self.preparation.to_dict(),
            "provenance": self.provenance,
        }
        write(path, record, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model; the training data is not needed.

        Raises
        ------
        InputError
            If there is no such file, it is not a model, it is damaged, or a newer bigscreen wrote
            it: each its own sentence.
        """
        with opened(path) as (record, array):
            return cls(**_fields(record, array))


def _fields(record: dict[str, Any], array: Callable[[str], np.ndarray]) -> dict[str, Any]:
    """The arguments of `Model` out of the JSON record and the arrays."""
    width, optional = int(record["n_features"]), record.get("optional", [])
    kind, gate = record["landmarks"], record.get("gate")
    model = {
        "kernel": kernel_from_dict(record["kernel"]),
        "landmarks": None if kind == "none" else unpacked("landmarks", kind, width, array),
        "coef": array("coef"),
        "intercept": array("intercept"),
        "labels": record["labels"],
        "preparation": Preparation.from_dict(record["preparation"]),
        "provenance": record["provenance"],
        "kind": record.get("kind", "classifier"),
        "strategy": record.get("strategy", "rest"),
        "support": array("support") if "support" in optional else None,
    }
    if gate is not None:
        ids = array("gate_ids") if "gate_ids" in optional else None
        rows = unpacked("gate_landmarks", gate, width, array)
        model["gate"] = Gate(rows, array("gate_coef"), array("gate_offset"), ids)
        model["part"] = array("part")
    if not (np.isfinite(model["coef"]).all() and np.isfinite(model["intercept"]).all()):
        raise ValueError("its coefficients are not all finite numbers")
    return model

"""A fitted model: what it scores and decides, and how it goes to a file and comes back."""

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from bigscreen.data.layout import Features, csr, padded
from bigscreen.data.preparation import Preparation
from bigscreen.data.rows import Rows
from bigscreen.data.source_rows import is_matrix, prepared_rows
from bigscreen.errors import InputError
from bigscreen.kernels.base import Kernel
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import geometry, kernel_from_dict
from bigscreen.model.calibration import Calibration, Evidence, check_alpha, given_prior
from bigscreen.model.file import opened, packed, unpacked, write
from bigscreen.model.fold_machines import FoldMachines
from bigscreen.model.gate import Gate, row_numbers
from bigscreen.model.ledger import LEDGER_ARRAYS, Ledger, from_arrays, to_arrays
from bigscreen.model.scores import Scorer, scorer_of, vote_values, votes
from bigscreen.model.shown import certificate_html
from bigscreen.numerics.draws import row_draws
from bigscreen.numerics.rows import FloatArray

NO_CERTIFICATE = (
    "no global certificate: every part of the rows was solved by itself, and the whole never was"
)
"""What the provenance of a gated model says as ``no_certificate``; its ``certificates`` is None."""

OPTIONAL = {"support", "gate_ids", "fold_support", *LEDGER_ARRAYS}
"""Arrays that a file may have or not."""

KINDS = ("classifier", "regressor", "one-class")
OUTLIER, INLIER = -1, 1

MOST_SHOWN = 12
"""Labels that a notebook shows."""

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
        Every label against the rest, or one against one, pairs in the order of their codes.
    support : (m,) int64 ndarray or None
        Numbers of the landmarks' rows in the training data.
    gate : Gate or None
        Chooses the part of a row.
    part : (m,) int64 ndarray or None
        The part that a landmark belongs to; with a gate only.
    kind : {"classifier", "regressor", "one-class"}
    ledger : list of Ledger or None
        What is proved of the rows it was fitted on, for every score; None where nothing is, and of
        models of before.
    calibration : Calibration or None
        What the scores mean, of classifiers that were fitted with probabilities.
    fold_machines : FoldMachines or None
        The machines whose scores `calibration` is of: they answer for probabilities and sets. None
        with a calibration: a file of before, whose published machine answers itself.
    threshold : float
        The score above which a row has the second of two labels (`thresholded`).
    factor : (float64 (m, r), float) or None
        The factor of the landmarks' kernel and its cutoff, of a model fitted in this process: edits
        need it again. It goes to no file.
    """

    kernel: Kernel
    landmarks: Features | None
    coef: FloatArray
    intercept: FloatArray
    labels: list[Any]
    preparation: Preparation
    provenance: dict[str, Any] = field(default_factory=dict)
    strategy: str = "rest"
    support: NDArray[np.int64] | None = None
    gate: Gate | None = None
    part: NDArray[np.int64] | None = None
    kind: str = "classifier"
    ledger: list[Ledger] | None = None
    calibration: Calibration | None = None
    fold_machines: FoldMachines | None = None
    threshold: float = 0.0
    factor: tuple[FloatArray, float] | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Without what can be made again."""
        return {**vars(self), "factor": None}

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
        scorers = labels if self.strategy == "rest" else labels * (labels - 1) // 2
        if labels == 2 or self.kind == "regressor":
            scorers = 1
        if (self.kind == "classifier" and labels < 2) or len(self.coef) != scorers:
            raise ValueError(f"{len(self.coef)} score functions for {labels} labels")
        if self.calibration is not None and len(self.calibration.curves) != scorers:
            raise ValueError("the calibration is of another number of score functions")
        machines = 0 if self.calibration is None else self.calibration.machines
        if self.fold_machines is None and machines > 1:
            raise ValueError("the machines of the folds are missing")
        if self.fold_machines is not None:
            self.fold_machines.check_match(machines, self.coef, self.n_features)
        if not np.isfinite(self.threshold) or (self.threshold and len(self.labels) != 2):
            raise ValueError("a threshold is a finite score, of two labels")

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

    def _repr_html_(self) -> str:
        """What a notebook shows: the machine and its certificate."""
        name, *values = self.kernel.to_dict().items()
        said = (f"{key} {value:g}" for key, value in values if isinstance(value, (int, float)))
        machine = {"kernel": ", ".join([str(name[1]), *said])}
        if self.landmarks is not None:
            what = "landmarks" if self.support is None else "support rows"
            machine[what] = f"{self.landmarks.shape[0]:,}"
        machine["features"] = f"{self.n_features:,}"
        if self.labels:
            more = ", ..." if len(self.labels) > MOST_SHOWN else ""
            machine["labels"] = ", ".join(map(str, self.labels[:MOST_SHOWN])) + more
        title = f"bigscreen {self.kind}"
        return certificate_html(title, machine, self.provenance, len(self.coef))

    @property
    def n_features(self) -> int:
        """Width of the rows that the model scores."""
        return int((self.coef if self.landmarks is None else self.landmarks).shape[1])

    @cached_property
    def _scorers(self) -> list[Scorer]:
        """One for every part, of which there is one without a gate; made once for all blocks."""
        if self.part is None:
            assert self.landmarks is not None
            given = self.landmarks, self.support, self.coef, self.intercept
            return [scorer_of(self.kernel, *given, self._fine)]
        assert self.gate is not None and self.landmarks is not None
        scorers = []
        for p in range(self.gate.n_parts):
            own = np.flatnonzero(self.part == p)
            ids = None if self.support is None else self.support[own]
            side = Operand(self.landmarks[own], ids)
            scorers.append(Scorer(self.kernel, side, self.coef[:, own], self.intercept[:, p]))
        return scorers

    @property
    def _fine(self) -> bool:
        """Whether coefficients of small directions would amplify errors of float32 entries."""
        return (self.provenance.get("nystrom") or {}).get("entries") == "float64"

    @cached_property
    def _fold_scorer(self) -> Scorer:
        """Scores by the machines of all folds, of a machine with a kernel."""
        folds, support = self.fold_machines, self.support
        assert folds is not None and self.landmarks is not None
        rows = self.landmarks
        if folds.landmarks is not None:
            rows, support = folds.landmarks, folds.support
        coef = folds.coef.reshape(-1, rows.shape[0])
        return scorer_of(self.kernel, rows, support, coef, folds.intercept.ravel(), self._fine)

    @property
    def _of_svmlight(self) -> bool:
        """Whether the fit's rows had columns by number, of which only the largest tells a width."""
        return self.provenance.get("index_base") is not None and not self.preparation.categories

    def widened(self, n_features: int) -> Self:
        """Return the model for rows with more columns, which are 0 in every row of the fit.

        Parameters
        ----------
        n_features : int
            Columns of the rows, at least as many as the model has. Those that are added count in
            distances, and in inner products not at all.
        """
        coef, gate, folds = self.coef, self.gate, self.fold_machines
        if self.landmarks is None:
            coef = np.pad(coef, ((0, 0), (0, n_features - coef.shape[1])))
        if gate is not None:
            gate = replace(gate, landmarks=padded(gate.landmarks, n_features))
        if folds is not None:
            folds = folds.widened(n_features, linear=self.landmarks is None)
        return replace(
            self,
            landmarks=None if self.landmarks is None else padded(self.landmarks, n_features),
            coef=coef,
            gate=gate,
            fold_machines=folds,
            preparation=self.preparation.widened(n_features),
        )

    @property
    def n_features_in_(self) -> int:
        """Columns of the source."""
        width = self.preparation.n_raw
        return self.n_features if width is None else width

    @property
    def feature_names_in_(self) -> NDArray[np.object_]:
        """Names of the source's columns, an array of str; AttributeError if they had none."""
        if self.preparation.names is None:
            raise AttributeError("the source's columns had no names")
        return np.array(self.preparation.names, dtype=object)

    def scores(self, X: Any, *, prepared: bool = False) -> FloatArray:
        """Scores of rows that look as the source did that the model was fitted on.

        Parameters
        ----------
        X : table, sequence of mappings, mapping of columns, array, sparse array, or Rows
            A table (pandas, polars, pyarrow) or records are read by the names of the source's
            columns, an array has them in the source's order; categories are texts. They are scaled
            and encoded as the source was. A data set must have been prepared alike; its rows are
            scored in the source's order.
        prepared : bool, default=False
            Says of an array that it holds features (scaled, a column for every category), as a
            store does, not columns of the source.

        Returns
        -------
        (rows, k) float64 ndarray
            Rounding moves none by more than 1e-3 (as a rule 1e-5) of the row's largest.

        Raises
        ------
        InputError
            If a column or a value is missing, or is no number where the source had numbers.
        """
        if isinstance(X, Rows):
            model = matched(self, X, "the model")
            scores = [model._scores(X.X(*X.chunk(k))) for k in range(X.n_chunks)]
            return np.concatenate(scores)[np.argsort(X.row_ids(0, X.n_rows))]
        model, rows = self._matching(X, prepared)
        return model._scores(rows)

    def evidence(self, X: Any, *, prepared: bool = False) -> Evidence:
        """What probabilities and label sets are read off; X as `scores` takes it.

        Raises
        ------
        InputError
            As `scores` does, and if the model was fitted without probabilities.
        """
        _ = self.calibrated
        if isinstance(X, Rows):
            model = matched(self, X, "the model")
            parts = [model._evidence(X.X(*X.chunk(k))) for k in range(X.n_chunks)]
            return Evidence.joined(parts).among(np.argsort(X.row_ids(0, X.n_rows)))
        model, rows = self._matching(X, prepared)
        return model._evidence(rows)

    def _matching(self, X: Any, prepared: bool) -> tuple[Self, Features]:
        """Return features of rows that are not a data set, and the model that scores them.

        The model is another one for sparse rows with more columns than the fit's svmlight rows.
        """
        model = self
        if issparse(X) and self._of_svmlight and X.shape[1] != self.n_features:
            X = csr_array(X)
            width = max(X.shape[1], self.n_features)
            X = csr(X.data, X.indices, X.indptr, width)
            if width > self.n_features:
                warnings.warn(
                    f"the rows have {width} columns and the model {self.n_features}: those beyond "
                    "count as columns that are 0 in every row of the fit, as LIBSVM has it",
                    UserWarning,
                    stacklevel=3,
                )
                model = self.widened(width)
        if not prepared and (model.preparation.changes or not is_matrix(X)):
            X = prepared_rows(model.preparation, X)
        return model, csr_array(X) if issparse(X) else X

    def _evidence(self, X: Features) -> Evidence:
        scores, folds = self._scores(X), self.fold_machines
        held = scores
        if folds is not None and self.landmarks is None:
            coef = folds.coef.reshape(-1, self.n_features)
            held = np.asarray(X @ coef.T, np.float64) + folds.intercept.ravel()
        elif folds is not None:
            held = self._fold_scorer.scores(X)
        return Evidence(scores, held.reshape(len(scores), -1, scores.shape[1]), row_draws(X))

    def _scores(self, X: Features) -> FloatArray:
        if X.shape[1] != self.n_features:
            raise InputError(
                f"the rows have {X.shape[1]} features and the model was fitted on "
                f"{self.n_features}; give it data with the same columns"
            )
        if self.landmarks is None:
            return np.asarray(X @ self.coef.T, dtype=np.float64) + self.intercept
        if self.gate is None:
            return self._scorers[0].scores(X)
        nearest = self.gate.nearest(geometry(self.kernel), X)
        out = np.empty((X.shape[0], len(self.coef)))
        for p, scorer in enumerate(self._scorers):
            rows = np.flatnonzero(nearest == p)
            if len(rows):
                out[rows] = scorer.scores(X[rows])
        return out

    def decide(self, scores: FloatArray) -> NDArray[Any]:
        """Label codes, (rows,) int64, that follow from `scores`, (rows, k).

        Of labels with as many votes, or as high a score, the first is taken; a pair's score of 0
        is its second label's. What a regressor decides are its predictions, (rows,) float64.
        """
        if self.kind == "regressor":
            return scores[:, 0]
        codes: NDArray[Any]
        if self.strategy == "one":
            codes = np.argmax(votes(scores >= self.threshold, len(self.labels)), axis=1)
        elif scores.shape[1] == 1:
            codes = scores[:, 0] > self.threshold
        else:
            codes = np.argmax(scores, axis=1)
        return codes.astype(np.int64)

    def decision_values(self, scores: FloatArray) -> FloatArray:
        """One value for every label, (rows, labels), of `scores`, (rows, k); (rows, 1) of two.

        One against one: the votes, and scores that separate equal ones.
        """
        if self.strategy == "one" and len(self.labels) > 2:
            return vote_values(scores, len(self.labels))
        return scores

    def predict(self, X: Any, *, prepared: bool = False) -> NDArray[Any]:
        """Labels, or a regressor's float64 predictions, (rows,); X as `scores` takes it.

        The labels of a one-class machine are -1, an outlier, and 1. With three labels or more the
        label can differ from the most probable one of `predict_proba`.
        """
        found = self.decide(self.scores(X, prepared=prepared))
        return found if self.kind == "regressor" else np.asarray(self.labels)[found]

    def predict_proba(
        self, X: Any, *, prior: Mapping[Any, float] | None = None, prepared: bool = False
    ) -> FloatArray:
        """Probabilities of labels; X as `scores` takes it.

        They come from machines that were each fitted without a part of the rows, and are what
        these machines' scores meant on the rows held out. With two labels the more probable one is
        the one that `predict` gives, unless class weights, a prior or a threshold say otherwise.
        With three labels or more the most probable label can differ from the one that `predict`
        gives, which the published machine decides alone.

        Parameters
        ----------
        prior : mapping of label to float, optional
            The labels' shares among these rows; default: as among those that were fitted.

        Returns
        -------
        (rows, labels) float64 ndarray
            Columns in the order of ``labels``.

        Raises
        ------
        InputError
            If the model was fitted without probabilities, or the prior is none.
        """
        shares = None if prior is None else given_prior(prior, self.labels)
        return self.calibrated.probabilities(self.evidence(X, prepared=prepared), shares)

    def predict_set(
        self, X: Any, alpha: float = 0.1, *, prepared: bool = False
    ) -> NDArray[np.bool_]:
        """Which labels a row may have; X as `scores` takes it.

        Of the rows of every label a part of 1 - alpha has it in the set, however good the machine
        is, if they come from where the rows did that it was fitted on; more have it where many rows
        have equal scores. A set may be empty (a row unlike those of any label) or hold several
        labels. It follows from the row and the model alone: the row's values choose which of the
        machines of the folds answers for it.

        Parameters
        ----------
        alpha : float
            Strictly between 0 and 1.

        Returns
        -------
        (rows, labels) bool ndarray

        Raises
        ------
        InputError
            If the model was fitted without probabilities, or alpha is out of range.
        """
        check_alpha(alpha)
        return self.calibrated.sets(self.evidence(X, prepared=prepared), alpha)

    def thresholded(self, rule: str) -> Self:
        """The model that decides between its two labels at another score than 0.

        Parameters
        ----------
        rule : str
            "f1", "precision:.9", "recall:.95" (of the second label), or "cost:1:10": what a false
            alarm and a miss cost. Looked up among cross-fitted scores, and carried over to the
            scores of the published machine by the rows that both have fitted.

        Raises
        ------
        InputError
            If the model was fitted without probabilities, has more than two labels, or no
            threshold does it.
        """
        known = self.calibrated
        return replace(self, threshold=known.published(known.threshold(rule)))

    @property
    def calibrated(self) -> Calibration:
        """What the scores mean; InputError where nobody has learnt it."""
        if self.calibration is None:
            what = "a classifier that was fitted with `--probability` (probability=True)"
            raise InputError(f"probabilities, sets of labels and thresholds are of {what}")
        return self.calibration

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
        arrays: dict[str, NDArray[Any]] = {"coef": self.coef, "intercept": self.intercept}
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
        if self.ledger is not None:
            arrays |= to_arrays(self.ledger)
        own: dict[str, Any] = {} if not self.threshold else {"threshold": self.threshold}
        if self.calibration is not None:
            own["calibration"], more = self.calibration.to_arrays()
            arrays |= more
        if self.fold_machines is not None:
            own["fold_landmarks"], more = self.fold_machines.to_arrays()
            arrays |= more
        record = {
            "kernel": self.kernel.to_dict(),
            "landmarks": kind,
            "n_features": self.n_features,
            "kind": self.kind,
            "strategy": self.strategy,
            "gate": gate,
            "optional": sorted(arrays.keys() & OPTIONAL),
            "labels": self.labels,
            "preparation": self.preparation.to_dict(),
            "provenance": self.provenance,
            **own,
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


def matched(model: Model, dataset: Rows, name: str) -> Model:
    """Return the model that scores a store: itself, or one for more columns of svmlight files.

    LIBSVM takes a column that no support vector has as one that is 0 in all of them.

    Raises
    ------
    InputError
        If the store does not match: see `check_match`.
    """
    base = getattr(dataset, "manifest", {}).get("extra", {}).get("index_base")
    if base is not None and model._of_svmlight and dataset.n_features > model.n_features:
        model = model.widened(dataset.n_features)
    check_match(model, dataset, name)
    return model


def check_match(model: Model, dataset: Rows, name: str) -> None:
    """Refuse a store whose features are not the ones the model was fitted on.

    Parameters
    ----------
    model : Model
    dataset : Rows
    name : str
        What the message calls the model.

    Raises
    ------
    InputError
        If the widths or the preparations (scaling, categories) differ.
    """
    data = dataset.path or "the data"
    if dataset.n_features != model.n_features:
        raise InputError(
            f"{data} has {dataset.n_features} features and {name} was fitted on "
            f"{model.n_features}; ingest the data again with `--like {name}`"
        )
    if dataset.preparation.of_features != model.preparation.of_features:
        raise InputError(
            f"{data} was scaled or encoded otherwise than the data {name} was fitted on; "
            f"ingest it again with `--like {name}`"
        )


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
        "provenance": in_present_words(record["provenance"]),
        "kind": record.get("kind", "classifier"),
        "strategy": record.get("strategy", "rest"),
        "support": array("support") if "support" in optional else None,
        "threshold": float(record.get("threshold", 0.0)),
    }
    if "calibration" in record:
        model["calibration"] = Calibration.from_arrays(record["calibration"], array)
    if "fold_landmarks" in record:
        known = record["fold_landmarks"], width, "fold_support" in optional
        model["fold_machines"] = FoldMachines.from_arrays(*known, array)
    if "ledger_margins" in optional:
        names = [name for name in optional if name.startswith("ledger_")]
        model["ledger"] = from_arrays({name: array(name) for name in names})
    if gate is not None:
        ids = array("gate_ids") if "gate_ids" in optional else None
        rows = unpacked("gate_landmarks", gate, width, array)
        model["gate"] = Gate(rows, array("gate_coef"), array("gate_offset"), ids)
        model["part"] = array("part")
    if not (np.isfinite(model["coef"]).all() and np.isfinite(model["intercept"]).all()):
        raise ValueError("its coefficients are not all finite numbers")
    return model


def in_present_words(provenance: dict[str, Any]) -> dict[str, Any]:
    """The provenance of a file, which once called a penalised offset "constant"."""
    asked = provenance.get("parameters", {})
    if asked.get("intercept") != "constant":
        return provenance
    return {**provenance, "parameters": {**asked, "intercept": "penalized"}}

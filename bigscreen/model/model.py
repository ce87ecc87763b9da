"""A fitted model: scores, predictions, probabilities, and reading and writing its file."""

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from bigscreen.data.dask_rows import dask_rows, lazy_for_dask
from bigscreen.data.layout import Features, csr, pad_columns
from bigscreen.data.other_arrays import on_host
from bigscreen.data.preparation import Preparation
from bigscreen.data.rows import Rows
from bigscreen.data.source_rows import is_matrix, prepare_rows
from bigscreen.errors import InputError
from bigscreen.kernels.base import Kernel
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import clustering_kernel, kernel_from_dict
from bigscreen.model.calibration import Calibration, Evidence, check_alpha, parse_prior
from bigscreen.model.file import open_file, pack_rows, unpack_rows, write_file
from bigscreen.model.fold_machines import FoldMachines
from bigscreen.model.gate import Gate, row_numbers
from bigscreen.model.ledger import LEDGER_ARRAYS, Ledger, from_arrays, to_arrays
from bigscreen.model.residuals import Residuals
from bigscreen.model.scores import Scorer, count_votes, make_scorer, vote_values
from bigscreen.model.shown import certificate_html
from bigscreen.numerics.draws import row_draws
from bigscreen.numerics.rows import FloatArray

NO_CERTIFICATE = (
    "no global certificate: every part of the rows was solved by itself, and the whole never was"
)
"""Provenance field ``no_certificate`` of a model with a gate, whose ``certificates`` is None."""

OPTIONAL = {"support", "gate_ids", "fold_support", "metric", *LEDGER_ARRAYS}
"""Names of the arrays that a model file may lack."""

KINDS = ("classifier", "regressor", "one-class")
"""Values of `Model.kind`."""

_LABELS = {"regressor": [], "one-class": [-1, 1]}
"""Labels of a regressor, which has none, and of a one-class machine: outlier, inlier."""


@dataclass(eq=False, repr=False)
class Model:
    """A fitted machine: its score functions, labels, preparation, provenance and calibration.

    Scores are ``f_c(x) = sum_j coef[c, j] k(x, landmark_j) + intercept[c]``. With a gate the sum
    runs over the landmarks of the part p of x only, and the intercept is ``intercept[c, p]``.

    Attributes
    ----------
    kernel : Kernel
    landmarks : (m, d) float32 or float64 ndarray, csr_array, or None
        None for a linear model, whose `coef` multiplies the d features themselves. With a
        precomputed kernel landmarks may be empty rows: it needs only their numbers in `support`.
    coef : (k, m) or (k, d) float64 ndarray
        One row for a binary problem or a one-class machine, for each target of a regressor,
        otherwise one row per label, or per pair of labels.
    intercept : (k,) float64 ndarray, (k, parts) with a gate
    labels : list of str, float or int
        In code order. With two labels a score above 0 means ``labels[1]``. A one-class machine has
        the labels -1 (outlier) and 1 (inlier). A regressor has no labels: its scores are the
        predictions, one for each target.
    preparation : Preparation
        How source columns became features; a store must have the same one to be scored.
    provenance : dict
        Versions, data fingerprint, parameters, certificates, history: JSON-able.
    strategy : {"rest", "one"}
        One against the rest, or one against one with pairs in the order of their codes.
    support : (m,) int64 ndarray or None
        Row numbers of the landmarks in the training data.
    gate : Gate or None
        Assigns rows to parts.
    part : (m,) int64 ndarray or None
        The part of each landmark; only with a gate.
    kind : {"classifier", "regressor", "one-class"}
    ledger : list of Ledger or None
        Proved statuses of the training rows, a ledger per score; None if nothing is proved, and in
        older models.
    calibration : Calibration or None
        Calibration of the scores, of a classifier that was fitted with probabilities.
    residuals : Residuals or None
        Residuals of rows held out, of a regressor that was fitted with ``probability``.
    fold_machines : FoldMachines or None
        The machines whose scores are calibrated; probabilities, label sets and intervals come from
        them. None next to a calibration: the file has schema 4 or older, and this machine is used
        instead.
    threshold : float
        The score above which a row has the second of two labels (`thresholded`).
    factor : (float64 (m, r), float) or None
        Factor of the landmarks' kernel matrix and the cutoff of its eigenvalues, if the model was
        fitted in this process; edits of rows reuse it. It is not saved.
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
    residuals: Residuals | None = None
    fold_machines: FoldMachines | None = None
    threshold: float = 0.0
    factor: tuple[FloatArray, float] | None = field(default=None, repr=False)

    @property
    def _answers_in_kind(self) -> bool:
        """Whether rows in an array of another library are answered with such an array: always."""
        return True

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, without the factor, which can be recomputed."""
        return {**vars(self), "factor": None}

    def __post_init__(self) -> None:
        """Convert the arrays; ValueError if the fields do not fit each other."""
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
        """Raise ValueError unless labels, score functions and calibration fit the model's kind."""
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {self.kind!r}")
        labels = len(self.labels)
        if self.labels != _LABELS.get(self.kind, self.labels):
            raise ValueError(f"the labels of a {self.kind} model must be {_LABELS[self.kind]}")
        scorers = labels if self.strategy == "rest" else labels * (labels - 1) // 2
        if labels == 2:
            scorers = 1
        if self.kind == "regressor":
            scorers = max(1, len(self.coef))
        if len(self.preparation.targets) not in (0, self.n_targets):
            raise ValueError(f"{len(self.preparation.targets)} names for {self.n_targets} targets")
        if (self.kind == "classifier" and labels < 2) or len(self.coef) != scorers:
            raise ValueError(f"{len(self.coef)} score functions for {labels} labels")
        if self.calibration is not None and len(self.calibration.curves) != scorers:
            raise ValueError("the calibration is of another number of score functions")
        one_target = self.kind == "regressor" and len(self.coef) == 1
        if self.residuals is not None and not (one_target and self.fold_machines is not None):
            raise ValueError("residuals are of a regressor and the machines of its folds")
        learnt = self.residuals or self.calibration
        machines = 0 if learnt is None else learnt.machines
        if self.fold_machines is None and machines > 1:
            raise ValueError("the machines of the folds are missing")
        if self.fold_machines is not None:
            self.fold_machines.check_match(machines, self.coef, self.n_features)
        if not np.isfinite(self.threshold) or (self.threshold and len(self.labels) != 2):
            raise ValueError("a threshold is a finite score, of two labels")

    def _check_rows(self) -> None:
        """Raise ValueError unless every landmark has a valid row number and part."""
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

    def _describe_kernel(self) -> str:
        """Return the kernel's name and its parameters."""
        name, *values = self.kernel.to_dict().items()
        said = (f"{key} {value:.4g}" for key, value in values if isinstance(value, (int, float)))
        return ", ".join([str(name[1]), *said])

    def __repr__(self) -> str:
        """Return the machine in a line: kind, kernel, landmarks or support rows, features."""
        of = ""
        if self.landmarks is not None:
            what = "landmarks" if self.support is None else "support rows"
            of = f" on {self.landmarks.shape[0]:,} {what}"
        if self.n_targets > 1:
            of += f" for {self.n_targets:,} targets"
        return f"<Model {self.kind}: {self._describe_kernel()}{of}, {self.n_features:,} features>"

    def _repr_html_(self) -> str:
        """Render the machine and its certificate for a notebook."""
        machine = {"kernel": self._describe_kernel()}
        if self.landmarks is not None:
            what = "landmarks" if self.support is None else "support rows"
            machine[what] = f"{self.landmarks.shape[0]:,}"
        machine["features"] = f"{self.n_features:,}"
        if self.labels:
            more = ", ..." if len(self.labels) > 12 else ""
            machine["labels"] = ", ".join(map(str, self.labels[:12])) + more
        title = f"bigscreen {self.kind}"
        return certificate_html(title, machine, self.provenance, len(self.coef))

    @property
    def n_features(self) -> int:
        """Number of features of the rows that the model scores."""
        return int((self.coef if self.landmarks is None else self.landmarks).shape[1])

    @cached_property
    def _scorers(self) -> list[Scorer]:
        """A scorer for each part, of a kernel model; one without a gate has a single part."""
        if self.part is None:
            assert self.landmarks is not None
            given = self.landmarks, self.support, self.coef, self.intercept
            return [make_scorer(self.kernel, *given, self._needs_float64)]
        assert self.gate is not None and self.landmarks is not None
        scorers = []
        for p in range(self.gate.n_parts):
            own = np.flatnonzero(self.part == p)
            ids = None if self.support is None else self.support[own]
            side = Operand(self.landmarks[own], ids)
            scorers.append(Scorer(self.kernel, side, self.coef[:, own], self.intercept[:, p]))
        return scorers

    def placed(self, place: Callable[[Kernel], Kernel]) -> Self:
        """Return the model with kernel entries for scores that are computed on a device.

        ``place``: returns the kernel that computes there. A linear model is returned as it is.
        """
        if self.landmarks is None:
            return self
        made = replace(self)
        made.__dict__["_scorers"] = [scorer.placed(place) for scorer in self._scorers]
        if self.fold_machines is not None:
            made.__dict__["_fold_scorer"] = self._fold_scorer.placed(place)
        return made

    @property
    def _needs_float64(self) -> bool:
        """Whether scores need float64 kernel entries, because the fit on landmarks did."""
        return (self.provenance.get("nystrom") or {}).get("entries") == "float64"

    @cached_property
    def _fold_scorer(self) -> Scorer:
        """The scorer of all folds' machines at once, (rows, machines * k), of a kernel model.

        Each of them was fitted without one fold of the training rows.
        """
        folds, support = self.fold_machines, self.support
        assert folds is not None and self.landmarks is not None
        rows = self.landmarks
        if folds.landmarks is not None:
            rows, support = folds.landmarks, folds.support
        coef = folds.coef.reshape(-1, rows.shape[0])
        return make_scorer(
            self.kernel, rows, support, coef, folds.intercept.ravel(), self._needs_float64
        )

    @property
    def _is_svmlight(self) -> bool:
        """Whether the training rows came from svmlight files, which do not state their width."""
        return self.provenance.get("index_base") is not None and not self.preparation.categories

    def widened(self, n_features: int) -> Self:
        """Return the model for rows with more columns, which were 0 in every training row.

        Parameters
        ----------
        n_features : int
            Number of columns of the rows, at least the model's. Additional columns contribute to
            distances, but not to inner products.
        """
        coef, gate, folds = self.coef, self.gate, self.fold_machines
        if self.landmarks is None:
            coef = np.pad(coef, ((0, 0), (0, n_features - coef.shape[1])))
        if gate is not None:
            gate = replace(gate, landmarks=pad_columns(gate.landmarks, n_features))
        if folds is not None:
            folds = folds.widened(n_features, linear=self.landmarks is None)
        return replace(
            self,
            landmarks=None if self.landmarks is None else pad_columns(self.landmarks, n_features),
            coef=coef,
            gate=gate,
            fold_machines=folds,
            preparation=self.preparation.widened(n_features),
        )

    @property
    def n_targets(self) -> int:
        """Number of targets that a regressor predicts; 0 for other machines."""
        return len(self.coef) if self.kind == "regressor" else 0

    @property
    def target_names(self) -> list[str]:
        """The name of each target of a regressor of several; empty for other machines."""
        return self.preparation.name_targets(self.n_targets)

    @property
    def n_features_in_(self) -> int:
        """Number of columns of the source."""
        width = self.preparation.n_raw
        return self.n_features if width is None else width

    @property
    def feature_names_in_(self) -> NDArray[np.object_]:
        """Names of the source's columns, an array of str; AttributeError if it had no names."""
        if self.preparation.names is None:
            raise AttributeError("the source's columns had no names")
        return np.array(self.preparation.names, dtype=object)

    @lazy_for_dask(lambda model: (np.float64, len(model.coef)))
    def scores(self, X: Any, *, prepared: bool = False) -> FloatArray:
        """Compute the scores of rows that have the columns of the training source.

        Parameters
        ----------
        X : table, sequence of mappings, mapping of columns, array, sparse array, Dask array or \
        data frame, or Rows
            Columns of a table (pandas, polars, pyarrow, Dask) or of records are looked up by the
            source's names; an array has them in the source's order. Categories are texts. Rows are
            scaled and encoded as the training rows were. A dataset must have the same preparation;
            its rows are scored in the source's order. Rows of Dask give a lazy Dask array, which
            is computed when it is needed, a block of rows at a time; rows in an array of another
            library, such as a tensor of PyTorch, give an array of this library on their device.
        prepared : bool, default=False
            Whether an array holds features (scaled, a column per category), as a store does,
            instead of source columns.

        Returns
        -------
        (rows, k) float64 ndarray
            The rounding error is at most 1e-3 (typically 1e-5) of the row's largest score.

        Raises
        ------
        InputError
            If a column or a value is missing, or is not a number although the source had numbers.
        """
        if isinstance(X, Rows):
            model = match_store(self, X, "the model")
            scores = [model._scores(X.X(*X.chunk(k))) for k in range(X.n_chunks)]
            return np.concatenate(scores)[np.argsort(X.row_ids(0, X.n_rows))]
        model, rows = self._matching(X, prepared)
        return model._scores(rows)

    @property
    def _prediction_type(self) -> np.dtype[Any]:
        """The type of the predictions: the labels' own, or float64 for a regressor."""
        return np.dtype(np.float64) if self.kind == "regressor" else np.asarray(self.labels).dtype

    @property
    def _n_values(self) -> int | None:
        """The number of columns of `decision_function`; None if it has one value for each row."""
        if self.n_targets > 1:
            return self.n_targets
        return len(self.labels) if len(self.labels) > 2 else None

    @property
    def _n_predictions(self) -> int | None:
        """The number of columns of `predict`; None if it has one value for each row."""
        return self.n_targets if self.n_targets > 1 else None

    def _dask_rows(self, X: Any, prepared: bool = False, **_: Any) -> Any:
        """Return a Dask collection as a Dask array with the columns of the source.

        ``prepared``: with the features instead. InputError if X has other columns.
        """
        if prepared:
            return dask_rows(X, None, self.n_features)
        # (Sparse rows of svmlight files may have more columns.)
        width = None if self._is_svmlight else self.n_features_in_
        return dask_rows(X, self.preparation.names, width)

    def _for_blocks(self) -> Self:
        """Return the model without what no score needs: its ledger and its factor."""
        return replace(self, ledger=None, factor=None)

    def evidence(self, X: Any, *, prepared: bool = False) -> Evidence:
        """Compute the scores from which probabilities, label sets and intervals follow.

        X as for `scores`, but not of Dask: the scores of a row are no array.

        Raises
        ------
        InputError
            For the reasons of `scores`, and if the model was fitted without probabilities.
        """
        _ = self.held_out if self.kind == "regressor" else self.calibrated
        if isinstance(X, Rows):
            model = match_store(self, X, "the model")
            parts = [model._evidence(X.X(*X.chunk(k))) for k in range(X.n_chunks)]
            return Evidence.joined(parts).among(np.argsort(X.row_ids(0, X.n_rows)))
        model, rows = self._matching(on_host(X), prepared)
        return model._evidence(rows)

    def _matching(self, X: Any, prepared: bool) -> tuple[Self, Features]:
        """Return the model that scores rows X, which are not a dataset, and their features.

        ``prepared``: X has features already, not source columns. The model is widened if sparse
        rows have more columns than the training svmlight rows.
        """
        model = self
        if issparse(X) and self._is_svmlight and X.shape[1] != self.n_features:
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
        if not prepared and (model.preparation.changes_features or not is_matrix(X)):
            X = prepare_rows(model.preparation, X)
        return model, csr_array(X) if issparse(X) else X

    def _evidence(self, X: Features) -> Evidence:
        """Compute scores of features X (rows, n_features), by the model and its folds' machines."""
        scores, folds = self._scores(X), self.fold_machines
        held = scores
        if folds is not None and self.landmarks is None:
            coef = folds.coef.reshape(-1, self.n_features)
            held = np.asarray(X @ coef.T, np.float64) + folds.intercept.ravel()
        elif folds is not None:
            held = self._fold_scorer.scores(X)
        return Evidence(scores, held.reshape(len(scores), -1, scores.shape[1]), row_draws(X))

    def _scores(self, X: Features) -> FloatArray:
        """Compute the scores, float64 (rows, k), of features X (rows, n_features).

        InputError if X has another number of features than the model.
        """
        if X.shape[1] != self.n_features:
            raise InputError(
                f"the rows have {X.shape[1]} features and the model was fitted on "
                f"{self.n_features}; give it data with the same columns"
            )
        X = self.preparation.map(X)
        if self.landmarks is None:
            return np.asarray(X @ self.coef.T, dtype=np.float64) + self.intercept
        if self.gate is None:
            return self._scorers[0].scores(X)
        nearest = self.gate.nearest(clustering_kernel(self.kernel), X)
        out = np.empty((X.shape[0], len(self.coef)))
        for p, scorer in enumerate(self._scorers):
            rows = np.flatnonzero(nearest == p)
            if len(rows):
                out[rows] = scorer.scores(X[rows])
        return out

    def decide(self, scores: FloatArray) -> NDArray[Any]:
        """Convert `scores`, (rows, k), to label codes, (rows,) int64.

        If labels tie in votes or scores, the first one wins; a pair's score of 0 is a vote for its
        second label. For a regressor the result is the predictions, (rows,) float64, or
        (rows, targets) with several targets.
        """
        if self.kind == "regressor":
            return scores if self.n_targets > 1 else scores[:, 0]
        codes: NDArray[Any]
        if self.strategy == "one":
            codes = np.argmax(count_votes(scores >= self.threshold, len(self.labels)), axis=1)
        elif scores.shape[1] == 1:
            codes = scores[:, 0] > self.threshold
        else:
            codes = np.argmax(scores, axis=1)
        return codes.astype(np.int64)

    def decision_values(self, scores: FloatArray) -> FloatArray:
        """Convert `scores`, (rows, k), to a value per label, (rows, labels); (rows, 1) for two.

        One against one, the values are votes, with ties broken by the scores.
        """
        if self.strategy == "one" and len(self.labels) > 2:
            return vote_values(scores, len(self.labels))
        return scores

    @lazy_for_dask(lambda model: (np.float64, model._n_values))
    def decision_function(self, X: Any, *, prepared: bool = False) -> FloatArray:
        """Compute the scores of rows as scikit-learn has them; X as for `scores`.

        Returns
        -------
        (rows,) float64 ndarray; (rows, labels) with three labels or more
            See `decision_values`. With two labels a score above `threshold` means ``labels[1]``; a
            regressor's scores are its predictions, (rows, targets) if it has several targets.
        """
        values = self.decision_values(self.scores(X, prepared=prepared))
        return values if self._n_values else values[:, 0]

    @lazy_for_dask(lambda model: (model._prediction_type, model._n_predictions))
    def predict(self, X: Any, *, prepared: bool = False) -> NDArray[Any]:
        """Predict labels, or a regressor's float64 predictions, (rows,); X as for `scores`.

        A regressor of several targets predicts (rows, targets).

        A one-class machine predicts -1 for an outlier, else 1. With three or more labels the
        predicted label can differ from the most probable one of `predict_proba`.
        """
        found = self.decide(self.scores(X, prepared=prepared))
        return found if self.kind == "regressor" else np.asarray(self.labels)[found]

    @lazy_for_dask(lambda model: (np.float64, len(model.calibrated.priors)))
    def predict_proba(
        self, X: Any, *, prior: Mapping[Any, float] | None = None, prepared: bool = False
    ) -> FloatArray:
        """Predict probabilities of labels; X as for `scores`.

        They are calibrated cross-fitted scores: from machines that were each fitted without one
        fold of the rows, calibrated on the held-out rows. With two labels the more probable one is
        the one that `predict` returns, unless class weights, a prior or a threshold shift it. With
        three or more labels it can differ from the one that `predict` returns, which the published
        machine decides alone.

        Parameters
        ----------
        prior : mapping of label to float, optional
            The labels' fractions among these rows; default: as among the training rows.

        Returns
        -------
        (rows, labels) float64 ndarray
            Columns in the order of ``labels``.

        Raises
        ------
        InputError
            If the model was fitted without probabilities, or the prior is not valid.
        """
        shares = None if prior is None else parse_prior(prior, self.labels)
        return self.calibrated.probabilities(self.evidence(X, prepared=prepared), shares)

    @lazy_for_dask(lambda model: (np.bool_, len(model.calibrated.priors)))
    def predict_set(
        self, X: Any, alpha: float = 0.1, *, prepared: bool = False
    ) -> NDArray[np.bool_]:
        """Predict the set of labels each row may have (conformal prediction); X as for `scores`.

        Of the rows of every label, a fraction of 1 - alpha has the label in its set, however
        accurate the machine is, if the rows are exchangeable with the training rows; ties between
        scores can increase the fraction. A set may be empty (a row unlike those of any label) or
        hold several labels. It depends on the row and the model alone: a hash of the row's values
        chooses the fold's machine that scores it.

        Parameters
        ----------
        alpha : float
            Fraction of rows whose set may lack their label, strictly between 0 and 1.

        Returns
        -------
        (rows, labels) bool ndarray
            Whether the label is in the row's set.

        Raises
        ------
        InputError
            If the model was fitted without probabilities, or alpha is out of range.
        """
        check_alpha(alpha)
        return self.calibrated.label_sets(self.evidence(X, prepared=prepared), alpha)

    @lazy_for_dask(lambda model: (np.float64, 2))
    def predict_interval(
        self, X: Any, alpha: float = 0.1, *, cross: bool = False, prepared: bool = False
    ) -> FloatArray:
        """Predict the interval that each row's target lies in (conformal prediction).

        Of rows that are drawn as the training rows were, a fraction of at least 1 - alpha has its
        target in the interval, whatever the machine is like: the mean over draws of training and
        new rows (maths.md 5.7 has the guarantee, also with weights). An interval depends on the row
        and the model alone: a hash of the row's values chooses the fold's machine that it is laid
        around, so that it need not hold the published machine's prediction.

        Parameters
        ----------
        X
            As for `scores`.
        alpha : float
            Fraction of rows whose target may lie outside, strictly between 0 and 1.
        cross : bool
            Whether to lay each interval over the machines of all folds (CV+). Such intervals are
            steadier and often narrower with few rows, and hold a fraction of about 1 - 2 alpha at
            the least, 1 - alpha as a rule.

        Returns
        -------
        (rows, 2) float64 ndarray
            Lower and upper ends. Of a quantile machine the interval is one-sided: with a quantile
            above 0.5 it has no lower end (-inf), below 0.5 no upper one (inf). Two such machines,
            of the quantiles a and 1 - a, give an interval that leaves out a row in 2 alpha.

        Raises
        ------
        InputError
            If the model was fitted without ``probability``, is no regressor, or alpha is out of
            range.

        Warns
        -----
        UserWarning
            If there are too few training rows for this alpha, so that intervals are infinite.
        """
        check_alpha(alpha)
        if why := self.held_out.explain_infinite(alpha, cross):
            warnings.warn(why, UserWarning, stacklevel=2)
        return self.held_out.intervals(self.evidence(X, prepared=prepared), alpha, cross)

    def thresholded(self, rule: str) -> Self:
        """Return the model with the score threshold between its two labels that a rule chooses.

        Parameters
        ----------
        rule : str
            "f1", "precision:.9", "recall:.95" (of the second label), or "cost:1:10", the costs of
            a false alarm and of a miss. The threshold is chosen on cross-fitted scores, and mapped
            to the published machine's scores by the rows on which both machines were fitted.

        Raises
        ------
        InputError
            If the model was fitted without probabilities, has more than two labels, or no
            threshold satisfies the rule.
        """
        known = self.calibrated
        return replace(self, threshold=known.to_published(known.threshold(rule)))

    @property
    def calibrated(self) -> Calibration:
        """The calibration of the scores; InputError if the model was fitted without it."""
        if self.calibration is None:
            what = "a classifier that was fitted with `--probability` (probability=True)"
            raise InputError(
                f"probabilities, sets of labels and thresholds are of {what}{self._lost}"
            )
        return self.calibration

    @property
    def held_out(self) -> Residuals:
        """The residuals of rows held out; InputError if the model was fitted without them."""
        if self.residuals is None:
            what = "a regression that was fitted with `--probability` (probability=True)"
            raise InputError(f"intervals of targets are of {what}")
        return self.residuals

    @property
    def _lost(self) -> str:
        """The end of a sentence: that an edit dropped what the fit had learnt; "" if none did."""
        asked = (self.provenance.get("parameters") or {}).get("probability")
        if not (asked and self.provenance.get("edits")):
            return ""
        return (
            ", and edits of its rows have dropped what this one had learnt from the rows as they "
            "were; fit the edited rows again"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file, atomically.

        Raises
        ------
        InputError
            If its kernel is a user-defined function.
        """
        if not self.kernel.storable:
            raise InputError(
                "a model with a kernel function of your own cannot be written to a file; "
                "use a kernel that has a name, or precomputed entries"
            )
        arrays: dict[str, NDArray[Any]] = {"coef": self.coef, "intercept": self.intercept}
        kind, gate = "none", None
        if self.landmarks is not None:
            kind, rows = pack_rows("landmarks", self.landmarks)
            arrays |= rows
        if self.support is not None:
            arrays["support"] = self.support
        if self.gate is not None and self.part is not None:
            gate, rows = pack_rows("gate_landmarks", self.gate.landmarks)
            arrays |= {**rows, "part": self.part}
            arrays |= {"gate_coef": self.gate.coef, "gate_offset": self.gate.offset}
            if self.gate.ids is not None:
                arrays["gate_ids"] = self.gate.ids
        if self.ledger is not None:
            arrays |= to_arrays(self.ledger)
        if self.preparation.metric is not None:
            arrays["metric"] = self.preparation.metric
        own: dict[str, Any] = {} if not self.threshold else {"threshold": self.threshold}
        if self.calibration is not None:
            own["calibration"], more = self.calibration.to_arrays()
            arrays |= more
        if self.residuals is not None:
            own["residuals"], more = self.residuals.to_arrays()
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
            "preparation": replace(self.preparation, metric=None).to_dict(),
            "provenance": self.provenance,
            **own,
        }
        write_file(path, record, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model; the training data is not needed.

        Raises
        ------
        InputError
            If there is no such file, it is not a model, it is damaged, or a newer bigscreen wrote
            it; the message says which.
        """
        with open_file(path) as (record, array):
            return cls(**_fields(record, array))


def match_store(model: Model, dataset: Rows, name: str) -> Model:
    """Return the model that scores a store: itself, or widened for a wider svmlight store.

    ``name`` is the model's name in error messages.

    Like LIBSVM, the widened model treats a column that it does not have as 0 in every support
    vector.

    Raises
    ------
    InputError
        If the store does not match: see `check_match`.
    """
    base = getattr(dataset, "manifest", {}).get("extra", {}).get("index_base")
    if base is not None and model._is_svmlight and dataset.n_features > model.n_features:
        model = model.widened(dataset.n_features)
    check_match(model, dataset, name)
    return model


def check_match(model: Model, dataset: Rows, name: str) -> None:
    """Raise InputError if a store's features do not match the model's.

    Parameters
    ----------
    model : Model
    dataset : Rows
    name : str
        The model's name in the message.

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
    if dataset.preparation.features_fingerprint != model.preparation.features_fingerprint:
        raise InputError(
            f"{data} was scaled or encoded otherwise than the data {name} was fitted on; "
            f"ingest it again with `--like {name}`"
        )


def _fields(record: dict[str, Any], array: Callable[[str], np.ndarray]) -> dict[str, Any]:
    """Return the keyword arguments of `Model` from a file's record; ``array`` reads by name."""
    width, optional = int(record["n_features"]), record.get("optional", [])
    kind, gate = record["landmarks"], record.get("gate")
    model = {
        "kernel": kernel_from_dict(record["kernel"]),
        "landmarks": None if kind == "none" else unpack_rows("landmarks", kind, width, array),
        "coef": array("coef"),
        "intercept": array("intercept"),
        "labels": record["labels"],
        "preparation": replace(
            Preparation.from_dict(record["preparation"]),
            metric=array("metric") if "metric" in optional else None,
        ),
        "provenance": update_provenance(record["provenance"]),
        "kind": record.get("kind", "classifier"),
        "strategy": record.get("strategy", "rest"),
        "support": array("support") if "support" in optional else None,
        "threshold": float(record.get("threshold", 0.0)),
    }
    if "calibration" in record:
        model["calibration"] = Calibration.from_arrays(record["calibration"], array)
    if "residuals" in record:
        model["residuals"] = Residuals.from_arrays(record["residuals"], array)
    if "fold_landmarks" in record:
        known = record["fold_landmarks"], width, "fold_support" in optional
        model["fold_machines"] = FoldMachines.from_arrays(*known, array)
    if "ledger_margins" in optional:
        names = [name for name in optional if name.startswith("ledger_")]
        model["ledger"] = from_arrays({name: array(name) for name in names})
    if gate is not None:
        ids = array("gate_ids") if "gate_ids" in optional else None
        rows = unpack_rows("gate_landmarks", gate, width, array)
        model["gate"] = Gate(rows, array("gate_coef"), array("gate_offset"), ids)
        model["part"] = array("part")
    if not (np.isfinite(model["coef"]).all() and np.isfinite(model["intercept"]).all()):
        raise ValueError("its coefficients are not all finite numbers")
    return model


def update_provenance(provenance: dict[str, Any]) -> dict[str, Any]:
    """Update the provenance of an older file, which called a penalised offset "constant"."""
    asked = provenance.get("parameters", {})
    if asked.get("intercept") != "constant":
        return provenance
    return {**provenance, "parameters": {**asked, "intercept": "penalized"}}

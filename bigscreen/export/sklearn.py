"""Export a model as a pipeline of scikit-learn's estimators, which runs without bigscreen."""

from __future__ import annotations

import os
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import TruncatedSVD
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import SGDOneClassSVM
from sklearn.multiclass import OneVsOneClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC, LinearSVR

from bigscreen.data.preparation import Preparation
from bigscreen.errors import InputError
from bigscreen.files.output import replacing
from bigscreen.kernels.standard import Compiled
from bigscreen.model.model import Model

TRUSTED_TYPES = ("numpy.dtype",)
"""Types that skops must be allowed to load if the model has categories."""

KERNELS = ("linear", "rbf", "polynomial", "sigmoid", "laplacian", "chi2")
"""Kernels that scikit-learn's `Nystroem` has, too."""


def build_pipeline(model: Model) -> tuple[Pipeline, list[str]]:
    """Build a fitted pipeline: preparation, learned metric, kernel with landmarks, linear machine.

    Returns
    -------
    Pipeline
        Takes arrays with the source's columns, categories as texts.
    list of str
        Notes for the user of the pipeline, one sentence each.

    Raises
    ------
    InputError
        If scikit-learn has no equivalent of the model.
    """
    if model.gate is not None:
        raise InputError("scikit-learn has no machine of parts (an early divide and conquer)")
    if model.landmarks is not None and model.kernel.name not in KERNELS:
        raise InputError(
            f"scikit-learn's Nystroem has no {model.kernel.name} kernel; export to onnx"
            if isinstance(model.kernel, Compiled)
            else f"a {model.kernel.name} kernel is not exported: it has no formula"
        )
    notes = []
    if model.calibration is not None:
        notes.append("probabilities stay here: the pipeline has scores and labels alone")
    order = np.arange(model.n_features)
    steps: list[tuple[str, Any]] = []
    if model.preparation.changes_features:
        steps.append(("preparation", _preparation(model.preparation)))
        order = _order(model.preparation)
    if model.preparation.metric is not None:
        steps.append(("metric", _metric(model.preparation.metric, order)))
        order = np.arange(model.n_features)
    coef = model.coef
    if model.landmarks is None:
        coef = coef[:, order]
    else:
        rows: Any = model.landmarks
        Z = np.asarray(rows.toarray() if issparse(rows) else rows, np.float64)[:, order]
        steps.append(("kernel", _kernel(model, Z)))
    steps.append(("machine", _machine(model, coef)))
    return Pipeline(steps), notes


def _order(known: Preparation) -> NDArray[np.int64]:
    """Return the model's feature index of each pipeline feature, (n_features,).

    scikit-learn's pipeline puts numeric features first, then one-hot features, then indicators of
    missing numbers, which are the last of the model's features, too.
    """
    places = known.places
    kinds = [
        np.arange(places[j], places[j] + len(known.categories[j])) for j in sorted(known.categories)
    ]
    width = known.n_features or 0
    last = np.arange(width - len(known.indicators), width)
    return np.concatenate([places[known.numeric_columns], *kinds, last]).astype(np.int64)


def _preparation(known: Preparation) -> ColumnTransformer:
    """Build a fitted ColumnTransformer that fills, scales and encodes source columns.

    It puts features in the order of `_order`. InputError if one-hot features are scaled, as they
    were in stores of older versions.
    """
    width = known.n_raw
    if width is None:
        given = known.factor if known.offset is None else known.offset
        assert given is not None
        width = len(given)
    numeric = [j for j in range(width) if j not in known.categories]
    kinds = sorted(known.categories)
    places = np.arange(width) if known.n_raw is None else known.places
    steps: list[tuple[str, Any]] = []
    if known.fill is not None:
        marks = [np.nan, *known.missing_marks.numbers]
        gaps = [SimpleImputer(missing_values=mark, keep_empty_features=True) for mark in marks]
        steps += [(f"missing-{k}" if k else "missing", gap) for k, gap in enumerate(gaps)]
    steps.append(("scale", StandardScaler()))
    parts: list[tuple[str, Any, Any]] = []
    if numeric:
        parts.append(("numbers", Pipeline(steps), numeric))
    if kinds:
        lists = [np.array(known.categories[j], object) for j in kinds]
        encoder = OneHotEncoder(categories=lists, handle_unknown="ignore", sparse_output=False)
        parts.append(("kinds", encoder, kinds))
    if known.indicators:
        parts.append(("gaps", _gaps(known), known.indicators))
    out = ColumnTransformer(parts, sparse_threshold=0.0)
    sample = np.zeros((2, width), object if kinds else np.float64)
    sample[0] = 1.0
    for j in kinds:
        sample[:, j] = known.categories[j][0]
    out.fit(sample)
    if numeric:
        fitted = out.named_transformers_["numbers"]
        if known.fill is not None:
            for name, step in fitted.steps:
                if name.startswith("missing"):
                    step.statistics_ = known.fill[numeric]
        features = places[numeric]
        scaler = fitted.named_steps["scale"]
        zeros, ones = np.zeros(len(numeric)), np.ones(len(numeric))
        scaler.mean_ = zeros if known.offset is None else known.offset[features]
        scaler.scale_ = ones if known.factor is None else 1.0 / known.factor[features]
        scaler.var_ = scaler.scale_**2
    if kinds and (known.offset is not None or known.factor is not None):
        own = _order(known)[len(numeric) :]
        moved = known.offset is not None and bool(np.any(known.offset[own]))
        if moved or (known.factor is not None and bool(np.any(known.factor[own] != 1.0))):
            raise InputError(
                "the model was saved by an older version, which scaled categories; the pipeline "
                "does not: ingest and fit again, or export to onnx"
            )
    return out


def _gaps(known: Preparation) -> Pipeline:
    """Build a pipeline that says where numbers are missing: NaN, or a number that means missing."""
    marks = [np.nan, *known.missing_marks.numbers]
    # scikit-learn looks for one number: turn NaN, and then each other mark, into the last one.
    turns = [
        (f"mark-{k}", SimpleImputer(missing_values=mark, strategy="constant", fill_value=marks[-1]))
        for k, mark in enumerate(marks[:-1])
    ]
    to_numbers = StandardScaler(with_mean=False, with_std=False)
    found = MissingIndicator(missing_values=marks[-1], features="all")
    return Pipeline([("numbers", to_numbers), *turns, ("found", found)])


def _metric(metric: NDArray[np.float64], order: NDArray[np.int64]) -> TruncatedSVD:
    """Build the fitted linear map of a learned metric, whose results have the model's order.

    ``order``: the model's feature index of each feature that the previous step returns. The map is
    a `TruncatedSVD`, scikit-learn's estimator that multiplies by a given matrix and does no more.
    """
    out = TruncatedSVD(n_components=len(metric))
    out.components_ = (np.diag(metric) if metric.ndim == 1 else metric)[order].T.copy()
    out.n_features_in_ = len(metric)
    return out


def _kernel(model: Model, Z: NDArray[np.float64]) -> Nystroem:
    """Build a fitted Nystroem whose output is the kernel entries with the landmarks Z (m, d)."""
    kernel: Any = model.kernel
    known = {
        name: getattr(kernel, name)
        for name in ("gamma", "degree", "coef0")
        if hasattr(kernel, name)
    }
    out = Nystroem(kernel=kernel.name, n_components=len(Z), **known)
    out.components_, out.normalization_ = Z, np.eye(len(Z))
    out.component_indices_ = np.arange(len(Z)) if model.support is None else model.support
    out.n_features_in_ = Z.shape[1]
    return out


def _machine(model: Model, coef: NDArray[np.float64]) -> Any:
    """Build the fitted linear machine that computes the model's scores.

    ``coef``, (k, m) or (k, d), multiplies the columns of the pipeline's previous step.
    """
    width, offset = coef.shape[1], model.intercept
    if model.kind == "regressor":
        out: Any = LinearSVR()
        out.coef_, out.intercept_ = coef[0], offset
    elif model.kind == "one-class":
        out = SGDOneClassSVM()
        out.coef_, out.offset_ = coef[0], -offset
    elif len(model.labels) > 2 and model.strategy == "one":
        out = OneVsOneClassifier(LinearSVC())
        out.classes_, out.pairwise_indices_ = np.asarray(model.labels), None
        pairs = combinations(range(len(model.labels)), 2)
        out.estimators_ = [
            _linear(np.array([0, 1]), coef[k : k + 1], offset[k : k + 1])
            for k, _ in enumerate(pairs)
        ]
    else:
        shift = model.threshold if len(model.labels) == 2 else 0.0
        out = _linear(np.asarray(model.labels), coef, offset - shift)
    out.n_features_in_ = width
    return out


def _linear(labels: NDArray[Any], coef: Any, offset: Any) -> LinearSVC:
    """Make a fitted LinearSVC with these classes, coefficients (k, d) and offsets (k,)."""
    out = LinearSVC()
    out.classes_, out.coef_, out.intercept_ = labels, coef, offset
    out.n_features_in_, out.n_iter_ = coef.shape[1], 0
    return out


def write_sklearn(model: Model, out: str | os.PathLike[str], safe: bool) -> list[str]:
    """Write the pipeline with joblib or, if ``safe``, with skops, which loads without running code.

    Raises
    ------
    InputError
        If scikit-learn has no equivalent of the model, or skops is missing.
    """
    made, notes = build_pipeline(model)
    if safe:
        with replacing(out) as file:
            file.write(_skops().io.dumps(made))
        if model.preparation.categories:
            trusted = f"trusted={list(TRUSTED_TYPES)}"
            notes.append(f"it is read by skops.io.load(file, {trusted}): texts are of that type")
        return notes
    import joblib

    with replacing(out) as file:
        joblib.dump(made, file)
    notes.append("joblib files run code when they are read: take them from whom you trust alone")
    return notes


def read_sklearn(path: str | os.PathLike[str], safe: bool) -> Pipeline:
    """Load the pipeline from a file that `write_sklearn` has just written.

    ``safe``: it is a skops file; InputError if it has a type that skops would not trust.
    """
    if not safe:
        import joblib

        return joblib.load(path)
    skops = _skops()
    unknown = sorted(set(skops.io.get_untrusted_types(file=path)) - set(TRUSTED_TYPES))
    if unknown:
        raise InputError(f"skops trusts no {unknown[0]} and could not read the file again")
    return skops.io.load(path, trusted=list(TRUSTED_TYPES))


def _skops() -> Any:
    """Import and return skops; InputError if it is missing."""
    try:
        import skops.io
    except ImportError as error:
        raise InputError(
            f"exporting to skops needs it ({error}): pip install 'bigscreen[export]'"
        ) from error
    return skops


def pipeline_scores(made: Pipeline, model: Model, X: NDArray[Any]) -> NDArray[np.float64] | None:
    """Compute the model's scores (rows, k) of source rows X by the pipeline ``made``.

    None for one-against-one machines: scikit-learn defines their scores otherwise.
    """
    if model.kind == "regressor":
        found = made.predict(X)
    elif len(model.labels) > 2 and model.strategy == "one":
        return None
    else:
        found = made.decision_function(X) + (model.threshold if len(model.labels) == 2 else 0.0)
    found = np.asarray(found, np.float64)
    return found[:, None] if found.ndim == 1 else found

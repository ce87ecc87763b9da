"""Kernel columns, features and predictions as lazy Dask arrays, for users of Dask.

Each function adds tasks to the graph of a Dask array or data frame, one for each block of rows, and
computes nothing. The results run wherever Dask computes its collections: on threads, on the workers
of a cluster, with or without a client. No fleet of bigscreen is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.dask_rows import check_lazy, dask_rows
from bigscreen.data.preparation import Preparation
from bigscreen.data.source_rows import prepare_rows
from bigscreen.data.views import Moved
from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.features.nystrom import compute_features, design_of_record
from bigscreen.fleet.graphs import later, map_rows
from bigscreen.kernels.base import Kernel
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import Compiled, make_kernel

__all__ = ["decision_function", "features", "kernel_columns", "predict", "predict_proba"]


def kernel_columns(
    X: Any,
    landmarks: Any,
    *,
    kernel: str = "rbf",
    gamma: float | None = None,
    degree: int = 3,
    coef0: float = 0.0,
) -> Any:
    """Compute the kernel entries between rows and landmarks, lazily.

    Parameters
    ----------
    X : Dask array or data frame of shape (n, d)
        Numbers, in blocks of numpy or scipy CSR arrays, whose sizes may be unknown.
    landmarks : array or sparse array (m, d)
        Rows in memory, such as the ``components_`` of a fitted estimator.
    kernel : {"rbf", "polynomial", "poly", "laplacian", "sigmoid", "matern12", "matern32", \
    "matern52", "chi2", "linear"}, default="rbf"
        ``exp(-gamma ||a - b||^2)``, ``(gamma <a, b> + coef0)^degree``, ``exp(-gamma ||a - b||_1)``,
        ``tanh(gamma <a, b> + coef0)``; ``exp(-s)``, ``(1 + s) exp(-s)`` and
        ``(1 + s + s^2 / 3) exp(-s)`` with ``s = gamma ||a - b||`` times 1, the root of 3 and the
        root of 5; ``exp(-gamma sum (a - b)^2 / (a + b))``, for values of at least 0; or ``<a, b>``.
    gamma : float or None, default=None
        None: ``1 / d``.
    degree : int, default=3
    coef0 : float, default=0.0

    Returns
    -------
    Dask array of shape (n, m), float32
        With the blocks of rows of X, and all columns in one block.

    Raises
    ------
    InputError
        If X is no Dask collection with as many columns as the landmarks, or a parameter is out of
        its range.
    """
    check_lazy(X)
    side = Operand(landmarks)
    m, d = side.X.shape
    made = make_kernel(kernel, 1.0 / d if gamma is None else gamma, degree, coef0)
    if not isinstance(made, Compiled):
        raise InputError(f"a {kernel} kernel has no entries to compute; its columns are given")
    rows = dask_rows(X, None, d, "the landmarks have")
    return map_rows("kernel_columns", _Columns(made), side, rows, m, np.float32)


def features(X: Any, model: Any) -> Any:
    """Compute the Nystrom features of rows by a machine on landmarks, lazily.

    The features of x are ``T' k(x, Z)``, with the machine's landmarks Z and ``T T' = k(Z, Z)^+``
    without the directions that the fit dropped, so inner products of features approximate the
    kernel. T is computed once, by a task of the graph.

    Parameters
    ----------
    X : Dask array or data frame of shape (n, d)
        As in `decision_function`.
    model : Model or fitted estimator
        Fitted with landmarks: `NystroemSVC`, ``n_components=`` or ``bigscreen fit --landmarks``.

    Returns
    -------
    Dask array of shape (n, r), float32
        r, the rank of the landmarks' kernel matrix, is in ``certificate_``. With the blocks of rows
        of X, and all columns in one block.

    Raises
    ------
    InputError
        As in `decision_function`, and if the machine has no landmarks.
    """
    check_lazy(X)
    fitted = getattr(model, "model_", model)
    record = getattr(fitted, "provenance", {}).get("nystrom")
    if record is None:
        raise InputError(
            "features are those of a machine on landmarks (NystroemSVC, n_components= or "
            "--landmarks), and this machine has none"
        )
    rows = dask_rows(X, getattr(model, "feature_names_in_", None), model.n_features_in_)
    design = later(_design, (fitted.kernel, fitted.landmarks, record))
    call = RowFeatures(fitted.preparation)
    return map_rows("features", call, design, rows, record["rank"], np.float32)


def decision_function(model: Any, X: Any) -> Any:
    """Compute the scores of rows by a fitted machine, lazily.

    Parameters
    ----------
    model : Model or fitted estimator
        It is sent to the workers once.
    X : Dask array or data frame of shape (n, d)
        Rows with the columns of the rows of the fit, in blocks of numpy or scipy CSR arrays, whose
        sizes may be unknown. Columns of a data frame are looked up by the names that the fit had.

    Returns
    -------
    Dask array of float64, of shape (n,), or (n, columns) with three labels or more
        ``model.decision_function`` of each block of rows in memory.

    Raises
    ------
    InputError
        If X is no Dask collection with the columns of the fit, or the model has no such method.
    """
    return _answer(model, "decision_function", X)


def predict(model: Any, X: Any) -> Any:
    """Predict the labels, or targets, of rows by a fitted machine, lazily.

    Parameters
    ----------
    model, X : as in `decision_function`

    Returns
    -------
    Dask array of shape (n,)
        ``model.predict`` of each block of rows in memory.

    Raises
    ------
    InputError
        As in `decision_function`.
    """
    return _answer(model, "predict", X)


def predict_proba(model: Any, X: Any) -> Any:
    """Predict the probabilities of labels by a classifier fitted with probabilities, lazily.

    Parameters
    ----------
    model, X : as in `decision_function`

    Returns
    -------
    Dask array of shape (n, labels), float64
        ``model.predict_proba`` of each block of rows in memory.

    Raises
    ------
    InputError
        As in `decision_function`, and if the model was fitted without probabilities.
    """
    return _answer(model, "predict_proba", X)


def _answer(model: Any, method: str, X: Any) -> Any:
    """Call a method of a machine with the Dask rows X; InputError if it has no such method."""
    check_lazy(X)
    if not hasattr(model, method):
        raise InputError(
            f"this {type(model).__name__} has no {method}; give a machine that has one"
        )
    return getattr(model, method)(X)


@dataclass(frozen=True)
class _Columns:
    """The task of `kernel_columns` for a block of rows."""

    kernel: Kernel

    def __call__(self, landmarks: Operand, block: Any) -> NDArray[Any]:
        """Return the kernel entries, float32, between the rows of a block and the landmarks."""
        return self.kernel.block(block, landmarks)


def _design(made_of: tuple[Kernel, Any, dict[str, Any]]) -> Design:
    """Return the design of a model from its kernel, its landmarks and the record of its factor."""
    return design_of_record(*made_of)


@dataclass(frozen=True)
class RowFeatures:
    """The function that computes the features of a block of rows with the source's columns."""

    preparation: Preparation

    def __call__(self, design: Design, block: Any) -> NDArray[Any]:
        """Return the features, float32, of the rows of a block, which have the source's columns."""
        rows, data = self.preparation.map(prepare_rows(self.preparation, block)), design.data
        return compute_features(
            design, data.move(rows) if isinstance(data, Moved) else rows, np.float32
        )

"""Kernel columns and predictions as lazy Dask arrays, for users of Dask.

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
from bigscreen.errors import InputError
from bigscreen.fleet.graphs import map_rows
from bigscreen.kernels.base import Kernel
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import Compiled, make_kernel

__all__ = ["decision_function", "kernel_columns", "predict", "predict_proba"]


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
    kernel : {"rbf", "polynomial", "poly", "laplacian", "sigmoid", "linear"}, default="rbf"
        ``exp(-gamma ||a - b||^2)``, ``(gamma <a, b> + coef0)^degree``, ``exp(-gamma ||a - b||_1)``,
        ``tanh(gamma <a, b> + coef0)`` or ``<a, b>``.
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
        If X is no Dask collection with the columns of the fit.
    """
    check_lazy(X)
    return model.decision_function(X)


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
    check_lazy(X)
    return model.predict(X)


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
    check_lazy(X)
    return model.predict_proba(X)


@dataclass(frozen=True)
class _Columns:
    """The task of `kernel_columns` for a block of rows."""

    kernel: Kernel

    def __call__(self, landmarks: Operand, block: Any) -> NDArray[Any]:
        """Return the kernel entries, float32, between the rows of a block and the landmarks."""
        return self.kernel.block(block, landmarks)

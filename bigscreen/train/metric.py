"""Learn a metric: the average gradient outer product of a machine, and its root as a map.

The scores f of a fitted machine change along some directions of the columns more than along
others. The average gradient outer product (AGOP), ``M = mean_i w_i sum_c g_ic g_ic'`` over rows i
with weights w and the gradients g of the scores c, says by how much. The machine of the mapped rows
``x M^(1/2)`` has the Mahalanobis distance of M in its kernel: a recursive feature machine of
Radhakrishnan et al. (2024), see maths.md 5.12.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import issparse

from bigscreen.data.rows import Rows
from bigscreen.errors import InputError
from bigscreen.features.design import ROWS_PER_TILE, row_ranges
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.operand import Operand
from bigscreen.model.model import Model
from bigscreen.numerics.rows import FloatArray
from bigscreen.options.train import TrainOptions
from bigscreen.options.tuning import Tuning


@dataclass(frozen=True)
class MetricTuning:
    """Tuned values of learning a metric.

    Parameters
    ----------
    max_matrix_columns : int
        Refuse a full metric of more columns: it costs the square of their number for every row.
    first_tol : float
        Solve the machine that a metric is learned from to this relative gap, or to the fit's
        ``tol`` if that is larger.
    """

    max_matrix_columns: int = 1000
    first_tol: float = 1e-2


METRIC = MetricTuning()


def options_of_first(options: TrainOptions, rows: int) -> TrainOptions:
    """Return the options of the first machine on landmarks that a metric is learned from.

    ``options``: the options of the fit; ``rows``: the number of rows, which bounds the number of
    landmarks.
    """
    own: dict[str, Any] = dict(options.metric_machines[0])
    if "C" in own:
        own["lam"] = None
    return replace(
        options,
        **own,
        metric_learning="none",
        metric_from=None,
        exact=False,
        early=False,
        landmarks=min(options.landmarks, rows),
        sampling="uniform",
        solver="auto",
        screening="auto",
        cache=None,
        tol=max(options.tol, METRIC.first_tol),
        work=None if options.work is None else options.work / "metric",
        resume=False,
        tuning=Tuning(),
    )


def check_columns(data: Rows, kind: str) -> None:
    """Raise InputError if rows have too many columns for a metric of this kind."""
    most = METRIC.max_matrix_columns
    if kind == "full" and data.n_features > most:
        raise InputError(
            f"a full metric is for at most {most:,} columns, and the rows have "
            f"{data.n_features:,}; use a diagonal one"
        )


def average_gradient_product(
    model: Model, data: Rows, fleet: Fleet, diagonal: bool = False
) -> FloatArray:
    """Compute the average gradient outer product of a machine's scores over rows.

    Parameters
    ----------
    model : Model
        Without a gate, and with the metric of ``data`` if that has one; its kernel must have a
        gradient.
    data : Rows
        Rows that match the model. They are read shard by shard.
    fleet : Fleet
        Runs the shards; sums are float64, in shard order, and the same on every fleet.
    diagonal : bool
        Whether to compute the diagonal only.

    Returns
    -------
    float64 (d, d), or (d,) if ``diagonal``
        ``sum_i w_i sum_c g_ic g_ic' / sum_i w_i`` for the gradients g of the scores c.

    Raises
    ------
    InputError
        If the kernel has no gradient.
    """
    kind: type = np.float32
    if model.landmarks is not None:
        kind = model.kernel.precision(data.max_sqnorm, data.n_features)
    parts = fleet.each(_GradientSum(model, data, diagonal, kind), range(data.n_shards))
    products, weights = zip(*parts, strict=True)
    total: FloatArray = sum(products[1:], products[0])
    return total / float(sum(weights))


@dataclass(frozen=True)
class _GradientSum:
    """The function that sums the weighted gradient products of a shard's rows, and the weights."""

    model: Model
    data: Rows
    diagonal: bool
    entries: type

    def __call__(self, shard: int) -> tuple[FloatArray, float]:
        """Return the sums of the shard with this number."""
        model, data = self.model, self.data
        d = data.n_features
        total, weight = np.zeros(d if self.diagonal else (d, d)), 0.0
        side = None if model.landmarks is None else Operand(model.landmarks)
        start, stop = data.shard(shard)
        for a, b in row_ranges(stop - start, min(data.chunk_rows, ROWS_PER_TILE)):
            X: Any = data.X(start + a, start + b)
            weights = data.weights(start + a, start + b)
            weight += float(weights.sum())
            gradients: Iterable[FloatArray]
            if side is None:
                gradients = (np.broadcast_to(own, (b - a, d)) for own in model.coef)
            else:
                gradients = model.kernel.gradients(X, side, model.coef.T, self.entries)
            for each in gradients:
                if self.diagonal:
                    total += weights @ np.square(each)
                else:
                    total += each.T @ (weights[:, None] * each)
        return total, weight


def root_of(product: FloatArray, sample: Any) -> FloatArray:
    """Return the root of an average gradient outer product, as a map of the columns.

    Parameters
    ----------
    product : float64 (d, d), or its diagonal (d,)
    sample : ndarray or csr_array (k, d)
        Rows whose mean squared distance the map keeps, so that a gamma keeps its meaning.

    Returns
    -------
    float64, in the shape of ``product``
        Ones (the identity) if all gradients are 0.
    """
    if product.ndim == 1:
        root = np.sqrt(product)
    else:
        values, vectors = np.linalg.eigh(product)
        root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    X = np.asarray(sample.toarray() if issparse(sample) else sample, np.float64)
    X = X - X.mean(axis=0)
    spread = float(np.sum(np.square(X * root if root.ndim == 1 else X @ root)))
    if not spread > 0:
        return np.ones(len(product)) if product.ndim == 1 else np.eye(len(product))
    return np.asarray(root * np.sqrt(float(np.sum(np.square(X))) / spread))


def learn_metric(model: Model, data: Rows, kind: str, fleet: Fleet) -> FloatArray:
    """Return the metric that a machine on landmarks gives, as `Preparation.metric`.

    If the rows have a metric already, the result is both, one after the other: a map of the rows
    before either.

    Parameters
    ----------
    model : Model
        Fitted to ``data``.
    data : Rows
        May be mapped by an earlier metric of this kind.
    kind : {"diagonal", "full"}
    fleet : Fleet

    Returns
    -------
    float64 (d,) if diagonal, or (d, d)
    """
    product = average_gradient_product(model, data, fleet, kind == "diagonal")
    own, before = root_of(product, model.landmarks), data.preparation.metric
    if before is None:
        return own
    return np.asarray(before * own if kind == "diagonal" else before @ own)

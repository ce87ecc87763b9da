"""Base of the kernel machines, which are exact or, with ``n_components``, on Nystrom features."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from bigscreen.data.rows import Rows
from bigscreen.errors import InputError, is_number
from bigscreen.estimators.base import Machine, check_components
from bigscreen.model.model import Model
from bigscreen.options.train import TrainOptions
from bigscreen.options.tuning import Tuning
from bigscreen.problems.point import meets_tol


@dataclass(kw_only=True, eq=False, repr=False)
class KernelMachine(Machine):
    """Base of the kernel machines: their common parameters, documented in `SVC`, and the fit."""

    kernel: str | Callable[[Any, Any], Any] = "rbf"
    degree: int = 3
    gamma: float | str = "scale"
    coef0: float = 0.0
    n_components: int | None = None
    sampling: str = "uniform"
    metric_learning: str = "none"
    tol: float = 1e-3
    shrinking: bool = True
    max_iter: int = -1
    time_budget: float | None = None
    solver: str = "auto"
    screening: str = "auto"
    device: str = "auto"
    cache_size: float | None = None
    memory: int | None = None
    n_jobs: int | None = None
    scheduler: Any = None
    work: str | os.PathLike[str] | None = None
    warm_start: bool = False
    random_state: Any = None
    verbose: bool | int = False
    tuning: Tuning | None = None

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: X is pairwise if it is, or becomes, kernel entries."""
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = (
            self.kernel == "precomputed" or getattr(self, "_objects", None) is not None
        )
        return tags

    @property
    def _runs_on_workers(self) -> bool:
        """Whether the kernel has a name: worker processes compute its entries from stored rows."""
        return not (callable(self.kernel) or self.kernel == "precomputed")

    # -- parameters ------------------------------------------------------------------------------
    def _options(self) -> TrainOptions:
        """Check the parameters of kernel machines and convert them to training options."""
        if self.scheduler is not None and not self._runs_on_workers:
            raise InputError(
                "a precomputed kernel, or one that is a function, needs rows in memory; give no "
                "scheduler"
            )
        if not isinstance(self.shrinking, (bool, np.bool_)):
            raise InputError(f"shrinking must be True or False, got {self.shrinking!r}")
        count = self._landmarks
        landmarks = {} if count is None else {"landmarks": check_components(count)}
        return self._shared_options(
            exact=self._landmarks is None,
            kernel=self.kernel,
            gamma=self.gamma,
            degree=self.degree,
            coef0=self.coef0,
            sampling=self.sampling,
            metric_learning=self.metric_learning,
            cache=self._cache(),
            **landmarks,
            **self._own_options(),
        )

    @property
    def _landmarks(self) -> int | None:
        """Number of landmarks (rows a Nystrom machine sums over); None if the machine is exact."""
        return self.n_components

    def _own_options(self) -> dict[str, Any]:
        """Return the training options of a subclass's own parameters, as keyword arguments."""
        return {}

    def _cache(self) -> int | None:
        """Return ``cache_size``, which is in MiB, in bytes; None if it is None."""
        size = self.cache_size
        if size is None:
            return None
        if not (is_number(size) and size > 0):
            raise InputError(f"cache_size must be a positive number of megabytes, got {size!r}")
        return math.ceil(size * 2**20)

    def _penalty(self, C: Any) -> Any:
        """Return C, or 1e10 if C is infinite (a hard margin): solvers need a finite bound."""
        return 1e10 if isinstance(C, float) and C == math.inf else C

    def _seed(self) -> int:
        """Return the seed of the fit; 0 if ``random_state`` is None: fits are repeatable."""
        return 0 if self.random_state is None else super()._seed()

    def _adapt_options(self, options: TrainOptions, data: Rows) -> TrainOptions:
        """Adapt the options to these rows; rows of objects became a precomputed kernel."""
        options = super()._adapt_options(options, data)
        if self._objects is not None:
            return replace(options, kernel="precomputed")
        return options

    def _columns(self, options: TrainOptions, data: Rows) -> int:
        """Return how many numbers a pass processes per row: all rows' entries if exact."""
        return data.n_rows if options.exact else super()._columns(options, data)

    def _rows(
        self, X: Any, y: Any, sample_weight: Any, owned: ExitStack
    ) -> tuple[Rows, NDArray[np.int64] | None]:
        """Return the rows to fit, and the numbers in X of the rows with weight (None: all).

        Rows that are not numeric are replaced by their kernel entries with each other. ``owned``
        deletes temporary folders after the fit.
        """
        # Training rows that are not numeric: the kernel function compares other rows with them.
        self._objects = X if callable(self.kernel) and _is_not_numeric(X) else None
        return super()._rows(self._kernel_entries(X), y, _without_negative(sample_weight), owned)

    def _kernel_entries(self, X: Any) -> Any:
        """Return X or, if rows are not numeric, their kernel entries with the training rows."""
        if self._objects is None:
            return X
        assert callable(self.kernel)
        found = self.kernel(X, self._objects)
        return found.toarray() if sparse.issparse(found) else np.asarray(found, np.float64)

    def _scores(self, X: Any) -> NDArray[np.float64]:
        """Compute scores, float64 (rows, k), of X; rows that are not numeric by kernel entries."""
        check_is_fitted(self)
        return super()._scores(self._kernel_entries(X))

    # -- what was found --------------------------------------------------------------------------
    @property
    def coef_(self) -> Any:
        """Weights of the features (scores, n_features) of a linear kernel, sparse if X was.

        Of a machine on landmarks the weights (scores, n_components) of ``k(X, components_)``.
        Read-only: predictions use ``model_``.
        """
        linear, exact = self.kernel == "linear", self._landmarks is None
        if exact and not linear:
            raise AttributeError(
                "coef_ is only available when using a linear kernel, or n_components"
            )
        check_is_fitted(self)
        model = self.model_
        if model.gate is not None:
            raise AttributeError("after early every part of the rows has a machine of its own")
        coef: Any = self._to_sklearn_sign(model.coef).copy()
        wide = linear and sparse.issparse(model.landmarks)
        if linear and model.landmarks is not None:
            coef = (sparse.csr_array(coef) if wide else coef) @ model.landmarks
        (coef.data if wide else coef).flags.writeable = False
        return coef

    def _to_sklearn_sign(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert values, one per score (first axis), to scikit-learn's signs.

        They are unchanged here; machines that fit classes one against one override this.
        """
        return values

    def _publish(self, model: Model, numbers: NDArray[np.int64] | None) -> None:
        """Set the fitted attributes; ``numbers``: the fitted rows' numbers in X, None for all."""
        exact = self._landmarks is None
        if exact and numbers is not None:
            model = _renumber(model, numbers, self.n_features_in_)
        super()._publish(model, numbers)
        self._gamma = getattr(model.kernel, "gamma", 0.0)
        self.intercept_ = self._to_sklearn_sign(model.intercept)
        self.fit_status_ = int(
            not all(meets_tol(part, self.tol) for part in self.certificate_ or [])
        )
        if exact:
            self._publish_support(model)
        else:
            self.components_ = model.landmarks

    def _publish_support(self, model: Model) -> None:
        """Publish the support rows of a machine with a single score, in ascending order."""
        assert model.support is not None
        order = np.argsort(model.support)
        # A model has at least one landmark, whose coefficient may be 0.
        order = order[model.coef[0, order] != 0]
        self._publish_rows(model, order)
        self.n_support_ = np.array([len(order)], np.int32)
        self._publish_coefficients(model.coef[:, order])

    def _publish_coefficients(self, coef: NDArray[np.float64]) -> None:
        """Set ``dual_coef_`` to ``coef``, (scores, n_SV); sparse if the support vectors are."""
        wide = sparse.issparse(self.support_vectors_)
        self.dual_coef_ = sparse.csr_array(coef) if wide else coef

    def _publish_rows(self, model: Model, order: NDArray[np.int64]) -> None:
        """Set ``support_`` and ``support_vectors_``: the landmarks at the positions ``order``."""
        assert model.support is not None and model.landmarks is not None
        self.support_ = model.support[order].astype(np.int32)
        if model.kernel.name == "precomputed":
            self.support_vectors_ = np.empty((0, 0), np.float32)
        else:
            self.support_vectors_ = model.landmarks[order]


def _is_not_numeric(X: Any) -> bool:
    """Whether X is a list or array of objects that are not numeric."""
    if isinstance(X, (list, tuple, np.ndarray)) and len(X):
        return not isinstance(X[0], np.ndarray) and np.asarray(X[0]).dtype.kind not in "biuf"
    return False


def _without_negative(sample_weight: Any) -> Any:
    """Return weights with 0 for negative ones: LIBSVM leaves out rows of weight 0 or below."""
    if sample_weight is None:
        return None
    weights = np.asarray(sample_weight)
    return np.where(weights < 0, 0.0, weights) if weights.dtype.kind in "if" else weights


def _renumber(model: Model, numbers: NDArray[np.int64], columns: int) -> Model:
    """Replace the support's row numbers, which count the kept rows only, by row numbers in X.

    ``numbers``, (kept rows,), are the kept rows' numbers in X, which has ``columns`` columns. A
    precomputed kernel gets empty landmarks: it needs their row numbers only.
    """
    assert model.support is not None
    support = numbers[model.support]
    if model.kernel.name != "precomputed":
        return replace(model, support=support)
    nothing = sparse.csr_array((len(support), columns), dtype=np.float32)
    return replace(model, support=support, landmarks=nothing)

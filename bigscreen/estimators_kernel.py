"""What the kernel machines share: exact, or on Nystrom features, by one parameter."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bigscreen.errors import InputError
from bigscreen.estimators_base import Machine
from bigscreen.store import Rows
from bigscreen.store.model import Model
from bigscreen.train import TrainOptions


@dataclass(kw_only=True, eq=False, repr=False)
class KernelMachine(Machine):
    """Parameters of all kernel machines, as `SVC` explains them, and how they are fitted."""

    kernel: str | Callable[[Any, Any], Any] = "rbf"
    degree: int = 3
    gamma: float | str = "scale"
    coef0: float = 0.0
    n_components: int | None = None
    sampling: str = "uniform"
    truncation: float | None = None
    tol: float = 1e-3
    max_iter: int = 10_000
    time_budget: float | None = None
    solver: str = "auto"
    screening: str = "auto"
    start: str = "auto"
    cache: int | None = None
    memory: int | None = None
    n_jobs: int | None = None
    scheduler: str | None = None
    work: str | os.PathLike[str] | None = None
    random_state: Any = None
    verbose: int = 0

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.kernel == "precomputed"
        return tags

    # -- parameters ------------------------------------------------------------------------------
    def _options(self) -> TrainOptions:
        if self.scheduler is not None and (callable(self.kernel) or self.kernel == "precomputed"):
            raise InputError(
                "a precomputed kernel, or one that is a function, needs rows in memory; give no "
                "scheduler"
            )
        landmarks = {} if self.n_components is None else {"landmarks": self.n_components}
        return self._shared_options(
            exact=self.n_components is None,
            kernel=self.kernel,
            gamma="scale" if self.gamma == "auto" else self.gamma,
            degree=self.degree,
            coef0=self.coef0,
            sampling=self.sampling,
            truncation=self.truncation,
            start=self.start,
            cache=self.cache,
            **landmarks,
            **self._own(),
        )

    def _own(self) -> dict[str, Any]:
        """The options that only some machines have."""
        return {}

    def _seed(self) -> int:
        return 0 if self.random_state is None else super()._seed()

    def _suited(self, options: TrainOptions, data: Rows) -> TrainOptions:
        options = super()._suited(options, data)
        return replace(options, gamma=1.0 / data.n_features) if self.gamma == "auto" else options

    def _columns(self, options: TrainOptions, data: Rows) -> int:
        return data.n_rows if options.exact else super()._columns(options, data)

    # -- what was found --------------------------------------------------------------------------
    def _publish(self, model: Model, numbers: NDArray[np.int64] | None) -> None:
        exact = self.n_components is None
        if exact and numbers is not None:
            model = _renumbered(model, numbers, self.n_features_in_)
        super()._publish(model, numbers)
        self.intercept_ = model.intercept
        if exact:
            self._publish_support(model)
        else:
            self.components_ = model.landmarks

    def _publish_support(self, model: Model) -> None:
        """The support rows of a machine with one score, ascending."""
        assert model.support is not None
        order = np.argsort(model.support)
        # A model has one landmark at least, with a coefficient of 0 if need be.
        order = order[model.coef[0, order] != 0]
        self._support_of(model, order)
        self.n_support_ = np.array([len(order)], np.int32)
        self.dual_coef_ = model.coef[:, order]

    def _support_of(self, model: Model, order: NDArray[np.int64]) -> None:
        assert model.support is not None and model.landmarks is not None
        self.support_ = model.support[order].astype(np.int32)
        if self.kernel == "precomputed":
            self.support_vectors_ = np.empty((0, 0), np.float32)
        else:
            self.support_vectors_ = model.landmarks[order]


def _renumbered(model: Model, numbers: NDArray[np.int64], columns: int) -> Model:
    """The model with the rows' numbers in X, where some had no weight and were left out."""
    assert model.support is not None
    support = numbers[model.support]
    if model.kernel.name != "precomputed":
        return replace(model, support=support)
    nothing = sparse.csr_array((len(support), columns), dtype=np.float32)
    return replace(model, support=support, landmarks=nothing)

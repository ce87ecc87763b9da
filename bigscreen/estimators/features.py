"""`Nystroem`: Nystrom features of rows, as a transformer that works out of core."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from bigscreen.dask import RowFeatures
from bigscreen.data.dask_rows import is_chunked, lazy_for_dask
from bigscreen.data.memory import MemoryDataset
from bigscreen.data.other_arrays import on_host
from bigscreen.data.preparation import Preparation
from bigscreen.data.rows import Rows
from bigscreen.data.views import Moved
from bigscreen.data.zarr_stores import is_zarr_array
from bigscreen.errors import InputError
from bigscreen.estimators.base import MAX_SERIAL_ENTRIES, Machine, check_components
from bigscreen.estimators.inputs import Given, Unlabelled, blocks, is_store, open_store
from bigscreen.features import nystrom
from bigscreen.features.design import Design
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.base import Kernel
from bigscreen.kernels.moved import move_rows
from bigscreen.kernels.operand import Operand
from bigscreen.options.train import TrainOptions
from bigscreen.train.kernel import choose_kernel


@dataclass(eq=False, repr=False)
class Nystroem(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Machine):  # type: ignore[misc]
    """Nystrom features of rows, whose inner products approximate a kernel.

    The features of x are ``normalization_ @ k(components_, x)``, with landmarks ``components_``
    among the rows. Machines on landmarks, such as `NystroemSVC`, compute the same features.

    Parameters
    ----------
    kernel : str, default="rbf"
        The name of a kernel of `SVC`; "precomputed" is refused.
    gamma : {"scale", "auto"} or float, default="scale"
        As in `SVC`.
    degree : int, default=3
    coef0 : float, default=0.0
    n_components : int, default=100
        Number of landmarks.
    components : array or sparse array (m, n_features), default=None
        Landmarks to use instead of rows that are chosen; for a data set in the units of its stored
        rows.
    sampling : {"uniform", "rpcholesky", "leverage", "kmeans", "auto"}, default="uniform"
        How landmarks are chosen, as in `NystroemSVC`.
    random_state : int, RandomState or None, default=None
        Seed for landmarks.
    memory, n_jobs, scheduler
        As in `NystroemSVC`.
    work : path or None, default=None
        Folder in which the features of a data set are stored, in Zarr. None: they are in memory. A
        Dask array that does not fit in memory, and a zarr array, are stored here during ``fit``.

    Attributes
    ----------
    components_ : ndarray or csr_array (m, n_features)
        The landmarks.
    component_indices_ : int64 array (m,) or None
        Rows of X that are landmarks, for a data set their numbers in the source; None if
        ``components`` was given.
    normalization_ : float64 array (r, m)
        ``normalization_ @ k(components_, components_) @ normalization_.T`` is the identity, except
        for a ridge of 1e-11 or less of the kernel with more than 2,048 landmarks. r is less than m
        if landmarks repeat each other.
    n_features_in_ : int

    Examples
    --------
    >>> from bigscreen import Nystroem
    >>> features = Nystroem(n_components=300, random_state=0).fit_transform(X)  # doctest: +SKIP
    """

    _answers_with = ("n_features_in_", "feature_names_in_", "_design", "_preparation")

    kernel: str = "rbf"
    _: KW_ONLY
    gamma: float | str = "scale"
    degree: int = 3
    coef0: float = 0.0
    n_components: int = 100
    components: Any = None
    sampling: str = "uniform"
    random_state: Any = None
    memory: int | None = None
    n_jobs: int | None = None
    scheduler: Any = None
    work: str | os.PathLike[str] | None = None

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: X may be sparse, and features are float32."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags

    def fit(self, X: Any, y: Any = None) -> Self:  # type: ignore[override]  # no weights
        """Choose landmarks, and factor their kernel matrix.

        Parameters
        ----------
        X : array, sparse array, Dask or zarr array, data frame, data set or path of a data set
            Rows (n_samples, n_features).
        y : ignored

        Returns
        -------
        self

        Raises
        ------
        InputError
            Parameters or data that cannot be used.

        Warns
        -----
        UserWarning
            If ``n_components`` is more than there are rows; all rows are used then.
        """
        X = on_host(X)
        with ExitStack() as owned:
            data, _ = self._rows(X, None, None, owned)
            options = self._adapt_options(self._options(), data)
            with self._fleet(data.n_rows * data.n_features, X) as fleet:
                kernel = choose_kernel(data, options, fleet)
            self.components_ = self._landmarks(data, kernel, options)
        self._preparation = data.preparation
        # The design of the landmarks alone: no rows of X are needed any more.
        rows, moved = move_rows(MemoryDataset(self.components_, None, []), kernel, False)
        side = Operand(rows.X(0, rows.n_rows))
        factor = nystrom.factor_landmarks(moved, side, nystrom.FLOAT64_CUTOFF)
        self._design = factor.of(Design(rows, moved), side)
        self.normalization_ = factor.matrix.T
        return self

    @lazy_for_dask(lambda machine: (np.float32, machine._n_features_out))
    def transform(self, X: Any) -> Any:
        """Compute the features of rows.

        Parameters
        ----------
        X : as in ``fit``

        Returns
        -------
        float32 array (n_samples, r)
            For a Dask array or data frame a lazy Dask array, with a task for each block. For a data
            set a data set of its features, with its labels and weights, in its order, stored in the
            folder ``work`` or in memory.
        """
        check_is_fitted(self)
        if is_store(X):
            return self._store(open_store(X))
        if not is_zarr_array(X):
            X = validate_data(self, X, accept_sparse="csr", reset=False)
        serial = X.shape[0] * len(self._design.side) <= MAX_SERIAL_ENTRIES
        with Inline(1 if serial else self._threads()) as threads:
            call = partial(RowFeatures(self._preparation), self._design)
            return np.concatenate(list(threads.each(call, blocks(X))))

    def _store(self, data: Rows) -> Rows:
        """Store the features of a data set in the folder ``work``, or in memory; return them."""
        own = self._design.data
        same = data.preparation.features_fingerprint == self._preparation.features_fingerprint
        if not same or data.n_features != own.n_features:
            raise InputError(
                f"{data.path or 'the data set'} has other columns, or was prepared in another way, "
                "than the rows of the fit; ingest it with `--like`"
            )
        rows = Moved(data, own.move) if isinstance(own, Moved) else data
        folder = None if self.work is None else Path(self.work)
        with self._fleet(data.n_rows * len(self._design.side), data) as fleet:
            made = nystrom.store_features(
                replace(self._design, data=rows), fleet, folder, preparation=Preparation.none()
            )
        return made.data

    @property
    def _n_features_out(self) -> int:
        """The number of features, from which scikit-learn makes their names."""
        return self._design.rank

    def _options(self) -> TrainOptions:
        """Convert the parameters to training options."""
        return TrainOptions(
            kernel=self.kernel,
            gamma=self.gamma,
            degree=self.degree,
            coef0=self.coef0,
            landmarks=check_components(self.n_components),
            sampling=self.sampling,
            seed=self._seed(),
        )

    def _adapt_options(self, options: TrainOptions, data: Rows) -> TrainOptions:
        """Adapt the options to these rows: at most as many landmarks as rows are chosen."""
        return options if self.components is not None else super()._adapt_options(options, data)

    def _landmarks(self, data: Rows, kernel: Kernel, options: TrainOptions) -> Any:
        """Return the landmarks (m, n_features), as rows of the data; set `component_indices_`."""
        if self.components is not None:
            self.component_indices_ = None
            floats = [np.float64, np.float32]
            given = check_array(self.components, accept_sparse="csr", dtype=floats)
            if given.shape[1] != data.n_features:
                raise InputError(
                    f"components have {given.shape[1]} columns and X has {data.n_features}; give "
                    "both the same columns"
                )
            return given
        rows, moved = move_rows(data, kernel, False)
        how = min(options.landmarks, data.n_rows), options.sampling, options.seed
        _, ids = nystrom.choose_landmarks(rows, moved, *how)
        self.component_indices_ = data.row_ids(0, data.n_rows)[ids]
        return data.rows(ids)

    def _rows(
        self, X: Any, y: Any, sample_weight: Any, owned: ExitStack
    ) -> tuple[Rows, NDArray[np.int64] | None]:
        """Return the rows to fit, and None; a zarr array is stored on disk, block by block.

        ``owned`` deletes temporary folders after the fit.
        """
        if not is_zarr_array(X):
            return super()._rows(X, y, sample_weight, owned)
        self.n_features_in_ = int(X.shape[1])
        return Unlabelled.of(X).rows(0, partial(self._folder, owned)), None

    def _check_input(self, X: Any, y: Any, sample_weight: Any, square: bool) -> Given:
        """Check X that is not in a store; no row has a label or a weight."""
        if is_chunked(X):
            self.n_features_in_ = int(X.shape[1])
        else:
            X = validate_data(self, X, accept_sparse="csr")
        return Unlabelled.of(X)

    def _for_blocks(self) -> Self:
        """Return a copy with the parameters and what features of rows are made from."""
        made = type(self)(n_jobs=1)
        for name in self._answers_with:
            if hasattr(self, name):
                setattr(made, name, getattr(self, name))
        made.components_ = None  # (it is fitted, and has the landmarks in its design)
        return made

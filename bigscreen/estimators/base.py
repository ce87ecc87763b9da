"""Base classes of the estimators: fitting, scoring and publishing certificates."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import check_random_state, column_or_1d, get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from bigscreen.data.dask_rows import (
    dask_rows,
    is_chunked,
    is_dask_frame,
    is_lazy,
    lazy_for_dask,
)
from bigscreen.data.memory import MemoryDataset
from bigscreen.data.other_arrays import on_host
from bigscreen.data.rows import Rows
from bigscreen.data.source_rows import prepare_rows
from bigscreen.data.targets import as_features
from bigscreen.errors import InputError
from bigscreen.estimators.inputs import (
    Given,
    Labelled,
    Targets,
    blocks,
    is_store,
    open_store,
)
from bigscreen.evaluate.evaluate import evaluate, evidence_blocks, scored_blocks
from bigscreen.files.scratch import scratch
from bigscreen.fleet.blas import blas_threads
from bigscreen.fleet.graphs import active_client
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.memory import usable_memory
from bigscreen.model.calibration import Evidence
from bigscreen.model.model import Model, check_match
from bigscreen.options.train import OPTIONS, TrainOptions
from bigscreen.options.tuning import Tuning
from bigscreen.report.report import FitReport
from bigscreen.train.run import train
from bigscreen.train.start import explain_cold

if TYPE_CHECKING:
    from bigscreen.amend.leave_one_out import LeftOut

INTERCEPTS = {True: "true", "true": "true", "penalized": "penalized", False: "none"}
"""Values of ``fit_intercept`` and the corresponding values of ``TrainOptions.intercept``."""

MAX_SERIAL_ENTRIES = 1 << 20
"""Use one thread if X has at most this many entries (rows times columns): more threads would mostly
wait."""


class Machine(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Base of all estimators; subclasses add parameters and published attributes."""

    _problem = "c-svc"
    """Value of ``TrainOptions.problem``."""
    _intercepts: Mapping[Any, str] = INTERCEPTS
    """Values of ``fit_intercept`` and the corresponding values of ``TrainOptions.intercept``."""
    _answers_with: tuple[str, ...] = (
        *("model_", "n_features_in_", "classes_", "offset_", "_objects", "_probA", "_probB"),
    )
    """Fitted attributes from which scores, predictions and probabilities of rows are made."""
    _dask_fraction = 0.4
    """Gather a Dask array in memory if it takes at most this fraction; else store it on disk."""
    warm_start = False
    """Whether a fit starts at the machine of the last fit; a parameter of estimators that can."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit to a proved gap.

        Parameters
        ----------
        X : array, sparse array, Dask array or data frame (n_samples, n_features), data set or path
            Arrays of CuPy, PyTorch and other libraries of the array API are read as NumPy arrays,
            here and as ``y`` and ``sample_weight``; fitted attributes are NumPy arrays. An array of
            zarr is fitted as a Dask array of its chunks, and a group or store of zarr
            as the data set that it holds.
        y : array of shape (n_samples,)
            Labels for a classifier, two or more distinct values of any sortable type; targets for
            a regression, finite numbers. Left out if X is a data set; ignored by a one-class
            machine.
        sample_weight : array of shape (n_samples,), optional
            A weight of k is equivalent to k copies of the row, and 0 to no row. Negative weights
            are refused, except that kernel machines treat them as 0, as LIBSVM does. Left out if X
            is a data set.

        Returns
        -------
        self

        Raises
        ------
        InputError
            A ValueError: parameters or data that cannot be used, or a fit beyond ``memory``.

        Warns
        -----
        ConvergenceWarning
            If ``max_iter`` or ``time_budget`` ended the fit before the gap was proved.
        UserWarning
            If ``n_components`` is more than there are rows; all rows are used then.
        """
        X, y, sample_weight = on_host(X, y, sample_weight)
        options = self._options()
        with ExitStack() as owned:
            data, numbers = self._rows(X, y, sample_weight, owned)
            options = self._adapt_options(options, data)
            before = self._earlier(options, data, numbers)
            with self._fleet(data.n_rows * self._columns(options, data), X) as fleet:
                report = owned.enter_context(FitReport()) if self.verbose else None
                scratch = partial(self._folder, owned)
                model = train(data, options, fleet, report, scratch=scratch, before=before)
        self._publish(model, numbers)
        self._fit_more(X, y, sample_weight)
        return self

    def _earlier(
        self, options: TrainOptions, data: Rows, numbers: NDArray[np.int64] | None
    ) -> Model | None:
        """Return the model of the last fit if ``warm_start`` requests to start at it, else None.

        ``numbers``: the row numbers in X of the rows to fit, None for all. InputError if
        ``warm_start`` is no boolean, or every fit with the options starts cold.
        """
        if not isinstance(self.warm_start, (bool, np.bool_)):
            raise InputError(f"warm_start must be True or False, got {self.warm_start!r}")
        if not self.warm_start:
            return None
        if why := explain_cold(data, options):
            raise InputError(f"{why} starts cold; leave out warm_start")
        before: Model | None = getattr(self, "model_", None)
        if before is None or numbers is None or before.support is None:
            return before
        # Rows of weight 0 are left out: the fit counts the others, in this order.
        places = np.searchsorted(numbers, before.support)
        kept = np.append(numbers, -1)[places] == before.support
        return replace(before, support=np.where(kept, places, len(numbers)))

    def _fit_more(self, X: Any, y: Any, sample_weight: Any) -> None:
        """Fit what depends on the fitted machine: nothing here, in a subclass probabilities."""

    def _html_repr(self) -> str:
        """Render scikit-learn's diagram and, once fitted, the certificate for a notebook."""
        model = getattr(self, "model_", None)
        shown: str = super()._html_repr()
        return shown if model is None else shown + model._repr_html_()

    def __sklearn_clone__(self) -> Self:
        """Make an unfitted copy that shares the Dask client or cluster, which cannot be copied."""
        given = self.get_params(deep=False)
        made = type(self)(
            **{k: v if k == "scheduler" else clone(v, safe=False) for k, v in given.items()}
        )
        for name in ("_metadata_request", "_sklearn_output_config"):
            if hasattr(self, name):
                setattr(made, name, copy.deepcopy(getattr(self, name)))
        return made

    def __getstate__(self) -> dict[str, Any]:
        """Keep the address of a Dask client or cluster: a copy connects to the same scheduler."""
        state: dict[str, Any] = super().__getstate__()
        scheduler = state.get("scheduler")
        if scheduler is None or isinstance(scheduler, str):
            return state
        from bigscreen.fleet.connecting import address_of

        return {**state, "scheduler": address_of(scheduler)[0]}

    @property
    def _answers_in_kind(self) -> bool:
        """Whether rows in an array of another library are answered with such an array.

        They are if scikit-learn's ``array_api_dispatch`` is set.
        """
        return bool(get_config()["array_api_dispatch"])

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: X may be sparse."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # -- input -----------------------------------------------------------------------------------
    def _rows(
        self, X: Any, y: Any, sample_weight: Any, owned: ExitStack
    ) -> tuple[Rows, NDArray[np.int64] | None]:
        """Return the rows to fit, and the numbers in X of the rows with weight; None for all.

        ``owned`` deletes temporary folders after the fit.
        """
        if is_store(X):
            self._refuse_outcomes(y, sample_weight)
            data = open_store(X)
            self.n_features_in_ = data.preparation.n_raw or data.n_features
            return data, None
        if is_dask_frame(X):
            # Not `lengths=True`: Dask may read small Parquet files as fewer blocks than it counts.
            names, X = np.asarray(X.columns, dtype=object), X.to_dask_array().compute_chunk_sizes()
            if all(isinstance(name, str) for name in names):
                self.feature_names_in_ = names
        elif is_lazy(X):
            X = dask_rows(X, None, None)
        given = self._check_input(X, y, sample_weight, get_tags(self).input_tags.pairwise)
        numbers = None if given.keep is None else np.flatnonzero(given.keep)
        # Workers of a cluster read rows by path.
        scheduler = self._scheduler_for(X)
        most = self._dask_fraction * self._memory() if scheduler is None else 0
        return given.rows(most, partial(self._folder, owned), scheduler), numbers

    def _check_input(self, X: Any, y: Any, sample_weight: Any, square: bool) -> Given:
        """Check rows that are not in a store; subclasses implement it.

        ``square``: X is a matrix of kernel entries, (rows, rows).
        """
        raise NotImplementedError

    def _checked(self, X: Any, y: Any, **how: Any) -> tuple[Any, Any]:
        """Validate X and y as scikit-learn's `validate_data`, which gets the keywords ``how``.

        A Dask array's blocks are checked when they are read.
        """
        if is_chunked(X):
            self.n_features_in_ = int(X.shape[1])
            y = np.asarray(y)
            return X, y if how.get("multi_output") else column_or_1d(y, warn=True)
        checked: tuple[Any, Any] = validate_data(self, X, y, accept_sparse="csr", **how)
        return checked

    def _refuse_outcomes(self, y: Any, sample_weight: Any) -> None:
        """Raise InputError if y or weights are given next to a data set, which has its own."""
        if y is not None or sample_weight is not None:
            raise InputError("a data set brings its own labels and weights; leave out the others")

    def _folder(self, owned: ExitStack) -> Path:
        """Create a folder for what does not fit in memory; ``owned`` deletes it after the fit."""
        return owned.enter_context(scratch("fit", self.work))

    def _memory(self) -> float:
        """Return the bytes that a fit may use: ``memory``, or what is available to the process."""
        return self.memory or usable_memory()

    def _store_score(self, X: Any, y: Any, sample_weight: Any, measure: str) -> float:
        """Evaluate the predictions for the data set X by a measure of `evaluate`.

        InputError if y or weights are given: a data set has its own.
        """
        check_is_fitted(self)
        self._refuse_outcomes(y, sample_weight)
        data = self._open_matching(X)
        with self._each(data.n_rows) as each:
            found = evaluate(self.model_, data, each)
        parts = [part[measure] for part in found.get("targets", {"": found}).values()]
        return float(np.mean(np.array(parts, np.float64)))

    def _open_matching(self, X: Any) -> Rows:
        """Open the data set X; InputError if its features do not match the fitted model's."""
        data = open_store(X)
        check_match(self.model_, data, "the model")
        return data

    # -- work ------------------------------------------------------------------------------------
    @contextmanager
    def _fleet(self, entries: int, X: Any = None) -> Iterator[Any]:
        """Yield the workers of a fit to X: a Dask cluster if one is given or active, else threads.

        ``entries``: rows times columns of the work; little work gets one thread.
        """
        scheduler = self._scheduler_for(X)
        if scheduler is not None:
            from bigscreen.fleet.connecting import connect

            with connect(scheduler) as cluster:
                yield cluster
            return
        most = self._threads()
        serial = entries <= MAX_SERIAL_ENTRIES
        with Inline(1 if serial else most) as threads, blas_threads(threads.workers):
            yield threads

    def _scheduler_for(self, X: Any) -> Any:
        """Return where a fit to X runs: ``scheduler``, or the active client of a Dask collection.

        None: on threads of this process.
        """
        if self.scheduler is None and self._runs_on_workers and is_lazy(X):
            return active_client()
        return self.scheduler

    @property
    def _runs_on_workers(self) -> bool:
        """Whether worker processes can do the fit."""
        return True

    def _threads(self) -> int | None:
        """Return the number of threads that ``n_jobs`` requests; None: one for each processor."""
        jobs = self.n_jobs
        if jobs is None or (isinstance(jobs, (int, np.integer)) and jobs == -1):
            return None
        if not (isinstance(jobs, (int, np.integer)) and jobs >= 1):
            raise InputError(f"n_jobs must be a number of threads, None or -1, got {jobs!r}")
        return int(jobs)

    @contextmanager
    def _each(self, rows: int) -> Iterator[Any]:
        """Yield a function like `map` that scores blocks, on threads if there is enough work.

        ``rows``: number of rows to score.
        """
        if rows * self.model_.coef.shape[1] <= MAX_SERIAL_ENTRIES:
            yield map
            return
        with Inline(self._threads()) as threads:
            yield threads.each

    def _scores(self, X: Any) -> NDArray[np.float64]:
        """Compute scores, float64 (rows, k), of X; for a data set in the order of its source."""
        check_is_fitted(self)
        if is_store(X):
            data = self._open_matching(X)
            with self._each(data.n_rows) as each:
                scores = [part for _, _, part in scored_blocks(self.model_, data, each)]
            return np.concatenate(scores)[np.argsort(data.row_ids(0, data.n_rows))]
        return np.concatenate(self._map_blocks(Model.scores, X))

    def _evidence(self, X: Any) -> Evidence:
        """Compute the scores from which probabilities and label sets of the rows of X follow.

        Rows of a data set are in the order of its source.
        """
        check_is_fitted(self)
        if is_store(X):
            data = self._open_matching(X)
            with self._each(data.n_rows) as each:
                found = [part for *_, part in evidence_blocks(self.model_, data, each) if part]
            return Evidence.joined(found).among(np.argsort(data.row_ids(0, data.n_rows)))
        return Evidence.joined(self._map_blocks(Model.evidence, X))

    def _map_blocks(self, ask: Callable[..., Any], X: Any) -> list[Any]:
        """Return what the model's method ``ask`` answers for every block of the rows X.

        The rows are in memory. Columns of a table are looked up by name if the model was fitted to
        a data set with names of columns.
        """
        known, encoded = self.model_.preparation, False
        if known.names is not None and hasattr(X, "columns"):
            X, encoded = prepare_rows(known, X), True
        else:
            X = validate_data(self, X, accept_sparse="csr", reset=False)
        with self._each(X.shape[0]) as each:
            return list(each(partial(_answer, ask, self.model_, encoded), blocks(X)))

    def _dask_rows(self, X: Any, **_: Any) -> Any:
        """Return a Dask collection as a Dask array; a frame's columns by the names of the fit.

        InputError if X has other columns than the rows of the fit.
        """
        check_is_fitted(self)
        return dask_rows(X, getattr(self, "feature_names_in_", None), self.n_features_in_)

    def _for_blocks(self) -> Self:
        """Return a copy with the parameters, and of what was fitted only what answers need.

        It answers on one thread, as every block has a task of its own.
        """
        alone = {"n_jobs": 1, "scheduler": None}
        given = {k: alone.get(k, v) for k, v in self.get_params(deep=False).items()}
        made = type(self)(**given)
        for name in self._answers_with:
            if hasattr(self, name):
                setattr(made, name, getattr(self, name))
        made.model_ = self.model_._for_blocks()
        return made

    # -- parameters ------------------------------------------------------------------------------
    def _options(self) -> TrainOptions:
        """Convert the estimator's parameters to training options; subclasses implement it."""
        raise NotImplementedError

    def _shared_options(self, **own: Any) -> TrainOptions:
        """Make training options of the parameters of all estimators, and of the fields ``own``."""
        return TrainOptions(
            problem=self._problem,
            seed=self._seed(),
            tol=self.tol,
            max_iter=2**63 - 1 if self.max_iter == -1 else self.max_iter,
            time_budget=self.time_budget,
            memory=self.memory,
            intercept=intercept_option(self.fit_intercept, self._intercepts),
            solver=getattr(self, "solver", "auto"),
            screening=self.screening,
            device=getattr(self, "device", "auto"),
            tuning=tuning_of(self),
            **own,
        )

    def _seed(self) -> int:
        """Return the seed of the fit; drawn from ``random_state`` if it is no integer."""
        seed = self.random_state
        if not isinstance(seed, (int, np.integer)):
            seed = check_random_state(seed).randint(2**31 - 1)
        return int(seed)

    def _adapt_options(self, options: TrainOptions, data: Rows) -> TrainOptions:
        """Adapt the options to these rows: at most as many landmarks as rows."""
        if options.exact or options.kernel == "linear" or options.landmarks <= data.n_rows:
            return options
        warnings.warn(
            f"n_components={options.landmarks} is more than the {data.n_rows} rows; all rows are "
            "used",
            UserWarning,
            stacklevel=4,
        )
        return replace(options, landmarks=data.n_rows)

    def _columns(self, options: TrainOptions, data: Rows) -> int:
        """Return how many numbers a pass processes per row: features or landmarks."""
        return data.n_features if options.kernel == "linear" else options.landmarks

    def _publish(self, model: Model, numbers: NDArray[np.int64] | None) -> None:
        """Set the fitted attributes; ``numbers`` are the row numbers in X of the fitted rows."""
        if model.ledger is not None and numbers is not None:
            # Rows of weight 0 were left out of the fit.
            own = [each.renumber(numbers[each.numbers()]) for each in model.ledger]
            model = replace(model, ledger=own)
        self.model_ = model
        record = model.provenance
        books: list[Any] = model.ledger or [None]
        self.ledger_ = books[0] if len(books) == 1 else books
        self.certificate_ = record["certificates"]
        self.history_ = record["history"]
        # Nothing is proved if the fit stopped early (after its parts) or the kernel is indefinite.
        proved = all(part.get("proved", True) for part in self.certificate_ or [{"proved": False}])
        gaps = self.certificate_ if proved else [{"gap": np.nan, "relative_gap": np.nan}]
        self.dual_gap_ = max(part["gap"] for part in gaps)
        self.relative_gap_ = max(part["relative_gap"] for part in gaps)
        passes = Counter(event["class"] for event in self.history_).values()
        self.n_iter_: Any = max(passes, default=0)


def intercept_option(given: Any, words: Mapping[Any, str]) -> str:
    """Convert ``fit_intercept``, a key of `words`, to the value of ``TrainOptions.intercept``.

    ``given`` is the parameter's value; InputError if it is no key.
    """
    if not (isinstance(given, Hashable) and given in words):
        raise InputError(f"fit_intercept must be {', '.join(map(repr, words))}, got {given!r}")
    return words[given]


def tuning_of(machine: Any) -> Tuning:
    """Return an estimator's `Tuning`; the defaults if it is None or no parameter."""
    tuning = getattr(machine, "tuning", None)
    return Tuning() if tuning is None else tuning


def check_components(given: Any) -> int:
    """Check that ``n_components``, `given`, is a valid number of landmarks; return it as int."""
    values = OPTIONS["landmarks"].values
    if not values.accept(given):
        raise InputError(f"n_components must {values.must}, got {given!r}")
    return int(given)


def _answer(ask: Callable[..., Any], model: Model, encoded: bool, X: Any) -> Any:
    """Return what a model's method ``ask`` answers for rows X: features, or raw source rows."""
    return ask(model, X if encoded else _features(model, X), prepared=True)


def _features(model: Model, X: Any) -> Any:
    """Encode and scale raw source rows X as the training rows were: (rows, n_features)."""
    known = model.preparation
    rows = known.scale(known.expand(X))
    return as_features(rows, lambda row: f"row {row}", wide=True)


class Classifier(ClassifierMixin, Machine):  # type: ignore[misc]  # scikit-learn has no types
    """Base of the classifiers."""

    classes_: NDArray[Any]

    @property
    def _n_values(self) -> int | None:
        """The number of columns of ``decision_function``; None: it has one value for each row."""
        scores = len(self.model_.coef)
        return scores if scores > 1 else None

    @lazy_for_dask(lambda machine: (np.float64, machine._n_values))
    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Compute the scores of rows.

        Parameters
        ----------
        X : as in ``fit``
            Rows of a data set are scored in the order of its source. Rows of a Dask array or data
            frame are scored later: the result is a lazy Dask array, with a task for each block.

        Returns
        -------
        float64 array of shape (n_samples,), or (n_samples, n_classes) with three classes or more
            A score above 0 means ``classes_[1]``; with more classes the largest score wins.
        """
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    @lazy_for_dask(lambda machine: (machine.classes_.dtype, None))
    def predict(self, X: Any) -> NDArray[Any]:
        """Predict labels of rows, an array of shape (n_samples,); X as in ``decision_function``."""
        scores = self._scores(X)
        labels: NDArray[Any] = self.classes_[self.model_.decide(scores)]
        return labels

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Compute the accuracy; X as in ``fit`` (every labelled row of a data set counts once)."""
        if is_store(X):
            return self._store_score(X, y, sample_weight, "accuracy")
        X, y, sample_weight = on_host(X, y, sample_weight)
        found = np.asarray(self.predict(X))  # (computes the predictions of a Dask array once)
        return float(accuracy_score(_require_outcome(y), found, sample_weight=sample_weight))

    def amend(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        remove: Any = (),
        relabel: tuple[Any, Any] | None = None,
        add: tuple[Any, Any] | None = None,
    ) -> Self:
        """Update the fitted machine after rows are removed, relabelled or added, with a new proof.

        Parameters
        ----------
        X, y, sample_weight : as in ``fit``
            The rows that the machine was fitted on, in memory; no weight is 0. They are not
            modified.
        remove : int array
            Numbers in X of the rows to remove; the other rows keep their order.
        relabel : (int array, labels), optional
            Numbers in X of the rows to relabel, and their new labels.
        add : (X, y), optional
            Rows to append.

        Returns
        -------
        self
            ``model_.provenance["edits"]`` lists the edits and the certificates before and after.
            Removing rows with the status "out" in ``ledger_`` does not change a machine on
            landmarks.

        Raises
        ------
        InputError
            If the machine is not a C-SVC, the rows are not those it was fitted on, or a label is
            unknown.
        """
        from bigscreen.amend.amend import amend
        from bigscreen.amend.edits import Edits

        check_is_fitted(self)
        if is_store(X):
            raise InputError("the rows of a store are edited by `bigscreen amend`")
        X, y, sample_weight = on_host(X, y, sample_weight)
        remove, relabel, add = on_host(remove, relabel, add)
        before, more = self.classes_, None
        with ExitStack() as owned:
            data = self._same_rows(X, y, sample_weight, owned)
            if add is not None:
                fresh, labels = self._checked(*add, reset=False)
                codes = np.searchsorted(before, labels)
                if np.any(before[np.minimum(codes, len(before) - 1)] != labels):
                    raise InputError(f"the rows to add have labels that are none of {before}")
                weights = np.ones(len(codes)) if data.has_weights else None
                kind = data.preparation
                more = MemoryDataset(fresh, codes, data.labels, weights, preparation=kind)
            ids, named = ((), ()) if relabel is None else relabel
            labels = [data.labels[before.tolist().index(label)] for label in np.asarray(named)]
            edits = Edits(
                remove=np.unique(np.asarray(remove, dtype=np.int64)),
                relabel=(np.asarray(ids, dtype=np.int64), labels),
                add=more,
            )
            with self._fleet(data.n_rows * self.model_.coef.shape[1], X) as fleet:
                budget = self.time_budget
                made = amend(self.model_, data, edits, fleet, time_budget=budget)
        self._publish(made.model, None)
        if hasattr(self, "_probA"):  # the sigmoids were learnt with the rows as they were
            self._probA = self._probB = np.empty(0)
        return self

    def leave_one_out(
        self, X: Any, y: Any, sample_weight: Any = None, *, tol: float = 1e-2
    ) -> LeftOut:
        """Compute for each row the scores of the machine fitted without it, with a bound.

        Rows whose dual variable is 0 keep their score; each other row is removed in turn, and the
        solve goes on without it. The kernel matrix is held in memory.

        Parameters
        ----------
        X, y, sample_weight : as in ``fit``
            The rows that the machine was fitted on; no weight is 0.
        tol : float, default=1e-2
            Largest distance of a score from that of the best machine without the row, unless
            rounding prevents it.

        Returns
        -------
        bigscreen.amend.leave_one_out.LeftOut
            ``scores`` and ``bounds`` (n, k) of the scores of ``model_``, ``wrong`` and ``decided``
            (n,): whether a prediction is wrong, and whether the bounds prove it.

        Raises
        ------
        InputError
            If the machine is not an exact C-SVC, the rows are not those it was fitted on, or their
            kernel matrix does not fit in memory.
        """
        from bigscreen.amend.leave_one_out import leave_one_out

        check_is_fitted(self)
        with ExitStack() as owned, Inline(self._threads()) as threads, blas_threads(1):
            data = self._same_rows(X, y, sample_weight, owned)
            return leave_one_out(self.model_, data, threads.each, tol)

    def _same_rows(self, X: Any, y: Any, sample_weight: Any, owned: ExitStack) -> Rows:
        """Return the rows of the fit, given again; InputError if classes differ or a weight is 0.

        ``owned`` deletes temporary folders afterwards.
        """
        before = self.classes_
        data, numbers = self._rows(X, y, sample_weight, owned)
        same, self.classes_ = np.array_equal(before, self.classes_), before
        if numbers is not None:
            raise InputError("rows of weight 0 are not among those fitted; leave them out")
        if not same:
            raise InputError(
                "these are not the rows that the machine was fitted on: their classes differ"
            )
        return data

    def _rows(
        self, X: Any, y: Any, sample_weight: Any, owned: ExitStack
    ) -> tuple[Rows, NDArray[np.int64] | None]:
        """Return the rows to fit and the numbers in X of the rows with weight; set ``classes_``.

        The numbers are None if all rows have weight. ``owned`` deletes temporary folders after the
        fit.
        """
        data, numbers = super()._rows(X, y, sample_weight, owned)
        if is_store(X):
            self.classes_ = np.array(data.labels)
        return data, numbers

    def _check_input(self, X: Any, y: Any, sample_weight: Any, square: bool) -> Given:
        """Check X and labels y that are not in a store, and set ``classes_``.

        ``square``: X is a matrix of kernel entries, (rows, rows).
        """
        X, y = self._checked(X, y)
        check_classification_targets(y)
        given = Labelled.of(X, y, sample_weight, square)
        self.classes_ = given.classes
        return given

    def _adapt_options(self, options: TrainOptions, data: Rows) -> TrainOptions:
        """Adapt the options to these rows; class weights are keyed by the data set's labels."""
        weights = self.class_weight
        if isinstance(weights, Mapping):
            labels = dict(zip(self.classes_.tolist(), data.labels, strict=True))
            weights = {labels.get(key, key): weight for key, weight in weights.items()}
        if weights is not None:
            options = replace(options, class_weight=weights)
        return super()._adapt_options(options, data)


class Regressor(RegressorMixin, Machine):  # type: ignore[misc]  # scikit-learn has no types
    """Base of the regressors."""

    @property
    def _takes_targets(self) -> bool:
        """Whether y may have several columns, whose machines share features."""
        return True

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: y may have several columns."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = self._takes_targets
        return tags

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit to a proved gap, for each target if y has several columns.

        Parameters
        ----------
        X, sample_weight : as in `NystroemSVC.fit`
            A data set may have several targets, as `ingest` stores them.
        y : array of shape (n_samples,) or (n_samples, n_targets)
            Finite numbers. Machines of several targets share landmarks, features and passes over
            the rows; each has its own certificate and ledger. An exact machine has one target.

        Returns
        -------
        self

        Raises
        ------
        InputError
            A ValueError: parameters or data that cannot be used, or a fit beyond ``memory``.

        Warns
        -----
        ConvergenceWarning
            If ``max_iter`` or ``time_budget`` ended a fit before the gap was proved.
        UserWarning
            If ``n_components`` is more than there are rows; all rows are used then.
        """
        return super().fit(X, y, sample_weight)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Compute R^2; X as in ``fit`` (every row of a data set with a target counts once).

        The mean over all targets if there are several.
        """
        if is_store(X):
            return self._store_score(X, y, sample_weight, "r2")
        X, y, sample_weight = on_host(X, y, sample_weight)
        found = np.asarray(self.predict(X))
        return float(r2_score(_require_outcome(y), found, sample_weight=sample_weight))

    @lazy_for_dask(lambda machine: (np.float64, machine.model_._n_predictions))
    def predict(self, X: Any) -> NDArray[np.float64]:
        """Predict targets, float64 (n_samples,), or (n_samples, n_targets) with several targets.

        Parameters
        ----------
        X : as in ``fit``
            Predictions for a data set are in the order of its source. Those for a Dask array or
            data frame are a lazy Dask array, with a task for each block of rows.
        """
        scores = self._scores(X)  # (first, as it checks that the machine is fitted)
        predictions: NDArray[np.float64] = self.model_.decide(scores)
        return predictions

    def _check_input(self, X: Any, y: Any, sample_weight: Any, square: bool) -> Given:
        """Check X and targets y that are not in a store.

        ``square``: X is a matrix of kernel entries, (rows, rows).
        """
        shape = np.asarray(y).shape
        if len(shape) != 2 or shape[1] < 2:
            X, y = self._checked(X, y, y_numeric=True)
            return Targets.of(X, column_or_1d(y, warn=True), sample_weight, square)
        if not self._takes_targets:
            raise InputError(
                f"y should be a 1d array: it has {shape[1]} columns, and an exact machine or one "
                "with probability has one target; give n_components, or fit one to each column"
            )
        X, y = self._checked(X, y, y_numeric=True, multi_output=True)
        return Targets.of(X, y, sample_weight, square)


def _require_outcome(y: Any) -> NDArray[Any]:
    """Return y as an array; InputError if it is None."""
    if y is None:
        raise InputError("score compares predictions with y; give y, or a data set that has it")
    return np.asarray(y)

"""Support vector machines on data larger than memory, each with a proved duality gap.

What a person needs is here: scikit-learn estimators, the classifiers `SVC`, `NuSVC`, `LinearSVC`
and `NystroemSVC`, the regressions `SVR`, `NuSVR`, `LinearSVR`, `LADRegressor` and
`QuantileRegressor`, `OneClassSVM`; `svm_path`, `nu_path` and `SVCPathCV` (every C or nu of a grid
in one call) and `SolvedPath`; `solve` (any problem that can be written down, with an exact kernel);
`ingest` (files and arrays to a stored data set), `Dataset`, `MemoryDataset`, `Model`,
`TrainOptions` (of `bigscreen.train.train`, the same fit without scikit-learn), `Inline`, `connect`
and `local_cluster` (where it runs) and `InputError`. They are imported when first used.

The house, from the ground up; every room imports only from rooms above it:

    errors      what a user's mistake raises
    files       outputs that appear whole or not at all; sealed: records and arrays with checksums;
                checkpoint, work: what a run that is interrupted leaves, and whose it is
    rows        the compiler's door: products of dense and sparse rows, fast exponentials
    exact       sums of floats that come out the same in every order
    kernels     the kernels (with tiles: blocks of them, entries: one value)
    dual        one record for every machine's dual problem: objectives, gap, multipliers
    problems    the recipes: C- and nu-SVC, one-class, SVRs, LAD, quantile, sublinear losses
    store/      data sets, their preparation, fitted models; readers of every file format; ingest
    design      what a solver multiplies with: raw rows, stored features, kernel columns, entries
    screening/  which rows need no further look, and why that is safe
    solvers/    smoothed Newton, coordinate descent; blocks and pairs of rows for exact kernels;
                none knows a screening rule
    closing     the closing pass: the certificate, over all rows
    fit         the one loop: solver, rule, budgets, checkpoints, closing pass
    fleet       where work runs: threads here, or a Dask cluster; survives a worker's death
    nystrom     landmarks, their factor, features
    partition   rows in parts, by kernel k-means; divide: parts solved by themselves, and a start
    path        a grid of C or nu: every point from the one before, rules before each, folds
    plan        what a fit will need, before it runs
    train       the main job: from a data set to a certified model (train_solve: without the job)
    predict, evaluate, certificate, report   what comes after, and how it is shown
    estimators  the scikit-learn door
    cli/        the command line
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bigscreen.errors import InputError
    from bigscreen.estimators import NystroemSVC
    from bigscreen.estimators_linear import LinearSVC, LinearSVR
    from bigscreen.estimators_one_class import OneClassSVM
    from bigscreen.estimators_path import nu_path, svm_path
    from bigscreen.estimators_path_cv import SVCPathCV
    from bigscreen.estimators_regression import SVR, LADRegressor, NuSVR, QuantileRegressor
    from bigscreen.estimators_svc import SVC, NuSVC
    from bigscreen.fleet import Inline
    from bigscreen.fleet_start import connect, local_cluster
    from bigscreen.store import Dataset, MemoryDataset
    from bigscreen.store.ingest import ingest
    from bigscreen.store.model import Model
    from bigscreen.store.path_file import SolvedPath
    from bigscreen.train import TrainOptions
    from bigscreen.train_solve import solve

if sys.platform == "win32":
    raise ImportError("bigscreen runs on Linux and macOS; on Windows install and run it in WSL.")

__all__ = [
    "Dataset",
    "InputError",
    "Inline",
    "LADRegressor",
    "LinearSVC",
    "LinearSVR",
    "MemoryDataset",
    "Model",
    "NuSVC",
    "NuSVR",
    "NystroemSVC",
    "OneClassSVM",
    "QuantileRegressor",
    "SVC",
    "SVCPathCV",
    "SVR",
    "SolvedPath",
    "TrainOptions",
    "connect",
    "ingest",
    "local_cluster",
    "nu_path",
    "solve",
    "svm_path",
]

_HOMES = {
    "Dataset": "store",
    "InputError": "errors",
    "Inline": "fleet",
    "LADRegressor": "estimators_regression",
    "LinearSVC": "estimators_linear",
    "LinearSVR": "estimators_linear",
    "MemoryDataset": "store",
    "Model": "store.model",
    "NuSVC": "estimators_svc",
    "NuSVR": "estimators_regression",
    "NystroemSVC": "estimators",
    "OneClassSVM": "estimators_one_class",
    "QuantileRegressor": "estimators_regression",
    "SVC": "estimators_svc",
    "SVCPathCV": "estimators_path_cv",
    "SVR": "estimators_regression",
    "SolvedPath": "store.path_file",
    "TrainOptions": "train",
    "connect": "fleet_start",
    "ingest": "store.ingest",
    "local_cluster": "fleet_start",
    "nu_path": "estimators_path",
    "solve": "train_solve",
    "svm_path": "estimators_path",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bigscreen' has no attribute {name!r}")
    value = getattr(import_module(f"bigscreen.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

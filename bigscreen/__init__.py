"""Support vector machines on data larger than memory, each with a proved duality gap.

The public interface, whose names are imported when first used:

- estimators with scikit-learn's interface: the classifiers `SVC`, `NuSVC`, `LinearSVC` and
  `NystroemSVC`, the regressors `SVR`, `NuSVR`, `LinearSVR`, `LADRegressor` and
  `QuantileRegressor`, and `OneClassSVM`; the transformer `Nystroem`;
- `fit_many`: fit many label or weight vectors of the same rows;
- `svm_path`, `nu_path`, `SVCPathCV`: solve a whole grid of C or nu; `SolvedPath` is the result;
- `NystroemSVCCV`, `SVCCV`, `NuSVCCV`: search for gamma and C (or nu) by cross-validation;
- `solve`: solve any problem of the library's dual form, with an exact kernel;
- `ingest`: store files and arrays as a `Dataset`; `MemoryDataset` holds arrays;
- `Model`: a fitted machine; `TrainOptions` and `Tuning`: the options of a fit by
  `bigscreen.train.run.train`, without scikit-learn;
- `Inline`, `connect`, `local_cluster`: run on threads, on a Dask cluster, or on local processes;
- `bigscreen.dask`: kernel columns, features and predictions as lazy Dask arrays;
- `InputError`, `TimeOver`.

The packages, from the ground up; each imports only itself and the packages before it:

    errors      errors for users' mistakes
    files       files written atomically; sealed records, checkpoints, work folders
    numerics    compiled loops over rows; sums that do not depend on the order of blocks
    fleet       parallel work on threads or a Dask cluster, which survives the death of workers
    data        data sets on disk and in memory, and the preparation of their rows
    kernels     kernel entries between rows, and bounds on their rounding errors
    problems    one dual form for every machine; its recipes, primal and dual points
    model       fitted machines and paths: scores, probabilities, files
    evaluate    evaluation of a model on a store; files of predictions and ledgers
    features    the rows that solvers multiply with: raw rows, stored features, kernel columns
    dask        kernel columns, features and predictions as lazy arrays, for users of Dask
    screening   rules that leave out rows, and the proofs that they are safe
    options     the options of a fit, with their help
    report      output for people: progress, tables, plots
    export      models for other programs, read again and compared
    intake      from files and arrays to a data set on disk; readers of every format
    certify     the closing pass: the certificate, over all rows
    solvers     smoothed Newton, coordinate descent; blocks and pairs of rows for exact kernels
    fit         the fitting loop: solver, screening rule, budgets, checkpoints, closing pass
    plan        the plan of a fit: solver, storage of features, memory of each process
    train       the main job: from a data set to a certified model
    path        a grid of C or nu: warm starts, screening before each point, folds
    amend       edits of a fitted machine's rows: bounds on their effect, and the updated fit
    tune        the search for landmarks, gamma and C by successive halving, and the final fit
    cli         the command line
    estimators  estimators for users of scikit-learn
"""

import sys
from importlib import import_module

TYPE_CHECKING = False  # not imported from typing: a slow import would delay Ctrl-C handling
if TYPE_CHECKING:
    from typing import Any

    from bigscreen.data.dataset import Dataset
    from bigscreen.data.memory import MemoryDataset
    from bigscreen.errors import InputError, TimeOver
    from bigscreen.estimators.classification import SVC, NuSVC
    from bigscreen.estimators.features import Nystroem
    from bigscreen.estimators.large_scale import NystroemSVC
    from bigscreen.estimators.linear import LinearSVC, LinearSVR
    from bigscreen.estimators.many import fit_many
    from bigscreen.estimators.one_class import OneClassSVM
    from bigscreen.estimators.path import SVCPathCV, nu_path, svm_path
    from bigscreen.estimators.regression import SVR, LADRegressor, NuSVR, QuantileRegressor
    from bigscreen.estimators.tune import SVCCV, NuSVCCV, NystroemSVCCV
    from bigscreen.fleet.connecting import connect
    from bigscreen.fleet.inline import Inline
    from bigscreen.fleet.local import local_cluster
    from bigscreen.intake.ingest import ingest
    from bigscreen.model.model import Model
    from bigscreen.model.solved_path import SolvedPath
    from bigscreen.options.train import TrainOptions
    from bigscreen.options.tuning import Tuning
    from bigscreen.train.solve import solve

if sys.platform == "win32":
    raise ImportError("bigscreen runs on Linux and macOS; on Windows install and run it in WSL.")

__all__ = [
    "SVC",
    "SVCCV",
    "SVR",
    "Dataset",
    "Inline",
    "InputError",
    "LADRegressor",
    "LinearSVC",
    "LinearSVR",
    "MemoryDataset",
    "Model",
    "NuSVC",
    "NuSVCCV",
    "NuSVR",
    "Nystroem",
    "NystroemSVC",
    "NystroemSVCCV",
    "OneClassSVM",
    "QuantileRegressor",
    "SVCPathCV",
    "SolvedPath",
    "TimeOver",
    "TrainOptions",
    "Tuning",
    "connect",
    "fit_many",
    "ingest",
    "local_cluster",
    "nu_path",
    "solve",
    "svm_path",
]

_MODULES = {
    "Dataset": "data.dataset",
    "InputError": "errors",
    "Inline": "fleet.inline",
    "LADRegressor": "estimators.regression",
    "LinearSVC": "estimators.linear",
    "LinearSVR": "estimators.linear",
    "MemoryDataset": "data.memory",
    "Model": "model.model",
    "NuSVC": "estimators.classification",
    "NuSVCCV": "estimators.tune",
    "NuSVR": "estimators.regression",
    "Nystroem": "estimators.features",
    "NystroemSVC": "estimators.large_scale",
    "NystroemSVCCV": "estimators.tune",
    "OneClassSVM": "estimators.one_class",
    "QuantileRegressor": "estimators.regression",
    "SVC": "estimators.classification",
    "SVCCV": "estimators.tune",
    "SVCPathCV": "estimators.path",
    "SVR": "estimators.regression",
    "SolvedPath": "model.solved_path",
    "TimeOver": "errors",
    "TrainOptions": "options.train",
    "Tuning": "options.tuning",
    "connect": "fleet.connecting",
    "fit_many": "estimators.many",
    "ingest": "intake.ingest",
    "local_cluster": "fleet.local",
    "nu_path": "estimators.path",
    "solve": "train.solve",
    "svm_path": "estimators.path",
}


def __getattr__(name: str) -> "Any":
    if name not in _MODULES:
        raise AttributeError(f"module 'bigscreen' has no attribute {name!r}")
    value = getattr(import_module(f"bigscreen.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

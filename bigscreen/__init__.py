"""Support vector machines on data larger than memory, each with a proved duality gap.

What a person needs is here: scikit-learn estimators, the classifiers `SVC`, `NuSVC`, `LinearSVC`
and `NystroemSVC`, the regressions `SVR`, `NuSVR`, `LinearSVR`, `LADRegressor` and
`QuantileRegressor`, and `OneClassSVM`; `fit_many` (many label or weight vectors of the
same rows); `svm_path`, `nu_path` and `SVCPathCV` (every C or nu of a grid in one call) and
`SolvedPath`; `NystroemSVCCV`, `SVCCV` and `NuSVCCV` (which search for gamma
and C); `solve` (any problem that can be written down, with an exact kernel); `ingest` (files and
arrays to a stored data set), `Dataset`, `MemoryDataset`, `Model`, `TrainOptions` (of
`bigscreen.train.run.train`, the same fit without scikit-learn), `Tuning` (the options of both that
are found by measuring), `Inline`, `connect` and `local_cluster` (where it runs), `InputError` and
`TimeOver`. They are imported when first used.

The packages, from the ground up; each imports only itself and those before it:

    errors      what a user's mistake raises
    files       outputs that appear whole or not at all; sealed records, checkpoints, work folders
    numerics    compiled loops over rows, sums that come out the same in every order
    fleet       where work runs: threads here, or a Dask cluster; survives a worker's death
    data        data sets on disk and in memory, and how their rows were prepared
    kernels     entries between rows, and what rounding can do to them
    problems    one dual record for every machine, the recipes that make it, points
    model       fitted machines and paths: scores, probabilities, files
    evaluate    how good a model is on a store; predictions and ledgers written to files
    features    what solvers multiply with: raw rows, stored features, columns of a kernel
    screening   which rows need no further look, and why that is safe
    options     the options of a fit, with their help
    report      what a person sees: progress, tables, plots
    export      models for other programs, read again there and compared
    intake      from files and arrays to a data set on disk; readers of every format
    certify     the closing pass: the certificate, over all rows
    solvers     smoothed Newton, coordinate descent; blocks and pairs of rows for exact kernels
    fit         the one loop: solver, rule, budgets, checkpoints, closing pass
    plan        what a fit will need: solver, where features live, bytes of each process
    train       the main job: from a data set to a certified model
    path        a grid of C or nu: every point from the one before, rules before each, folds
    amend       edits of a fitted machine's rows, what they change at most, and the fit after them
    tune        the search for landmarks, gamma and C: rungs of successive halving, the last fit
    cli         the command line
    estimators  what scikit-learn users call
"""

import sys
from importlib import import_module

TYPE_CHECKING = False  # typing's, without its import: a command is to hear Ctrl-C at once
if TYPE_CHECKING:
    from typing import Any

    from bigscreen.data.dataset import Dataset
    from bigscreen.data.memory import MemoryDataset
    from bigscreen.errors import InputError, TimeOver
    from bigscreen.estimators.classification import SVC, NuSVC
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
    "Dataset",
    "InputError",
    "Inline",
    "LADRegressor",
    "LinearSVC",
    "LinearSVR",
    "MemoryDataset",
    "Model",
    "NuSVC",
    "NuSVCCV",
    "NuSVR",
    "NystroemSVC",
    "NystroemSVCCV",
    "OneClassSVM",
    "QuantileRegressor",
    "SVC",
    "SVCCV",
    "SVCPathCV",
    "SVR",
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

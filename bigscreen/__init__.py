"""Support vector machines on data larger than memory, each with a proved duality gap.

What a person needs is here: `SVC`, `NystroemSVC` and `LinearSVC` (scikit-learn estimators),
`ingest` (files and arrays to a stored data set), `Dataset`, `MemoryDataset`, `Model`,
`TrainOptions` (of `bigscreen.train.train`, the same fit without scikit-learn), `Inline`, `connect`
and `local_cluster` (where it runs) and `InputError`. They are imported when first used.

The house, from the ground up; every room imports only from rooms above it:

    errors      what a user's mistake raises
    rows        the compiler's door: products of dense and sparse rows, fast exponentials
    exact       sums of floats that come out the same in every order
    kernels     the kernels (with tiles: blocks of them, entries: one value)
    dual        one record for every machine's dual problem: objectives, gap, multipliers
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
    plan        what a fit will need, before it runs
    train       the main job: from a data set to a certified model
    predict, evaluate, certificate, report   what comes after, and how it is shown
    estimators  the scikit-learn door
    cli/        the command line
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bigscreen.errors import InputError
    from bigscreen.estimators import LinearSVC, NystroemSVC
    from bigscreen.estimators_svc import SVC
    from bigscreen.fleet import Inline
    from bigscreen.fleet_start import connect, local_cluster
    from bigscreen.store import Dataset, MemoryDataset
    from bigscreen.store.ingest import ingest
    from bigscreen.store.model import Model
    from bigscreen.train import TrainOptions

__all__ = [
    "Dataset",
    "InputError",
    "Inline",
    "LinearSVC",
    "MemoryDataset",
    "Model",
    "NystroemSVC",
    "SVC",
    "TrainOptions",
    "connect",
    "ingest",
    "local_cluster",
]

_HOMES = {
    "Dataset": "store",
    "InputError": "errors",
    "Inline": "fleet",
    "LinearSVC": "estimators",
    "MemoryDataset": "store",
    "Model": "store.model",
    "NystroemSVC": "estimators",
    "SVC": "estimators_svc",
    "TrainOptions": "train",
    "connect": "fleet_start",
    "ingest": "store.ingest",
    "local_cluster": "fleet_start",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bigscreen' has no attribute {name!r}")
    value = getattr(import_module(f"bigscreen.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

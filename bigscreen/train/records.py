"""What a model records of its training run: versions, parameters, certificates, warnings."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bigscreen.data.rows import Rows
from bigscreen.device.find import HOST
from bigscreen.files.work import describe_changes
from bigscreen.fit.loop import Fitted
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.base import Kernel
from bigscreen.kernels.given import Precomputed
from bigscreen.kernels.standard import describe_products
from bigscreen.numerics.rows import FloatArray
from bigscreen.options.train import CHANGEABLE, TrainOptions
from bigscreen.problems.point import is_rounded_to_zero
from bigscreen.problems.recipes import NuSvc
from bigscreen.train.problems import Binary, libsvm_scale


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of the packages that can change the last bits of a result."""
    names = ("bigscreen", "numpy", "scipy", "numba", "zarr", "dask")
    found = {name: importlib.metadata.version(name) for name in names}
    return {**found, "python": platform.python_version()}


def versions_and_products(kernel: Kernel, exact: bool) -> dict[str, str]:
    """Return versions of packages, and the processor instructions that multiply rows, by name.

    ``exact``: whether the machine has no explicit features, so that even a linear kernel computes
    entries.
    """
    raw = kernel.name == "linear" and not exact  # products with w, no kernel entries
    products = describe_products(None if raw else kernel)
    return {**versions(), "products": products}


def kind_and_labels(data: Rows, options: TrainOptions) -> dict[str, Any]:
    """Return the kind of a model (classifier, regressor, one-class) and its labels."""
    if options.problem == "one-class":
        return {"kind": "one-class", "labels": [-1, 1]}
    if not options.classifies:
        return {"kind": "regressor", "labels": []}
    return {"kind": "classifier", "labels": data.labels}


def provenance(
    data: Rows, options: TrainOptions, kernel: Kernel, fleet: Fleet, known: bool, **own: Any
) -> dict[str, Any]:
    """Return the record of a fit: data, options, versions, and what ``own`` adds.

    Parameters
    ----------
    known : bool
        Record the fingerprint of rows in memory, too. To hash 60,000 images takes a tenth of the
        time of an exact fit.
    own
        Further entries, which only models have, or only paths; or a device other than the CPU.
    """
    stored = known or data.path is not None or options.work is not None
    return {
        "versions": versions_and_products(kernel, options.exact),
        "fingerprint": data.fingerprint if stored else None,
        "index_base": getattr(data, "manifest", {}).get("extra", {}).get("index_base"),
        "parameters": {**options.record, "kernel": kernel.to_dict()},
        "device": HOST.record,
        **own,
        "rows": data.n_sources,
        "peak_pss_bytes": fleet.peak_pss,
    }


def describe_difference(
    provenance: Mapping[str, Any],
    data: Rows,
    options: TrainOptions,
    free: Sequence[str] = CHANGEABLE,
    own: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {}),
) -> str:
    """Describe how the fit of a model or path differs from a requested fit; "" if it does not.

    Parameters
    ----------
    provenance : mapping
        The record of the model or path.
    free : sequence of str
        Options that may differ.
    own : (mapping, mapping)
        Further settings to compare: those of the model or path, and those requested.
    """
    parameters = provenance["parameters"]
    before = {**parameters, "kernel": parameters["kernel"]["name"]}
    now = {name: value for name, value in options.record.items() if name not in free}
    # An option that only one of them has was added later: the other has its default, None.
    before |= dict.fromkeys(now.keys() - before.keys())
    now |= {name: None for name in before.keys() - now.keys() if name not in free}
    return describe_changes(
        {**before, "data": provenance["fingerprint"], **own[0]},
        {**now, "data": data.fingerprint, **own[1]},
    )


def combine_supports(
    parts: Sequence[tuple[NDArray[np.int64], FloatArray]],
) -> tuple[NDArray[np.int64], FloatArray]:
    """Combine the support vectors of several machines.

    Parameters
    ----------
    parts : sequence of (int64, float64) arrays
        Row numbers of the support vectors of each machine, ascending, and their coefficients.

    Returns
    -------
    rows : int64 (rows,)
        Rows that are a support vector of at least one machine, ascending; at least one row.
    coef : float64 (machines, rows)
    """
    rows = np.unique(np.concatenate([support for support, _ in parts])).astype(np.int64)
    # A machine may have no support vector, only an offset: a model needs a row all the same.
    rows = rows if len(rows) else np.zeros(1, np.int64)
    coef = np.zeros((len(parts), len(rows)))
    for own, (support, numbers) in zip(coef, parts, strict=True):
        own[np.searchsorted(rows, support)] = numbers
    return rows, coef


def support_rows(kernel: Kernel, data: Rows, rows: NDArray[np.int64]) -> Any:
    """Return the support vectors that a model stores; empty rows for a precomputed kernel."""
    if isinstance(kernel, Precomputed):
        return sparse.csr_array((len(rows), data.n_features), dtype=np.float32)
    return data.rows(rows)


def scale_machine(
    coef: FloatArray, fitted: Fitted, binary: Binary, data: Rows, offset: float
) -> dict[str, Any]:
    """Return the coefficients and offset of a solved problem in LIBSVM's scale (`libsvm_scale`).

    ``coef``, ``offset``: in the problem's own scale.
    """
    scale = libsvm_scale(binary.problem, fitted.certificate.multiplier, data)
    if fitted.ended == "nothing" and isinstance(binary.problem, NuSvc):
        scale = 1.0  # the margin is 0
    return {"coef": scale * coef, "intercept": scale * offset}


def explain_missed_gap(fitted: Fitted, tol: float, features: str) -> str | None:
    """Explain why a fit missed its gap, if more passes would not help; else None.

    ``tol``: the requested relative gap; ``features``: "stored", "recomputed", "raw" or "exact".
    """
    proved = fitted.certificate
    if fitted.ended == "nothing":
        return (
            "the best w is 0 as far as float32 rows can tell (so large a part of the rows is free "
            "that the classes, or the rows and the origin, overlap), and nothing can be relative "
            "to its objective, which is 0; take a larger nu or another kernel"
        )
    if proved.psd and not proved.proved:
        return (
            "nothing is proved, as no bound on the rounding of the sums is a finite number; scale "
            "the data, or take values nearer to 1"
        )
    if proved.proves(tol):
        return None
    if is_rounded_to_zero(proved.primal, proved.rounding_bound):
        above = max(proved.gap, 0.0) + proved.rounding_bound
        return (
            f"P is 0 but for rounding, and nothing can be small relative to 0: P is at most "
            f"{above:.2g} above the best possible objective"
        )
    if fitted.ended == "rounded" and proved.gap > proved.rounding_bound:
        return (
            f"the gap {proved.gap:.2g} is small enough, but rounding can have moved it by "
            f"{proved.rounding_bound:.2g}; ask for a larger tol, or scale data and targets"
        )
    if proved.gap <= proved.rounding_bound:
        return (
            f"the gap {proved.gap:.2g} is no more than rounding can have made it "
            f"({proved.rounding_bound:.2g}); ask for a larger tol, or scale data and targets"
        )
    if fitted.ended == "slow":
        return (
            "steps on rows drawn at random come closer but slowly, and prove little; the newton "
            "solver proves tol"
        )
    if fitted.ended == "stalled":
        stored = "for features stored, or " * (features == "recomputed")
        return (
            f"rounding lets the solver come no closer; ask {stored}for a larger tol, or scale the "
            "data"
        )
    return None


def record_problem(
    fitted: Fitted, name: Any, tol: float, features: str, landmarks: dict[str, Any]
) -> dict[str, Any]:
    """Return what a model records of one problem: certificate, history and screening.

    ``name``: the problem's label, None if it is the only one; ``landmarks``: what certificates
    record of the landmarks.
    """
    return {
        "certificate": {
            "label": name,
            **fitted.certificate.to_dict(),
            "hindrance": explain_missed_gap(fitted, tol, features),
            "passes": fitted.passes,
            **({} if fitted.solver in (None, "newton") else {"solver": fitted.solver}),
            **landmarks,
        },
        "ended": fitted.ended,
        "history": [{**event, "class": name} for event in fitted.history],
        "screening": {"label": name, **fitted.screening},
    }


def warn_missed(sentence: str, stacklevel: int) -> None:
    """Warn with scikit-learn's ConvergenceWarning that a fit missed its tolerance.

    Parameters
    ----------
    sentence : str
    stacklevel : int
        As of ``warnings.warn``, counted from the caller of this function.
    """
    # Imported only for a warning: to import scikit-learn takes as long as a small fit.
    from sklearn.exceptions import ConvergenceWarning

    warnings.warn(sentence, ConvergenceWarning, stacklevel=stacklevel + 1)

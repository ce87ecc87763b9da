"""Write, read and evaluate model files of LIBSVM; evaluation follows LIBSVM, in float64."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from bigscreen.data.limits import check_regular
from bigscreen.data.preparation import Preparation
from bigscreen.errors import InputError, reason_of
from bigscreen.files.output import replacing
from bigscreen.kernels.standard import make_kernel
from bigscreen.model.model import Model
from bigscreen.model.pairs import infer_classes, to_libsvm_layout
from bigscreen.numerics.rows import FloatArray

KERNELS = {"linear": "linear", "polynomial": "polynomial", "rbf": "rbf", "sigmoid": "sigmoid"}
"""Kernels that both bigscreen and LIBSVM have, with LIBSVM's names."""

PARAMETERS = {
    "linear": (),
    "polynomial": ("degree", "gamma", "coef0"),
    "rbf": ("gamma",),
    "sigmoid": ("gamma", "coef0"),
}
"""Parameters that a model file must state, keyed by LIBSVM's name of the kernel."""

KINDS_BY_SVM_TYPE = {
    "c_svc": "classifier",
    "nu_svc": "classifier",
    "one_class": "one-class",
    "epsilon_svr": "regressor",
    "nu_svr": "regressor",
}
"""Kind of `Model` for each ``svm_type`` of a LIBSVM file."""

NO_CERTIFICATE = (
    "no certificate: it was read from a file of LIBSVM's, which does not say what it was fitted to"
)
"""Provenance field ``no_certificate`` of an imported model."""


def write_libsvm(model: Model, out: str | os.PathLike[str]) -> list[str]:
    """Write a model as a LIBSVM model file, atomically.

    Returns
    -------
    list of str
        Notes for the user of the file, one sentence each.

    Raises
    ------
    InputError
        If LIBSVM cannot represent the model.
    """
    name = model.kernel.name
    if name not in KERNELS:
        raise InputError(f"LIBSVM has no {name} kernel; export the model to onnx or sklearn")
    if model.gate is not None:
        raise InputError("LIBSVM has no machine of parts, as an early divide and conquer ends with")
    k = len(model.labels)
    many = model.kind == "classifier" and k > 2
    if many and not (model.strategy == "one" and _pairs_contain_own_class(model)):
        raise InputError(
            "LIBSVM's machines of more than two labels are exact and one against one: fit with "
            "`--exact --strategy one`, or export to onnx or sklearn"
        )
    notes = []
    if model.preparation.metric is not None:
        raise InputError(
            "LIBSVM's files have no map of the columns, as this model's learned metric is; export "
            "it to onnx or sklearn"
        )
    if model.preparation.changes_features:
        notes.append("the file is of prepared rows (scaled, a column for every category)")
    rows: Any = model.landmarks
    coef, offset = model.coef, model.intercept - (0.0 if many else model.threshold)
    if rows is None:  # a linear model becomes a single support vector, w itself
        rows, coef = model.coef, np.ones((1, 1))
    head = [f"svm_type {_svm_type(model)}", f"kernel_type {KERNELS[name]}"]
    own = [name for name in ("degree", "gamma", "coef0") if hasattr(model.kernel, name)]
    head += [f"{parameter} {getattr(model.kernel, parameter)!r}" for parameter in own]
    order, sizes = np.arange(coef.shape[1]), [coef.shape[1], 0]
    if many:
        code = infer_classes(model)
        order = np.argsort(code, kind="stable")
        order = order[code[order] >= 0]
        sizes = np.bincount(code[order], minlength=k).tolist()
        coef, offset = to_libsvm_layout(coef[:, order], code[order], k), -offset
    head += [f"nr_class {k if many else 2}", f"total_sv {len(order)}"]
    head.append("rho " + " ".join(repr(float(-each)) for each in offset))
    if model.kind == "classifier":
        labels = model.labels if many else model.labels[::-1]
        if not all(isinstance(label, (int, np.integer)) for label in labels):
            codes = {label: code for code, label in enumerate(model.labels)}
            named = ", ".join(f"{code} is {label}" for label, code in codes.items())
            notes.append(f"LIBSVM's labels are whole numbers: {named}")
            labels = [codes[label] for label in labels]
        head += ["label " + " ".join(map(str, labels)), "nr_sv " + " ".join(map(str, sizes))]
    with replacing(out) as file:
        file.write("\n".join([*head, "SV\n"]).encode())
        for row, own in zip(order.tolist(), coef.T, strict=True):
            numbers = " ".join(repr(float(each)) for each in own)
            file.write(f"{numbers} {' '.join(_entries(rows, row))}\n".encode())
    return notes


def _pairs_contain_own_class(model: Model) -> bool:
    """Whether every support row has coefficients only in pairs that contain its class."""
    code = infer_classes(model)
    pairs = combinations(range(len(model.labels)), 2)
    return all(
        np.isin(code[coef != 0], pair).all() for pair, coef in zip(pairs, model.coef, strict=True)
    )


def _svm_type(model: Model) -> str:
    """Return LIBSVM's ``svm_type`` for the kind of a model: nu machines become C machines."""
    names = {"classifier": "c_svc", "one-class": "one_class", "regressor": "epsilon_svr"}
    return names[model.kind]


def _entries(rows: Any, row: int) -> Iterator[str]:
    """Format the nonzero entries of row number ``row`` as svmlight does: ``column:value``."""
    if issparse(rows):
        own = slice(rows.indptr[row], rows.indptr[row + 1])
        columns, values = rows.indices[own], rows.data[own]
    else:
        columns = np.flatnonzero(rows[row])
        values = rows[row, columns]
    return (f"{j + 1}:{v!r}" for j, v in zip(columns.tolist(), values.tolist(), strict=True))


def read_libsvm(path: str | os.PathLike[str]) -> Model:
    """Read a LIBSVM model file; the model has no certificate.

    Raises
    ------
    InputError
        If there is no such file, it is not a LIBSVM model, or it is damaged.
    """
    name = os.fspath(path)
    check_regular(path)
    if not Path(path).is_file():
        raise InputError(f"there is no file {name}")
    head: dict[str, list[str]] = {}
    try:
        with open(path, encoding="ascii") as file:
            for line in file:
                key, *values = line.split() or [""]
                if key == "SV":
                    break
                head[key] = values
            if "svm_type" not in head or "kernel_type" not in head:
                raise InputError(f"{name} is no model file of LIBSVM: it names no svm_type")
            return _parse_machine(name, head, file)
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        reason = reason_of(error)
        raise InputError(f"{name} is no whole model file of LIBSVM ({reason})") from error


def _parse_machine(name: str, head: dict[str, list[str]], lines: Any) -> Model:
    """Build a model from the header ``head`` and the support vector lines of a LIBSVM file.

    ``name`` of the file for messages. InputError or ValueError, KeyError, IndexError and
    OverflowError if the file is damaged or of a kind that is not read.
    """
    kind = KINDS_BY_SVM_TYPE.get(head["svm_type"][0])
    kernel_name = head["kernel_type"][0]
    if kind is None or kernel_name not in KERNELS.values():
        raise InputError(
            f"{name} holds a {head['svm_type'][0]} with a {kernel_name} kernel, which is not read; "
            f"known are {', '.join(KINDS_BY_SVM_TYPE)} with {', '.join(KERNELS.values())}"
        )
    count, classes = int(head["total_sv"][0]), int(head["nr_class"][0])
    width = classes - 1 if kind == "classifier" else 1
    if count < 1 or width < 1:
        raise ValueError(f"{count} support vectors of {classes} classes")
    coef, rows = _support(lines, count, width)
    rho = np.array([float(each) for each in head["rho"]])
    absent = [each for each in PARAMETERS[kernel_name] if not head.get(each)]
    if absent:
        raise InputError(
            f"{name} names no {absent[0]}, which its {kernel_name} kernel needs and LIBSVM always "
            "writes; restore the line or train the model again"
        )
    # The value of a parameter that the kernel does not have is irrelevant.
    gamma, degree, coef0 = (head.get(each, ["1"])[0] for each in ("gamma", "degree", "coef0"))
    kernel = make_kernel(kernel_name, float(gamma), int(degree), float(coef0))
    labels: list[Any] = {"regressor": [], "one-class": [-1, 1]}.get(kind, [])
    if kind == "classifier":
        labels = [int(each) for each in head["label"]]
        sizes = np.array([int(each) for each in head["nr_sv"]])
        if len(labels) != classes or len(sizes) != classes or sizes.sum() != count:
            raise ValueError("labels and support vectors do not match")
        if classes > 2:
            coef, rho = _by_pairs(coef, np.repeat(np.arange(classes), sizes)), -rho
        elif labels[0] > labels[1]:  # LIBSVM's positive scores mean the first of two labels
            labels = labels[::-1]
        else:
            coef, rho = -coef, -rho
    if not (np.isfinite(coef).all() and np.isfinite(rho).all() and np.isfinite(rows.data).all()):
        raise ValueError("its numbers are not all finite")
    return Model(
        kernel=kernel,
        landmarks=rows,
        coef=coef,
        intercept=-rho,
        labels=labels,
        preparation=Preparation.none(),
        provenance=_provenance(name, head, kernel.to_dict(), count),
        strategy="one" if kind == "classifier" else "rest",
        kind=kind,
    )


def _support(lines: Any, count: int, width: int) -> tuple[FloatArray, Any]:
    """Read ``count`` lines of support vectors: coefficients (width, count) and rows (csr_array).

    ``width`` coefficients stand before the entries in each line. Rows are float32 if it can
    represent all values exactly. ValueError if a line is not valid.
    """
    coef = np.empty((width, count))
    data, columns, ends, last = [], [], [0], -1
    for row in range(count):
        parts = next(lines, "").split()
        if len(parts) < width:
            raise ValueError(f"support vector {row + 1} of {count} is missing or cut short")
        coef[:, row] = [float(each) for each in parts[:width]]
        pairs = [part.split(":") for part in parts[width:]]
        own = [int(j) - 1 for j, _ in pairs]
        if any(b <= a for a, b in zip([-1, *own], own, strict=False)):
            raise ValueError(f"the columns of support vector {row + 1} do not ascend from 1")
        columns += own
        data += [float(value) for _, value in pairs]
        ends.append(len(columns))
        last = max([last, *own[-1:]])
    if last >= np.iinfo(np.int32).max:
        raise ValueError(f"column {last + 1} is beyond 32 bits")
    values = np.array(data)
    narrow = values.astype(np.float32)
    kept = narrow if np.array_equal(narrow, values) else values
    indices = np.array(columns, np.int32), np.array(ends, np.int32)
    return coef, csr_array((kept, *indices), shape=(count, max(last + 1, 1)))


def _by_pairs(coef: FloatArray, code: NDArray[np.int64]) -> FloatArray:
    """Convert LIBSVM's coefficients (classes - 1, n_SV) to ours (pairs, n_SV), of opposite sign.

    ``code``, (n_SV,), is the class of each support vector.
    """
    classes = len(coef) + 1
    out = []
    for first in range(classes):
        for second in range(first + 1, classes):
            one = np.where(code == first, coef[second - 1], 0.0)
            out.append(-(one + np.where(code == second, coef[first], 0.0)))
    return np.stack(out)


def _provenance(
    name: str, head: dict[str, list[str]], kernel: dict[str, Any], count: int
) -> dict[str, Any]:
    """Build the provenance of an imported model from the file's header ``head``.

    ``name`` of the file, ``kernel`` as a record, and the ``count`` of support vectors.
    """
    problems = {"c_svc": "c-svc", "nu_svc": "nu-svc", "one_class": "one-class"}
    kind = head["svm_type"][0]
    problem = problems.get(kind, kind.removeprefix("epsilon_").replace("_", "-"))
    return {
        "imported": os.path.basename(name),
        "versions": {},
        "fingerprint": None,
        "index_base": 1,
        "parameters": {"problem": problem, "kernel": kernel, "tol": None},
        "certificates": None,
        "no_certificate": NO_CERTIFICATE,
        "history": [],
        "screening": [],
        "solver": "LIBSVM",
        "features": "exact",
        "seconds": {},
        "rows": None,
        "support": count,
        "peak_pss_bytes": None,
    }


def libsvm_scores(path: str | os.PathLike[str], X: Any) -> FloatArray:
    """Compute scores (rows, k) from a LIBSVM model file as LIBSVM's prediction does.

    For features X (rows, d), in float64, dense and slow: a reference to check an export by.
    """
    model = read_libsvm(path)
    Z: Any = model.landmarks
    wide = np.zeros((Z.shape[0], X.shape[1]))
    wide[:, : Z.shape[1]] = Z.toarray()[:, : X.shape[1]]
    rows = np.asarray(X.toarray() if issparse(X) else X, np.float64)
    kernel: Any = model.kernel
    if kernel.name == "rbf":
        apart = np.stack([np.sum((rows - z) ** 2, axis=1) for z in wide], axis=1)
        entries = np.exp(-kernel.gamma * apart)
    else:
        entries = rows @ wide.T
        if kernel.name == "polynomial":
            entries = (kernel.gamma * entries + kernel.coef0) ** kernel.degree
        elif kernel.name == "sigmoid":
            entries = np.tanh(kernel.gamma * entries + kernel.coef0)
    found: FloatArray = entries @ model.coef.T + model.intercept
    return found

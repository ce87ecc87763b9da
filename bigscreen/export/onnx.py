"""Export a model as an ONNX graph that takes raw source rows and computes in float64.

The input is ``X``, float64 (rows, source columns). If the source has categories, each column is an
input of its own, (rows, 1), float64 or text, named like the column. The outputs are ``label`` (or
``prediction``), ``scores`` and, of a calibrated model, ``probabilities``.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from bigscreen.data.missing import MISSING_CATEGORY, MISSING_TEXTS
from bigscreen.data.preparation import Preparation
from bigscreen.data.source_rows import BOOLEANS
from bigscreen.data.texts import match_truth
from bigscreen.errors import InputError
from bigscreen.export.source import SampledRows
from bigscreen.files.output import replacing
from bigscreen.kernels.base import FLOAT32_TINY
from bigscreen.kernels.entries import PRODUCTS
from bigscreen.kernels.standard import Compiled
from bigscreen.model.calibration import MIN_PROBABILITY, Curve
from bigscreen.model.model import Model
from bigscreen.numerics.rows import FloatArray

OPSET, IR_VERSION = 17, 8
"""Versions of ONNX's set of operators (17) and of its file format (8) that exported models
declare."""

FOLD_SCORES = "fold_scores"
"""Name of the fold machines' scores, from which probabilities follow; not an output."""

RESERVED = ("label", "scores", "probabilities", FOLD_SCORES)
"""Names of results in the graph, which no input may have."""


def import_onnx() -> tuple[Any, Any]:
    """Import and return onnx and onnxruntime; InputError if one of them is missing."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise InputError(
            f"exporting to onnx needs onnx and onnxruntime ({error}): pip install "
            "'bigscreen[export]'"
        ) from error
    return onnx, onnxruntime


class Graph:
    """The nodes and constants of an ONNX graph under construction; results have unique names."""

    def __init__(self) -> None:
        """Begin an empty graph; InputError if onnx is missing."""
        self.onnx, _ = import_onnx()
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.entries: dict[int, str] = {}
        """Names of kernel entries, keyed by the `id` of their landmarks' array."""

    def constant(self, value: Any, dtype: type = np.float64) -> str:
        """Add a constant tensor, `value` converted to `dtype`; return its name."""
        name = f"c{len(self.constants)}"
        self.constants.append(self.tensor(value, dtype, name))
        return name

    def tensor(self, value: Any, dtype: type, name: str) -> Any:
        """Convert a value to an ONNX tensor called `name`; a `dtype` of object means texts."""
        array = np.asarray(value) if dtype is object else np.asarray(value, dtype)
        if array.dtype.kind in "UO":
            array = array.astype(object)
        return self.onnx.numpy_helper.from_array(array, name)

    def add(self, op: str, *inputs: str, domain: str = "", out: str = "", **attributes: Any) -> str:
        """Add a node of operator ``op`` on results named ``inputs``; return its result's name.

        ``domain``: the operator set, "" for ONNX's own. ``out``: the name; "": a new one.
        """
        out = out or f"t{len(self.nodes)}"
        node = self.onnx.helper.make_node(op, inputs, [out], domain=domain, **attributes)
        self.nodes.append(node)
        return out


def write_onnx(model: Model, out: str | os.PathLike[str]) -> list[str]:
    """Write a model as an ONNX file, atomically.

    Returns
    -------
    list of str
        Notes for the user of the file, one sentence each.

    Raises
    ------
    InputError
        If onnx is missing, or the model cannot be expressed in ONNX.
    """
    graph = Graph()
    helper, types = graph.onnx.helper, graph.onnx.TensorProto
    features, inputs, notes = _features(graph, model)
    scores = add_scores(graph, model, features)
    graph.add("Identity", scores, out="scores")
    outputs = [helper.make_tensor_value_info("scores", types.DOUBLE, [None, len(model.coef)])]
    if model.kind == "regressor":
        graph.add("Squeeze", scores, graph.constant([1], np.int64), out="prediction")
        outputs.insert(0, helper.make_tensor_value_info("prediction", types.DOUBLE, [None]))
    else:
        names = _labels(model)
        graph.add(
            "Gather",
            graph.constant(names, names.dtype.type),
            add_codes(graph, model, scores),
            out="label",
        )
        kind = {"O": types.STRING, "i": types.INT64}.get(names.dtype.kind, types.DOUBLE)
        outputs.insert(0, helper.make_tensor_value_info("label", kind, [None]))
    if model.calibration is not None:
        if model.strategy == "one" and len(model.labels) > 2:
            notes.append("the probabilities of pairs of labels are not in the graph, only scores")
        else:
            held = add_fold_scores(graph, model, features, scores)
            found = add_probabilities(graph, model, scores, held)
            graph.add("Identity", held, out=FOLD_SCORES)
            graph.add("Identity", found, out="probabilities")
            shape = [None, len(model.labels)]
            outputs.append(helper.make_tensor_value_info("probabilities", types.DOUBLE, shape))
    made = helper.make_graph(graph.nodes, "bigscreen", inputs, outputs, graph.constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", 3)]
    bundle = helper.make_model(made, producer_name="bigscreen", opset_imports=opsets)
    bundle.ir_version = IR_VERSION
    graph.onnx.checker.check_model(bundle)
    with replacing(out) as file:
        file.write(bundle.SerializeToString())
    return notes


def _labels(model: Model) -> NDArray[Any]:
    """Return the labels, in code order, in a type that ONNX has: int64, float64 or text."""
    names = np.asarray(model.labels)
    if names.dtype.kind in "iu":
        return names.astype(np.int64)
    return names if names.dtype.kind == "f" else np.array([str(n) for n in model.labels], object)


def _features(graph: Graph, model: Model) -> tuple[str, list[Any], list[str]]:
    """Add the nodes that turn raw source columns into features.

    Returns the name of the features (rows, n_features), the graph's inputs, and notes for the user.
    """
    helper, types, known = graph.onnx.helper, graph.onnx.TensorProto, model.preparation
    n_raw = model.n_features_in_
    if not known.categories:
        inputs = [helper.make_tensor_value_info("X", types.DOUBLE, [None, n_raw])]
        return add_features(graph, model, "X"), inputs, []
    names = input_names(model)
    inputs, parts, gaps = [], [], []
    for j, name in enumerate(names):
        kinds = known.categories.get(j)
        kind = types.DOUBLE if kinds is None else types.STRING
        inputs.append(helper.make_tensor_value_info(name, kind, [None, 1]))
        if kinds is None:
            filled, holes = _filled(graph, name, known, np.array([j]))
            parts.append(filled)
            gaps += [] if holes is None else [holes]
            continue
        # A mark of a missing value stands for `MISSING_CATEGORY`, and a truth value in another
        # case for its category.
        marks = [*dict.fromkeys((*MISSING_TEXTS, *known.missing))]
        also = {
            text: MISSING_CATEGORY
            for text in marks
            if MISSING_CATEGORY in kinds and text not in kinds
        }
        truths = [text for words in BOOLEANS.values() for text in words if text not in kinds]
        pairs = ((text, match_truth(text, kinds)) for text in truths)
        also |= {text: kind for text, kind in pairs if kind is not None}
        ones = graph.add(
            *("OneHotEncoder", name),
            domain="ai.onnx.ml",
            cats_strings=[*kinds, *also],
            zeros=1,
        )
        ones = graph.add("Cast", ones, to=types.DOUBLE)
        ones = graph.add("Reshape", ones, graph.constant([-1, len(kinds) + len(also)], np.int64))
        if also:
            fold = np.eye(len(kinds) + len(also), len(kinds))
            for row, kind in enumerate(also.values(), len(kinds)):
                fold[row, kinds.index(kind)] = 1.0
            ones = graph.add("MatMul", ones, graph.constant(fold))
        parts.append(ones)
    values = graph.add("Concat", *parts, *gaps, axis=1)
    return _scaled(graph, model, values), inputs, []


def input_names(model: Model) -> list[str]:
    """Return the names of the inputs if each column is an input: the source's names."""
    names = [model.preparation.column_name(j) for j in range(model.n_features_in_)]
    return [f"in: {name}" if name in RESERVED else name for name in names]


def add_features(graph: Graph, model: Model, X: str) -> str:
    """Add the preparation of rows named ``X``, of a source without categories.

    Returns the name of the features (rows, n_features).
    """
    columns = np.arange(model.n_features_in_)
    values, holes = _filled(graph, X, model.preparation, columns)
    if holes is not None:
        values = graph.add("Concat", values, holes, axis=1)
    return _scaled(graph, model, values)


def _filled(
    graph: Graph, values: str, known: Preparation, columns: NDArray[np.int64]
) -> tuple[str, str | None]:
    """Add nodes that replace missing numbers in ``values`` (rows, d), and that say where they are.

    ``columns``, (d,), are the source columns' numbers, whose fill values ``known`` has. Returns the
    names of the filled values, and of the columns of 0 and 1 of `Preparation.indicators`; None if
    none of ``columns`` has one.
    """
    if known.fill is None:
        return values, None
    fill = graph.constant(known.fill[columns])
    marked = np.array([c not in known.dates for c in columns.tolist()])
    holes = graph.add("IsNaN", values)
    for number in known.missing_marks.numbers:
        mark = graph.constant(np.where(marked, number, np.nan))  # nothing equals NaN
        holes = graph.add("Or", holes, graph.add("Equal", values, mark))
    own = np.flatnonzero(np.isin(columns, known.indicators))
    values = graph.add("Where", holes, fill, values)
    if not len(own):
        return values, None
    ones = graph.add("Cast", holes, to=graph.onnx.TensorProto.DOUBLE)
    return values, graph.add("Gather", ones, graph.constant(own, np.int64), axis=1)


def _scaled(graph: Graph, model: Model, values: str) -> str:
    """Add the scaling of features, (x - offset) * factor, and the learned metric; name the result.

    ``values``: the name of the unscaled features.
    """
    known = model.preparation
    if known.offset is not None:
        values = graph.add("Sub", values, graph.constant(known.offset))
    if known.factor is not None:
        values = graph.add("Mul", values, graph.constant(known.factor))
    if known.metric is not None:
        step = "Mul" if known.metric.ndim == 1 else "MatMul"
        values = graph.add(step, values, graph.constant(known.metric))
    return values


def add_scores(graph: Graph, model: Model, X: str) -> str:
    """Add the computation of the model's scores (rows, k) from features named ``X``."""
    if model.gate is not None:
        raise InputError("machines of parts (an early divide and conquer) are not exported to onnx")
    return _add_sums(graph, model, model.landmarks, X, model.coef, model.intercept)


def add_fold_scores(graph: Graph, model: Model, X: str, scores: str) -> str:
    """Add the scores by the folds' machines (cross-validation), (rows, machines * k).

    Without fold machines these are ``scores``, the name of the model's own scores.
    """
    folds = model.fold_machines
    if folds is None:
        return scores
    rows = model.landmarks if folds.landmarks is None else folds.landmarks
    coef = folds.coef.reshape(-1, folds.coef.shape[2])
    return _add_sums(graph, model, rows, X, coef, folds.intercept.ravel())


def _add_sums(
    graph: Graph, model: Model, rows: Any, X: str, coef: FloatArray, intercept: FloatArray
) -> str:
    """Add weighted sums of kernel entries, plus offsets; return their name, (rows, len(coef)).

    ``rows`` are the landmarks; None: the sums are of the features named ``X`` themselves.
    """
    if rows is not None:
        X = _kernel_entries(graph, model.kernel, rows, X)
    sums = graph.add("MatMul", X, graph.constant(coef.T))
    return graph.add("Add", sums, graph.constant(intercept))


def _kernel_entries(graph: Graph, kernel: Any, rows: Any, X: str) -> str:
    """Add kernel entries of features ``X`` with landmarks ``rows``: (rows of X, landmarks).

    They are added only once for the same array of landmarks.
    """
    if id(rows) in graph.entries:
        return graph.entries[id(rows)]
    if not isinstance(kernel, Compiled):
        raise InputError(f"a {kernel.name} kernel is not exported to onnx: it has no formula")
    if 8 * rows.shape[0] * rows.shape[1] >= 1 << 31:
        raise InputError(
            f"{rows.shape[0]} rows of {rows.shape[1]} columns take more than the 2 GiB that an "
            "ONNX file may have, which knows no sparse matrices; export to libsvm"
        )
    Z = np.asarray(rows.toarray() if issparse(rows) else rows, np.float64)
    if kernel.invariant:  # centre rows: differences of squared norms then lose fewer digits
        middle = Z.mean(axis=0)
        X, Z = graph.add("Sub", X, graph.constant(middle)), Z - middle
    graph.entries[id(rows)] = _entries(graph, kernel, X, Z)
    return graph.entries[id(rows)]


def _entries(graph: Graph, kernel: Any, X: str, Z: FloatArray) -> str:
    """Add nodes that compute kernel entries of features ``X`` with ``Z`` (m, d): (rows, m)."""
    if kernel.pairing not in PRODUCTS:
        return _entries_of_differences(graph, kernel, X, Z)
    products = graph.add("MatMul", X, graph.constant(Z.T))
    if kernel.name == "linear":
        return products
    if kernel.name == "rbf":
        own = graph.add("ReduceSum", graph.add("Mul", X, X), graph.constant([1], np.int64))
        apart = graph.add("Add", graph.add("Mul", products, graph.constant(-2.0)), own)
        apart = graph.add("Add", apart, graph.constant(np.einsum("ij,ij->i", Z, Z)))
        apart = graph.add("Max", apart, graph.constant(0.0))
        return graph.add("Exp", graph.add("Mul", apart, graph.constant(-kernel.gamma)))
    moved = graph.add(
        "Add",
        graph.add("Mul", products, graph.constant(kernel.gamma)),
        graph.constant(kernel.coef0),
    )
    if kernel.name == "sigmoid":
        return graph.add("Tanh", moved)
    return graph.add("Pow", moved, graph.constant(float(kernel.degree)))


def _entries_of_differences(graph: Graph, kernel: Any, X: str, Z: FloatArray) -> str:
    """Add entries of a kernel that sums over differences of the columns of ``X`` and ``Z``.

    ``X``: the name of the rows' features; ``Z``: the landmarks (m, d). Entries are (rows, m).
    """
    rows, others = graph.add("Unsqueeze", X, graph.constant([1], np.int64)), graph.constant(Z[None])
    apart = graph.add("Sub", rows, others)
    if kernel.name == "laplacian":
        terms = graph.add("Abs", apart)
    else:
        terms = graph.add("Mul", apart, apart)
    if kernel.name == "chi2":
        # (A column of zeros has the term 0 / tiny.)
        total = graph.add("Max", graph.add("Add", rows, others), graph.constant(FLOAT32_TINY))
        terms = graph.add("Div", terms, total)
    total = graph.add("ReduceSum", terms, graph.constant([2], np.int64), keepdims=0)
    if kernel.pairing != "apart":
        return graph.add("Exp", graph.add("Mul", total, graph.constant(-kernel.gamma)))
    scale = np.sqrt(2 * kernel.order) * kernel.gamma
    s = graph.add("Mul", graph.add("Sqrt", total), graph.constant(scale))
    linear, square = (graph.constant(factor) for factor in kernel.polynomial)
    factor = graph.add("Mul", s, graph.add("Add", linear, graph.add("Mul", square, s)))
    factor = graph.add("Add", factor, graph.constant(1.0))
    return graph.add("Mul", factor, graph.add("Exp", graph.add("Neg", s)))


def add_codes(graph: Graph, model: Model, scores: str) -> str:
    """Add the computation of label codes (rows,) from ``scores`` to the graph; return their name.

    The rules are those of `Model.decide`.
    """
    types = graph.onnx.TensorProto
    if model.strategy == "one" and len(model.labels) > 2:
        votes, _ = _votes(graph, model, graph.add("Less", scores, graph.constant(0.0)))
        return graph.add("ArgMax", votes, axis=1, keepdims=0)
    if len(model.coef) == 1:
        op = "GreaterOrEqual" if model.strategy == "one" else "Greater"
        over = graph.add(op, scores, graph.constant(model.threshold))
        code = graph.add("Cast", over, to=types.INT64)
        return graph.add("Squeeze", code, graph.constant([1], np.int64))
    return graph.add("ArgMax", scores, axis=1, keepdims=0)


def _votes(graph: Graph, model: Model, lost: str) -> tuple[str, str]:
    """Add votes for labels (rows, k) from pair decisions.

    ``lost`` names a mask (rows, pairs): whether a pair's second label lost. Returns the names of
    the votes and of a matrix (pairs, k): 1 for a pair's first label, -1 for its second.
    """
    k = len(model.labels)
    first, second = np.triu_indices(k, 1)
    pairs = np.zeros((len(first), k))
    # Start from all votes for the second labels; a vote for a first label moves one.
    pairs[np.arange(len(first)), first] = 1.0
    pairs[np.arange(len(first)), second] = -1.0
    added = graph.constant(pairs)
    votes = graph.add("MatMul", graph.add("Cast", lost, to=graph.onnx.TensorProto.DOUBLE), added)
    return graph.add("Add", votes, graph.constant(np.bincount(second, minlength=k))), added


def add_votes(graph: Graph, model: Model, scores: str) -> str:
    """Add decision values per label (rows, k) of pair scores, as `Model.decision_values` does."""
    votes, added = _votes(graph, model, graph.add("LessOrEqual", scores, graph.constant(0.0)))
    total = graph.add("MatMul", graph.add("Neg", scores), added)
    room = graph.add("Add", graph.add("Abs", total), graph.constant(1.0))
    part = graph.add("Div", total, graph.add("Mul", room, graph.constant(3.0)))
    return graph.add("Add", votes, part)


def add_probabilities(graph: Graph, model: Model, scores: str, held: str) -> str:
    """Add probabilities of labels (rows, k), one against the rest or binary.

    The formula is that of `Calibration.probabilities`: the mean over the folds' machines, whose
    scores ``held`` names, clipped to the side of the model's own ``scores`` with two labels.
    """
    known, k = model.calibrated, len(model.coef)
    machines = []
    for f in range(known.machines):
        parts = []
        for c, curve in enumerate(known.curves):
            place = graph.constant([f * k + c], np.int64)
            parts.append(_curve(graph, curve, graph.add("Gather", held, place, axis=1)))
        found = parts[0]
        if len(parts) > 1:
            found = graph.add("Concat", *parts, axis=1)
            total = graph.add("ReduceSum", found, graph.constant([1], np.int64))
            found = graph.add("Div", found, total)
        machines.append(found)
    mean = machines[0]
    for found in machines[1:]:
        mean = graph.add("Add", mean, found)
    mean = graph.add("Mul", mean, graph.constant(1.0 / known.machines))
    if len(model.labels) > 2:
        return mean
    second = _on_side(graph, known.curves[0].even, mean, scores)
    return graph.add("Concat", graph.add("Sub", graph.constant(1.0), second), second, axis=1)


def _curve(graph: Graph, curve: Curve, score: str) -> str:
    """Add the map of a calibration curve from scores (rows, 1) to probabilities (rows, 1)."""
    if len(curve.x) == 1:
        line = graph.add("Mul", score, graph.constant(-curve.x[0]))
        found = graph.add("Sigmoid", graph.add("Add", line, graph.constant(-curve.p[0])))
        found = graph.add("Max", found, graph.constant(MIN_PROBABILITY))
        found = graph.add("Min", found, graph.constant(1 - MIN_PROBABILITY))
    else:  # sum over the segments between knots, each as far as the score reaches
        along = graph.add("Sub", score, graph.constant(curve.x[:-1]))
        along = graph.add("Div", along, graph.constant(np.diff(curve.x)))
        along = graph.add("Max", along, graph.constant(0.0))
        along = graph.add("Min", along, graph.constant(1.0))
        found = graph.add("MatMul", along, graph.constant(np.diff(curve.p)[:, None]))
        found = graph.add("Add", found, graph.constant(curve.p[0]))
    return _on_side(graph, curve.even, found, score)


def _on_side(graph: Graph, even: float | None, found: str, score: str) -> str:
    """Add the clipping of probabilities ``found`` to the side of ``even`` that ``score`` means.

    Both are names of results. A probability becomes more than ``even`` for a positive score, else
    at most ``even``. ``even`` of None: nothing is clipped.
    """
    if even is None:
        return found
    above = graph.add("Max", found, graph.constant(np.nextafter(even, 1.0)))
    below = graph.add("Min", found, graph.constant(even))
    return graph.add("Where", graph.add("Greater", score, graph.constant(0.0)), above, below)


def run_onnx(
    path: str | os.PathLike[str], model: Model, rows: SampledRows
) -> dict[str, NDArray[Any]]:
    """Run an ONNX file on sampled rows; return its outputs and `FOLD_SCORES`, by name."""
    onnx, runtime = import_onnx()
    bundle = onnx.load(os.fspath(path))
    if any(FOLD_SCORES in node.output for node in bundle.graph.node):
        kind = onnx.helper.make_tensor_value_info(FOLD_SCORES, onnx.TensorProto.DOUBLE, None)
        bundle.graph.output.append(kind)
    made = bundle.SerializeToString()
    session = runtime.InferenceSession(made, providers=["CPUExecutionProvider"])
    if model.preparation.categories:
        names = input_names(model)
        parts = zip(names, rows.columns, strict=True)
        given = {name: column[:, None] for name, column in parts}
    else:
        given = {"X": rows.table().astype(np.float64)}
    outputs = [each.name for each in session.get_outputs()]
    return dict(zip(outputs, session.run(None, given), strict=True))

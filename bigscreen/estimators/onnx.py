"""Convert estimators within scikit-learn pipelines to ONNX, as converters of skl2onnx.

After ``register()``, `skl2onnx.to_onnx` converts the estimators anywhere in a pipeline. Scores are
computed in float64. A classifier or one-class machine at the end of a graph has the outputs
``label`` and ``scores`` (the columns of `decision_function`) and, if it is calibrated,
``probabilities``. A regressor has the output ``variable``, like scikit-learn's. Within a
meta-estimator a classifier has its label and a value per label as outputs; see `_Use`.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.model_selection import GridSearchCV, TunedThresholdClassifierCV
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.pipeline import Pipeline

from bigscreen.errors import InputError
from bigscreen.estimators.classification import SVC, NuSVC
from bigscreen.estimators.large_scale import NystroemSVC
from bigscreen.estimators.linear import LinearSVC, LinearSVR
from bigscreen.estimators.one_class import OneClassSVM
from bigscreen.estimators.path import SVCPathCV
from bigscreen.estimators.regression import SVR, LADRegressor, NuSVR, QuantileRegressor
from bigscreen.estimators.tune import SVCCV, NuSVCCV, NystroemSVCCV
from bigscreen.export.onnx import (
    Graph,
    add_codes,
    add_features,
    add_fold_scores,
    add_probabilities,
    add_scores,
    add_votes,
)
from bigscreen.model.model import Model

ESTIMATORS = (
    *(SVC, NuSVC, NystroemSVC, LinearSVC, OneClassSVM, SVCPathCV, SVCCV, NuSVCCV, NystroemSVCCV),
    *(SVR, NuSVR, LinearSVR, LADRegressor, QuantileRegressor),
)
"""Estimators that `register` makes convertible."""

MIN_OPSET = 13
"""Oldest version of ONNX's operators that the converters can target."""


def register() -> None:
    """Register the converters of all estimators with skl2onnx; may be called more than once.

    Raises
    ------
    InputError
        If skl2onnx is not installed.
    """
    try:
        from skl2onnx import update_registered_converter
    except ImportError as error:
        raise InputError(
            f"converters are for skl2onnx, which is missing ({error}): pip install "
            "'bigscreen[export]'"
        ) from error
    for kind in ESTIMATORS:
        update_registered_converter(
            kind,
            f"Bigscreen{kind.__name__}",
            _settle_shapes,
            _convert,
            parser=_declare_outputs,
            options={"zipmap": [False]},  # probabilities are an array in any case
        )


class _Added(Graph):
    """A `Graph` whose nodes and constants are added to a graph of skl2onnx."""

    def __init__(self, scope: Any, container: Any) -> None:
        """Add to the graph ``container`` of skl2onnx, with unique names from its ``scope``."""
        import onnx

        self.onnx, self._scope, self._container = onnx, scope, container
        self.entries: dict[int, str] = {}

    def constant(self, value: Any, dtype: type = np.float64) -> str:
        """Add a constant tensor to skl2onnx's graph; return its name."""
        name: str = self._scope.get_unique_variable_name("bigscreen")
        tensor = self.tensor(value, dtype, name)
        self._container.initializers.append(tensor)
        return name

    def add(self, op: str, *inputs: str, domain: str = "", out: str = "", **attributes: Any) -> str:
        """Add a node to skl2onnx's graph; return the name of its result."""
        out = out or self._scope.get_unique_variable_name("bigscreen")
        self._container.add_node(op, list(inputs), [out], op_domain=domain, **attributes)
        return out


def _has_probabilities(machine: Any) -> bool:
    """Whether the machine has calibrated probabilities, which the graph can compute."""
    model: Model = machine.model_
    return model.calibration is not None and hasattr(machine, "predict_proba")


class _Use(Enum):
    """The kind of values that a meta-estimator expects as a classifier's second output."""

    LABEL = "the predicted label as a number, one column"
    DECISION = "scores in the columns of decision_function"
    SCORES = "scores, one a label: (-s, s) of a binary machine"
    VOTES = "1 for the predicted label, 0 for each other one"
    SHARES = "probabilities, or numbers in (0, 1) that grow with a binary machine's score"
    PROBABILITIES = "probabilities, or scores of a machine that has none"


def _find_parts(estimator: Any) -> list[Any]:
    """Return the fitted estimators within a meta-estimator that skl2onnx converts by itself.

    [] for pipelines, grid searches and this package's estimators, which are converted here. Parts
    that a meta-estimator does not have are None.
    """
    if isinstance(estimator, (Pipeline, GridSearchCV, *ESTIMATORS)):
        return []
    if isinstance(estimator, CalibratedClassifierCV):
        return [each.estimator for each in getattr(estimator, "calibrated_classifiers_", ())]
    single = (getattr(estimator, name, None) for name in ("estimator_", "final_estimator_"))
    return [*getattr(estimator, "estimators_", ()), *single]


def _final_estimator(estimator: Any) -> Any:
    """Return the final estimator of nested pipelines and searches, which makes predictions."""
    while isinstance(estimator, (Pipeline, GridSearchCV)):
        is_pipeline = isinstance(estimator, Pipeline)
        estimator = estimator.steps[-1][1] if is_pipeline else estimator.best_estimator_
    return estimator


def _find_meta(scope: Any, machine: Any) -> tuple[Any, Any] | None:
    """Return the meta-estimator that contains a machine, and the part that ends in the machine.

    ``scope`` is skl2onnx's record of all operators in the graph. None if the machine is in no
    meta-estimator, except pipelines and searches.
    """
    known = [operator.raw_operator for operator in scope.operators.values()]
    parts = ((meta, part) for meta in known for part in _find_parts(meta))
    return next(((meta, part) for meta, part in parts if _final_estimator(part) is machine), None)


def _refuse_wrong_graphs(meta: Any, has_values: bool) -> None:
    """Raise InputError if skl2onnx converts a meta-estimator to a graph with wrong predictions.

    ``has_values``: whether its machines have probabilities, or raw scores were requested.
    """
    if isinstance(meta, TunedThresholdClassifierCV):
        raise InputError(
            "TunedThresholdClassifierCV is not converted: skl2onnx leaves its threshold out"
        )
    if isinstance(meta, BaggingClassifier) and not has_values:
        raise InputError(
            "BaggingClassifier of machines without probabilities is not converted, because "
            "skl2onnx miscounts their votes: fit them with probability=True, or convert with "
            "options={id(bagging): {'raw_scores': True}}"
        )
    if isinstance(meta, OneVsOneClassifier):
        positions = np.arange(len(meta.classes_)).tolist()
        if meta.classes_.tolist() != positions:
            raise InputError(
                f"OneVsOneClassifier with labels other than 0 to {positions[-1]} is not converted, "
                "because skl2onnx gives the label's position: encode the labels (LabelEncoder)"
            )


def _use(scope: Any, container: Any, machine: Any) -> _Use | None:
    """Determine what a meta-estimator uses a classifier's second ONNX output for.

    Returns None if the machine is in no meta-estimator (except pipelines and searches). ``scope``
    and ``container`` are skl2onnx's: the operators, and the graph with its options.

    Raises
    ------
    InputError
        If skl2onnx converts the meta-estimator to a graph with wrong predictions.
    """
    found = _find_meta(scope, machine)
    if found is None:
        return None
    meta, part = found
    raw = (container.get_options(meta, {}, fail=False) or {}).get("raw_scores", False)
    _refuse_wrong_graphs(meta, raw or _has_probabilities(machine))
    if isinstance(meta, StackingClassifier) and part is not meta.final_estimator_:
        first = [each is part for each in meta.estimators_].index(True)
        methods = {"decision_function": _Use.DECISION, "predict": _Use.LABEL}
        return methods.get(meta.stack_method_[first], _Use.PROBABILITIES)
    if isinstance(meta, CalibratedClassifierCV):
        return _Use.SCORES if len(machine.model_.labels) == 2 else _Use.DECISION
    if isinstance(meta, OneVsOneClassifier) or raw:
        return _Use.SCORES
    hard = isinstance(meta, VotingClassifier) and meta.voting == "hard"
    if hard or isinstance(meta, AdaBoostClassifier):
        return _Use.VOTES
    return _Use.SHARES if isinstance(meta, OneVsRestClassifier) else _Use.PROBABILITIES


def _output_types(machine: Any, given: Any) -> list[tuple[str, Any]]:
    """Return names and types of a machine's outputs.

    ``given`` is the type of the input; scores are float64 or float32 like it.
    """
    from skl2onnx.common import data_types

    model: Model = machine.model_
    wide = isinstance(given, data_types.DoubleTensorType)
    number = data_types.DoubleTensorType if wide else data_types.FloatTensorType
    if is_regressor(machine):
        return [("variable", number([None, model.n_targets]))]
    kind = _labels(machine).dtype.kind
    label = {"i": data_types.Int64TensorType, "f": data_types.DoubleTensorType}
    votes = len(model.coef) > 1 and getattr(machine, "decision_function_shape", "") == "ovr"
    width = len(model.labels) if votes else len(model.coef)
    outputs = [
        ("label", label.get(kind, data_types.StringTensorType)([None])),
        ("scores", number([None, width])),
    ]
    if _has_probabilities(machine):
        outputs.append(("probabilities", number([None, len(model.labels)])))
    return outputs


def _labels(machine: Any) -> NDArray[Any]:
    """Return the labels, in code order, in a type that ONNX has: int64, float64 or text."""
    labels = np.asarray(getattr(machine, "classes_", machine.model_.labels))
    if labels.dtype.kind in "iub":
        return labels.astype(np.int64)
    return labels if labels.dtype.kind == "f" else np.array([str(n) for n in labels], object)


def _declare_outputs(scope: Any, machine: Any, inputs: Any, custom_parsers: Any = None) -> Any:
    """Declare a machine's outputs, and return them: a parser, as skl2onnx calls it.

    ``scope`` is skl2onnx's record of operators and variables. Within a meta-estimator there are two
    outputs at most.
    """
    operator = scope.declare_local_operator(f"Bigscreen{type(machine).__name__}", machine)
    operator.inputs.extend(inputs)
    types = _output_types(machine, inputs[0].type)
    for name, kind in types if _find_meta(scope, machine) is None else types[:2]:
        operator.outputs.append(scope.declare_local_variable(name, kind))
    return operator.outputs


def _settle_shapes(operator: Any) -> None:
    """Set the types of a machine's outputs: a shape calculator, as skl2onnx calls it.

    ``operator`` is the machine's in skl2onnx's graph: ``raw_operator``, inputs and outputs.
    """
    machine = operator.raw_operator
    found = _output_types(machine, operator.inputs[0].type)
    if not is_regressor(machine) and _find_meta(operator.scope_inst, machine) is not None:
        label, (name, values) = found[:2]
        found = [label, (name, type(values)([None, None]))]
    for output, (_, kind) in zip(operator.outputs, found, strict=True):
        output.type = kind


def _convert(scope: Any, operator: Any, container: Any) -> None:
    """Add a machine's nodes to the graph: a converter, as skl2onnx calls it.

    ``operator`` holds the machine, ``container`` the nodes and constants of the graph.

    Raises
    ------
    InputError
        If the machine cannot be expressed in ONNX.
    """
    machine, model = operator.raw_operator, operator.raw_operator.model_
    if len(operator.inputs) != 1 or model.preparation.categories:
        raise InputError(
            "one array of numbers is converted, and the model was fitted to a table with "
            "categories: export it by itself (bigscreen export --to onnx)"
        )
    if container.target_opset < MIN_OPSET:
        raise InputError(f"converters are for target_opset {MIN_OPSET} or newer")
    if getattr(machine, "break_ties", False) and len(model.coef) > 1:
        raise InputError("break_ties=True is not converted")
    graph = _Added(scope, container)
    types = graph.onnx.TensorProto
    X = graph.add("Cast", operator.inputs[0].full_name, to=types.DOUBLE)
    features = add_features(graph, model, X)
    scores = add_scores(graph, model, features)
    first, *others = (output.full_name for output in operator.outputs)
    use = _use(scope, container, machine)
    narrow = operator.outputs[-1].type.__class__.__name__.startswith("Float")
    number = types.FLOAT if narrow else types.DOUBLE
    if is_regressor(machine):
        graph.add("Cast", scores, to=number, out=first)
        return
    names = _labels(machine)
    labels = graph.constant(names, names.dtype.type)
    codes = add_codes(graph, model, scores)
    graph.add("Gather", labels, codes, out=first)
    if use is not None:
        if use is _Use.LABEL:
            values = graph.add("Unsqueeze", first, graph.constant([1], np.int64))
        else:
            values = _values_in_meta(graph, machine, features, scores, codes, use)
        graph.add("Cast", values, to=number, out=others[0])
        return
    graph.add("Cast", _values(graph, machine, scores), to=number, out=others[0])
    if _has_probabilities(machine):
        held = add_fold_scores(graph, model, features, scores)
        found = add_probabilities(graph, model, scores, held)
        graph.add("Cast", found, to=number, out=others[1])


def _values_in_meta(
    graph: Graph, machine: Any, features: str, scores: str, codes: str, use: _Use
) -> str:
    """Add the values that a meta-estimator expects of a classifier, (rows, labels), to the graph.

    ``features``, ``scores`` and ``codes`` (of the predicted labels) are names of results in the
    graph; returns the name of the values. ``use`` is what the meta-estimator does with them.
    """
    model: Model = machine.model_
    if use is _Use.VOTES:
        return graph.add("Gather", graph.constant(np.eye(len(model.labels))), codes)
    if use in (_Use.SHARES, _Use.PROBABILITIES) and _has_probabilities(machine):
        held = add_fold_scores(graph, model, features, scores)
        return add_probabilities(graph, model, scores, held)
    if use is _Use.DECISION:
        return _values(graph, machine, scores)
    if len(model.labels) > 2:
        return add_votes(graph, model, scores) if model.strategy == "one" else scores
    low, high = graph.add("Neg", scores), scores
    if use is _Use.SHARES:  # (1 + s / (1 + |s|)) / 2
        room = graph.add("Add", graph.add("Abs", scores), graph.constant(1.0))
        half = graph.add("Div", scores, graph.add("Mul", room, graph.constant(2.0)))
        high = graph.add("Add", half, graph.constant(0.5))
        low = graph.add("Sub", graph.constant(1.0), high)
    return graph.add("Concat", low, high, axis=1)


def _values(graph: Graph, machine: Any, scores: str) -> str:
    """Add the values of the machine's `decision_function` to the graph; return their name.

    ``scores`` names the model's scores (rows, k).
    """
    model: Model = machine.model_
    shape = getattr(machine, "decision_function_shape", None)
    if len(model.coef) == 1 or shape is None:
        return scores
    if shape == "ovo":  # a positive score means a pair's first class there
        return graph.add("Neg", scores)
    return add_votes(graph, model, scores)

"""Estimators as nodes of the ONNX graphs that skl2onnx makes of scikit-learn pipelines.

After ``register()``, `skl2onnx.to_onnx` converts them wherever they stand. Scores are computed in
float64. Classifiers and one-class machines give ``label`` and ``scores`` (what `decision_function`
gives, a column for each), and ``probabilities`` if they have learnt them on all rows; regressors
give ``variable``, as those of scikit-learn do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_regressor

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

LEAST_OPSET = 13


def register() -> None:
    """Tell skl2onnx how the estimators are converted; a second call changes nothing.

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
            options={"zipmap": [False]},  # (probabilities come as an array anyway)
        )


class _Added(Graph):
    """Nodes and constants that go into a graph of skl2onnx."""

    def __init__(self, scope: Any, container: Any) -> None:
        import onnx

        self.onnx, self._scope, self._container = onnx, scope, container
        self.entries: dict[int, str] = {}

    def constant(self, value: Any, dtype: type = np.float64) -> str:
        name: str = self._scope.get_unique_variable_name("bigscreen")
        tensor = self.tensor(value, dtype, name)
        self._container.initializers.append(tensor)
        return name

    def add(self, op: str, *inputs: str, domain: str = "", out: str = "", **attributes: Any) -> str:
        out = out or self._scope.get_unique_variable_name("bigscreen")
        self._container.add_node(op, list(inputs), [out], op_domain=domain, **attributes)
        return out


def _probable(machine: Any) -> bool:
    """Whether there are probabilities whose formula the graph has."""
    model: Model = machine.model_
    return model.calibration is not None and hasattr(machine, "predict_proba")


def _types(machine: Any, given: Any) -> list[tuple[str, Any]]:
    """The outputs by their names, and their types; scores are as wide as the input."""
    from skl2onnx.common import data_types

    model: Model = machine.model_
    wide = isinstance(given, data_types.DoubleTensorType)
    number = data_types.DoubleTensorType if wide else data_types.FloatTensorType
    if is_regressor(machine):
        return [("variable", number([None, 1]))]
    kind = _labels(machine).dtype.kind
    label = {"i": data_types.Int64TensorType, "f": data_types.DoubleTensorType}
    votes = len(model.coef) > 1 and getattr(machine, "decision_function_shape", "") == "ovr"
    width = len(model.labels) if votes else len(model.coef)
    outputs = [
        ("label", label.get(kind, data_types.StringTensorType)([None])),
        ("scores", number([None, width])),
    ]
    if _probable(machine):
        outputs.append(("probabilities", number([None, len(model.labels)])))
    return outputs


def _labels(machine: Any) -> NDArray[Any]:
    """Labels as ONNX has them: whole numbers, numbers, or texts."""
    labels = np.asarray(getattr(machine, "classes_", machine.model_.labels))
    if labels.dtype.kind in "iub":
        return labels.astype(np.int64)
    return labels if labels.dtype.kind == "f" else np.array([str(n) for n in labels], object)


def _declare_outputs(scope: Any, machine: Any, inputs: Any, custom_parsers: Any = None) -> Any:
    """What skl2onnx calls a parser."""
    operator = scope.declare_local_operator(f"Bigscreen{type(machine).__name__}", machine)
    operator.inputs.extend(inputs)
    for name, kind in _types(machine, inputs[0].type):
        operator.outputs.append(scope.declare_local_variable(name, kind))
    return operator.outputs


def _settle_shapes(operator: Any) -> None:
    """What skl2onnx calls a shape calculator."""
    found = _types(operator.raw_operator, operator.inputs[0].type)
    for output, (_, kind) in zip(operator.outputs, found, strict=True):
        output.type = kind


def _convert(scope: Any, operator: Any, container: Any) -> None:
    """What skl2onnx calls a converter.

    Raises
    ------
    InputError
        If ONNX has no such machine.
    """
    machine, model = operator.raw_operator, operator.raw_operator.model_
    if len(operator.inputs) != 1 or model.preparation.categories:
        raise InputError(
            "one array of numbers is converted, and the model was fitted to a table with "
            "categories: export it by itself (bigscreen export --to onnx)"
        )
    if container.target_opset < LEAST_OPSET:
        raise InputError(f"converters are for target_opset {LEAST_OPSET} or newer")
    if getattr(machine, "break_ties", False) and len(model.coef) > 1:
        raise InputError("break_ties=True is not converted")
    graph = _Added(scope, container)
    types = graph.onnx.TensorProto
    X = graph.add("Cast", operator.inputs[0].full_name, to=types.DOUBLE)
    features = add_features(graph, model, X)
    scores = add_scores(graph, model, features)
    first, *others = (output.full_name for output in operator.outputs)
    narrow = operator.outputs[-1].type.__class__.__name__.startswith("Float")
    number = types.FLOAT if narrow else types.DOUBLE
    if is_regressor(machine):
        graph.add("Cast", scores, to=number, out=first)
        return
    names = _labels(machine)
    labels = graph.constant(names, names.dtype.type)
    graph.add("Gather", labels, add_codes(graph, model, scores), out=first)
    graph.add("Cast", _values(graph, machine, scores), to=number, out=others[0])
    if _probable(machine):
        held = add_fold_scores(graph, model, features, scores)
        found = add_probabilities(graph, model, scores, held)
        graph.add("Cast", found, to=number, out=others[1])


def _values(graph: Graph, machine: Any, scores: str) -> str:
    """What `decision_function` gives."""
    model: Model = machine.model_
    shape = getattr(machine, "decision_function_shape", None)
    if len(model.coef) == 1 or shape is None:
        return scores
    if shape == "ovo":  # a pair's score is above 0 for its first class there
        return graph.add("Neg", scores)
    return add_votes(graph, model, scores)

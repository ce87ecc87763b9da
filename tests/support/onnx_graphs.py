"""Run the graphs that skl2onnx makes of estimators with onnxruntime."""

import pytest

from bigscreen.estimators.onnx import register

REASON = "skl2onnx is of the extra export"


def run_graph(estimator, X, options=None):
    """Convert a fitted estimator and run its graph on rows; return results by output name.

    ``options`` are skl2onnx's options of the estimator; the inputs have the type of ``X``.
    """
    skl2onnx = pytest.importorskip("skl2onnx", reason=REASON)
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is of the extra export")
    register()
    register()
    made = skl2onnx.to_onnx(estimator, X[:1], options=options)
    session = runtime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"X": X}), strict=True))

"""Models as other programs have them: ONNX, scikit-learn, skops, LIBSVM; compared with ours."""

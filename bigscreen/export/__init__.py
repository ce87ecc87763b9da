"""Export models to ONNX, scikit-learn, skops and LIBSVM, and compare the exports' scores."""

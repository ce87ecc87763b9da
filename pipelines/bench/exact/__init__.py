"""The exact kernel machine beside scikit-learn, scikit-learn-intelex and LIBSVM."""

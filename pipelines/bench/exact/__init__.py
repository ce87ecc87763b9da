"""The exact kernel machine compared with scikit-learn, scikit-learn-intelex and LIBSVM."""

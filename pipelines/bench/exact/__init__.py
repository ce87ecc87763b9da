"""Races of the exact kernel machine against scikit-learn, scikit-learn-intelex and LIBSVM."""

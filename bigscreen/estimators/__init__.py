"""Estimators with scikit-learn's interface."""

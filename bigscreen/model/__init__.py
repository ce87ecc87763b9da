"""Fitted models and paths: scores, predictions, probabilities, certificates and files."""

"""Fitted machines and paths: scores, files, predictions, evaluation."""

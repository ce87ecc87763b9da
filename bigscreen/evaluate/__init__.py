"""Evaluation of models on stores, and files of their predictions."""

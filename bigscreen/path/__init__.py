"""Paths: one problem solved for every value of a grid of C or nu, warm-started, with folds."""

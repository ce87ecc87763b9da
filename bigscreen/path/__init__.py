"""A grid of C or nu: every point from the one before, rules before each, folds that judge it."""

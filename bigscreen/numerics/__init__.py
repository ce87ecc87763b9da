"""Numerical tools: compiled loops over rows, order-independent sums, order statistics."""

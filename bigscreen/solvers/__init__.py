"""Solvers of the dual or the primal; no solver knows a screening rule."""

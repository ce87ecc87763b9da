"""Solvers of the dual or the primal; none of them knows a screening rule."""

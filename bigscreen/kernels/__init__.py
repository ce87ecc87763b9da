"""Kernels: entries between rows, and bounds on the rounding errors of entries."""

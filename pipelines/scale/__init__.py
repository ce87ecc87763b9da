"""Fits on large data sets, or on stand-ins of their shape."""

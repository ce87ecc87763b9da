"""Pairs of rows of an exact kernel machine, in one process."""

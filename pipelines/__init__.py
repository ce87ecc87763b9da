"""Scripted experiments and benchmarks, each run from the repository's root by `python -m`."""

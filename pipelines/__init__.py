"""Experiments and benchmarks; each runs from the repository's root by `python -m`."""

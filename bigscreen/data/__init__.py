"""Data sets on disk and in memory, and how their rows were prepared."""

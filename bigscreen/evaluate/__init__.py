"""How good a model is on a store, and its answers written to files."""

"""Plan a fit before it runs: its solver, its features, and the memory of each process."""

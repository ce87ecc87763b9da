"""The fit of one problem: solver, screening rule, budgets, checkpoints and closing pass."""

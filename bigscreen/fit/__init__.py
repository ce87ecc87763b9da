"""The one loop: solver, rule, budgets, checkpoints, closing pass."""

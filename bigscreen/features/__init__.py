"""The columns that solvers multiply with: raw features, stored features, or kernel columns."""

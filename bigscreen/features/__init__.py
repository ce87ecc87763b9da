"""What solvers multiply with: raw rows, stored features, columns of a kernel."""

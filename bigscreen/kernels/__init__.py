"""The kernels: entries between rows, and what rounding can do to them."""

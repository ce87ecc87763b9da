"""Compiled loops over rows, sums that come out the same in every order, order statistics."""

"""Closing passes: certificates (P, D and their gap over all rows) computed without the solver."""

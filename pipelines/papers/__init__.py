"""Shared parts of the papers' experiments: data sets, tables, and a page with all results."""

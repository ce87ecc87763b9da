"""Certified edits of a fitted machine: rows are removed, added, relabelled or reweighted."""

"""Outputs that appear whole or not at all, sealed records, checkpoints, work folders."""

"""Smoothed Newton for machines on features."""

"""Paths of C beside as many cold fits of others."""
